"""Tiny targets, and drafters whose proposals a test controls."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.cache_utils import DynamicSlidingWindowLayer, StaticLayer

from specblock_zoo.models.pretrained import PretrainedDrafter
from specblock_zoo.models.registry import DEFAULT_KIND, kind_of
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.structures import BranchOutput, ContextOutput, DraftBlock
from specblock_zoo.targets.registry import FAMILIES

VOCAB, WIDTH = 48, 3
RECORDS_WINDOWS = hasattr(DynamicSlidingWindowLayer, "activate_past_recording")
"""From transformers 5.14 on; before, layers with a window cannot take anything back."""
STATIC_TAKES_BACK = hasattr(StaticLayer, "crop")
"""From transformers 5.24 on."""
TAPS = (1, 2, 3)


def target_of(family: str, **overrides: Any) -> PreTrainedModel:
    """A random target whose texts do not loop, and end only where a test says so."""
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    varied = {"initializer_range": 0.4, "tie_word_embeddings": False}
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2 + max(TAPS), **heads, **varied}
    model = FAMILIES[family].tiny_model(**{**sizes, "eos_token_id": None, **overrides})
    model.generation_config.eos_token_id = None
    return model


def config_for(target: PreTrainedModel, kind: str = DEFAULT_KIND, **changes: Any) -> Any:
    """Configuration of a drafter for `target`; every token of the target can be drafted."""
    hidden, vocab = target.config.hidden_size, target.config.vocab_size
    shapes = {"vocab_size": vocab, "draft_vocab_size": vocab, "hidden_size": hidden, "target_hidden_size": hidden}
    sizes = {"intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    facts = {"target_num_hidden_layers": target.config.num_hidden_layers, "tap_layers": TAPS, "max_nodes": 12}
    own = {"block_width": WIDTH, "rank_hidden_size": 8} if kind == DEFAULT_KIND else {}
    return kind_of(kind).config(**{**shapes, **sizes, **facts, **own, **changes})


Place = Callable[[int], int]
"""Text index -> rank (0 = best) that the drafter gives to the right token there; -1 makes it the least likely one."""


class Scripted(PretrainedDrafter):
    """A real drafter, states and all, whose logits are replaced: the right token of each depth gets a chosen rank.

    `script` is the text the target will write; `place` ranks its tokens. Beyond the script, and on wrong paths too, it
    proposes by index alone.
    """

    script: Sequence[int] = ()
    place: Place = staticmethod(lambda _: 0)

    def extend(self, features: Tensor, tokens: Tensor, positions: Tensor, *rest: Any, **more: Any) -> ContextOutput:
        output = super().extend(features, tokens, positions, *rest, **more)
        return ContextOutput(self._scripted(output.block, positions[:, -1] + 2), output.context, output.path)

    def branch(
        self, tokens: Tensor, conditions: Tensor, depths: Tensor, drafting_position: Tensor, memory: Any
    ) -> BranchOutput:
        output = super().branch(tokens, conditions, depths, drafting_position, memory)
        return BranchOutput(self._scripted(output.block, drafting_position + 2 + depths), output.path)

    def _scripted(self, block: DraftBlock, first: Tensor) -> DraftBlock:
        logits = torch.empty_like(block.logits)
        shuffle = torch.Generator().manual_seed(int(first.sum()))
        for row, index in enumerate(first.tolist()):
            for slot in range(logits.shape[1]):
                order = torch.randperm(logits.shape[2], generator=shuffle).tolist()
                if index + slot < len(self.script):
                    order.remove(self.script[index + slot])
                    order.insert(self.place(index + slot), self.script[index + slot])
                logits[row, slot, order] = -2.0 * torch.arange(len(order), dtype=logits.dtype)
        rank_logits = torch.zeros_like(block.rank_logits)
        rank_logits[..., 1] = 1.0
        return DraftBlock(block.hidden, logits, rank_logits)


class ScriptedDrafter(Scripted, SpecBlockDrafter):
    """The same for the default kind, as a class that can be pickled."""


def scripted_drafter(
    target: PreTrainedModel, script: Tensor, place: Place = lambda _: 0, kind: str = DEFAULT_KIND, **changes: Any
) -> Any:
    """A `Scripted` drafter of a kind for the text `script` `[1, length]`."""
    torch.manual_seed(0)
    scripted = ScriptedDrafter if kind == DEFAULT_KIND else type("ScriptedKind", (Scripted, kind_of(kind).model), {})
    drafter = scripted(config_for(target, kind, **changes)).eval()
    drafter.script, drafter.place = script[0].tolist(), place
    return drafter


def random_drafter(target: PreTrainedModel, seed: int = 0, kind: str = DEFAULT_KIND, **changes: Any) -> Any:
    """A drafter of a kind with random weights."""
    torch.manual_seed(seed)
    return kind_of(kind).model(config_for(target, kind, **changes)).eval()


def prompt_ids(length: int, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    """Random token ids `[1, length]`."""
    return torch.randint(0, vocab, (1, length), generator=torch.Generator().manual_seed(seed))


def generate(model: PreTrainedModel, ids: Tensor, new_tokens: int, **options: Any) -> Any:
    """Greedy `generate` unless `options` say otherwise."""
    settings = {
        "max_new_tokens": new_tokens,
        "do_sample": False,
        "pad_token_id": 0,
        "attention_mask": torch.ones_like(ids),
    }
    return model.generate(input_ids=ids, **{**settings, **options})


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Every token is the word `w<id>`; unknown text, transformers' probe among it, is the word 0."""
    table = {"abcdef": 0, **{f"w{index}": index for index in range(1, VOCAB)}}
    tokenizer = Tokenizer(WordLevel(table, unk_token="abcdef"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="abcdef")
