"""Choose the reduced draft vocabulary from the supervised tokens."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from specblock_zoo.data.examples import Example
from specblock_zoo.functional.vocab import VocabMap, build_vocab_map


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
