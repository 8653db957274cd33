"""A target, answer records and a feature cache small enough to train on in a test."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from specblock_zoo.data.build_cache import build_cache
from specblock_zoo.data.settings import CacheSettings
from specblock_zoo.targets.registry import FAMILIES
from tests.support.tiny_pair import SPECIAL, VOCAB_SIZE, character_tokenizer


def save_tiny_target(folder: Path, family: str = "llama", seed: int = 0, **overrides: object) -> PreTrainedModel:
    """A random target of a family, with its tokenizer, as a folder that `load_target` reads."""
    model = FAMILIES[family].tiny_model(seed=seed, **{"vocab_size": VOCAB_SIZE, **overrides})
    model.save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return model


def write_records(file: Path, count: int = 12, seed: int = 0) -> Path:
    """Answer records of random tokens that repeat themselves, so that there is something to learn."""
    draw = random.Random(seed)
    lines = []
    for index in range(count):
        motif = [draw.randrange(len(SPECIAL), VOCAB_SIZE) for _ in range(3)]
        prompt = [1, *(draw.randrange(len(SPECIAL), VOCAB_SIZE) for _ in range(3))]
        answer = (motif * 12)[: draw.randrange(16, 30)]
        record = {
            "id": f"r{index}",
            "prompt_ids": prompt,
            "answer_ids": [*answer, 2],
            "temperature": 0,
            "finish": "eos",
        }
        lines.append(json.dumps(record))
    file.write_text("\n".join(lines) + "\n")
    return file


def build_tiny_cache(folder: Path, target: Path, records: Path, **changes: object) -> Path:
    """The feature cache of `records` for `target`, in `folder`."""
    sizes = {"draft_vocab_size": 48, "shard_size": 5, "dtype": "float32", "max_length": 64}
    build_cache(CacheSettings(records=[str(records)], target=str(target), out=str(folder), **{**sizes, **changes}))
    return folder


@dataclass(frozen=True)
class TinyRun:
    """Folders of a tiny target and of a feature cache built with it, and the records behind it."""

    target: Path
    cache: Path
    records: Path


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """What a training run needs; read only."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_target(folder / "target")
    records = write_records(folder / "answers.jsonl")
    return TinyRun(folder / "target", build_tiny_cache(folder / "cache", folder / "target", records), records)
