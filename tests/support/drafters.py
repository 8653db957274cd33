"""Small drafters with random weights."""

from typing import TypeVar

import torch

from specblock_zoo.functional.vocab import build_vocab_map
from specblock_zoo.models.eagle3 import Eagle3Config, Eagle3Drafter
from specblock_zoo.models.medusa import MedusaConfig, MedusaDrafter
from specblock_zoo.models.pretrained import PretrainedDrafter
from specblock_zoo.models.specblock import SpecBlockConfig, SpecBlockDrafter

VOCAB, DRAFT_VOCAB, HIDDEN, WIDTH = 40, 24, 16, 3
Kind = TypeVar("Kind", bound=PretrainedDrafter)


def tiny_config(**changes: object) -> SpecBlockConfig:
    """A configuration that runs in microseconds; `changes` override its fields."""
    sizes = {"vocab_size": VOCAB, "draft_vocab_size": DRAFT_VOCAB, "hidden_size": HIDDEN, "target_hidden_size": HIDDEN}
    shape = {"intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
    return SpecBlockConfig(**{**sizes, **shape, "block_width": WIDTH, **changes})


def tiny_drafter(attached: bool = True, seed: int = 0, **changes: object) -> SpecBlockDrafter:
    """A random drafter whose draft vocabulary is not the first ids of the target's."""
    torch.manual_seed(seed)
    return prepared(SpecBlockDrafter(tiny_config(**changes)).eval(), attached)


def tiny_eagle3(attached: bool = True, seed: int = 0, **changes: object) -> Eagle3Drafter:
    """The same for an EAGLE-3 drafter."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": VOCAB, "draft_vocab_size": DRAFT_VOCAB, "hidden_size": HIDDEN, "target_hidden_size": HIDDEN}
    shape = {"intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
    return prepared(Eagle3Drafter(Eagle3Config(**{**sizes, **shape, **changes})).eval(), attached)


def tiny_medusa(attached: bool = True, seed: int = 0, **changes: object) -> MedusaDrafter:
    """The same for independent heads, none of whose weights is zero."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": VOCAB, "draft_vocab_size": DRAFT_VOCAB, "hidden_size": HIDDEN, "target_hidden_size": HIDDEN}
    drafter = MedusaDrafter(MedusaConfig(**{**sizes, "block_width": WIDTH, **changes})).eval()
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return prepared(drafter, attached)


def prepared(drafter: Kind, attached: bool) -> Kind:
    """Sets a vocabulary map, and attaches random embeddings if asked to."""
    vocab = build_vocab_map(torch.arange(1, drafter.config.vocab_size + 1), drafter.config.draft_vocab_size)
    drafter.d2t.copy_(vocab.d2t)
    drafter.t2d.copy_(vocab.t2d)
    if attached:
        drafter.attach(torch.randn(drafter.config.vocab_size, drafter.config.hidden_size))
    return drafter
