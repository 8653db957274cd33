"""Training of an EAGLE-3 drafter: the training-time test, one step per depth (arXiv 2503.01840, section 4).

Step 0 runs at every position on the target's features. Step j > 0 goes on from the drafter's own state of step j - 1
and the text's next token; it attends to the true-feature keys of its own and earlier positions and to the keys of its
own path, which is what decoding has. Blocks have one slot, so no prefix inside a block can be wrong and
`RolloutSettings.valid_prefix` changes nothing: as in the paper, every supervised position counts at every step.
`block_sampling` is the share of positions that go on to each later step; the paper's is 1.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specblock_zoo.data.layout import LAST_HIDDEN
from specblock_zoo.functional.objective import LossReport
from specblock_zoo.models.decoder import masked_attention, remember
from specblock_zoo.models.eagle3 import Eagle3Config, Eagle3Drafter
from specblock_zoo.structures import KeyValues
from specblock_zoo.training.initialise import (
    FIT_TOKENS,
    copy_norm_and_head,
    copy_parameters,
    last_layers,
    pair_sums,
    regression_rows,
    ridge,
)
from specblock_zoo.training.method import Assumptions, TrainingMethod, Work, blocks_and_slots
from specblock_zoo.training.rollout import Frontier, Rollout, RolloutSettings, Step
from specblock_zoo.training.teachers import Teacher

QUIET = 0.3
"""Scale of what the copied layer adds to the residual: it was made for another state, and at full size drowns the
regression (ours; SmolLM2-135M: loss of the first step 7.0 nats at 0.3, 9.4 at 1)."""


def rollout(
    drafter: Eagle3Drafter,
    batch: Mapping[str, Tensor],
    teacher: Teacher,
    settings: RolloutSettings,
    generator: torch.Generator | None = None,
) -> LossReport:
    """Runs all steps on one batch (schema: `data.collate`); the report has a block per step, with one slot."""
    return _Rollout(drafter, batch, teacher, settings).run(generator)


class _Rollout(Rollout):
    drafter: Eagle3Drafter

    def first_block(self, rows: tuple[Tensor, Tensor]) -> Step:
        positions = torch.arange(self.pairs, device=self.tokens.device)[None]
        condition = self.drafter.condition(self.batch["features"][:, :-1])
        memory: list[KeyValues] = []

        def mix(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return masked_attention(query, remember(memory, keys, values), None)

        states = self.drafter.run_layer(self.tokens[:, 1:], condition, positions, mix)
        self.context = tuple(memory)
        sequence, position = rows
        own = KeyValues(*(held[sequence, :, position][:, :, None] for held in memory[0]))

        def step(slot: int, frontier: Frontier | None) -> Frontier:
            return Frontier(sequence, position, 0, states[sequence, position], (), (own,))

        return step

    def later_block(self, starts: Frontier) -> Step:
        place = starts.position + starts.depth
        fed = self.tokens[starts.sequence, place + 1]
        path: list[KeyValues] = []
        mix = self.attend_path(starts, path)(0)
        states = self.drafter.run_layer(fed[:, None], starts.hidden[:, None], place[:, None], mix)

        def step(slot: int, frontier: Frontier | None) -> Frontier:
            return replace(starts, hidden=states[:, 0], path=tuple(path))

        return step


@torch.no_grad()
def initialise(
    drafter: Eagle3Drafter,
    target: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    tokens: int = FIT_TOKENS,
) -> None:
    """Starts the layer, norm and head as copies of the target's last ones (ours; paper: from scratch).

    The residual hands the condition to the head and to the next step, so `fc` is a regression of the state that the
    head should read. The attention was made for the state in front of the target's last layer; a second regression
    tells how that follows from token and condition, and the copied query, key and value matrices get its two halves.

    Args:
        drafter: written in place; attached to its target's embeddings, vocabulary set, norms still at one.
        batches: training batches, read until `tokens` pairs are seen.
    """
    layer, source = drafter.layer, dict(last_layers(target, 1)[0].named_parameters())
    copy_norm_and_head(drafter, target)
    copied = {"mlp": layer.mlp, "post_attention_layernorm": layer.post_attention_layernorm}
    for name, module in {**copied, "self_attn.o_proj": layer.self_attn.o_proj}.items():
        copy_parameters(module, _below(source, name))
    for writer in (layer.self_attn.o_proj, layer.mlp.down_proj):
        writer.weight.mul_(QUIET)
    sums = pair_sums(lambda batch: _pairs(drafter, batch), batches, tokens)
    hidden = drafter.config.hidden_size
    taps = len(sums.gram) - hidden
    condition = ridge(sums.gram[:taps, :taps], sums.cross[:taps, hidden:], hidden)
    drafter.fc.weight.copy_(condition.T)
    # What the attention reads, from what `sums` is about: normalised token, then normalised condition.
    reads = torch.zeros(len(sums.gram), 2 * hidden, dtype=torch.float64)
    reads[taps:, :hidden] = torch.eye(hidden, dtype=torch.float64)
    reads[:taps, hidden:] = condition / sums.size(condition)
    seen = replace(sums, gram=reads.T @ sums.gram @ reads, cross=reads.T @ sums.cross[:, :hidden])
    state = ridge(seen.gram, seen.cross, hidden)
    # The norm in front of the copied matrices would divide by the state's size and scale.
    scale = source["input_layernorm.weight"].double() / seen.size(state)
    for name in ("q_proj", "k_proj", "v_proj"):
        matrix = source[f"self_attn.{name}.weight"].double() * scale
        copy_parameters(layer.self_attn.get_submodule(name), {"weight": matrix @ state.T})


def _pairs(drafter: Eagle3Drafter, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """What a pair knows, and side by side the last tap of its token and the state its head would read, equally large.

    That state is known up to its size from the target's last state; without one in the batch, the tap stands in.
    """
    known, tap = regression_rows(drafter, drafter.layer.input_layernorm, batch)
    if LAST_HIDDEN not in batch:
        return known, torch.cat((tap, tap), dim=-1)
    real = batch["attention_mask"][:, 1:].bool()
    final = F.rms_norm(batch[LAST_HIDDEN][:, 1:][real].float() / drafter.norm.weight, tap.shape[-1:])
    return known, torch.cat((tap, final * tap.pow(2).mean(-1, keepdim=True).sqrt()), dim=-1)


def _below(source: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}."): tensor for name, tensor in source.items() if name.startswith(f"{prefix}.")}


def layer_parameters(config: Eagle3Config) -> int:
    """Matrix entries that a row multiplies in the layer."""
    hidden, kv = config.hidden_size, config.num_key_value_heads * config.head_dim
    heads = config.num_attention_heads * config.head_dim
    return hidden * (3 * heads + 4 * kv) + 3 * hidden * config.intermediate_size


def work(config: Eagle3Config, objective: RolloutSettings, assumed: Assumptions) -> Work:
    """What a token of a batch costs; `fc` is left out, as the first block's alone."""
    graded = [[assumed.supervised * share] for share in (1.0, *objective.block_sampling)]
    heads, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    values = 6 * config.hidden_size + 3 * heads + 2 * kv + 4 * config.intermediate_size
    return Work(graded, 1.0, sum(rows for (rows,) in graded[1:]), layer_parameters(config), values, layers=1)


METHOD = TrainingMethod(rollout, initialise, blocks_and_slots, work)
