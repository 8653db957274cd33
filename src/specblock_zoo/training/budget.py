"""What a training run costs before it is started: parameters, memory, disk, updates and device hours, with formulas.

Counts of tensors are exact (built on the meta device); activations and hours are estimates, and say from what.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from specblock_zoo.models.configuration import DrafterConfig
from specblock_zoo.models.pretrained import skeleton
from specblock_zoo.models.registry import kind_of
from specblock_zoo.training.method import Assumptions, Work
from specblock_zoo.training.methods import METHODS
from specblock_zoo.training.rollout import RolloutSettings

GIB = 1 << 30
BYTES_PER_STATE = 2
BYTES_PER_ID_AND_MASK = 5
# Float32 weights, their gradients, and AdamW's two moments.
BYTES_PER_TRAINED = 4 + 4 + 8


@dataclass(frozen=True)
class Batching:
    """How a run cuts its tokens.

    Attributes:
        batch_tokens: padded tokens per forward and device.
        max_length: tokens per sequence at most.
        devices: processes in all, over all nodes.
        accumulate: forwards per update.
        epochs: passes over the tokens.
        bytes_per_value: of an activation: 4 in float32, 2 under bf16 autocast.
    """

    batch_tokens: int
    max_length: int
    devices: int = 1
    accumulate: int = 1
    epochs: int = 1
    bytes_per_value: int = 4

    @property
    def tokens_per_update(self) -> int:
        """Padded tokens that one update sees."""
        return self.batch_tokens * self.devices * self.accumulate


@dataclass(frozen=True)
class Line:
    """One figure of a plan: `value` in `unit`, and the formula with its numbers put in."""

    name: str
    value: float
    unit: str
    formula: str


def plan_run(
    config: DrafterConfig,
    target: PreTrainedConfig,
    objective: RolloutSettings,
    batching: Batching,
    assumed: Assumptions,
) -> list[Line]:
    """The figures of one run, in the order a reader needs them."""
    drafter, owner = drafter_parameters(config), target_parameters(target)
    return [
        Line("drafter parameters", drafter, "", "sum of its tensors; embeddings are the target's"),
        Line("target parameters", owner, "", "sum of its tensors"),
        *_memory(config, objective, batching, assumed, drafter, owner),
        *_tokens(config, batching, assumed),
        *_time(config, objective, batching, assumed, owner),
    ]


def drafter_parameters(config: DrafterConfig) -> int:
    """Trained numbers of a drafter; nothing is allocated."""
    return sum(parameter.numel() for parameter in skeleton(kind_of(config.model_type).model, config).parameters())


def target_parameters(config: PreTrainedConfig) -> int:
    """Numbers of a target, tied ones once; nothing is allocated."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())


def work_of(config: DrafterConfig, objective: RolloutSettings, assumed: Assumptions) -> Work:
    """What a token costs, as the drafter's training method tells it."""
    return METHODS[config.model_type].work(config, objective, assumed)


def activation_values(
    config: DrafterConfig, objective: RolloutSettings, batching: Batching, assumed: Assumptions
) -> tuple[float, float]:
    """Numbers kept for the backward pass on one device: of the decoder layers, and of the draft head."""
    work = work_of(config, objective, assumed)
    # Rows that advance one by one keep their attention weights, before and after the copy that splits them.
    attended = work.layers * 2 * config.num_attention_heads * batching.max_length * config.context_slots
    per_token = work.dense * work.values_per_row + work.advanced * (work.values_per_row + attended)
    slots = [rows * batching.batch_tokens * config.draft_vocab_size for block in work.graded for rows in block]
    kept = sum(logits for logits in slots if logits <= objective.kept_logits)
    return batching.batch_tokens * per_token, kept


def training_flops(
    config: DrafterConfig, objective: RolloutSettings, batching: Batching, assumed: Assumptions
) -> float:
    """Operations of one update's share per token: 6 per matrix entry and row, 8 or 12 per head entry and graded row.

    The draft head costs 6, the target's head 2, and both products are done again where gradients are not kept.
    """
    work = work_of(config, objective, assumed)
    layers = 6 * work.layer_parameters * (work.dense + work.advanced)
    entries = config.draft_vocab_size * config.hidden_size
    head = 0.0
    for rows in (rows for block in work.graded for rows in block):
        kept = rows * batching.batch_tokens * config.draft_vocab_size <= objective.kept_logits
        head += rows * entries * (8 if kept else 12)
    return layers + head


def _memory(
    config: DrafterConfig,
    objective: RolloutSettings,
    batching: Batching,
    assumed: Assumptions,
    drafter: int,
    owner: int,
) -> Iterator[Line]:
    borrowed = (config.vocab_size + config.draft_vocab_size) * config.target_hidden_size
    layers, head = activation_values(config, objective, batching, assumed)
    size = batching.bytes_per_value
    yield Line(
        "weights, gradients, AdamW",
        drafter * BYTES_PER_TRAINED / GIB,
        "GiB per device",
        f"{drafter:,} x (4 weight + 4 gradient + 8 moments) bytes",
    )
    yield Line(
        "borrowed embeddings and head",
        borrowed * 4 / GIB,
        "GiB per device",
        f"({config.vocab_size:,} + {config.draft_vocab_size:,}) x {config.target_hidden_size:,} x 4 bytes",
    )
    yield Line(
        "activations of the layers",
        layers * size / GIB,
        "GiB per device",
        f"{batching.batch_tokens:,} tokens x rows per token (alpha {assumed.alpha:g})"
        f" x {work_of(config, objective, assumed).values_per_row:,} values x {size} bytes",
    )
    yield Line(
        "gradients kept by the draft head",
        head * size / GIB,
        "GiB per device",
        f"slots of at most {objective.kept_logits:,} logits; larger ones are computed again",
    )
    yield Line("target in bfloat16", owner * 2 / GIB, "GiB", f"{owner:,} x 2 bytes; only while features are computed")


def _tokens(config: DrafterConfig, batching: Batching, assumed: Assumptions) -> Iterator[Line]:
    states, hidden = len(config.tap_layers) + 1, config.target_hidden_size
    token = states * hidden * BYTES_PER_STATE + BYTES_PER_ID_AND_MASK
    yield Line(
        "cache per token",
        token,
        "bytes",
        f"({states - 1} taps + last state) x {hidden:,} x {BYTES_PER_STATE} + {BYTES_PER_ID_AND_MASK}",
    )
    yield Line("cache", token * assumed.train_tokens / GIB, "GiB", f"{token:,} x {assumed.train_tokens:,} tokens")
    yield Line(
        "tokens per update",
        batching.tokens_per_update,
        "",
        f"{batching.batch_tokens:,} x {batching.devices} devices x {batching.accumulate} accumulated"
        f" = {batching.tokens_per_update / batching.max_length:g} sequences of {batching.max_length:,}",
    )
    yield Line(
        "updates",
        updates(batching, assumed),
        "",
        f"{assumed.train_tokens:,} x {batching.epochs} epochs / {batching.tokens_per_update:,}",
    )


def updates(batching: Batching, assumed: Assumptions) -> int:
    """Updates of the whole run."""
    return math.ceil(assumed.train_tokens * batching.epochs / batching.tokens_per_update)


def _time(
    config: DrafterConfig, objective: RolloutSettings, batching: Batching, assumed: Assumptions, owner: int
) -> Iterator[Line]:
    rate = assumed.device_tflops * 1e12 * assumed.utilisation * 3600
    said = f"{assumed.device_tflops:g}e12 x {assumed.utilisation:g} operations a second"
    per_token = training_flops(config, objective, batching, assumed)
    visited = assumed.train_tokens * batching.epochs
    entries = work_of(config, objective, assumed).layer_parameters
    yield Line(
        "operations per token",
        per_token,
        "",
        f"6 x {entries:,} x rows through the layers + 8 or 12 x head entries x rows graded",
    )
    yield Line("training", per_token * visited / rate, "device hours", f"operations x {visited:,} tokens / ({said})")
    yield Line(
        "features, once",
        2 * owner * assumed.train_tokens / rate,
        "device hours",
        f"2 x {owner:,} x {assumed.train_tokens:,} tokens / ({said}); x {batching.epochs} when computed in the loop",
    )
