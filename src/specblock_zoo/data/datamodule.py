"""A feature cache as a Lightning data module: stable split, length-grouped batches, exact resume in mid-epoch."""

import warnings
from functools import cached_property
from pathlib import Path

from lightning import LightningDataModule
from torchdata.stateful_dataloader import StatefulDataLoader

from specblock_zoo.data.batches import LengthGroupedBatches
from specblock_zoo.data.collate import Batch, collate
from specblock_zoo.data.dataset import FeatureDataset, split_by_id
from specblock_zoo.data.feature_cache import FeatureCache
from specblock_zoo.data.manifest import Manifest
from specblock_zoo.functional.vocab import VocabMap


class FeatureDataModule(LightningDataModule):
    """Batches of a finished feature cache (schema: `collate`).

    Under several processes set the trainer's `use_distributed_sampler` to False: the batches are already divided.

    Args:
        cache_dir: the folder `specblock cache` wrote.
        batch_tokens: padded tokens per batch and process.
        max_length: sequences are cut here; the cache's own limit when not given.
        val_fraction: share of the records kept for validation, chosen by a hash of their id, 0 <= val_fraction < 1.
        seed: of the training order.
        num_workers: loader processes; 0 is fastest for a memory-mapped cache on a local disk.
    """

    def __init__(
        self,
        cache_dir: str,
        batch_tokens: int = 2048,
        max_length: int | None = None,
        val_fraction: float = 0.03,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self.cache_dir = cache_dir
        self.batch_tokens = batch_tokens
        self.max_length = max_length
        self.val_fraction = val_fraction
        self.seed = seed
        self.num_workers = num_workers

    @cached_property
    def cache(self) -> FeatureCache:
        """The opened cache; see `FeatureCache` for what it refuses."""
        return FeatureCache(Path(self.cache_dir))

    @property
    def manifest(self) -> Manifest:
        """What the cache was made from."""
        return self.cache.manifest

    def vocab_map(self) -> VocabMap:
        """The draft vocabulary chosen from the data."""
        return self.cache.vocab_map()

    @cached_property
    def _split(self) -> tuple[list[int], list[int]]:
        return split_by_id([record_id for _, record_id in self.cache.lengths_and_ids()], self.val_fraction)

    def setup(self, stage: str) -> None:
        """Opens the cache and splits it, so that a bad one is refused before the target is loaded."""
        train, val = self._split
        self.train_set = FeatureDataset(self.cache, train, self.max_length)
        self.val_set = FeatureDataset(self.cache, val, self.max_length) if val else None

    def train_dataloader(self) -> StatefulDataLoader[Batch]:
        """Shuffled by seed and epoch; its state is that of the next batch."""
        return self._loader(self.train_set, shuffle=True)

    def val_dataloader(self) -> StatefulDataLoader[Batch] | list[StatefulDataLoader[Batch]]:
        """The same batches in the same order every time; none with `val_fraction` 0."""
        return self._loader(self.val_set, shuffle=False) if self.val_set else []

    def _loader(self, dataset: FeatureDataset, shuffle: bool) -> StatefulDataLoader[Batch]:
        rank, world_size = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        batches = LengthGroupedBatches(dataset.lengths, self.batch_tokens, self.seed, shuffle, rank, world_size)
        with warnings.catch_warnings():
            # torchdata 0.11 calls it in its constructor; the user can do nothing about it.
            warnings.filterwarnings("ignore", message="'set_vital' is deprecated", category=UserWarning)
            return StatefulDataLoader(dataset, batch_sampler=batches, collate_fn=collate, num_workers=self.num_workers)
