"""What all training forwards share: rows laid out by sequence, and which of them count."""

import torch

from specblock_zoo.functional.vocab import target_to_draft
from specblock_zoo.training.rollout import RolloutSettings, RowGrid
from specblock_zoo.training.specblock import _Rollout
from specblock_zoo.training.teachers import Teacher
from tests.support.drafters import DRAFT_VOCAB, HIDDEN, tiny_drafter


def test_rows_come_back_from_the_grid_as_they_went_in() -> None:
    sequence = torch.tensor([0, 0, 2, 2, 2])
    rows = torch.randn(5, 3, requires_grad=True)
    grid = RowGrid(sequence, sequences=4)
    spread = grid.spread(rows)
    assert spread.shape == (4, 3, 3)
    assert not spread[1].any()
    assert not spread[0, 2].any()
    torch.testing.assert_close(grid.collect(spread), rows)
    grid.collect(spread).sum().backward()
    torch.testing.assert_close(rows.grad, torch.ones(5, 3))


def test_no_rows_at_all_are_laid_out_too() -> None:
    grid = RowGrid(torch.zeros(0, dtype=torch.int64), sequences=2)
    assert grid.collect(grid.spread(torch.zeros(0, 4))).shape == (0, 4)


def test_a_row_counts_where_its_first_token_is_supervised_and_can_be_drafted() -> None:
    drafter = tiny_drafter()
    inside = int(drafter.draft_tokens[0])
    outside = int((~drafter.t2d).nonzero()[0])
    tokens = torch.tensor([[inside, inside, inside, outside, inside]])
    mask = torch.tensor([[False, False, True, True, True]])
    batch = {"input_ids": tokens, "loss_mask": mask, "features": torch.zeros(1, 5, 3 * HIDDEN)}
    teacher = Teacher(torch.zeros(DRAFT_VOCAB, HIDDEN), target_to_draft(drafter.t2d))
    sequence, position = _Rollout(drafter, batch, teacher, RolloutSettings()).supervised_rows()
    assert sequence.tolist() == [0, 0]
    assert position.tolist() == [0, 2]
