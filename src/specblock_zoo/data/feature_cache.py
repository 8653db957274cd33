"""Feature shards on disk: one Arrow file each, written whole or not at all, read without copying.

Arrow has no bfloat16, and libraries that convert would widen it to float32: states are stored as the uint16 of the same
bits, one column per tap, so that a run with fewer taps reads fewer bytes.
"""

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from datasets import Dataset, Features, LargeList, Value
from datasets.arrow_writer import ArrowWriter
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from specblock_zoo.data.examples import Example
from specblock_zoo.data.manifest import Manifest, Shard, read_manifest
from specblock_zoo.errors import CorruptCacheError
from specblock_zoo.functional.vocab import VocabMap

VOCAB_FILE = "vocab.safetensors"
LAST_HIDDEN = "last_hidden"
BYTES_PER_STATE = 2
BYTES_PER_ID_AND_MASK = 5
RESUME = "Run the same `specblock cache` command again: it keeps the shards that are whole."

Bits = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class CachedExample:
    """One sequence and the bits of its bfloat16 states, views into the mapped file.

    Attributes:
        input_ids: int32 `[seq]`.
        loss_mask: bool `[seq]`.
        taps: uint16 `[seq, hidden]` per tap layer, in order.
        last_hidden: uint16 `[seq, hidden]`.
    """

    id: str
    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]
    taps: tuple[Bits, ...]
    last_hidden: Bits

    def __len__(self) -> int:
        return len(self.input_ids)


def tap_column(layer: int) -> str:
    """Name of the column that holds the output of a tap layer."""
    return f"layer_{layer}"


def bytes_per_token(num_taps: int, hidden_size: int) -> int:
    """Disk cost of one token: its taps and last state in bfloat16, its id and its mask."""
    return (num_taps + 1) * hidden_size * BYTES_PER_STATE + BYTES_PER_ID_AND_MASK


def shard_features(tap_layers: Sequence[int]) -> Features:
    """The Arrow schema of a shard; large lists, because 64-bit offsets never overflow."""
    states = {name: LargeList(Value("uint16")) for name in [*map(tap_column, tap_layers), LAST_HIDDEN]}
    tokens = {"input_ids": LargeList(Value("int32")), "loss_mask": LargeList(Value("uint8"))}
    return Features({"id": Value("string"), **tokens, **states})


def to_bits(states: Tensor) -> Bits:
    """The bits of `states` rounded to bfloat16, uint16, same shape."""
    bits: Bits = states.to(torch.bfloat16).contiguous().view(torch.uint16).cpu().numpy()
    return bits


def from_bits(bits: Bits) -> Tensor:
    """The bfloat16 tensor with these bits, sharing their memory (which must be writable)."""
    return torch.from_numpy(bits).view(torch.bfloat16)


def write_shard(
    path: Path, tap_layers: Sequence[int], examples: Sequence[Example], states: Sequence[dict[str, Bits]]
) -> Shard:
    """Writes one shard beside its final place, then renames it there.

    Args:
        states: per example its columns of bits (`tap_column(layer)` and `LAST_HIDDEN`), each `[seq, hidden]`.
    """
    half_done = path.with_name(f".{path.name}.tmp")
    # One record batch per row: reading a row then touches only its own pages.
    writer = ArrowWriter(features=shard_features(tap_layers), path=str(half_done), writer_batch_size=1)
    for example, columns in zip(examples, states, strict=True):
        row = {"id": example.id, "input_ids": example.input_ids, "loss_mask": example.loss_mask.astype(np.uint8)}
        writer.write({**row, **{name: bits.reshape(-1) for name, bits in columns.items()}})
    writer.finalize()
    writer.close()
    with half_done.open("rb") as stream:
        os.fsync(stream.fileno())
    os.replace(half_done, path)
    supervised = sum(example.supervised_tokens for example in examples)
    return Shard(path.name, len(examples), sum(map(len, examples)), supervised, path.stat().st_size)


def save_vocab_map(folder: Path, vocab: VocabMap) -> None:
    """Writes the draft vocabulary of a cache, atomically."""
    half_done = folder / f".{VOCAB_FILE}.tmp"
    save_file({"d2t": vocab.d2t, "t2d": vocab.t2d}, half_done)
    os.replace(half_done, folder / VOCAB_FILE)


def check_shard(folder: Path, shard: Shard) -> None:
    """Raises `CorruptCacheError` naming the file when a committed shard is missing or has another size."""
    path = folder / shard.file
    size = path.stat().st_size if path.is_file() else None
    if size != shard.bytes:
        found = "is missing" if size is None else f"has {size} bytes"
        raise CorruptCacheError(f"The shard {path} {found}; the manifest says {shard.bytes}.", RESUME)


def open_shard(folder: Path, shard: Shard) -> Dataset:
    """A committed shard, memory-mapped.

    Raises:
        CorruptCacheError: missing, truncated, unreadable, or with another number of rows; the file is named.
    """
    check_shard(folder, shard)
    path = folder / shard.file
    try:
        rows = Dataset.from_file(str(path)).with_format("arrow")
    except (pa.ArrowException, ValueError, OSError) as cause:
        raise CorruptCacheError(f"The shard {path} cannot be read ({cause}).", RESUME) from cause
    if len(rows) != shard.records:
        raise CorruptCacheError(f"The shard {path} has {len(rows)} rows; the manifest says {shard.records}.", RESUME)
    return rows


class FeatureCache:
    """A finished cache folder, opened for reading.

    Raises:
        CorruptCacheError: no manifest, an unfinished extraction, or a shard or vocabulary file that is not whole.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest: Manifest = read_manifest(self.folder)
        if not self.manifest.complete:
            done, all_of = len(self.manifest.shards), self.manifest.num_shards
            raise CorruptCacheError(f"The feature cache {folder} has {done} of {all_of} shards.", RESUME)
        self._shards = [open_shard(self.folder, shard) for shard in self.manifest.shards]
        self._ends = np.cumsum([len(rows) for rows in self._shards]).tolist()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> CachedExample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = bisect_right(self._ends, index)
        row = self._shards[shard][index - (self._ends[shard - 1] if shard else 0)]
        hidden = self.manifest.fingerprint.hidden_size

        def column(name: str) -> npt.NDArray:
            return row[name].chunk(0)[0].values.to_numpy(zero_copy_only=True)

        return CachedExample(
            id=row["id"][0].as_py(),
            input_ids=column("input_ids"),
            loss_mask=column("loss_mask").view(np.bool_),
            taps=tuple(column(tap_column(i)).reshape(-1, hidden) for i in self.manifest.fingerprint.tap_layers),
            last_hidden=column(LAST_HIDDEN).reshape(-1, hidden),
        )

    def lengths_and_ids(self) -> Iterator[tuple[int, str]]:
        """Length in tokens and record id of every example, in order, without touching the states."""
        for rows in self._shards:
            table = rows.data.table
            lengths = pa.compute.list_value_length(table["input_ids"]).to_pylist()
            yield from zip(lengths, table["id"].to_pylist(), strict=True)

    def vocab_map(self) -> VocabMap:
        """The draft vocabulary chosen from the data.

        Raises:
            CorruptCacheError: the file is missing or unreadable.
        """
        path = self.folder / VOCAB_FILE
        try:
            tensors = load_file(path)
            return VocabMap(tensors["d2t"], tensors["t2d"], self.manifest.vocab_coverage)
        except (OSError, KeyError, SafetensorError) as cause:
            raise CorruptCacheError(f"The vocabulary file {path} cannot be read ({cause}).", RESUME) from cause
