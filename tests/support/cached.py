"""Feature caches of arbitrary bits, written without a target."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from specblock_zoo.data.examples import Example
from specblock_zoo.data.feature_cache import save_vocab_map, write_shard
from specblock_zoo.data.layout import LAST_HIDDEN, Bits, layout_of, tap_column
from specblock_zoo.data.manifest import Fingerprint, Manifest, write_manifest
from specblock_zoo.functional.vocab import build_vocab_map

TAPS, HIDDEN = (1, 2, 3), 32
FINGERPRINT = Fingerprint(
    target="folder/of/target",
    target_revision=None,
    weights_sha256="w",
    config_sha256="c",
    tokenizer_sha256="t",
    hidden_size=32,
    num_hidden_layers=7,
    vocab_size=96,
    tap_layers=(1, 2, 3),
    dtype="float32",
    data_sha256="d",
    max_length=64,
    max_prompt_tokens=None,
    max_records=None,
    max_tokens=None,
    seed=0,
    shard_size=5,
    draft_vocab_size=48,
)
LAYOUT = layout_of(FINGERPRINT)


def make_examples(lengths: Sequence[int], seed: int = 0) -> tuple[list[Example], list[dict[str, Bits]]]:
    """Sequences whose states are arbitrary bit patterns, NaNs and infinities included."""
    draw = np.random.default_rng(seed)
    examples, states = [], []
    for i, length in enumerate(lengths):
        ids = draw.integers(0, 96, length, dtype=np.int32)
        examples.append(Example(f"r{i}", ids, draw.integers(0, 2, length).astype(np.bool_)))
        names = [*map(tap_column, TAPS), LAST_HIDDEN]
        states.append({name: draw.integers(0, 2**16, (length, HIDDEN), dtype=np.uint16) for name in names})
    return examples, states


def make_cache(
    folder: Path, lengths: Sequence[int] = (3, 1, 7, 4, 2), shard_size: int = 2, seed: int = 0
) -> tuple[list[Example], list[dict[str, Bits]]]:
    """Writes a finished cache of sequences of these lengths and returns what is in it."""
    folder.mkdir(exist_ok=True)
    examples, states = make_examples(lengths, seed)
    starts = range(0, len(lengths), shard_size)
    manifest = Manifest(FINGERPRINT, {}, 0.5, len(lengths), "0.1.0")
    for number, start in enumerate(starts):
        part = slice(start, start + shard_size)
        path = folder / f"shard-{number:05d}.arrow"
        manifest = manifest.with_shard(write_shard(path, LAYOUT, examples[part], states[part]))
    save_vocab_map(folder, build_vocab_map(torch.arange(96), 48))
    write_manifest(folder, manifest)
    return examples, states
