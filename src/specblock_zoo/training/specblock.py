"""Training of a SpecBlock drafter: each slot on the rows whose path is right, each later block on sampled starts.

Law: equal to `models.specblock.dense`, value and gradient. Slots below `context_slots` are an exception to the dropping
of rows: later positions attend to them, so they always run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specblock_zoo.functional.objective import LossReport
from specblock_zoo.models.decoder import Mix, masked_attention, remember
from specblock_zoo.models.specblock import SpecBlockConfig, SpecBlockDrafter
from specblock_zoo.structures import KeyValues
from specblock_zoo.training.initialise import start_from_target
from specblock_zoo.training.method import Assumptions, TrainingMethod, Work, blocks_and_slots
from specblock_zoo.training.rollout import Frontier, Rollout, RolloutSettings, Step
from specblock_zoo.training.teachers import Teacher


def rollout(
    drafter: SpecBlockDrafter,
    batch: Mapping[str, Tensor],
    teacher: Teacher,
    settings: RolloutSettings,
    generator: torch.Generator | None = None,
) -> LossReport:
    """Runs all blocks on one batch (schema: `data.collate`) and returns the sums of every block and slot.

    Later blocks are as many as `settings.block_sampling` has entries. `generator` draws their starts.
    """
    return _Rollout(drafter, batch, teacher, settings).run(generator)


class _Rollout(Rollout):
    drafter: SpecBlockDrafter

    def __init__(
        self, drafter: SpecBlockDrafter, batch: Mapping[str, Tensor], teacher: Teacher, settings: RolloutSettings
    ) -> None:
        self.rank_top = drafter.config.rank_top
        super().__init__(drafter, batch, teacher, settings)
        self.slots = drafter.input_layer.slots()

    def rank_logits(self, normed: Tensor, summary: Tensor) -> Tensor:
        return self.drafter.rank_head.read(normed, summary)

    def first_block(self, rows: tuple[Tensor, Tensor]) -> Step:
        """Runs the kept slots at every position; the step gathers `rows` from them, then continues slot by slot."""
        drafter, tokens, kept = self.drafter, self.tokens[:, 1:], self.kept
        condition = drafter.condition(self.batch["features"][:, :-1])
        pair = drafter.input_layer.pair(condition, drafter.embed(tokens))
        x = (pair[:, :, None] + self.slots[:kept]).flatten(1, 2)
        positions = torch.arange(self.pairs, device=tokens.device)[None]
        rope = drafter.rope(drafter.slot_positions(positions, torch.zeros_like(positions))[..., :kept].flatten(1))
        index = torch.arange(self.pairs * kept, device=tokens.device)
        before = torch.where(index % kept == 0, index, index - 1)
        memory: list[KeyValues] = []
        inputs: list[Tensor] = []

        def mix(layer: int) -> Mix:
            return lambda q, k, v: masked_attention(q, remember(memory, k, v), None)

        hidden = drafter.run_layers(x, rope, lambda layer, states: _note(inputs, states)[:, before], mix)
        self.context = tuple(memory)
        states = (hidden, *inputs)

        def step(slot: int, frontier: Frontier | None) -> Frontier:
            if frontier is not None and slot >= kept:
                return self._advance(frontier, pair[frontier.sequence, frontier.position], slot)
            sequence, position = (frontier.sequence, frontier.position) if frontier is not None else rows
            at = position * kept + slot
            on_path = position[:, None] * kept + torch.arange(slot + 1, device=at.device)
            path = tuple(
                KeyValues(*(t[sequence[:, None], :, on_path].transpose(1, 2) for t in kv)) for kv in self.context
            )
            reached, *entered = (state[sequence, at] for state in states)
            return Frontier(sequence, position, 0, reached, tuple(entered), path)

        return step

    def later_block(self, starts: Frontier) -> Step:
        """Conditions a block on the start's own state and the text's token there."""
        fed = self.tokens[starts.sequence, starts.position + 1 + starts.depth]
        pair = self.drafter.input_layer.pair(starts.hidden, self.drafter.embed(fed))
        origin = torch.full(self.tokens.shape, -1, device=fed.device)
        origin[starts.sequence, starts.position] = torch.arange(len(starts), device=fed.device)

        def step(slot: int, frontier: Frontier | None) -> Frontier:
            frontier = frontier if frontier is not None else starts
            return self._advance(frontier, pair[origin[frontier.sequence, frontier.position]], slot)

        return step

    def _advance(self, frontier: Frontier, pair: Tensor, slot: int) -> Frontier:
        drafter, x = self.drafter, (pair + self.slots[slot])[:, None]
        place = (frontier.position + 1 + slot)[:, None]
        rope = drafter.rope(place + frontier.depth if drafter.config.advance_positions else place)
        path: list[KeyValues] = []
        inputs: list[Tensor] = []

        def previous(layer: int, states: Tensor) -> Tensor:
            _note(inputs, states[:, 0])
            return states if slot == 0 else frontier.inputs[layer - drafter.first_shifted_layer][:, None]

        hidden = drafter.run_layers(x, rope, previous, self.attend_path(frontier, path))[:, 0]
        return replace(frontier, hidden=hidden, inputs=tuple(inputs), path=tuple(path))


def _note(store: list[Tensor], states: Tensor) -> Tensor:
    store.append(states)
    return states


def layer_parameters(config: SpecBlockConfig) -> int:
    """Matrix entries that a row of slots multiplies, heads left out."""
    hidden, kv = config.hidden_size, config.num_key_value_heads * config.head_dim
    attention = hidden * (2 * config.num_attention_heads * config.head_dim + 2 * kv)
    shifts = {"every_layer": config.num_hidden_layers, "between_layers": config.num_hidden_layers - 1, "none": 0}
    per_layer = attention + 3 * hidden * config.intermediate_size
    return config.num_hidden_layers * per_layer + shifts[config.shift] * 2 * hidden * hidden


def graded_rows(config: SpecBlockConfig, objective: RolloutSettings, assumed: Assumptions) -> list[list[float]]:
    """Rows that reach each block and slot, per token of the batch: alpha^slot, times the share of sampled starts."""
    alpha = assumed.alpha if objective.valid_prefix else 1.0
    shares = [1.0, *objective.block_sampling]
    return [[assumed.supervised * share * alpha**slot for slot in range(config.block_width)] for share in shares]


def forward_rows(config: SpecBlockConfig, graded: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Rows a token costs the decoder layers: kept slots of the dense first pass, and rows advanced one by one."""
    kept = config.context_slots
    return float(kept), sum(graded[0][kept:]) + sum(map(sum, graded[1:]))


def values_per_row(config: SpecBlockConfig) -> int:
    """Numbers that autograd keeps of a row in a decoder layer: norms, shift, projections, attention, feed-forward."""
    heads, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    return 6 * config.hidden_size + 3 * heads + 2 * kv + 4 * config.intermediate_size


def work(config: SpecBlockConfig, objective: RolloutSettings, assumed: Assumptions) -> Work:
    """What a token of a batch costs."""
    graded = graded_rows(config, objective, assumed)
    dense, advanced = forward_rows(config, graded)
    layers = config.num_hidden_layers
    return Work(graded, dense, advanced, layer_parameters(config), layers * values_per_row(config), layers)


METHOD = TrainingMethod(rollout, start_from_target, blocks_and_slots, work)
