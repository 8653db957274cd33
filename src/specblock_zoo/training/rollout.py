"""What the training forwards of all drafters share: which rows run, how a slot is graded, where later blocks start.

The valid-prefix mask gives a slot no weight once an earlier slot of its path is wrong, so such rows are dropped instead
of being computed and multiplied by zero: same loss, same gradient, a fraction of the work.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specblock_zoo.functional.head import HeadSettings, score_slot
from specblock_zoo.functional.losses import LOSSES
from specblock_zoo.functional.objective import LossReport, SlotTerms, slot_terms
from specblock_zoo.models.decoder import Mix, split_attention
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


Step = Callable[[int, Frontier | None], Frontier]
"""(slot, rows that reached the slot before and stay on the path) -> the same rows at this slot."""


class Rollout(ABC):
    """One batch through a drafter's blocks; subclasses say how a block is run.

    Args:
        drafter: any kind with `norm` and `lm_head`.
        batch: schema in `data.collate`.
        teacher: the target's side of the loss.
        settings: see there.
    """

    rank_top = 0
    """Logits of the summary that a rank head reads; 0 for drafters without one."""

    def __init__(self, drafter: Any, batch: Mapping[str, Tensor], teacher: Teacher, settings: RolloutSettings) -> None:
        self.drafter, self.batch, self.teacher, self.settings = drafter, batch, teacher, settings
        self.width, self.kept = drafter.config.block_width, drafter.config.context_slots
        self.tokens = batch["input_ids"]
        self.pairs = self.tokens.shape[1] - 1
        self.head_settings = HeadSettings(LOSSES[settings.draft_loss], self.rank_top, settings.kept_logits)
        counted = batch["loss_mask"].bool() & (teacher.draft_ids[self.tokens] >= 0)
        self.counted = F.pad(counted, (0, 1))
        self.context: tuple[KeyValues, ...] = ()

    @abstractmethod
    def first_block(self, rows: tuple[Tensor, Tensor]) -> Step:
        """Runs the kept slots at every position and leaves them in `context`; the step goes on from `rows`."""

    @abstractmethod
    def later_block(self, starts: Frontier) -> Step:
        """Conditions a block on the starts' own states and the text's tokens there."""

    def rank_logits(self, normed: Tensor, summary: Tensor) -> Tensor | None:
        """Bucket scores `[rows, 4]` from states after the final norm; None where there is no rank head."""
        return None

    def run(self, generator: torch.Generator | None = None) -> LossReport:
        """The sums of every block and slot; `generator` draws the starts of later blocks."""
        passed: list[Frontier] = []
        rows = self.supervised_rows()
        terms = [self.grade(self.first_block(rows), passed)]
        for share in self.settings.block_sampling:
            starts = self.sample_starts(passed, int(share * len(rows[0])), generator)
            passed = []
            terms.append(self.grade(self.later_block(starts), passed))
        return LossReport.stack(terms)

    def supervised_rows(self) -> tuple[Tensor, Tensor]:
        """Sequence and position of every pair whose first slot counts."""
        counts = self.counted[:, 2 : self.pairs + 1]
        found = counts.nonzero(as_tuple=True)
        return found[0], found[1]

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
            rank_logits = self.rank_logits(normed, scores.summary)
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

    def attend_path(self, frontier: Frontier, path: list[KeyValues]) -> Callable[[int], Mix]:
        """Attention of one new slot of each row: earlier positions' context, the row's path, itself.

        Args:
            path: receives, layer by layer, the keys and values of the path with the new slot.
        """
        grid = RowGrid(frontier.sequence, self.tokens.shape[0])
        cell = torch.arange(self.context[0].keys.shape[2], device=self.tokens.device) // self.kept
        visible = cell < grid.spread(frontier.position)[..., None]

        def mix(layer: int) -> Mix:
            def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
                past = frontier.path[layer]
                path.append(KeyValues(torch.cat((past.keys, keys), 2), torch.cat((past.values, values), 2)))
                own = KeyValues(grid.spread(path[-1].keys), grid.spread(path[-1].values))
                everything = torch.ones(1, 1, 1, own.keys.shape[3], dtype=torch.bool, device=query.device)
                return grid.collect(split_attention(grid.spread(query), self.context[layer], own, visible, everything))

            return attend

        return mix


class RowGrid:
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
