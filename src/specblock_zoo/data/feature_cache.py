"""Feature shards on disk: one Arrow file each, written whole or not at all, read without copying."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from datasets import Dataset
from datasets.arrow_writer import ArrowWriter
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from specblock_zoo.data.collate import Batch, collate
from specblock_zoo.data.examples import Example
from specblock_zoo.data.files import replacing
from specblock_zoo.data.layout import CachedExample, Columns, Layout, layout_of
from specblock_zoo.data.manifest import Manifest, Shard, read_manifest
from specblock_zoo.data.vocab import VOCAB_FILE
from specblock_zoo.errors import CorruptCacheError
from specblock_zoo.functional.vocab import VocabMap

RESUME = "Run the same `specblock cache` command again: it keeps the shards that are whole."


def file_sha256(path: Path) -> str:
    """Checksum of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_shard(
    path: Path, layout: Layout, examples: Sequence[Example], columns: Sequence[Columns], state_error: float = 0.0
) -> Shard:
    """Writes one shard beside its final place, then renames it there.

    Args:
        columns: per example what `layout.encode` gave.
        state_error: mean error of the states in `columns`, kept for the record.

    Raises:
        ConfigurationError: the disk is full; nothing is left behind.
    """
    with replacing(path) as half_done:
        # One record batch per row: reading a row then touches only its own pages.
        writer = ArrowWriter(features=layout.schema, path=str(half_done), writer_batch_size=1)
        for example, states in zip(examples, columns, strict=True):
            row = {"id": example.id, "input_ids": example.input_ids, "loss_mask": example.loss_mask.astype(np.uint8)}
            writer.write({**row, **{name: array.reshape(-1) for name, array in states.items()}})
        writer.finalize()
        writer.close()
        checksum = file_sha256(half_done)
    supervised = sum(example.supervised_tokens for example in examples)
    tokens = sum(map(len, examples))
    return Shard(path.name, len(examples), tokens, supervised, path.stat().st_size, state_error, checksum)


def save_vocab_map(folder: Path, vocab: VocabMap) -> None:
    """Writes the draft vocabulary of a cache, atomically."""
    with replacing(folder / VOCAB_FILE) as half_done:
        save_file({"d2t": vocab.d2t, "t2d": vocab.t2d}, half_done)
        # safetensors gives it to its writer alone; the other files of a cache are readable by all.
        half_done.chmod(0o644)


def check_shard(folder: Path, shard: Shard, checksum: bool = False) -> None:
    """Raises `CorruptCacheError` naming the file when a committed shard is missing, has another size or other bytes.

    Args:
        checksum: also read every byte.
    """
    path = folder / shard.file
    size = path.stat().st_size if path.is_file() else None
    if size != shard.bytes:
        found = "is missing" if size is None else f"has {size} bytes"
        raise CorruptCacheError(f"The shard {path} {found}; the manifest says {shard.bytes}.", RESUME)
    if checksum and (found := file_sha256(path)) != shard.sha256:
        raise CorruptCacheError(
            f"The shard {path} has the checksum {found[:12]}; the manifest says {shard.sha256[:12]}.",
            "Delete this file and run the same `specblock cache` command again.",
        )


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


def read_row(rows: Dataset, index: int, layout: Layout) -> CachedExample:
    """One sequence of a shard."""
    row = rows[index]

    def column(name: str) -> npt.NDArray:
        return row[name].chunk(0)[0].values.to_numpy(zero_copy_only=True)

    tokens = Example(row["id"][0].as_py(), column("input_ids"), column("loss_mask").view(np.bool_))
    return layout.decode(tokens, column)


def shard_ids(rows: Dataset) -> list[str]:
    """Record ids of a shard, in order."""
    ids: list[str] = rows.data.table["id"].to_pylist()
    return ids


class FeatureCache:
    """A finished cache folder, opened for reading.

    Raises:
        CorruptCacheError: no manifest, an unfinished extraction, or a shard or vocabulary file that is not whole.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest: Manifest = read_manifest(self.folder)
        if not self.manifest.complete:
            done, all_of = self.manifest.committed("records"), self.manifest.records
            raise CorruptCacheError(f"The feature cache {folder} has {done} of {all_of} records.", RESUME)
        self.layout = layout_of(self.manifest.fingerprint)
        self._shards = [open_shard(self.folder, shard) for shard in self.manifest.shards]
        self._ends = np.cumsum([len(rows) for rows in self._shards]).tolist()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> CachedExample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = bisect_right(self._ends, index)
        return read_row(self._shards[shard], index - (self._ends[shard - 1] if shard else 0), self.layout)

    def batch(self, examples: Sequence[CachedExample]) -> Batch:
        """One batch; see `collate`."""
        return collate(examples)

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
