"""A tiny random target and drafter saved as folders, with a character tokenizer: what a command line is pointed at."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specblock_zoo.functional.vocab import build_vocab_map
from specblock_zoo.models.specblock.configuration_specblock import SpecBlockConfig
from specblock_zoo.models.specblock.modeling_specblock import SpecBlockDrafter
from specblock_zoo.targets.llama import LLAMA

CHARACTERS = [chr(code) for code in range(32, 122)]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
VOCAB_SIZE = len(SPECIAL) + len(CHARACTERS)
POSITIONS = 256
TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}: {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}a: {% endif %}"
)


@dataclass(frozen=True)
class TinyFolders:
    """Folders of a target (with tokenizer) and of a drafter made for it."""

    target: Path
    drafter: Path


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable character, with a chat template."""
    vocab = {token: index for index, token in enumerate([*SPECIAL, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=TEMPLATE,
    )


def tiny_drafter(seed: int = 0) -> SpecBlockDrafter:
    """A random drafter for `LLAMA.tiny_model(vocab_size=VOCAB_SIZE)`."""
    config = SpecBlockConfig(
        vocab_size=VOCAB_SIZE,
        draft_vocab_size=VOCAB_SIZE // 2,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        target_hidden_size=32,
        target_num_hidden_layers=7,
        tap_layers=(1, 2, 3),
        rank_hidden_size=16,
        max_nodes=8,
        vocab_coverage=0.9,
        num_blocks=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drafter = SpecBlockDrafter(config)
    d2t, t2d, _ = build_vocab_map(torch.arange(VOCAB_SIZE), config.draft_vocab_size)
    drafter.d2t.copy_(d2t)
    drafter.t2d.copy_(t2d)
    return drafter.eval()


def save_tiny_pair(folder: Path) -> TinyFolders:
    """Saves target, tokenizer and drafter below `folder`."""
    folders = TinyFolders(folder / "target", folder / "drafter")
    LLAMA.tiny_model(vocab_size=VOCAB_SIZE, max_position_embeddings=POSITIONS).save_pretrained(folders.target)
    character_tokenizer().save_pretrained(folders.target)
    tiny_drafter().save_pretrained(folders.drafter)
    return folders


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> TinyFolders:
    """A saved tiny pair, shared by the tests of a session; nobody writes into it."""
    return save_tiny_pair(tmp_path_factory.mktemp("tiny_pair"))
