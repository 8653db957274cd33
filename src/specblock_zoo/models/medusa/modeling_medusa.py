"""The Medusa drafter (arXiv 2401.10774): K heads on the target's last state, each guessing one later token."""

from collections.abc import Sequence
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.functional.buckets import NUM_BUCKETS
from specblock_zoo.models.medusa import published as authors_format
from specblock_zoo.models.medusa.configuration_medusa import MedusaConfig
from specblock_zoo.models.pretrained import PretrainedDrafter, PublishedFormat
from specblock_zoo.structures import BranchMemory, BranchOutput, ContextOutput, DraftBlock, KeyValues


class ResidualBlock(nn.Module):
    """x + SiLU(linear(x)), `[..., hidden]` -> same."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class Head(nn.Sequential):
    """Residual blocks, then a linear map to the draft vocabulary; the tensor names are the published ones."""

    def __init__(self, config: MedusaConfig) -> None:
        blocks = [ResidualBlock(config.hidden_size) for _ in range(config.residual_layers)]
        super().__init__(*blocks, nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False))

    @property
    def projection(self) -> nn.Linear:
        """The linear map to the draft vocabulary."""
        return cast(nn.Linear, self[-1])

    def states(self, x: Tensor) -> Tensor:
        """What the linear map reads, `[..., hidden]` -> same."""
        for block in list(self)[:-1]:
            x = block(x)
        return x


class MedusaDrafter(PretrainedDrafter):
    """Drafter of K independent slots: head k reads the target's last state h_i and drafts token t_{i+2+k}.

    The target's own head has drafted t_{i+1} from the same state, and t_{i+1} is committed. Slots do not see each
    other's tokens, nor the drafting pair's, so there is no context to keep and no later block.

    Shapes: B sequences, n new positions, K = `block_width` heads, D draft tokens.
    """

    config_class = MedusaConfig
    published: ClassVar[PublishedFormat | None] = authors_format
    main_input_name = "features"
    reads_last_hidden = True

    config: MedusaConfig
    heads: Sequence[Head]

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__(config)
        heads = nn.ModuleList(Head(config) for _ in range(config.block_width))
        self.heads = heads  # type: ignore[assignment]  # a sequence of heads, which its type does not tell
        self.add_vocabulary()
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if not isinstance(module, nn.Linear):
            return
        if module.bias is None:
            nn.init.kaiming_uniform_(module.weight, a=5**0.5)
        else:
            # A residual block then passes its input on unchanged, and still learns: SiLU's slope at zero is a half.
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)

    def extend(
        self,
        features: Tensor,
        tokens: Tensor,
        positions: Tensor,
        context: Sequence[KeyValues] | None = None,
        context_mask: Tensor | None = None,
    ) -> ContextOutput:
        """Drafts the block at the last of the committed pairs (h_i, t_{i+1}); the others leave no trace.

        Args:
            features: the target's states after its final norm `[B, n, target_hidden]`.
            tokens, positions, context, context_mask: not read.
        """
        return ContextOutput(self.draft(features[:, -1].to(self.dtype)), (), ())

    def draft(self, states: Tensor) -> DraftBlock:
        """One block for each of the target's last states `[rows, hidden]`.

        There is no rank head: every slot is put into the same bucket.
        """
        reached = [head.states(states) for head in self.heads]
        logits = torch.stack([head.projection(state) for head, state in zip(self.heads, reached, strict=True)], dim=1)
        return DraftBlock(torch.stack(reached, dim=1), logits, logits.new_zeros(*logits.shape[:2], NUM_BUCKETS))

    def branch(
        self, tokens: Tensor, conditions: Tensor, depths: Tensor, drafting_position: Tensor, memory: BranchMemory
    ) -> BranchOutput:
        """Raises `UnsupportedOptionError`: after a drafted token there is no state of the target to read."""
        raise UnsupportedOptionError(
            "This drafter drafts one block per round; a second one was asked for (num_blocks > 1).",
            "Set num_blocks to 1.",
        )
