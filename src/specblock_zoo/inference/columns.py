"""The columns of the target's cache: which token of the text each holds, and who may see it in a verify forward."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from specblock_zoo.functional.tree import ROOT, ancestor_matrix
from specblock_zoo.structures import DraftTree

HIDDEN = -1
"""Stands for no token: padding, or a hole that a row left because another row accepted more."""


def text_columns(rows: int, length: int, mask: Bool[Tensor, "rows length"] | None) -> Int64[Tensor, "rows length"]:
    """Columns of a prompt: index of the token in the row's text, padding counted, `HIDDEN` where the mask is False."""
    columns = torch.arange(length, device=None if mask is None else mask.device).repeat(rows, 1)
    return columns if mask is None else columns.masked_fill(~mask, HIDDEN)


def with_rows(
    columns: Int64[Tensor, "rows held"], first: Sequence[int], counts: Sequence[int]
) -> Int64[Tensor, "rows longer"]:
    """The columns after each row kept `counts[row]` tokens, the first of them at `first[row]` of its text.

    All rows grow by the largest count; what a row did not keep is hidden.
    """
    widest = max(counts)
    added = torch.tensor(
        [
            [start + step if step < count else HIDDEN for step in range(widest)]
            for start, count in zip(first, counts, strict=True)
        ]
    )
    return torch.cat((columns, added.to(columns.device)), dim=1)


def gather_order(columns: Int64[Tensor, "rows held"], longest: int) -> Int64[Tensor, "rows longest"]:
    """Indices that bring each row's visible columns to the front in their order; hidden ones follow."""
    hidden_last = (columns == HIDDEN).to(torch.int8).argsort(dim=1, stable=True)
    return hidden_last[:, :longest]


def lined_up(
    trees: Sequence[DraftTree], size: int
) -> tuple[list[list[int]], list[list[int]], Bool[Tensor, "rows nodes nodes"]]:
    """Tokens, depths and ancestors of several trees, roots first, filled up to `size` nodes, roots not counted.

    A filling node has token 0 and hangs on the root, so it sees something and nobody sees it.
    """
    tokens, depths, ancestors = [], [], []
    for tree in trees:
        filling = size - len(tree)
        tokens.append(tree.tokens.tolist() + filling * [0])
        depths.append([0, *tree.depths.tolist(), *(filling * [1])])
        ancestors.append(ancestor_matrix(tree.parents.tolist() + filling * [ROOT]))
    return tokens, depths, torch.stack(ancestors)


def visible(
    columns: Int64[Tensor, "rows held"],
    indices: Int64[Tensor, "rows nodes"],
    ancestors: Bool[Tensor, "rows nodes nodes"],
    window: int | None,
) -> Bool[Tensor, "rows nodes keys"]:
    """What each node of a verify forward sees: the text before it and its ancestors, as far as its window reaches.

    Args:
        columns: of the cache, or of the part of it that a layer with a window still holds.
        indices: place of each node in the text, were its path committed; windows are counted in these.
        ancestors: see `ancestor_matrix`.
        window: tokens a layer looks back, its own included; None = all.
    """
    committed = (columns >= 0)[:, None, :].expand(-1, indices.shape[1], -1)
    if window is not None:
        committed = committed & (columns[:, None, :] > indices[:, :, None] - window)
        ancestors = ancestors & (indices[:, None, :] > indices[:, :, None] - window)
    return torch.cat((committed, ancestors), dim=-1)
