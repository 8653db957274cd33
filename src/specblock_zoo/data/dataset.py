"""The sequences of a cache as a map-style dataset, and their stable split by record id."""

import hashlib
from collections.abc import Sequence

from torch.utils.data import Dataset

from specblock_zoo.data.examples import PART_MARK, Example
from specblock_zoo.data.layout import CachedExample
from specblock_zoo.data.sources import Source
from specblock_zoo.errors import ConfigurationError, NoSupervisedTokensError


def _share(record_id: str) -> float:
    """A number in [0, 1) that depends on the id alone."""
    return int.from_bytes(hashlib.sha256(record_id.encode()).digest()[:8]) / 2**64


def split_by_id(ids: Sequence[str], val_fraction: float) -> tuple[list[int], list[int]]:
    """Indices of the training and of the validation records.

    A record stays on its side whatever other records come and go, with one exception: where the fraction is too small
    to reach any record, the one nearest to it becomes the validation set.

    Raises:
        ConfigurationError: the fraction is outside [0, 1), or nothing is left to train on.
    """
    if not 0 <= val_fraction < 1:
        raise ConfigurationError(f"val_fraction is {val_fraction}; expected 0 <= val_fraction < 1.", "Correct it.")
    # Further sequences of one record stay with it.
    shares = [_share(record_id.rpartition(PART_MARK)[0] or record_id) for record_id in ids]
    val = [i for i, share in enumerate(shares) if share < val_fraction]
    if val_fraction and not val:
        val = [min(range(len(ids)), key=shares.__getitem__)]
    train = sorted(set(range(len(ids))) - set(val))
    if not train:
        raise ConfigurationError(
            f"All {len(ids)} records fall into validation with val_fraction {val_fraction}; none is left to train on.",
            "Lower val_fraction or use a cache with more records.",
        )
    return train, val


class FeatureDataset(Dataset[Example | CachedExample]):
    """A part of a source, each sequence cut at `max_length`; sequences that lose all supervised tokens are left out.

    Raises:
        ConfigurationError: `max_length` is below one.
        NoSupervisedTokensError: nothing is left.
    """

    def __init__(self, source: Source, indices: Sequence[int], max_length: int | None = None) -> None:
        if max_length is not None and max_length < 1:
            raise ConfigurationError(f"max_length is {max_length}; expected at least 1.", "Correct it.")
        self.source = source
        self.max_length = max_length
        full = [length for length, _ in source.lengths_and_ids()]
        limit = max_length or max(full)
        self.indices = [i for i in indices if full[i] <= limit or source[i].loss_mask[:limit].any()]
        self.lengths = [min(full[i], limit) for i in self.indices]
        if not self.indices:
            raise NoSupervisedTokensError(
                f"None of {len(indices)} cached sequences has a supervised token within max_length {max_length}.",
                "Raise max_length.",
            )

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Example | CachedExample:
        return self.source[self.indices[index]].cut(self.lengths[index])
