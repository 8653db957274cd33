"""How fast the feature cache is read and written, against what the machine moves at all. Ends with one JSON line.

Usage: python benchmarks/cache_io.py [--rounds 5] [--sequences 128] [--length 256]

Reading: whole rows in a seeded order, collated into batches as training gets them; the floor copies the same files out
of the page cache into one buffer. Writing: one shard with its checksum; the floors write the same bytes without any
format, and with a checksum. All cases take turns in one process; medians with quartiles. Everything is in the page
cache, so the disk is not measured. Rows have SmolLM2-135M's shapes: three taps and the last state of 576 numbers.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveInt
from rich.console import Console
from rich.table import Table

from specblock_zoo.bench.timing import Summary, interleave, summarize
from specblock_zoo.data.examples import Example
from specblock_zoo.data.feature_cache import FeatureCache, save_vocab_map, write_shard
from specblock_zoo.data.layout import Columns, Layout, layout_of, to_bits
from specblock_zoo.data.manifest import Fingerprint, Manifest, shard_name, write_manifest
from specblock_zoo.functional.vocab import build_vocab_map

VOCAB, DRAFT_VOCAB, TAPS = 49_152, 8_192, (1, 14, 26)
SHARDS = 4
READ, READ_FLOOR = "read into batches", "floor: copy of the files"
WRITE, WRITE_FLOOR, CHECKED_FLOOR = "write a shard", "floor: plain write", "floor: plain write, checksum"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the cache: `sequences` of `length` tokens, states of `hidden` numbers, batches of `batch` sequences."""

    sequences: PositiveInt = 128
    length: PositiveInt = 256
    hidden: PositiveInt = 576
    batch: PositiveInt = 8


SIZES = Sizes()


def fingerprint(sizes: Sizes) -> Fingerprint:
    """Facts of a target that was never there."""
    return Fingerprint(
        target="made up",
        target_revision=None,
        weights_sha256="",
        config_sha256="",
        tokenizer_sha256="",
        hidden_size=sizes.hidden,
        num_hidden_layers=30,
        vocab_size=VOCAB,
        tap_layers=TAPS,
        dtype="float32",
        data_sha256="",
        max_length=sizes.length,
        max_prompt_tokens=None,
        max_records=None,
        max_tokens=None,
        seed=0,
        shard_size=-(-sizes.sequences // SHARDS),
        draft_vocab_size=DRAFT_VOCAB,
    )


class Bench:
    """A cache in `folder`, and the cases; each returns the bytes it moved."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self.folder, self.sizes = folder, sizes
        made = fingerprint(sizes)
        self.layout = layout_of(made)
        rows = [sequence(index, sizes, self.layout) for index in range(made.shard_size)]
        self.examples, self.columns = [example for example, _ in rows], [columns for _, columns in rows]
        manifest = Manifest(made, {}, 1.0, SHARDS * len(rows), "benchmark")
        for number in range(SHARDS):
            manifest = manifest.with_shard(self.shard(folder / shard_name(number)))
        save_vocab_map(folder, build_vocab_map(torch.arange(VOCAB), DRAFT_VOCAB))
        write_manifest(folder, manifest)
        self.cache = FeatureCache(folder)
        self.files = [folder / shard.file for shard in manifest.shards]
        self.blob = self.files[0].read_bytes()
        self.buffer = np.empty(max(path.stat().st_size for path in self.files), dtype=np.uint8)
        self.order = np.random.default_rng(0).permutation(len(self.cache)).tolist()

    def shard(self, path: Path) -> Any:
        """Writes the made-up rows as one shard."""
        return write_shard(path, self.layout, self.examples, self.columns)

    def read(self, _: int) -> int:
        """Every row once, in batches."""
        size, moved = self.sizes.batch, 0
        for start in range(0, len(self.order), size):
            batch = self.cache.batch([self.cache[index] for index in self.order[start : start + size]])
            moved += batch["features"].nbytes + batch["last_hidden"].nbytes
        return moved

    def copy(self, _: int) -> int:
        """The bytes of every file, mapped, into one buffer."""
        moved = 0
        for path in self.files:
            mapped = np.memmap(path, mode="r", dtype=np.uint8)
            np.copyto(self.buffer[: mapped.size], mapped)
            moved += mapped.size
        return moved

    def write(self, _: int) -> int:
        """One shard."""
        return int(self.shard(self.folder / "again.arrow").bytes)

    def write_plainly(self, _: int) -> int:
        """The bytes of a shard."""
        return (self.folder / "plain").write_bytes(self.blob)

    def write_checked(self, _: int) -> int:
        """The bytes of a shard, read again for their checksum, as a shard's are."""
        written = self.write_plainly(0)
        with (self.folder / "plain").open("rb") as stream:
            hashlib.file_digest(stream, "sha256")
        return written

    @property
    def cases(self) -> dict[str, Callable[[int], int]]:
        """Name -> case."""
        return {
            READ: self.read,
            READ_FLOOR: self.copy,
            WRITE: self.write,
            WRITE_FLOOR: self.write_plainly,
            CHECKED_FLOOR: self.write_checked,
        }


def sequence(index: int, sizes: Sizes, layout: Layout) -> tuple[Example, Columns]:
    """A row of random states."""
    draw = torch.Generator().manual_seed(index)
    names = [name for name in layout.schema if name not in ("id", "input_ids", "loss_mask")]
    states = {name: to_bits(torch.randn(sizes.length, sizes.hidden, generator=draw)) for name in names}
    ids = torch.randint(VOCAB, (sizes.length,), generator=draw, dtype=torch.int32).numpy()
    return Example(f"r{index}", ids, np.ones(sizes.length, dtype=np.bool_)), states


def main(rounds: PositiveInt = 5, sizes: Sizes = SIZES) -> None:
    """Times reading and writing and prints a table and {"read_gb_s": ..., "read_of_floor": share of the floor, ...}.

    Args:
        rounds: passes of each case.
        sizes: of the cache.
    """
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), sizes)
        timed = interleave(bench.cases, range(rounds), warm_up=0)
        rows = {READ: len(bench.cache), WRITE: len(bench.examples)}
        moved = {name: calls[0].outcome for name, calls in timed.items()}
    speeds = {name: summarize([moved[name] / call.seconds / 1e9 for call in calls]) for name, calls in timed.items()}
    seconds = {name: summarize([call.seconds for call in calls]).median for name, calls in timed.items()}
    floors = {READ: READ_FLOOR, WRITE: CHECKED_FLOOR}
    table = Table("case", "MB per pass", "GB/s (quartiles)", "rows/s", "of its floor")
    for name, speed in speeds.items():
        per_row = f"{rows[name] / seconds[name]:,.0f}" if name in rows else ""
        share = f"{speed.median / speeds[floors[name]].median:.0%}" if name in floors else ""
        table.add_row(name, f"{moved[name] / 1e6:,.1f}", spread(speed), per_row, share)
    Console().print(table)
    print(
        json.dumps(
            {
                "read_gb_s": round(speeds[READ].median, 3),
                "read_of_floor": round(speeds[READ].median / speeds[READ_FLOOR].median, 3),
                "read_rows_s": round(rows[READ] / seconds[READ], 1),
                "write_gb_s": round(speeds[WRITE].median, 3),
                "write_of_floor": round(speeds[WRITE].median / speeds[CHECKED_FLOOR].median, 3),
                "write_rows_s": round(rows[WRITE] / seconds[WRITE], 1),
            }
        )
    )


def spread(speed: Summary) -> str:
    """A median with its quartiles."""
    return f"{speed.median:.2f} ({speed.low:.2f}-{speed.high:.2f})"


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
