"""Random weights that decode like trained ones, for measuring speed where no trained weights are at hand.

The target's greedy text is known in advance, and the drafter is right as often as asked. Every forward is computed in
full: only the figures in a few matrices, and the drafter's logits at three tokens a slot, are chosen.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specblock_zoo.functional.buckets import NUM_BUCKETS
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.structures import BranchMemory, BranchOutput, ContextOutput, DraftBlock
from specblock_zoo.targets.registry import family_of

STRIDE = 7
"""In the known text, token t is followed by t + STRIDE modulo the draft vocabulary."""
PAPER_ALPHA = (0.80, 0.669, 0.538, 0.407, 0.748, 0.680, 0.612, 0.544)
"""Conditional acceptance by depth. The paper (arXiv 2605.07243) tells positions 1, 4, 5 and 8 for Llama-3.1-8B; the
others lie on the lines between."""
SECOND_SHARE = 0.5
"""Share of misses whose token is the second candidate, where a tree finds it and a chain does not (ours)."""
BEST_LEAD, SECOND_LEAD = 2.0, 1.0
"""Nats by which the two chosen candidates lie above all other tokens together."""
QUIET = 1e-3
"""Scale of what a layer adds to the residual stream: the token that went in still decides what comes out, also in
bfloat16 and whatever the shape of a forward."""


@torch.no_grad()
def make_cyclic(model: PreTrainedModel, tokens: int) -> None:
    """Sets weights in place so that greedy text over the first `tokens` ids runs in steps of `STRIDE`.

    Args:
        model: decoder layers with `self_attn.o_proj` and `mlp.down_proj`; head and embeddings not tied.
    """
    family = family_of(model.config)
    for layer in family.decoder_layers(model):
        parts: Any = layer
        parts.self_attn.o_proj.weight.mul_(QUIET)
        parts.mlp.down_proj.weight.mul_(QUIET)
    embeddings, head = family.embedding_weight(model), family.head_weight(model)
    # Token 0 is often padding, whose row is zero and so says nothing of what comes next.
    embeddings[0] = -embeddings[1]
    head[:tokens] = embeddings[:tokens].roll(STRIDE, 0)


def known_text(first: int, count: int, tokens: int) -> list[int]:
    """The `count` tokens after token `first` of the text that `make_cyclic` makes."""
    return [(first + STRIDE * step) % tokens for step in range(1, count + 1)]


class OracleDrafter(SpecBlockDrafter):
    """A drafter that is right with a given probability per depth, for targets that `make_cyclic` has set.

    Its draft vocabulary must be the first ids of the target's, as a new drafter's is. Whether a place is right depends
    on its token and depth alone, so chains and trees meet the same text.
    """

    alpha: Tensor
    coins: Tensor

    def foretell(self, alpha: Sequence[float] = PAPER_ALPHA, seed: int = 0) -> None:
        """Fixes the conditional acceptance by depth, the last one for all depths beyond."""
        coins = torch.rand(self.config.draft_vocab_size, generator=torch.Generator().manual_seed(seed))
        self.alpha, self.coins = torch.tensor(alpha, device=self.device), coins.to(self.device)

    def extend(self, features: Tensor, tokens: Tensor, *args: Any, **kwargs: Any) -> ContextOutput:
        """See `SpecBlockDrafter`."""
        output = super().extend(features, tokens, *args, **kwargs)
        last = tokens[:, -1]
        return ContextOutput(self._told(output.block, last, torch.zeros_like(last)), output.context, output.path)

    def branch(
        self, tokens: Tensor, conditions: Tensor, depths: Tensor, drafting_position: Tensor, memory: BranchMemory
    ) -> BranchOutput:
        """See `SpecBlockDrafter`."""
        output = super().branch(tokens, conditions, depths, drafting_position, memory)
        return BranchOutput(self._told(output.block, tokens, depths), output.path)

    def _told(self, block: DraftBlock, tokens: Tensor, depths: Tensor) -> DraftBlock:
        vocab, slots = self.config.draft_vocab_size, torch.arange(block.logits.shape[1], device=tokens.device)
        right = (tokens[:, None] + STRIDE * (slots + 1)) % vocab
        alpha = self.alpha[(depths[:, None] + slots).clamp(max=len(self.alpha) - 1)]
        coin = self.coins[right]
        first = coin < alpha
        second = ~first & (coin < alpha + (1.0 - alpha) * SECOND_SHARE)
        best = torch.where(first, right, (right + 1) % vocab)[..., None]
        runner_up = torch.where(second, right, (right + 2) % vocab)[..., None]
        others = block.logits.float().logsumexp(-1, keepdim=True).to(block.logits.dtype)
        logits = block.logits.scatter(-1, right[..., None], others - 30.0)
        logits = logits.scatter(-1, best, others + BEST_LEAD).scatter(-1, runner_up, others + SECOND_LEAD)
        rank_logits = logits.new_zeros(*logits.shape[:2], NUM_BUCKETS)
        rank_logits[..., 0] = 1.0
        return DraftBlock(block.hidden, logits, rank_logits)
