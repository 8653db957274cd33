"""Answer records -> target features -> shards. Resumable: finished shards stay, the rest is computed again."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import cast

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specblock_zoo.data.examples import Example, Limits, choose_examples, eligible_examples
from specblock_zoo.data.feature_cache import (
    LAST_HIDDEN,
    Bits,
    bytes_per_token,
    check_shard,
    save_vocab_map,
    tap_column,
    to_bits,
    write_shard,
)
from specblock_zoo.data.manifest import MANIFEST_FILE, Fingerprint, Manifest, read_manifest, write_manifest
from specblock_zoo.data.records import content_sha256, read_records
from specblock_zoo.data.vocab import choose_vocabulary
from specblock_zoo.errors import CacheMismatchError, ConfigurationError, CorruptCacheError
from specblock_zoo.functional.vocab import VocabMap
from specblock_zoo.targets.base import check_tap_layers
from specblock_zoo.targets.capture import capture
from specblock_zoo.targets.identity import identify
from specblock_zoo.targets.local import fast_dtype, load_target
from specblock_zoo.targets.registry import family_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class CacheSettings:
    """Arguments of `specblock cache`.

    Attributes:
        records: files of answer records, `.jsonl` or `.jsonl.gz`.
        target: name of an embedded target, a model folder, or a Hub repository.
        out: the cache folder; made when it does not exist, resumed when it holds a part of this very cache.
        tap_layers: 0-based target layers to store; the family's three when not given.
        max_length: tokens per sequence; longer ones are cut.
        max_prompt_tokens: records with a longer prompt are dropped and counted.
        max_records, max_tokens: a seeded random choice of at most so many records, or about so many supervised tokens.
        draft_vocab_size: size of the reduced vocabulary chosen from the supervised tokens.
        shard_size: records per shard; also how much is lost when the run is killed.
        batch_tokens: padded tokens per target forward.
        dtype: of the target's weights: float32, bfloat16, float16; the fastest exact one of the device when not given.
        device: where the target runs.
        num_threads: CPU threads of the target forward; torch's own choice when not given.
        seed: of the choice and the order of the records.
    """

    records: list[str]
    target: str
    out: str
    tap_layers: list[int] | None = None
    max_length: int = 1024
    max_prompt_tokens: int | None = None
    max_records: int | None = None
    max_tokens: int | None = None
    draft_vocab_size: int = 8192
    shard_size: int = 256
    batch_tokens: int = 2048
    dtype: str | None = None
    device: str = "cpu"
    num_threads: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class _Plan:
    """What is to be written: decided before a byte is."""

    examples: list[Example]
    vocab: VocabMap
    manifest: Manifest

    @property
    def shards(self) -> Iterator[tuple[str, list[Example]]]:
        size = self.manifest.fingerprint.shard_size
        for number, start in enumerate(range(0, len(self.examples), size)):
            yield f"shard-{number:05d}.arrow", self.examples[start : start + size]


def _check_settings(settings: CacheSettings) -> None:
    bounds = ("max_length", "max_records", "max_tokens", "draft_vocab_size", "shard_size", "batch_tokens")
    for name in bounds:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ConfigurationError(f"{name} is {value}; expected at least 1.", "Correct the argument.")
    if settings.dtype is not None and settings.dtype not in DTYPES:
        raise ConfigurationError(f"dtype is {settings.dtype!r}; expected one of {', '.join(DTYPES)}.", "Choose one.")


def _limits(settings: CacheSettings) -> Limits:
    return Limits(
        settings.max_length, settings.max_prompt_tokens, settings.max_records, settings.max_tokens, settings.seed
    )


def _plan(settings: CacheSettings, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> _Plan:
    config = model.config
    files = [Path(file) for file in settings.records]
    taps = tuple(settings.tap_layers) if settings.tap_layers else family_of(config).tap_layers(config)
    check_tap_layers(taps, config.num_hidden_layers)
    limits = _limits(settings)
    eligible, counts = eligible_examples(read_records(files), tokenizer, limits, config.vocab_size, settings.target)
    ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    vocab = choose_vocabulary(eligible, config.vocab_size, settings.draft_vocab_size, ends)
    examples, counts = choose_examples(eligible, counts, limits)
    identity = identify(settings.target, model, tokenizer)
    fingerprint = Fingerprint(
        target=identity.name,
        target_revision=identity.revision,
        weights_sha256=identity.weights_sha256,
        config_sha256=identity.config_sha256,
        tokenizer_sha256=identity.tokenizer_sha256,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        vocab_size=config.vocab_size,
        tap_layers=taps,
        dtype=str(model.dtype).removeprefix("torch."),
        data_sha256=content_sha256(files),
        **asdict(limits),
        shard_size=settings.shard_size,
        draft_vocab_size=len(vocab.d2t),
    )
    num_shards = -(-len(examples) // settings.shard_size)
    manifest = Manifest(fingerprint, counts.as_dict(), vocab.coverage, num_shards, _package_version())
    return _Plan(examples, vocab, manifest)


def _package_version() -> str:
    try:
        return version("specblock-zoo")
    except PackageNotFoundError:
        return "not installed"


def _resume(folder: Path, planned: Manifest) -> Manifest:
    """The manifest to go on from: the one in the folder with its whole shards, or the planned one."""
    if not (folder / MANIFEST_FILE).exists():
        return planned
    found = read_manifest(folder)
    differences = found.fingerprint.differences(planned.fingerprint.what_decides())
    if differences:
        raise CacheMismatchError(
            f"{folder} holds another feature cache: {differences}.", "Give another --out, or delete that folder."
        )
    manifest = planned
    for shard in found.shards:
        try:
            check_shard(folder, shard)
        except CorruptCacheError:
            break
        manifest = manifest.with_shard(shard)
    return manifest


def _check_space(folder: Path, planned: Manifest, done: Manifest) -> int:
    """Bytes still to be written; raises `ConfigurationError` when the disk has less room."""
    tokens = planned.counts["tokens"] - sum(shard.tokens for shard in done.shards)
    needed = tokens * bytes_per_token(len(planned.fingerprint.tap_layers), planned.fingerprint.hidden_size)
    existing = next(parent for parent in [folder, *folder.absolute().parents] if parent.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise ConfigurationError(
            f"The cache needs {needed / 1e9:.2f} GB more; {existing} has {free / 1e9:.2f} GB free.",
            "Lower --max_tokens or choose another --out.",
        )
    return needed


def length_sorted_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices by length, longest first, in batches of at most `batch_tokens` padded tokens (or one sequence)."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _padded(examples: Sequence[Example], device: torch.device) -> tuple[Tensor, Tensor]:
    length = max(map(len, examples))
    input_ids = np.zeros((len(examples), length), dtype=np.int64)
    for row, example in enumerate(examples):
        input_ids[row, : len(example)] = example.input_ids
    lengths = torch.tensor([len(example) for example in examples])
    attention_mask = torch.arange(length) < lengths[:, None]
    return torch.from_numpy(input_ids).to(device), attention_mask.to(device)


def capture_examples(
    model: PreTrainedModel, tap_layers: Sequence[int], examples: Sequence[Example]
) -> list[dict[str, Bits]]:
    """The columns of bits of a batch of examples, each `[seq, hidden]`, from one target forward."""
    states = capture(model, tap_layers, *_padded(examples, model.device))
    names = [*map(tap_column, tap_layers), LAST_HIDDEN]
    columns = dict(
        zip(names, (*states.features.chunk(len(tap_layers), dim=-1), cast(Tensor, states.last_hidden)), strict=True)
    )
    return [
        {name: to_bits(column[row, : len(example)]) for name, column in columns.items()}
        for row, example in enumerate(examples)
    ]


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tokens"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _extract(model: PreTrainedModel, plan: _Plan, done: Manifest, folder: Path, batch_tokens: int) -> Manifest:
    taps = plan.manifest.fingerprint.tap_layers
    with _progress() as progress:
        bar = progress.add_task(
            "target features", total=plan.manifest.counts["tokens"], completed=sum(s.tokens for s in done.shards)
        )
        for name, examples in list(plan.shards)[len(done.shards) :]:
            columns: list[dict[str, Bits]] = [{} for _ in examples]
            for batch in length_sorted_batches([len(example) for example in examples], batch_tokens):
                rows = [examples[i] for i in batch]
                for index, states in zip(batch, capture_examples(model, taps, rows), strict=True):
                    columns[index] = states
                progress.advance(bar, sum(map(len, rows)))
            done = done.with_shard(write_shard(folder / name, taps, examples, columns))
            write_manifest(folder, done)
    return done


def _describe(plan: _Plan, done: Manifest, needed_bytes: int) -> str:
    manifest = plan.manifest
    counts = ", ".join(f"{name} {count:,}" for name, count in manifest.counts.items())
    fingerprint = manifest.fingerprint
    return (
        f"{counts}\ndraft vocabulary {fingerprint.draft_vocab_size:,} of {fingerprint.vocab_size:,} "
        f"tokens, covers {manifest.vocab_coverage:.2%} of the supervised tokens\n"
        f"target {fingerprint.target} in {fingerprint.dtype}, taps {fingerprint.tap_layers}; "
        f"{len(done.shards)} of {manifest.num_shards} shards are there, {needed_bytes / 1e9:.2f} GB to write"
    )


def build_cache(settings: CacheSettings) -> Manifest:
    """Extracts the target's features for answer records into a cache folder, or finishes a folder it began.

    Everything that can be wrong with the arguments, the records or the target is found before the folder is touched.

    Returns:
        The manifest of the finished cache.

    Raises:
        ConfigurationError, EmptyDataError, BadRecordError, NoSupervisedTokensError, TargetMismatchError: bad input.
        CacheMismatchError: the folder holds another cache.
        MissingPackageError: an embedded target whose package is absent.
    """
    _check_settings(settings)
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    dtype = DTYPES[settings.dtype] if settings.dtype else fast_dtype(settings.device)
    model, tokenizer = load_target(settings.target, dtype, settings.device)
    plan = _plan(settings, model, tokenizer)
    folder = Path(settings.out)
    done = _resume(folder, plan.manifest)
    Console(stderr=True).print(_describe(plan, done, _check_space(folder, plan.manifest, done)), highlight=False)
    folder.mkdir(parents=True, exist_ok=True)
    for half_done in folder.glob(".*.tmp"):
        half_done.unlink()
    save_vocab_map(folder, plan.vocab)
    write_manifest(folder, done)
    return _extract(model, plan, done, folder, settings.batch_tokens)
