"""Cached sequences to one right-padded batch."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specblock_zoo.data.feature_cache import CachedExample, from_bits

Batch = dict[str, Tensor]


def collate(examples: Sequence[CachedExample]) -> Batch:
    """Pads with zeros at the right; the one copy between the mapped file and the device.

    Returns:
        input_ids int64 `[batch, seq]`, attention_mask and loss_mask bool `[batch, seq]`, features bfloat16
        `[batch, seq, taps * hidden]` (taps side by side, in order), last_hidden bfloat16 `[batch, seq, hidden]`.
    """
    rows, length = len(examples), max(map(len, examples))
    taps, hidden = len(examples[0].taps), examples[0].last_hidden.shape[-1]
    input_ids = np.zeros((rows, length), dtype=np.int64)
    loss_mask = np.zeros((rows, length), dtype=np.bool_)
    features = np.zeros((rows, length, taps * hidden), dtype=np.uint16)
    last_hidden = np.zeros((rows, length, hidden), dtype=np.uint16)
    for row, example in enumerate(examples):
        end = len(example)
        input_ids[row, :end] = example.input_ids
        loss_mask[row, :end] = example.loss_mask
        np.concatenate(example.taps, axis=-1, out=features[row, :end])
        last_hidden[row, :end] = example.last_hidden
    lengths = torch.tensor([len(example) for example in examples])
    return {
        "input_ids": torch.from_numpy(input_ids),
        "attention_mask": torch.arange(length) < lengths[:, None],
        "loss_mask": torch.from_numpy(loss_mask),
        "features": from_bits(features),
        "last_hidden": from_bits(last_hidden),
    }
