"""Answer records -> target features -> shards. Resumable: finished shards stay, the rest is computed again."""

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from specblock_zoo.data.examples import Example
from specblock_zoo.data.extract import Extracted
from specblock_zoo.data.feature_cache import open_shard, save_vocab_map, shard_ids, write_shard
from specblock_zoo.data.layout import Layout
from specblock_zoo.data.manifest import MANIFEST_FILE, Manifest, read_manifest, write_manifest
from specblock_zoo.data.plan import Plan, describe, make_plan, tokens_per_second
from specblock_zoo.data.preview import check_share, draw_example
from specblock_zoo.data.settings import CacheSettings
from specblock_zoo.errors import CacheMismatchError, ConfigurationError, CorruptCacheError


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise ConfigurationError(
            f"out is {str(folder)!r}; no folder can be made there ({cause.strerror}).", "Give another --out."
        ) from cause


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Makes the folder and holds it against other writers; a killed process lets go by itself.

    Raises:
        ConfigurationError: another process is writing into it, or it cannot be made.
    """
    _make(folder)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as cause:
        raise ConfigurationError(
            f"Another process is writing into {folder}; a cache has one writer.",
            "Wait for it, or give another folder.",
        ) from cause
    finally:
        os.close(handle)


def take_up(folder: Path, planned: Manifest) -> Manifest:
    """The manifest to go on from: the planned one with the whole shards that are in the folder already.

    Raises:
        CacheMismatchError: the folder holds another cache; every differing field is named.
    """
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
            open_shard(folder, shard)
        except CorruptCacheError:
            continue
        manifest = manifest.with_shard(shard)
    return manifest


def begin(folder: Path, plan: Plan, done: Manifest) -> None:
    """Writes what does not depend on the states, and removes what a killed run left half-written."""
    for half_done in folder.glob(".*.tmp"):
        half_done.unlink()
    save_vocab_map(folder, plan.vocab)
    write_manifest(folder, done)


def commit(folder: Path, done: Manifest, layout: Layout, results: Sequence[Extracted]) -> Manifest:
    """Adds one shard to a cache: first the file, then the manifest that names it."""
    error = sum(r.state_error * len(r.example) for r in results) / sum(len(r.example) for r in results)
    columns = [result.columns for result in results]
    shard = write_shard(folder / done.free_name(), layout, [r.example for r in results], columns, error)
    done = done.with_shard(shard)
    write_manifest(folder, done)
    return done


def missing(folder: Path, plan: Plan, done: Manifest) -> list[Example]:
    """The plan's sequences that no committed shard holds, in order."""
    there = {name for shard in done.shards for name in shard_ids(open_shard(folder, shard))}
    return [example for example in plan.examples if example.id not in there]


def _check_space(settings: CacheSettings, plan: Plan, needed: int) -> int:
    """Free bytes; raises `ConfigurationError` when the disk has less room, or the cache would exceed `max_bytes`."""
    folder = Path(settings.out)
    existing = next(parent for parent in [folder, *folder.absolute().parents] if parent.exists())
    free = shutil.disk_usage(existing).free
    smaller = "Lower --max_tokens, or choose --state_dtype float8 or --teacher topk"
    if settings.max_bytes is not None and plan.bytes > settings.max_bytes:
        raise ConfigurationError(
            f"The cache would have {plan.bytes:,} bytes; max_bytes is {settings.max_bytes:,}.", f"{smaller}."
        )
    if needed > free:
        raise ConfigurationError(
            f"The cache needs {needed / 1e9:.2f} GB more; {existing} has {free / 1e9:.2f} GB free.",
            f"{smaller}, or choose another --out.",
        )
    return free


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


def _extract(settings: CacheSettings, plan: Plan, done: Manifest, folder: Path) -> Manifest:
    left = missing(folder, plan, done)
    with _progress() as progress:
        bar = progress.add_task("target features", total=plan.counts.tokens, completed=done.committed("tokens"))
        for start in range(0, len(left), settings.shard_size):
            examples = left[start : start + settings.shard_size]
            results: dict[int, Extracted] = {}
            for batch in plan.extractor.batches(examples, settings.batch_tokens):
                results.update(batch)
                progress.advance(bar, sum(len(result.example) for _, result in batch))
            done = commit(folder, done, plan.extractor.layout, [results[i] for i in range(len(examples))])
    return done


def build_cache(settings: CacheSettings) -> Manifest:
    """Extracts the target's features for answer records into a cache folder, or finishes a folder it began.

    Everything that can be wrong with the arguments, the records or the target is found before the folder is touched.

    Returns:
        The manifest of the finished cache; of what is there so far with `dry_run`.

    Raises:
        ConfigurationError, EmptyDataError, BadRecordError, NoSupervisedTokensError, TargetMismatchError: bad input.
        CacheMismatchError: the folder holds another cache.
        MissingPackageError: an embedded target whose package is absent.
    """
    console = Console(stderr=True)
    plan = make_plan(settings)
    folder = Path(settings.out)
    done = take_up(folder, plan.manifest)
    tokens = plan.counts.tokens - done.committed("tokens")
    console.print(draw_example(plan.examples[0], plan.tokenizer))
    console.print(describe(plan), highlight=False, markup=False)
    check_share(plan.counts)
    needed = tokens * plan.extractor.layout.bytes_per_token
    free = _check_space(settings, plan, needed)
    console.print(
        f"{len(done.shards)} shards are there, {needed / 1e9:.3f} GB to write, {free / 1e9:.1f} GB free",
        highlight=False,
    )
    if settings.dry_run:
        seconds = tokens / tokens_per_second(plan, settings.batch_tokens)
        console.print(
            f"about {seconds / 60:.1f} minutes on this {settings.device}; nothing was written", highlight=False
        )
        return done
    with only_writer(folder):
        done = take_up(folder, plan.manifest)
        begin(folder, plan, done)
        done = _extract(settings, plan, done, folder)
    console.print(f"stored states differ from the target's by {done.state_error:.2%} of their size", highlight=False)
    return done
