"""What the configurations of all drafters have in common: shapes, rotary positions, drafting defaults, provenance."""

import math
from dataclasses import fields
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.functional.buckets import NUM_BUCKETS
from specblock_zoo.structures import FINAL_NORM, TreeSettings

ROPE_TYPES = ("default", "llama3")
Rules = dict[str, tuple[bool, str]]
"""Field -> (whether its value is in order, what was expected)."""


class DrafterConfig(PreTrainedConfig):
    """Fields that every drafter has; subclasses add their own and extend `check`.

    Attributes:
        vocab_size: the target's (padded) vocabulary, V.
        draft_vocab_size: the drafter's own vocabulary, D <= V.
        hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim: drafter
            shape; head_dim is never derived from hidden_size.
        target_hidden_size, target_num_hidden_layers: checked against the target at first meeting.
        tap_layers: 0-based target layers whose outputs are read, in concatenation order.
        rope_theta, rope_scaling, max_position_embeddings: rotary positions; they follow the target.
        block_width: slots per block, the paper's K; fixed by training.
        context_slots: slots per committed position kept as context, 1..K.
        train_blocks: blocks unrolled in training.
        num_blocks, max_nodes, beam_width, branching, confident_root, confident_slots, merge_duplicates, chain,
            bound_all_starts, min_path_prob, cost_curve, max_slots, lookup_tokens, lookup_alone: drafting defaults, see
            `TreeSettings`. Without `branching` every slot is as wide as the beam, whatever its bucket.
        target_name, target_revision, tokenizer_hash: provenance of the target the drafter was trained for.
        vocab_coverage: share of supervised training tokens inside the draft vocabulary, 0..1.
    """

    sizes: ClassVar[tuple[str, ...]] = (
        *("vocab_size", "draft_vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
        *("num_attention_heads", "num_key_value_heads", "target_hidden_size", "block_width", "train_blocks"),
        "max_position_embeddings",
    )
    """Fields that are integers from 1."""

    vocab_size: int = 49152
    draft_vocab_size: int = 8192
    hidden_size: int = 576
    intermediate_size: int = 1536
    num_hidden_layers: int = 1
    num_attention_heads: int = 9
    num_key_value_heads: int = 3
    head_dim: int = 64
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    target_hidden_size: int = 576
    target_num_hidden_layers: int | None = 30
    tap_layers: list[int] | tuple[int, ...] = (1, 14, 26)
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    max_position_embeddings: int = 8192
    block_width: int = 1
    context_slots: int = 1
    train_blocks: int = 1
    num_blocks: int = 2
    max_nodes: int = 60
    beam_width: int = 10
    branching: list[int] | tuple[int, ...] | None = None
    confident_root: bool = False
    confident_slots: bool = False
    merge_duplicates: bool = True
    chain: bool = False
    bound_all_starts: bool = True
    min_path_prob: float = 0.0
    cost_curve: str = "measured"
    max_slots: int | None = None
    lookup_tokens: int = TreeSettings.lookup_tokens
    lookup_alone: float = TreeSettings.lookup_alone
    target_name: str | None = None
    target_revision: str | None = None
    tokenizer_hash: str | None = None
    vocab_coverage: float | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self.check()

    def check(self) -> None:
        """Raises `ConfigurationError` for values out of range, naming both."""
        sizes = {name: getattr(self, name) for name in self.sizes}
        # First, because the rules below divide by them.
        self.refuse({name: (type(size) is int and size >= 1, "an integer from 1") for name, size in sizes.items()})
        scaling = self.rope_scaling or {}
        self.refuse(
            {
                "context_slots": (1 <= self.context_slots <= self.block_width, f"1..block_width ({self.block_width})"),
                "draft_vocab_size": (
                    self.draft_vocab_size <= self.vocab_size,
                    f"at most vocab_size ({self.vocab_size})",
                ),
                "branching": (
                    self.branching is None or len(self.branching) == NUM_BUCKETS,
                    f"{NUM_BUCKETS} widths, one per rank bucket",
                ),
                "num_key_value_heads": (
                    self.num_attention_heads % self.num_key_value_heads == 0,
                    f"a divisor of num_attention_heads ({self.num_attention_heads})",
                ),
                "head_dim": (self.head_dim % 2 == 0, "even"),
                "rope_scaling": (
                    scaling.get("rope_type", scaling.get("type", "default")) in ROPE_TYPES,
                    f"rope_type {' or '.join(ROPE_TYPES)}",
                ),
                **self._number_rules(),
            }
        )
        _ = self.tree_settings  # refuses drafting defaults out of range

    def _number_rules(self) -> Rules:
        above_zero = {name: getattr(self, name) for name in ("rope_theta", "rms_norm_eps", "initializer_range")}
        layers, coverage, taps = self.target_num_hidden_layers, self.vocab_coverage, self.tap_layers
        return {
            **{name: (_is_number(x) and 0.0 < x < math.inf, "a number above 0") for name, x in above_zero.items()},
            "target_num_hidden_layers": (
                layers is None or (type(layers) is int and layers >= 1),
                "an integer from 1, or nothing",
            ),
            "vocab_coverage": (
                coverage is None or (_is_number(coverage) and 0.0 <= coverage <= 1.0),
                "a share, 0..1, or nothing",
            ),
            "tap_layers": (
                all(type(layer) is int and layer >= FINAL_NORM for layer in taps) and len(set(taps)) == len(taps),
                "distinct layers, counted from 0",
            ),
        }

    def refuse(self, rules: Rules) -> None:
        """Raises `ConfigurationError` for the first rule that does not hold."""
        for name, (holds, expected) in rules.items():
            if not holds:
                raise ConfigurationError(
                    f"{type(self).__name__}.{name} is {getattr(self, name)!r}; expected {expected}.",
                    "Correct the configuration.",
                )

    @property
    def tree_settings(self) -> TreeSettings:
        """The drafting defaults as a `TreeSettings`."""
        widths = tuple(self.branching or (self.beam_width,) * NUM_BUCKETS)
        return TreeSettings(
            num_blocks=self.num_blocks,
            max_nodes=self.max_nodes,
            beam_width=self.beam_width,
            branching=widths,  # type: ignore[arg-type]  # length checked there
            confident_root=self.confident_root,
            confident_slots=self.confident_slots,
            merge_duplicates=self.merge_duplicates,
            chain=self.chain,
            bound_all_starts=self.bound_all_starts,
            min_path_prob=self.min_path_prob,
            cost_curve=self.cost_curve,
            max_slots=self.max_slots,
            lookup_tokens=self.lookup_tokens,
            lookup_alone=self.lookup_alone,
        )


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def drafter_fields(kind: type[PreTrainedConfig]) -> list[str]:
    """Names of the fields that drafter configurations declare, transformers' own left out, by name."""
    above = set(PreTrainedConfig.__mro__)
    ours = {name for cls in kind.__mro__ if cls not in above for name in getattr(cls, "__annotations__", ())}
    known: Any = kind
    return sorted(field.name for field in fields(known) if field.name in ours)
