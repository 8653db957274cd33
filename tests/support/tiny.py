"""A target, answer records and a feature cache small enough to train on in a test."""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from specblock_zoo.data.build_cache import CacheSettings, build_cache
from specblock_zoo.targets.registry import FAMILIES

VOCAB = 96
FIRST_WORD = 4


def tiny_tokenizer(vocab_size: int = VOCAB) -> PreTrainedTokenizerFast:
    """Words `w4`, `w5`, ... after the special tokens."""
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    table = {word: index for index, word in enumerate(special + [f"w{i}" for i in range(FIRST_WORD, vocab_size)])}
    tokenizer = Tokenizer(WordLevel(table, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def save_tiny_target(folder: Path, family: str = "llama", seed: int = 0, **overrides: object) -> PreTrainedModel:
    """A random target of a family, with its tokenizer, as a folder that `load_target` reads."""
    model = FAMILIES[family].tiny_model(seed=seed, **overrides)
    model.save_pretrained(folder)
    tiny_tokenizer(model.config.vocab_size).save_pretrained(folder)
    return model


def write_records(file: Path, count: int = 12, seed: int = 0) -> Path:
    """Answer records of random words that repeat themselves, so that there is something to learn."""
    draw = random.Random(seed)
    lines = []
    for index in range(count):
        motif = [draw.randrange(FIRST_WORD, VOCAB) for _ in range(3)]
        prompt = [1, *(draw.randrange(FIRST_WORD, VOCAB) for _ in range(3))]
        answer = (motif * 12)[: draw.randrange(16, 30)]
        record = {"id": f"r{index}", "prompt_ids": prompt, "answer_ids": [*answer, 2], "temperature": 0, "finish": "eos"}
        lines.append(json.dumps(record))
    file.write_text("\n".join(lines) + "\n")
    return file


def build_tiny_cache(folder: Path, target: Path, records: Path, **changes: object) -> Path:
    """The feature cache of `records` for `target`, in `folder`."""
    sizes = {"draft_vocab_size": 48, "shard_size": 5, "dtype": "float32", "max_length": 64}
    build_cache(CacheSettings(records=[str(records)], target=str(target), out=str(folder), **{**sizes, **changes}))
    return folder
