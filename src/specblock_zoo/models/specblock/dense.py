"""All blocks at all positions in one readable pass: the reference for training, and the release's training forward.

The lean path that training really takes is `training.rollout`; a law test holds the two equal.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specblock_zoo.functional.masks import block_branch_mask, block_causal_mask
from specblock_zoo.models.decoder import Mix, masked_attention
from specblock_zoo.models.specblock.modeling_specblock import SpecBlockDrafter
from specblock_zoo.structures import DraftBlock, KeyValues


def dense_blocks(
    drafter: SpecBlockDrafter,
    features: Tensor,
    tokens: Tensor,
    start_depths: Sequence[int] = (),
    same_depth_keys: bool = False,
) -> list[DraftBlock]:
    """Blocks 0..len(start_depths) drafted at every position, teacher-forced, gradients through everything.

    Args:
        features: target features `[B, S, taps*target_hidden]` of token t_i.
        tokens: int64 `[B, S]`, token t_{i+1}.
        start_depths: for each later block, how many slots of the block before lie on the path (1..K).
        same_depth_keys: later blocks also see the same block of earlier positions (the release's training does).

    Returns:
        One `DraftBlock` per block with axes `[B, S, K, ...]`.
    """
    batch, length = tokens.shape
    width, kept = drafter.config.block_width, drafter.config.context_slots
    positions = torch.arange(length, device=tokens.device).expand(batch, length)
    memory: list[list[KeyValues]] = [[] for _ in drafter.layers]
    blocks: list[DraftBlock] = []
    condition, depth = drafter.condition(features), 0
    for number in range(len(start_depths) + 1):
        if number:
            condition = blocks[-1].hidden[:, :, start_depths[number - 1] - 1]
            depth += start_depths[number - 1]
            mask = block_branch_mask(length, width, start_depths[:number], kept, same_depth_keys, tokens.device)
        else:
            mask = block_causal_mask(length, width, kept, tokens.device)
        fed = tokens[:, (positions[0] + depth).clamp(max=length - 1)]
        blocks.append(_dense_block(drafter, (condition, fed), positions, depth, (memory, mask)))
    return blocks


def _dense_block(
    drafter: SpecBlockDrafter,
    pair: tuple[Tensor, Tensor],
    positions: Tensor,
    depth: int,
    sight: tuple[list[list[KeyValues]], Tensor],
) -> DraftBlock:
    memory, mask = sight
    width = drafter.config.block_width
    x = drafter.input_layer(pair[0], drafter.embed(pair[1])).flatten(1, 2)
    rope = drafter.rope(drafter.slot_positions(positions, torch.full_like(positions, depth)).flatten(1))
    index = torch.arange(x.shape[1], device=x.device)
    before = torch.where(index % width == 0, index, index - 1)

    def mix(layer: int) -> Mix:
        def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            memory[layer].append(KeyValues(keys, values))
            every = KeyValues(*(torch.cat(tensors, dim=2) for tensors in zip(*memory[layer], strict=True)))
            return masked_attention(query, every, mask[None, None])

        return attend

    hidden = drafter.run_layers(x, rope, lambda _, states: states[:, before], mix).unflatten(1, (-1, width))
    return DraftBlock(hidden, *drafter.heads(hidden))
