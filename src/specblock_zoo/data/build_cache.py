"""Answer records -> target features -> shards. Resumable: finished shards stay, the rest is computed again."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from specblock_zoo.data.examples import Example
from specblock_zoo.data.extract import Extracted
from specblock_zoo.data.feature_cache import open_shard, save_vocab_map, shard_ids, write_shard
from specblock_zoo.data.layout import Layout
from specblock_zoo.data.locks import locked_files, using_folder, writing
from specblock_zoo.data.manifest import (
    MANIFEST_FILE,
    Manifest,
    read_manifest,
    shard_name,
    shard_number,
    write_manifest,
)
from specblock_zoo.data.plan import Plan, describe, make_plan, tokens_per_second
from specblock_zoo.data.preview import check_share, draw_example
from specblock_zoo.data.settings import CacheSettings
from specblock_zoo.errors import CacheMismatchError, ConfigurationError, CorruptCacheError


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


def begin(folder: Path, plan: Plan) -> Manifest:
    """Writes what does not depend on the states; returns what is there already.

    Raises:
        CacheMismatchError: the folder holds another cache.
    """
    with writing(folder / MANIFEST_FILE, wait=True):
        done = take_up(folder, plan.manifest)
        for file in locked_files(folder):
            # A lock that can be had was left by a dead process; letting it go removes it.
            with suppress(ConfigurationError), writing(file):
                pass
        save_vocab_map(folder, plan.vocab)
        write_manifest(folder, done)
    return done


def commit(folder: Path, name: str, layout: Layout, results: Sequence[Extracted]) -> Manifest:
    """Adds one shard to a cache: first the file, then the manifest that names it; other workers' shards stay in it."""
    error = sum(r.state_error * len(r.example) for r in results) / sum(len(r.example) for r in results)
    columns = [result.columns for result in results]
    shard = write_shard(folder / name, layout, [r.example for r in results], columns, error)
    with writing(folder / MANIFEST_FILE, wait=True):
        done = read_manifest(folder).with_shard(shard)
        write_manifest(folder, done)
    return done


Jobs = dict[str, list[Example]]
"""Sequences by the name of the shard that is to hold them."""


def open_jobs(folder: Path, plan: Plan, done: Manifest) -> Jobs:
    """What no committed shard holds. Shard j is the j-th piece of the plan, whoever writes it and in whatever order.

    A hybrid source writes shards in the order of its epoch: what such a folder lacks goes into further shards.
    """
    size = plan.manifest.fingerprint.shard_size
    pieces = [plan.examples[start : start + size] for start in range(0, len(plan.examples), size)]
    planned = {shard_name(number): piece for number, piece in enumerate(pieces)}
    there = {shard.file: shard_ids(open_shard(folder, shard)) for shard in done.shards}
    if all(name in planned and [e.id for e in planned[name]] == ids for name, ids in there.items()):
        return {name: piece for name, piece in planned.items() if name not in there}
    known = {example_id for ids in there.values() for example_id in ids}
    left = [example for example in plan.examples if example.id not in known]
    names = (name for name in map(shard_name, count()) if name not in there)
    return {next(names): left[start : start + size] for start in range(0, len(left), size)}


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


def progress_bar(hidden: bool = False) -> Progress:
    """Counts tokens."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tokens"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=hidden,
    )


def _extract(settings: CacheSettings, plan: Plan, jobs: Jobs, hidden: bool) -> None:
    extractor, folder = plan.extractor, Path(settings.out)
    with progress_bar(hidden) as progress:
        bar = progress.add_task("target features", total=sum(len(e) for piece in jobs.values() for e in piece))
        for name, examples in jobs.items():
            with writing(folder / name):
                # Committed meanwhile by a worker that divides the shards in another way.
                if any(shard.file == name for shard in read_manifest(folder).shards):
                    continue
                results: dict[int, Extracted] = {}
                for batch in extractor.batches(examples, settings.batch_tokens):
                    results.update(batch)
                    progress.advance(bar, sum(len(result.example) for _, result in batch))
                commit(folder, name, extractor.layout, [results[i] for i in range(len(examples))])


def build_cache(settings: CacheSettings, quiet: bool = False) -> Manifest:
    """Extracts the target's features for answer records into a cache folder, or finishes a folder it began.

    Everything that can be wrong with the arguments, the records or the target is found before the folder is touched.
    With `settings.worker` it writes this worker's shards only, and returns when these are done.

    Args:
        quiet: shows neither a sample nor what it will cost, and no progress.

    Returns:
        The manifest of the cache as it is then; of what is there so far with `dry_run`.

    Raises:
        ConfigurationError, EmptyDataError, BadRecordError, NoSupervisedTokensError, TargetMismatchError: bad input.
        CacheMismatchError: the folder holds another cache.
        MissingPackageError: an embedded target whose package is absent.
    """
    plan = make_plan(settings)
    folder = Path(settings.out)
    console = Console(stderr=True, quiet=quiet)
    left = _announce(settings, plan, take_up(folder, plan.manifest), console)
    if settings.dry_run:
        seconds = left / tokens_per_second(plan, settings.batch_tokens)
        console.print(
            f"about {seconds / 60:.1f} minutes on this {settings.device}; nothing was written", highlight=False
        )
        return take_up(folder, plan.manifest)
    with using_folder(folder, alone=False):
        jobs = open_jobs(folder, plan, begin(folder, plan))
        index, workers = settings.share
        mine = {name: piece for name, piece in jobs.items() if shard_number(name) % workers == index}
        _extract(settings, plan, mine, hidden=quiet)
    done = read_manifest(folder)
    console.print(f"stored states differ from the target's by {done.state_error:.2%} of their size", highlight=False)
    return done


def _announce(settings: CacheSettings, plan: Plan, done: Manifest, console: Console) -> int:
    """Says what will be written, and returns how many tokens that are; see `_check_space` for what it refuses."""
    tokens = plan.counts.tokens - done.committed("tokens")
    console.print(draw_example(plan.examples[0], plan.tokenizer))
    console.print(describe(plan), highlight=False, markup=False)
    if not console.quiet:
        check_share(plan.counts)
    needed = tokens * plan.extractor.layout.bytes_per_token
    free = _check_space(settings, plan, needed)
    console.print(
        f"{len(done.shards)} shards are there, {needed / 1e9:.3f} GB to write, {free / 1e9:.1f} GB free",
        highlight=False,
    )
    return tokens
