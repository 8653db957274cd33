"""The EAGLE-3 drafter (arXiv 2503.01840): one layer, one token per forward, later tokens from its own last state.

In the words of this package: K = 1, and as many blocks as the tree is deep.
"""

from collections.abc import Sequence
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specblock_zoo.functional.buckets import NUM_BUCKETS
from specblock_zoo.models.decoder import (
    Attention,
    FeedForward,
    Mix,
    RMSNorm,
    draft_attention,
    extend_attention,
    remember,
)
from specblock_zoo.models.eagle3 import published as authors_format
from specblock_zoo.models.eagle3.configuration_eagle3 import Eagle3Config
from specblock_zoo.models.pretrained import PretrainedDrafter, PublishedFormat
from specblock_zoo.structures import BranchMemory, BranchOutput, ContextOutput, DraftBlock, KeyValues


class Eagle3Layer(nn.Module):
    """A decoder layer whose attention reads token and condition side by side; only the condition has a residual."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        hidden, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        self.self_attn = Attention(hidden, heads, kv_heads, config.head_dim, input_size=2 * hidden)
        self.mlp = FeedForward(hidden, config.intermediate_size)
        self.input_layernorm = RMSNorm(hidden, config.rms_norm_eps)
        self.hidden_norm = RMSNorm(hidden, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(hidden, config.rms_norm_eps)

    def forward(self, embedding: Tensor, condition: Tensor, rope: tuple[Tensor, Tensor], mix: Mix) -> Tensor:
        """`embedding` and `condition` `[rows, length, hidden]` -> state of the same shape."""
        pair = torch.cat((self.input_layernorm(embedding), self.hidden_norm(condition)), dim=-1)
        x = condition + self.self_attn(pair, rope, mix)
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle3Drafter(PretrainedDrafter):
    """Drafter of one token per forward over a reduced vocabulary.

    Shapes: B sequences, n new positions, R start nodes, D draft tokens; blocks have one slot.
    """

    config_class = Eagle3Config
    published: ClassVar[PublishedFormat | None] = authors_format

    config: Eagle3Config

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config)
        hidden, taps = config.hidden_size, len(config.tap_layers or (0, 0, 0))
        self.fc = nn.Linear(taps * config.target_hidden_size, hidden, bias=False)
        self.layers = nn.ModuleList([Eagle3Layer(config)])
        self.norm = RMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        self.add_vocabulary()
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.kaiming_uniform_(module.weight, a=5**0.5)
        elif isinstance(module, RMSNorm):
            nn.init.ones_(module.weight)

    @property
    def layer(self) -> Eagle3Layer:
        """The one layer; a list holds it because checkpoints call it `layers.0`."""
        return cast(Eagle3Layer, self.layers[0])

    def condition(self, features: Tensor) -> Tensor:
        """Target features `[..., taps*target_hidden]` -> conditions of first blocks `[..., hidden]`."""
        return self.fc(features.to(self.dtype))

    def run_layer(self, tokens: Tensor, condition: Tensor, positions: Tensor, mix: Mix) -> Tensor:
        """States `[rows, length, hidden]` before the final norm.

        Args:
            tokens: int64 `[rows, length]`, target ids.
            condition: `[rows, length, hidden]`, `condition(features)` or the state that proposed the token.
            positions: int64 `[rows, length]`; pair i is at position i, a token d steps below it at i + d.
        """
        return self.layer(self.embed(tokens), condition, self.rope(positions), mix)

    def extend(
        self,
        features: Tensor,
        tokens: Tensor,
        positions: Tensor,
        context: Sequence[KeyValues] | None = None,
        context_mask: Tensor | None = None,
    ) -> ContextOutput:
        """Appends committed pairs (h_i, t_{i+1}) to the context and drafts one token at the last one.

        Args:
            features: target features `[B, n, taps*target_hidden]`.
            tokens: int64 `[B, n]`, target ids t_{i+1}.
            positions: int64 `[B, n]`, index i of each pair.
            context: earlier rows `[B, kv_heads, C, head_dim]`.
            context_mask: bool `[B, C]`, False hides a row; None = all visible.
        """
        recorded: list[KeyValues] = []

        def mix(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            past = context[0] if context else None
            return extend_attention(query, remember(recorded, keys, values), past, context_mask)

        states = self.run_layer(tokens, self.condition(features), positions, mix)
        new = recorded[0]
        last = KeyValues(new.keys[:, :, -1:], new.values[:, :, -1:])
        return ContextOutput(self._block(states[:, -1:]), (new,), (last,))

    def branch(
        self, tokens: Tensor, conditions: Tensor, depths: Tensor, drafting_position: Tensor, memory: BranchMemory
    ) -> BranchOutput:
        """Drafts the token below each of R start nodes.

        Args:
            tokens: int64 `[R]`, target id of each start node.
            conditions: `[R, hidden]`, state that proposed it (`DraftBlock.hidden`).
            depths: int64 `[R]`, depth of the start node, from 1.
            drafting_position: int64 scalar, index i of the drafting pair.
            memory: what the starts may look at.
        """
        recorded: list[KeyValues] = []
        seen = F.pad(memory.path_mask, (0, 1), value=True)[None, :, None]
        context_mask = memory.context_mask

        def mix(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            path, own = memory.path[0], remember(recorded, keys, values)
            along = KeyValues(torch.cat((path.keys, own.keys), 2)[None], torch.cat((path.values, own.values), 2)[None])
            return draft_attention(query[None], memory.context[0], along, context_mask, seen)[0]

        positions = (drafting_position + depths)[:, None]
        states = self.run_layer(tokens[:, None], conditions[:, None], positions, mix)
        return BranchOutput(self._block(states), tuple(recorded))

    def _block(self, states: Tensor) -> DraftBlock:
        logits = self.lm_head(self.norm(states))
        # No rank head: every slot says bucket 0.
        return DraftBlock(states, logits, logits.new_zeros(*logits.shape[:2], NUM_BUCKETS))
