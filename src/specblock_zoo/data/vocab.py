"""The reduced draft vocabulary: chosen from the supervised tokens, or a drafter's own, which is never rebuilt."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from specblock_zoo.data.examples import Example
from specblock_zoo.errors import ConfigurationError, WeightsMismatchError
from specblock_zoo.functional.vocab import VocabMap, build_vocab_map, check_vocab_map
from specblock_zoo.models.folders import read_named


def count_supervised(examples: Iterable[Example], vocab_size: int) -> Int64[Tensor, " target_vocab"]:
    """How often each target token is supervised, int64 `[target_vocab]`."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for example in examples:
        counts += np.bincount(example.input_ids[example.loss_mask], minlength=vocab_size)
    return torch.from_numpy(counts)


def choose_vocabulary(
    examples: Iterable[Example], vocab_size: int, draft_vocab_size: int, always: Sequence[int] = ()
) -> VocabMap:
    """The most frequent supervised tokens, `draft_vocab_size` of them or the whole vocabulary where it is smaller."""
    counts = count_supervised(examples, vocab_size)
    return build_vocab_map(counts, min(draft_vocab_size, vocab_size), always)


VOCAB_FILE = "vocab.safetensors"
DRAFTER_FILES = "model*.safetensors"


def take_vocabulary(folder: Path, examples: Iterable[Example], vocab_size: int) -> VocabMap:
    """The map of a cache or drafter folder (split or not); its coverage is counted on these examples.

    Raises:
        ConfigurationError: the folder holds no map.
        VocabularyMismatchError: the map contradicts itself, or is for a target of another vocabulary.
    """
    own = folder / VOCAB_FILE
    try:
        found = read_named([own] if own.is_file() else sorted(folder.glob(DRAFTER_FILES)), ("d2t", "t2d"))
        d2t, t2d = found["d2t"], found["t2d"]
    except (OSError, KeyError, WeightsMismatchError) as cause:
        raise ConfigurationError(
            f"vocabulary is {str(folder)!r}; no draft vocabulary can be read there ({cause}).",
            f"Give the folder of a cache ({VOCAB_FILE}) or of a drafter ({DRAFTER_FILES}).",
        ) from cause
    check_vocab_map(d2t, t2d, vocab_size)
    counts = count_supervised(examples, vocab_size)
    return VocabMap(d2t, t2d, float(counts[t2d].sum() / counts.sum()))


def vocabulary_sha256(vocab: VocabMap) -> str:
    """Hash of which target tokens are drafted."""
    return hashlib.sha256(vocab.t2d.numpy().tobytes()).hexdigest()
