"""The SpecBlock drafter (arXiv 2605.07243): K dependent tokens per forward, blocks that continue from any slot."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specblock_zoo.functional.buckets import NUM_BUCKETS, summary_of_best
from specblock_zoo.models.decoder import (
    DecoderLayer,
    Mix,
    Pack,
    RMSNorm,
    draft_attention,
    extend_attention,
    linear_over,
    remember,
    remembering,
)
from specblock_zoo.models.pretrained import PretrainedDrafter, PublishedFormat
from specblock_zoo.models.specblock import published as authors_format
from specblock_zoo.models.specblock.configuration_specblock import SpecBlockConfig
from specblock_zoo.models.specblock.rank_head import RankHead
from specblock_zoo.structures import BestLogits, BranchMemory, BranchOutput, ContextOutput, DraftBlock, KeyValues

Predecessor = Callable[[int, Tensor], Tensor]
"""(layer, its input states) -> state of the slot before, same shape; slot 0 is its own predecessor."""


class InputLayer(nn.Module):
    """Fuses condition, token and slot into the first state; the K slots of a position share condition and token."""

    def __init__(self, config: SpecBlockConfig) -> None:
        super().__init__()
        hidden, taps = config.hidden_size, len(config.tap_layers or (0, 0, 0))
        self.condition_proj = nn.Linear(taps * config.target_hidden_size, hidden, bias=False)
        self.condition_norm = RMSNorm(hidden, config.rms_norm_eps)
        self.token_norm = RMSNorm(hidden, config.rms_norm_eps)
        self.position_queries = nn.Embedding(config.block_width, hidden)
        self.query_norm = RMSNorm(hidden, config.rms_norm_eps)
        self.fuse = nn.Linear(3 * hidden, hidden, bias=False)

    def forward(self, condition: Tensor, embedding: Tensor) -> Tensor:
        """`condition` and `embedding` `[..., hidden]` -> first states `[..., slots, hidden]`."""
        return self.pair(condition, embedding)[..., None, :] + self.slots()

    def pair(self, condition: Tensor, embedding: Tensor) -> Tensor:
        """The share of the first state that all slots of a position have in common, `[..., hidden]`."""
        shared = torch.cat((self.condition_norm(condition), self.token_norm(embedding)), dim=-1)
        return F.linear(shared, self.fuse.weight[:, : shared.shape[-1]])

    def slots(self) -> Tensor:
        """The share of the first state that tells slots apart, `[slots, hidden]`."""
        hidden = self.fuse.weight.shape[0]
        return F.linear(self.query_norm(self.position_queries.weight), self.fuse.weight[:, -hidden:])

    def prepacked(self, pack: Pack) -> nn.Module:
        """Its twin for inference over packed weights."""
        return PackedInputLayer(self, pack)


class PackedInputLayer(InputLayer):
    """The same over packed weights; what tells slots apart does not depend on the input and is kept."""

    slot_states: Tensor

    @torch.no_grad()
    def __init__(self, plain: InputLayer, pack: Pack) -> None:
        nn.Module.__init__(self)
        self.condition_proj = pack(plain.condition_proj)  # type: ignore[assignment]  # called alike
        self.condition_norm, self.token_norm = plain.condition_norm, plain.token_norm
        hidden = plain.fuse.weight.shape[0]
        self.fuse_pair = pack(linear_over(plain.fuse.weight[:, :-hidden]))
        self.register_buffer("slot_states", plain.slots(), persistent=False)

    def pair(self, condition: Tensor, embedding: Tensor) -> Tensor:
        shared: Tensor = self.fuse_pair(torch.cat((self.condition_norm(condition), self.token_norm(embedding)), dim=-1))
        return shared

    def slots(self) -> Tensor:
        return self.slot_states

    def prepacked(self, pack: Pack) -> nn.Module:
        return self


class UnrankedBlock(DraftBlock):
    """A block whose logits are sorted and whose rank head is run when somebody asks: not every tree reads buckets."""

    _drafter: "SpecBlockDrafter"
    _normed: Tensor
    _gradients: bool

    def __init__(self, drafter: "SpecBlockDrafter", hidden: Tensor, normed: Tensor, logits: Tensor) -> None:
        # The record is frozen, so its attributes are not set the usual way.
        values = {"hidden": hidden, "logits": logits, "_normed": normed, "_drafter": drafter}
        self.__dict__.update(values, _gradients=torch.is_grad_enabled())

    @cached_property
    def best(self) -> BestLogits:
        return self._drafter.best(self.logits)

    @cached_property
    def rank_logits(self) -> Tensor:
        with torch.set_grad_enabled(self._gradients):
            return self._drafter.rank_head.read(self._normed, summary_of_best(self.best.values))


class SpecBlockDrafter(PretrainedDrafter):
    """Drafter of K slots per block over a reduced vocabulary.

    Shapes: B sequences, n new positions, K = `block_width` slots, c = `context_slots`, R start nodes, D draft tokens.
    """

    config_class = SpecBlockConfig
    published: ClassVar[PublishedFormat | None] = authors_format

    config: SpecBlockConfig

    def __init__(self, config: SpecBlockConfig) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.input_layer = InputLayer(config)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        shifts = {"every_layer": 0, "between_layers": 1, "none": config.num_hidden_layers}[config.shift]
        self.first_shifted_layer = shifts
        self.shift_proj = nn.ModuleList(
            nn.Linear(2 * hidden, hidden, bias=False) for _ in range(config.num_hidden_layers - shifts)
        )
        self.norm = RMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        self.rank_head = RankHead(hidden, config.rank_hidden_size, NUM_BUCKETS)
        self.add_vocabulary()
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.kaiming_uniform_(module.weight, a=5**0.5)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        elif isinstance(module, RMSNorm):
            nn.init.ones_(module.weight)
        if module is self and self.config.shift != "none":
            for weight in self.shift_proj.parameters():
                nn.init.eye_(weight)

    def condition(self, features: Tensor) -> Tensor:
        """Target features `[..., taps*target_hidden]` -> conditions of first blocks `[..., hidden]`.

        Later blocks are conditioned on the drafter's own states and skip this projection.
        """
        return self.input_layer.condition_proj(features.to(self.dtype))

    def slot_positions(self, positions: Tensor, depths: Tensor) -> Tensor:
        """Rotary position of each slot, `[..., K]`: pair index + 1 + slot, plus the start depth if so configured."""
        first = positions + 1 + (depths if self.config.advance_positions else torch.zeros_like(depths))
        return first[..., None] + torch.arange(self.config.block_width, device=positions.device)

    def run_layers(
        self, x: Tensor, rope: tuple[Tensor, Tensor], previous: Predecessor, mix: Callable[[int], Mix]
    ) -> Tensor:
        """All decoder layers with the layer-wise shift: slot k-1's state enters slot k before each shifted layer."""
        for index, layer in enumerate(self.layers):
            if index >= self.first_shifted_layer:
                shift = self.shift_proj[index - self.first_shifted_layer]
                x = shift(torch.cat((x, previous(index, x)), dim=-1))
            x = layer(x, rope, mix(index))
        return x

    def heads(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Last-layer states `[..., hidden]` -> draft logits `[..., D]` and rank logits `[..., 4]`."""
        block = self.block(hidden)
        return block.logits, block.rank_logits

    def block(self, hidden: Tensor) -> DraftBlock:
        """What last-layer states `[rows, slots, hidden]` propose."""
        normed = self.norm(hidden)
        logits = self.lm_head(normed)
        if not torch.compiler.is_compiling():
            return UnrankedBlock(self, hidden, normed, logits)
        best = self.best(logits)
        return DraftBlock(hidden, logits, self.rank_head.read(normed, summary_of_best(best.values)), best)

    def best(self, logits: Tensor) -> BestLogits:
        """The logits that the rank head's summary is made of, and their draft ids, best first."""
        return BestLogits(*logits.detach().topk(min(self.config.rank_top, logits.shape[-1])))

    def extend(
        self,
        features: Tensor,
        tokens: Tensor,
        positions: Tensor,
        context: Sequence[KeyValues] | None = None,
        context_mask: Tensor | None = None,
    ) -> ContextOutput:
        """Appends committed pairs (h_i, t_{i+1}) to the context and drafts the first block at the last one.

        Context slots of all new positions come first, position by position; the last position's other slots follow. In
        that order every token sees exactly the ones before it, so the whole forward is one causal pass.

        Args:
            features: target features `[B, n, taps*target_hidden]`.
            tokens: int64 `[B, n]`, target ids t_{i+1}.
            positions: int64 `[B, n]`, index i of each pair.
            context: per layer, earlier rows `[B, kv_heads, C, head_dim]`.
            context_mask: bool `[B, C]`, False hides a row; None = all visible.
        """
        width, kept, count = self.config.block_width, self.config.context_slots, tokens.shape[1]
        plan = extension_plan(count, width, kept, tokens.device)
        pairs = self.input_layer.pair(self.condition(features), self.embed(tokens))
        x = pairs.index_select(1, plan.pairs) + self.input_layer.slots().index_select(0, plan.places)
        rope = self.rope(positions.index_select(1, plan.pairs) + (plan.places + 1))
        recorded: list[KeyValues] = []

        def mix(layer: int) -> Mix:
            past = context[layer] if context is not None else None
            return lambda q, k, v: extend_attention(q, remember(recorded, k, v), past, context_mask)

        hidden = self.run_layers(x, rope, lambda _, states: states.index_select(1, plan.before), mix)
        return ContextOutput(
            self.block(hidden[:, plan.drafting]),
            tuple(KeyValues(kv.keys[:, :, : count * kept], kv.values[:, :, : count * kept]) for kv in recorded),
            tuple(KeyValues(kv.keys[:, :, plan.drafting], kv.values[:, :, plan.drafting]) for kv in recorded),
        )

    def branch(
        self, tokens: Tensor, conditions: Tensor, depths: Tensor, drafting_position: Tensor, memory: BranchMemory
    ) -> BranchOutput:
        """Drafts one more block from each of R start nodes.

        Args:
            tokens: int64 `[R]`, target id of each start node.
            conditions: `[R, hidden]`, state of the slot that proposed it (`DraftBlock.hidden`).
            depths: int64 `[R]`, depth of the start node (slot k of the first block: k + 1).
            drafting_position: int64 scalar, index i of the drafting pair.
            memory: what the starts may look at.
        """
        rows, width = tokens.shape[0], self.config.block_width
        x = self.input_layer(conditions, self.embed(tokens))
        rope = self.rope(self.slot_positions(drafting_position.expand(rows), depths))
        before = extension_plan(1, width, width, tokens.device).before
        causal = torch.ones(width, width, dtype=torch.bool, device=tokens.device).tril().expand(rows, width, width)
        own_mask = torch.cat((memory.path_mask[:, None, :].expand(rows, width, -1), causal), dim=-1)[None]
        recorded: list[KeyValues] = []

        def mix(layer: int) -> Mix:
            path = memory.path[layer]

            def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
                recorded.append(KeyValues(keys, values))
                own = KeyValues(torch.cat((path.keys, keys), 2)[None], torch.cat((path.values, values), 2)[None])
                return draft_attention(query[None], memory.context[layer], own, memory.context_mask, own_mask)[0]

            return attend

        hidden = self.run_layers(x, rope, lambda _, states: states.index_select(1, before), mix)
        return BranchOutput(self.block(hidden), tuple(recorded))


class ExtensionPlan(NamedTuple):
    """Indices of one shape of `extend`: of each slot that is run its pair, its place in the block and the slot before
    it; and which of them are the block at the drafting position (its slots lie side by side)."""

    pairs: Tensor
    places: Tensor
    before: Tensor
    drafting: slice


MOST_PAIRS_PLANNED = 64
"""Pairs of an `extend` whose plan is kept."""


def extension_plan(count: int, width: int, kept: int, device: torch.device) -> ExtensionPlan:
    """The plan for `count` pairs, of which all but the last run `kept` of `width` slots; those of rounds are kept."""
    # A prompt's plan is as long as the prompt, and its length hardly comes back.
    return (_extension_plan if count <= MOST_PAIRS_PLANNED else _new_plan)(count, width, kept, device)


def _new_plan(count: int, width: int, kept: int, device: torch.device) -> ExtensionPlan:
    # Tensors of inference mode could not be used in a forward that takes gradients later.
    with torch.inference_mode(False):
        slots, before = slot_order(count, width, kept, device), predecessors(count, width, kept, device)
        return ExtensionPlan(slots // width, slots % width, before, slice((count - 1) * kept, None))


_extension_plan = remembering(maxsize=128)(_new_plan)


def slot_order(count: int, width: int, kept: int, device: torch.device | None = None) -> Tensor:
    """Which of the `count * width` slots `extend` runs, in causal order: all positions' kept ones, the last's rest."""
    every = torch.arange(count * width, device=device).view(count, width)
    return torch.cat((every[:, :kept].flatten(), every[-1, kept:]))


def predecessors(count: int, width: int, kept: int, device: torch.device | None = None) -> Tensor:
    """Index, in `slot_order`, of the slot before each one (slot 0 points at itself)."""
    index = torch.arange(count * kept + width - kept, device=device)
    first_slots = (index < count * kept) & (index % kept == 0)
    return torch.where(first_slots, index, index - 1)
