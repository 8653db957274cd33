"""Cached sequences to one right-padded batch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specblock_zoo.data.layout import LAST_HIDDEN, TOP_IDS, CachedExample, from_bits

Batch = dict[str, Tensor]


def _padded(columns: Sequence[npt.NDArray[Any]], dtype: type[np.int64] | None = None) -> npt.NDArray[Any]:
    shape = (len(columns), max(map(len, columns)), *columns[0].shape[1:])
    padded = np.zeros(shape, dtype=dtype or columns[0].dtype)
    for row, column in enumerate(columns):
        padded[row, : len(column)] = column
    return padded


def _teacher(examples: Sequence[CachedExample]) -> Batch:
    fields: Batch = {}
    for name in examples[0].teacher:
        # Torch indexes with int64, and cannot do arithmetic on uint16.
        padded = _padded([example.teacher[name] for example in examples], np.int64 if name == TOP_IDS else None)
        fields[name] = from_bits(padded) if name == LAST_HIDDEN else torch.from_numpy(padded)
    return fields


def collate(examples: Sequence[CachedExample]) -> Batch:
    """Pads with zeros at the right; the one copy between the mapped file and the device.

    Returns:
        input_ids int64 `[batch, seq]`, attention_mask and loss_mask bool `[batch, seq]`, features bfloat16
        `[batch, seq, taps * hidden]` (taps side by side, in order), and the teacher in the cache's form: last_hidden
        bfloat16 `[batch, seq, hidden]`; or teacher_ids int64 (draft ids) and teacher_log_probs float16
        `[batch, seq, top]`, teacher_tail and teacher_logsumexp float32 `[batch, seq]`; or nothing (`tokens`).
    """
    rows, length = len(examples), max(map(len, examples))
    taps, hidden = len(examples[0].taps), examples[0].taps[0].shape[-1]
    features = np.zeros((rows, length, taps * hidden), dtype=np.uint16)
    for row, example in enumerate(examples):
        np.concatenate(example.taps, axis=-1, out=features[row, : len(example)])
    lengths = torch.tensor([len(example) for example in examples])
    return {
        "input_ids": torch.from_numpy(_padded([example.input_ids for example in examples], np.int64)),
        "attention_mask": torch.arange(length) < lengths[:, None],
        "loss_mask": torch.from_numpy(_padded([example.loss_mask for example in examples])),
        "features": from_bits(features),
        **_teacher(examples),
    }
