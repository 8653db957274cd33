"""The rank head reads the drafter and never changes it."""

import torch

from specblock_zoo.functional.buckets import rank_summary
from specblock_zoo.models.specblock.rank_head import RankHead


def test_scores_are_two_linears_over_state_and_summary() -> None:
    torch.manual_seed(0)
    head, normed, logits = RankHead(8, 5, 4), torch.randn(3, 2, 8), torch.randn(3, 2, 30)
    joined = torch.cat((normed, rank_summary(logits, 20)), dim=-1)
    expected = torch.nn.functional.silu(joined @ head[0].weight.T) @ head[2].weight.T
    torch.testing.assert_close(head.score(normed, logits, 20), expected)


def test_no_gradient_reaches_state_or_logits() -> None:
    head = RankHead(8, 5, 4)
    normed, logits = torch.randn(3, 8, requires_grad=True), torch.randn(3, 30, requires_grad=True)
    head.score(normed, logits, 20).sum().backward()
    assert normed.grad is None
    assert logits.grad is None
    assert head[0].weight.grad is not None
