"""Who may see whom: attention masks (true = visible) and the valid-prefix mask.

Rows and keys of a dense training mask are slot-major inside a position: index = position * slots + slot.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def block_causal_mask(
    positions: int, slots: int, context_slots: int | None = None, device: torch.device | None = None
) -> Bool[Tensor, "queries keys"]:
    """Mask of first blocks drafted at every position of one sequence, `[positions * slots, positions * slots]`.

    Slot k sees slots 0..k of its own position and the first `context_slots` (default: all) of every earlier position.
    """
    grid = _Grid(positions, slots, device)
    return (grid.earlier & (grid.key_slot < _all_or(context_slots, slots))) | (grid.same & grid.causal)


def block_branch_mask(
    positions: int,
    slots: int,
    start_depths: Sequence[int],
    context_slots: int | None = None,
    same_depth_keys: bool = False,
    device: torch.device | None = None,
) -> Bool[Tensor, "queries keys"]:
    """Mask of the block after `len(start_depths)` earlier ones; keys are those of block 0, 1, ... and its own.

    A slot sees the first `context_slots` first-block slots of earlier positions, the slots on its path in every earlier
    block at its own position, and slots 0..k of its own block: what a start node sees in decoding.

    Args:
        start_depths: for each transition, how many slots of the earlier block lie on the path, each 1..slots.
        same_depth_keys: also show the same block of earlier positions; only the release's training does, decoding has
            no such keys.
    """
    grid = _Grid(positions, slots, device)
    regions = [grid.same & (grid.key_slot < depth) for depth in start_depths]
    regions[0] = regions[0] | (grid.earlier & (grid.key_slot < _all_or(context_slots, slots)))
    own = grid.same & grid.causal
    return torch.cat([*regions, own | grid.earlier if same_depth_keys else own], dim=-1)


def valid_prefix_mask(start: Bool[Tensor, "*rows"], hits: Bool[Tensor, "*rows slots"]) -> Bool[Tensor, "*rows slots"]:
    """Slot k counts iff the row starts valid and slots 0..k-1 are all hits; its own hit does not matter."""
    before = torch.cat([start.unsqueeze(-1), hits[..., :-1]], dim=-1)
    return before.cumprod(-1).bool()


def tree_mask(ancestors: Bool[Tensor, "nodes nodes"], prefix: int) -> Bool[Tensor, "nodes keys"]:
    """Mask of one verify forward, `[nodes, prefix + nodes]`: all committed tokens, then ancestors and the node itself.

    `ancestors[i, j]` is true when node j lies on the path from the root to node i, i included.
    """
    committed = torch.ones(ancestors.shape[0], prefix, dtype=torch.bool, device=ancestors.device)
    return torch.cat([committed, ancestors], dim=-1)


def additive(visible: Bool[Tensor, "*axes"], dtype: torch.dtype) -> Float[Tensor, "*axes"]:
    """The mask as a term of attention scores: 0 where visible, the lowest finite number of `dtype` elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, torch.finfo(dtype).min)


def _all_or(context_slots: int | None, slots: int) -> int:
    return slots if context_slots is None else context_slots


class _Grid:
    """Relations between every query and key of one block over all positions."""

    def __init__(self, positions: int, slots: int, device: torch.device | None) -> None:
        index = torch.arange(positions * slots, device=device)
        position, slot = index // slots, index % slots
        self.earlier = position[None, :] < position[:, None]
        self.same = position[None, :] == position[:, None]
        self.key_slot = slot[None, :].expand(positions * slots, -1)
        self.causal = slot[None, :] <= slot[:, None]
