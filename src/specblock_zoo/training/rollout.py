"""The training forward: each slot runs only on the rows whose path is still right, each later block on sampled starts.

The valid-prefix mask gives a slot no weight once an earlier slot of its path is wrong, so such rows are dropped instead
of being computed and multiplied by zero: same loss, same gradient (law: equal to `models.specblock.dense`), a fraction
of the work. Slots below `context_slots` are an exception: later positions attend to them, so they always run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from specblock_zoo.functional.head import HeadSettings, score_slot
from specblock_zoo.functional.losses import LOSSES
from specblock_zoo.functional.objective import LossReport, SlotTerms, slot_terms
from specblock_zoo.models.decoder import Mix, masked_attention, split_attention
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.models.specblock.modeling_specblock import remember
from specblock_zoo.structures import KeyValues
from specblock_zoo.training.teachers import Teacher


@dataclass(frozen=True)
class RolloutSettings:
    """What a training step computes.

    Attributes:
        draft_loss, rank_loss: keys of `functional.losses.LOSSES` and `RANK_LOSSES`.
        block_sampling: for each block after the first, starts per supervised position of the batch, 0..1. The slot they
            start from is drawn uniformly from 1..K for each batch, the starts uniformly from the rows whose path is
            right.
        valid_prefix: False trains every slot at every position (the ablation).
        kept_logits: see `HeadSettings`; the gradients kept this way are at most this many numbers per slot.
    """

    draft_loss: str = "cross_entropy"
    rank_loss: str = "valid_prefix"
    block_sampling: tuple[float, ...] = (0.25, 0.1)
    valid_prefix: bool = True
    kept_logits: int = 1 << 24


@dataclass(frozen=True)
class Frontier:
    """Rows (sequence, position) whose path is right up to the slot reached, and what their next slot needs.

    Attributes (R rows, P slots on the path so far):
        sequence, position: int64 `[R]`.
        depth: tokens between the drafting pair and the current block's input token.
        hidden: last-layer state of the slot reached, `[R, hidden]`.
        inputs: per shifted layer, the state that entered its shift at that slot, `[R, hidden]`.
        path: per layer, keys and values of the path's slots, `[R, kv_heads, P, head_dim]`.
    """

    sequence: Tensor
    position: Tensor
    depth: int
    hidden: Tensor
    inputs: tuple[Tensor, ...]
    path: tuple[KeyValues, ...]

    def __len__(self) -> int:
        return self.position.shape[0]

    def select(self, rows: Tensor) -> "Frontier":
        """The rows at `rows` (indices or bool)."""
        return replace(
            self,
            sequence=self.sequence[rows],
            position=self.position[rows],
            hidden=self.hidden[rows],
            inputs=tuple(state[rows] for state in self.inputs),
            path=tuple(KeyValues(kv.keys[rows], kv.values[rows]) for kv in self.path),
        )


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
    run = _Rollout(drafter, batch, teacher, settings)
    passed: list[Frontier] = []
    rows = run.supervised_rows()
    terms = [run.grade(run.first_block(rows), passed)]
    for share in settings.block_sampling:
        starts = run.sample_starts(passed, int(share * len(rows[0])), generator)
        passed = []
        terms.append(run.grade(run.later_block(starts), passed))
    return LossReport.stack(terms)


Step = Callable[[int, Frontier | None], Frontier]
"""(slot, rows that reached the slot before and stay on the path) -> the same rows at this slot."""


class _Rollout:
    def __init__(
        self, drafter: SpecBlockDrafter, batch: Mapping[str, Tensor], teacher: Teacher, settings: RolloutSettings
    ) -> None:
        self.drafter, self.batch, self.teacher, self.settings = drafter, batch, teacher, settings
        self.width, self.kept = drafter.config.block_width, drafter.config.context_slots
        self.tokens = batch["input_ids"]
        self.pairs = self.tokens.shape[1] - 1
        self.slots = drafter.input_layer.slots()
        self.head_settings = HeadSettings(LOSSES[settings.draft_loss], drafter.config.rank_top, settings.kept_logits)
        counted = batch["loss_mask"].bool() & (teacher.draft_ids[self.tokens] >= 0)
        self.counted = F.pad(counted, (0, 1))
        self.context: tuple[KeyValues, ...] = ()

    def supervised_rows(self) -> tuple[Tensor, Tensor]:
        """Sequence and position of every pair whose first slot counts."""
        counts = self.counted[:, 2 : self.pairs + 1]
        found = counts.nonzero(as_tuple=True)
        return found[0], found[1]

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

    def grade(self, step: Step, passed: list[Frontier]) -> list[SlotTerms]:
        """Losses of one block, slot by slot; `passed` receives the rows that reached each slot."""
        terms, frontier = [], None
        for slot in range(self.width):
            frontier = step(slot, frontier)
            passed.append(frontier)
            reached = frontier.position + 2 + frontier.depth + slot
            counts = self.counted[frontier.sequence, reached]
            normed = self.drafter.norm(frontier.hidden)
            taught = self.teacher.rows(self.batch, frontier.sequence, reached - 1)
            scores = score_slot(normed, self.drafter.lm_head.weight, taught, counts.float(), self.head_settings)
            rank_logits = self.drafter.rank_head.read(normed, scores.summary)
            terms.append(slot_terms(scores, rank_logits, counts, self.settings.rank_loss))
            following = self.counted[frontier.sequence, (reached + 1).clamp(max=self.pairs + 1)]
            if self.settings.valid_prefix:
                following &= scores.drafted == self.teacher.draft_ids[self.tokens[frontier.sequence, reached]]
            frontier = frontier.select(following)
        return terms

    def sample_starts(self, passed: Sequence[Frontier], count: int, generator: torch.Generator | None) -> Frontier:
        """Draws up to `count` starts from the rows that reached one slot, the slot drawn uniformly."""
        slot = int(torch.randint(self.width, (), generator=generator))
        reached = passed[slot]
        depth = reached.depth + slot + 1
        target = reached.position + 2 + depth
        possible = self.counted[reached.sequence, target.clamp(max=self.pairs + 1)].nonzero()[:, 0]
        chosen = torch.randperm(len(possible), generator=generator)[:count].sort().values
        return replace(reached.select(possible[chosen.to(possible.device)]), depth=depth)

    def _advance(self, frontier: Frontier, pair: Tensor, slot: int) -> Frontier:
        drafter, x = self.drafter, (pair + self.slots[slot])[:, None]
        place = (frontier.position + 1 + slot)[:, None]
        rope = drafter.rope(place + frontier.depth if drafter.config.advance_positions else place)
        path: list[KeyValues] = []
        inputs: list[Tensor] = []
        grid = _Grid(frontier.sequence, self.tokens.shape[0])
        cell = torch.arange(self.context[0].keys.shape[2], device=place.device) // self.kept
        visible = cell < grid.spread(frontier.position)[..., None]

        def previous(layer: int, states: Tensor) -> Tensor:
            _note(inputs, states[:, 0])
            return states if slot == 0 else frontier.inputs[layer - drafter.first_shifted_layer][:, None]

        def mix(layer: int) -> Mix:
            def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
                past = frontier.path[layer]
                path.append(KeyValues(torch.cat((past.keys, keys), 2), torch.cat((past.values, values), 2)))
                own = KeyValues(grid.spread(path[-1].keys), grid.spread(path[-1].values))
                everything = torch.ones(1, 1, 1, own.keys.shape[3], dtype=torch.bool, device=query.device)
                return grid.collect(split_attention(grid.spread(query), self.context[layer], own, visible, everything))

            return attend

        hidden = drafter.run_layers(x, rope, previous, mix)[:, 0]
        return replace(frontier, hidden=hidden, inputs=tuple(inputs), path=tuple(path))


class _Grid:
    """Rows of several sequences laid out as `[sequences, most rows of one, ...]` and back; empty cells are zero."""

    def __init__(self, sequence: Tensor, sequences: int) -> None:
        counts = torch.bincount(sequence, minlength=sequences)
        first = counts.cumsum(0) - counts
        self.sequence, self.row = sequence, torch.arange(len(sequence), device=sequence.device) - first[sequence]
        self.shape = (sequences, max(1, int(counts.max())))

    def spread(self, rows: Tensor) -> Tensor:
        return rows.new_zeros(*self.shape, *rows.shape[1:]).index_put((self.sequence, self.row), rows)

    def collect(self, grid: Tensor) -> Tensor:
        return grid[self.sequence, self.row]


def _note(store: list[Tensor], states: Tensor) -> Tensor:
    store.append(states)
    return states
