"""Several processes of this machine fill one cache: each takes every n-th shard (`CacheSettings.worker`)."""

import multiprocessing
import sys
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch
from rich.console import Console

from specblock_zoo.data.build_cache import build_cache, progress_bar
from specblock_zoo.data.manifest import MANIFEST_FILE, Manifest, read_manifest
from specblock_zoo.data.settings import CacheSettings
from specblock_zoo.errors import ConfigurationError, SpecBlockError

LOOK_S = 1.0


def fill_cache(settings: CacheSettings) -> Manifest:
    """Like `build_cache`, by `settings.workers` processes.

    Everything that can be wrong with the arguments is found here, before a worker is started.

    Raises:
        ConfigurationError: a worker failed (it said why); and what `build_cache` raises.
    """
    if settings.workers == 1 or settings.dry_run:
        return build_cache(settings)
    planned = build_cache(replace(settings, dry_run=True), quiet=True)
    workers = [_started(settings, index) for index in range(settings.workers)]
    try:
        _watch(Path(settings.out), workers, planned.counts["tokens"])
    finally:
        for worker in workers:
            worker.terminate()
    failed = [index for index, worker in enumerate(workers) if worker.exitcode]
    if failed:
        raise ConfigurationError(
            f"Of {settings.workers} workers, these ended early: {', '.join(map(str, failed))}.",
            "See above for the reason; the same command goes on with what is missing.",
        )
    return read_manifest(Path(settings.out))


def own_settings(settings: CacheSettings, index: int) -> CacheSettings:
    """What one of the workers is to do.

    On `cuda` each has its own device, as far as they go; on a CPU they share the threads, unless a number is given.
    """
    devices = torch.cuda.device_count() if settings.device == "cuda" else 0
    device = f"cuda:{index % devices}" if devices else settings.device
    threads = settings.num_threads or max(1, torch.get_num_threads() // settings.workers)
    return replace(settings, workers=1, worker=f"{index}/{settings.workers}", device=device, num_threads=threads)


def _started(settings: CacheSettings, index: int) -> SpawnProcess:
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(own_settings(settings, index),))
    process.start()
    return process


def _work(settings: CacheSettings) -> None:
    try:
        build_cache(settings, quiet=True)
    except SpecBlockError as error:
        Console(stderr=True).print(f"worker {settings.worker}: {error}", highlight=False, markup=False)
        sys.exit(2)


def _watch(folder: Path, workers: list[SpawnProcess], tokens: int) -> None:
    with progress_bar() as progress:
        bar = progress.add_task(f"target features, {len(workers)} workers", total=tokens)
        for worker in workers:
            while worker.exitcode is None:
                worker.join(LOOK_S)
                if (folder / MANIFEST_FILE).exists():
                    progress.update(bar, completed=read_manifest(folder).committed("tokens"))
