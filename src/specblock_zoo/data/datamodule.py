"""Target features as a Lightning data module: stable split, length-grouped batches, exact resume in mid-epoch."""

import warnings
from functools import cached_property
from typing import Any

from lightning import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn
from torchdata.stateful_dataloader import StatefulDataLoader

from specblock_zoo.data.batches import LengthGroupedBatches
from specblock_zoo.data.collate import Batch
from specblock_zoo.data.dataset import FeatureDataset, split_by_id
from specblock_zoo.data.manifest import Manifest
from specblock_zoo.data.sources import HybridSource, Source, SourceSettings, open_source
from specblock_zoo.errors import ConfigurationError, check_values
from specblock_zoo.functional.vocab import VocabMap

SOURCE = SourceSettings()


class FeatureDataModule(LightningDataModule):
    """Batches of target features (schema: `collate`).

    Under several processes set the trainer's `use_distributed_sampler` to False: the batches are already divided.

    Args:
        cache_dir: the folder `specblock cache` wrote, or the one to fill; none for an online source.
        batch_tokens: padded tokens per batch and process.
        max_length: sequences are cut here; the cache's own limit when not given.
        val_fraction: share of the records kept for validation, chosen by a hash of their id, 0 <= val_fraction < 1.
        seed: of the training order.
        source: whether states are read, computed for every batch, or computed once and kept.
    """

    def __init__(
        self,
        cache_dir: str | None = None,
        batch_tokens: int = 2048,
        max_length: int | None = None,
        val_fraction: float = 0.03,
        seed: int = 0,
        source: SourceSettings = SOURCE,
    ) -> None:
        super().__init__()
        self.cache_dir = cache_dir
        self.batch_tokens = batch_tokens
        self.max_length = max_length
        self.val_fraction = val_fraction
        self.seed = seed
        self.source_settings = source
        check_values(
            self,
            {
                "batch_tokens": (batch_tokens >= 1, "an integer from 1"),
                "max_length": (max_length is None or max_length >= 1, "an integer from 1, or nothing"),
                "val_fraction": (0 <= val_fraction < 1, "a share from 0, below 1"),
                "seed": (seed >= 0, "an integer from 0"),
            },
        )

    @cached_property
    def source(self) -> Source:
        """The opened source; see `open_source` for what it refuses."""
        return open_source(self.source_settings, self.cache_dir)

    @property
    def manifest(self) -> Manifest:
        """What the states were made from."""
        return self.source.manifest

    def vocab_map(self) -> VocabMap:
        """The draft vocabulary chosen from the data."""
        return self.source.vocab_map()

    @cached_property
    def _split(self) -> tuple[list[int], list[int]]:
        return split_by_id([record_id for _, record_id in self.source.lengths_and_ids()], self.val_fraction)

    def setup(self, stage: str) -> None:
        """Opens the source and splits it, so that a bad one is refused before the drafter is built."""
        self._check_source()
        train, val = self._split
        self.train_set = FeatureDataset(self.source, train, self.max_length)
        self.val_set = FeatureDataset(self.source, val, self.max_length) if val else None

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
            return StatefulDataLoader(
                dataset,
                batch_sampler=batches,
                collate_fn=self.source.batch,
                num_workers=self.source_settings.num_workers,
            )

    def state_dict(self) -> dict[str, Any]:
        """What decides which batch comes when."""
        facts = {name: getattr(self, name) for name in ("seed", "batch_tokens", "val_fraction", "max_length")}
        processes = self.trainer.world_size if self.trainer else 1
        lengths = self.train_set.lengths
        return facts | {
            "processes": processes,
            "training sequences": len(lengths),
            "training tokens": int(sum(lengths)),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuses to go on with a run whose batches were others: what was seen and what was not would be mixed up.

        Raises:
            ConfigurationError: the message names what differs.
        """
        if self.trainer is None or self.trainer.state.fn != TrainerFn.FITTING:
            return
        own = self.state_dict()
        differing = [
            f"{name} is {own[name]} here and {value} in the checkpoint"
            for name, value in state_dict.items()
            if own.get(name) != value
        ]
        if differing:
            raise ConfigurationError(
                f"The run that the checkpoint is of had other batches: {'; '.join(differing)}.",
                "Give its --data options and processes, or begin a run from its drafter: --model.initialise=FOLDER.",
            )

    def teardown(self, stage: str) -> None:
        """Writes what a hybrid source has not written yet."""
        opened = vars(self).get("source")
        if isinstance(opened, HybridSource):
            opened.close()
            # The next setup takes the folder up again, as a writer of its own.
            del self.source

    def _check_source(self) -> None:
        if self.source_settings.kind != "hybrid":
            return
        processes = self.trainer.world_size if self.trainer else 1
        if processes > 1:
            raise ConfigurationError(
                f"A hybrid source fills one cache and the trainer has {processes} processes.",
                "Run `specblock cache` first, or use an online source.",
            )
        if self.max_length is not None:
            raise ConfigurationError(
                f"max_length is {self.max_length} beside a hybrid source, which stores whole sequences.",
                "Set source.extraction.max_length instead.",
            )
