"""Configuration of a SpecBlock drafter (specification: arXiv 2605.07243; field names are ours)."""

from typing import Any

from transformers import PreTrainedConfig

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.structures import TreeSettings

SHIFTS = ("between_layers", "every_layer", "none")
NUM_BUCKETS = 4
ROPE_TYPES = ("default", "llama3")
SIZES = (
    *("vocab_size", "draft_vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "target_hidden_size", "block_width", "train_blocks"),
    *("rank_top", "rank_hidden_size"),
)


class SpecBlockConfig(PreTrainedConfig):
    """Shapes, switches and drafting defaults of a `SpecBlockDrafter`.

    Attributes:
        vocab_size: the target's (padded) vocabulary, V.
        draft_vocab_size: the drafter's own vocabulary, D <= V.
        hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim: drafter
            shape; head_dim is never derived from hidden_size.
        target_hidden_size, target_num_hidden_layers: checked against the target at first meeting.
        tap_layers: 0-based target layers whose outputs are read, in concatenation order.
        rope_theta, rope_scaling, max_position_embeddings: rotary positions; they follow the target.
        block_width: slots per block, the paper's K; fixed by training.
        train_blocks: blocks unrolled in training.
        shift: `every_layer` (paper), `between_layers` (published weights) or `none` (ablation).
        advance_positions: later blocks use their true positions (ours), not the first block's (published weights).
        context_slots: slots per committed position kept as context, 1..K (published weights: K).
        rank_top: logits over which the rank summary is normalised (20 in training and decoding).
        rank_hidden_size: width of the rank head.
        num_blocks, max_nodes, beam_width, branching, confident_root, confident_slots, merge_duplicates, chain,
            bound_all_starts, min_path_prob: drafting defaults, see `TreeSettings`.
        target_name, target_revision, tokenizer_hash: provenance of the target the drafter was trained for.
        vocab_coverage: share of supervised training tokens inside the draft vocabulary, 0..1.
    """

    model_type = "specblock"

    vocab_size: int = 49152
    draft_vocab_size: int = 8192
    hidden_size: int = 576
    intermediate_size: int = 1536
    num_hidden_layers: int = 2
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
    block_width: int = 4
    train_blocks: int = 3
    shift: str = "every_layer"
    advance_positions: bool = True
    context_slots: int = 1
    rank_top: int = 20
    rank_hidden_size: int = 256
    num_blocks: int = 2
    max_nodes: int = 60
    beam_width: int = 10
    branching: list[int] | tuple[int, ...] = (2, 4, 10, 0)
    confident_root: bool = False
    confident_slots: bool = False
    merge_duplicates: bool = True
    chain: bool = False
    bound_all_starts: bool = True
    min_path_prob: float = 0.0
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
        sizes = {name: getattr(self, name) for name in SIZES}
        # First, because the rules below divide by them.
        self._refuse({name: (type(size) is int and size >= 1, "an integer from 1") for name, size in sizes.items()})
        scaling = self.rope_scaling or {}
        rules = {
            "shift": (self.shift in SHIFTS, f"one of {', '.join(SHIFTS)}"),
            "context_slots": (1 <= self.context_slots <= self.block_width, f"1..block_width ({self.block_width})"),
            "draft_vocab_size": (self.draft_vocab_size <= self.vocab_size, f"at most vocab_size ({self.vocab_size})"),
            "branching": (len(self.branching) == NUM_BUCKETS, f"{NUM_BUCKETS} widths, one per rank bucket"),
            "num_key_value_heads": (
                self.num_attention_heads % self.num_key_value_heads == 0,
                f"a divisor of num_attention_heads ({self.num_attention_heads})",
            ),
            "head_dim": (self.head_dim % 2 == 0, "even"),
            "rope_scaling": (
                scaling.get("rope_type", scaling.get("type", "default")) in ROPE_TYPES,
                f"rope_type {' or '.join(ROPE_TYPES)}",
            ),
        }
        self._refuse(rules)

    def _refuse(self, rules: dict[str, tuple[bool, str]]) -> None:
        for name, (holds, expected) in rules.items():
            if not holds:
                raise ConfigurationError(
                    f"SpecBlockConfig.{name} is {getattr(self, name)!r}; expected {expected}.",
                    "Correct the configuration.",
                )

    @property
    def tree_settings(self) -> TreeSettings:
        """The drafting defaults as a `TreeSettings`."""
        widths = tuple(int(width) for width in self.branching)
        return TreeSettings(
            num_blocks=self.num_blocks,
            max_nodes=self.max_nodes,
            beam_width=self.beam_width,
            branching=widths,  # type: ignore[arg-type]  # length checked above
            confident_root=self.confident_root,
            confident_slots=self.confident_slots,
            merge_duplicates=self.merge_duplicates,
            chain=self.chain,
            bound_all_starts=self.bound_all_starts,
            min_path_prob=self.min_path_prob,
        )
