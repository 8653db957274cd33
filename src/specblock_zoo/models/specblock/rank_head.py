"""The rank head: which bucket (1, 2-4, 5-10, > 10) the target token's rank falls into (paper, section 3)."""

import torch
from torch import Tensor, nn

from specblock_zoo.functional.buckets import rank_summary

SUMMARY_SIZE = 15


class RankHead(nn.Sequential):
    """Two bias-free linears over `[state ; summary of the draft distribution]`.

    The state is detached: the head learns to read the drafter, not to change it.
    """

    def __init__(self, hidden_size: int, width: int, buckets: int) -> None:
        super().__init__(
            nn.Linear(hidden_size + SUMMARY_SIZE, width, bias=False), nn.SiLU(), nn.Linear(width, buckets, bias=False)
        )

    def score(self, normed: Tensor, logits: Tensor, top: int) -> Tensor:
        """Bucket scores `[..., 4]` from final-norm states `[..., hidden]` and draft logits `[..., draft_vocab]`."""
        return self.read(normed, rank_summary(logits.detach(), top))

    def read(self, normed: Tensor, summary: Tensor) -> Tensor:
        """The same from the summary `[..., 15]` of the draft logits."""
        return self(torch.cat((normed.detach(), summary.to(normed.dtype)), dim=-1))
