"""Where the states of a batch come from: a finished cache, the running target, or a cache filled on the way."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from specblock_zoo.data.build_cache import begin, commit, take_up
from specblock_zoo.data.collate import Batch, collate
from specblock_zoo.data.examples import Example
from specblock_zoo.data.extract import Extracted
from specblock_zoo.data.feature_cache import FeatureCache, open_shard, read_row, shard_ids
from specblock_zoo.data.layout import CachedExample
from specblock_zoo.data.locks import using_folder
from specblock_zoo.data.manifest import Manifest
from specblock_zoo.data.plan import Plan, make_plan
from specblock_zoo.data.settings import Extraction
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.functional.vocab import VocabMap


class Source(Protocol):
    """Sequences, and the batches made of them (schema: `collate`)."""

    manifest: Manifest

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example | CachedExample: ...

    def lengths_and_ids(self) -> Iterator[tuple[int, str]]:
        """Length in tokens and record id of every sequence, in order."""

    def vocab_map(self) -> VocabMap:
        """The draft vocabulary chosen from the data."""

    def batch(self, examples: Sequence[Any]) -> Batch:
        """One batch of what `__getitem__` gave, each possibly cut."""


class OnlineSource:
    """Runs the target for every batch and keeps nothing."""

    def __init__(self, plan: Plan, batch_tokens: int) -> None:
        self.plan = plan
        self.batch_tokens = batch_tokens
        self.manifest = plan.manifest

    def __len__(self) -> int:
        return len(self.plan.examples)

    def __getitem__(self, index: int) -> Example | CachedExample:
        return self.plan.examples[index]

    def lengths_and_ids(self) -> Iterator[tuple[int, str]]:
        """Length in tokens and record id of every sequence, in order."""
        return ((len(example), example.id) for example in self.plan.examples)

    def vocab_map(self) -> VocabMap:
        """The draft vocabulary chosen from the data."""
        return self.plan.vocab

    def batch(self, examples: Sequence[Example | CachedExample]) -> Batch:
        """One batch, its states fresh from the target, or from disk where they are there."""
        run = {i: example for i, example in enumerate(examples) if isinstance(example, Example)}
        found = {i: example for i, example in enumerate(examples) if isinstance(example, CachedExample)}
        places = list(run)
        for part in self.plan.extractor.batches(list(run.values()), self.batch_tokens):
            self._keep([result for _, result in part])
            found |= {places[i]: result.decoded(self.plan.extractor.layout) for i, result in part}
        return collate([found[i] for i in range(len(examples))])

    def _keep(self, results: list[Extracted]) -> None:
        """Nothing is kept."""


class HybridSource(OnlineSource):
    """Fills a cache during the first epoch: a sequence goes through the target when a batch first asks for it.

    The folder is an ordinary cache in the order of that epoch; `specblock cache` can finish it, and an interrupted run
    goes on with what is there. Up to a shard of results waits in memory, and is lost when the process is killed.

    Raises:
        ConfigurationError: another process writes into the folder.
        CacheMismatchError: the folder holds another cache.
    """

    def __init__(self, plan: Plan, batch_tokens: int, folder: str | Path) -> None:
        super().__init__(plan, batch_tokens)
        self.folder = Path(folder)
        self._lock = ExitStack()
        take_up(self.folder, plan.manifest)
        self._lock.enter_context(using_folder(self.folder, alone=True))
        self.manifest = begin(self.folder, plan)
        self._waiting: dict[str, Extracted] = {}
        self._places: dict[str, tuple[Any, int]] = {}
        for shard in self.manifest.shards:
            self._open(shard)

    def __getitem__(self, index: int) -> Example | CachedExample:
        example = self.plan.examples[index]
        layout = self.plan.extractor.layout
        if example.id in self._places:
            return read_row(*self._places[example.id], layout)
        return self._waiting[example.id].decoded(layout) if example.id in self._waiting else example

    def close(self) -> None:
        """Writes what waits and lets other writers in."""
        if self._waiting:
            self._commit()
        self._lock.close()

    def _keep(self, results: list[Extracted]) -> None:
        self._waiting |= {result.example.id: result for result in results}
        known = len(self._places) + len(self._waiting)
        if len(self._waiting) >= self.manifest.fingerprint.shard_size or known == len(self):
            self._commit()

    def _commit(self) -> None:
        before = set(self.manifest.shards)
        name, layout = self.manifest.free_name(), self.plan.extractor.layout
        self.manifest = commit(self.folder, name, layout, list(self._waiting.values()))
        self._waiting = {}
        for shard in set(self.manifest.shards) - before:
            self._open(shard)

    def _open(self, shard: Any) -> None:
        rows = open_shard(self.folder, shard)
        self._places |= {name: (rows, index) for index, name in enumerate(shard_ids(rows))}


KINDS = ("cached", "online", "hybrid")


@dataclass(frozen=True)
class SourceSettings:
    """Where the states come from.

    Attributes:
        kind: cached reads a finished cache; online runs the target for every batch, for targets whose states would not
            fit the disk; hybrid fills the cache during the first epoch.
        extraction: what to run; for online and hybrid.
        num_workers: loader processes of `cached`; 0 is fastest for a memory-mapped cache on a local disk.
    """

    kind: str = "cached"
    extraction: Extraction | None = None
    num_workers: int = 0

    def check(self, cache_dir: str | None) -> None:
        """Raises `ConfigurationError` where the kind is unknown or lacks what it needs."""
        if self.kind not in KINDS:
            raise ConfigurationError(
                f"source.kind is {self.kind!r}; expected one of {', '.join(KINDS)}.", "Choose one."
            )
        if (cache_dir is None) != (self.kind == "online"):
            raise ConfigurationError(
                f"source.kind is {self.kind!r} and cache_dir is {cache_dir!r}; they do not go together.",
                "Give cache_dir for cached and hybrid, and none for online.",
            )
        if (self.extraction is None) != (self.kind == "cached"):
            given = "none" if self.extraction is None else "one"
            raise ConfigurationError(
                f"source.kind is {self.kind!r} and {given} source.extraction is given; they do not go together.",
                "Give source.extraction (records, target, ...) for online and hybrid, and none for cached.",
            )
        if self.num_workers and self.kind != "cached":
            raise ConfigurationError(
                f"source.num_workers is {self.num_workers} and source.kind is {self.kind!r}; expected 0.",
                "The target runs in the training process.",
            )


def open_source(settings: SourceSettings, cache_dir: str | None) -> Source:
    """The source of a run; see `FeatureCache`, `make_plan` and `HybridSource` for what they refuse."""
    settings.check(cache_dir)
    if settings.extraction is None:
        return FeatureCache(str(cache_dir))
    plan = make_plan(settings.extraction)
    if cache_dir is None:
        return OnlineSource(plan, settings.extraction.batch_tokens)
    return HybridSource(plan, settings.extraction.batch_tokens, cache_dir)
