"""Drafting with an EAGLE-3 drafter one token at a time, as plainly as it goes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specblock_zoo.models.eagle3 import Eagle3Drafter
from specblock_zoo.structures import BranchMemory, KeyValues


def logits_along(drafter: Eagle3Drafter, features: Tensor, tokens: Tensor, path: Sequence[int]) -> list[Tensor]:
    """Draft logits `[draft_vocab]` at the last pair and below each token of `path`.

    Args:
        features: `[1, n, taps * target_hidden]`; `tokens` int64 `[1, n]`: pairs of positions 0..n-1.
    """
    last = tokens.shape[1] - 1
    first = drafter.extend(features, tokens, torch.arange(last + 1)[None])
    context = tuple(KeyValues(held.keys[:, :, :-1], held.values[:, :, :-1]) for held in first.context)
    logits, block, held = [first.block.logits[0, 0]], first.block, first.path
    for depth, token in enumerate(path, start=1):
        memory = BranchMemory(context, held, torch.ones(1, depth, dtype=torch.bool))
        fed, depths = torch.tensor([token]), torch.tensor([depth])
        output = drafter.branch(fed, block.hidden[:, 0], depths, torch.tensor(last), memory)
        block = output.block
        held = tuple(
            KeyValues(torch.cat((old.keys, new.keys), 2), torch.cat((old.values, new.values), 2))
            for old, new in zip(held, output.path, strict=True)
        )
        logits.append(block.logits[0, 0])
    return logits
