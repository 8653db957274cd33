"""Batches of sequences of like length, in a seeded order that can be taken up again in mid-epoch.

Shuffling everything and cutting by length would give another number of batches each epoch, and a schedule needs that
number. So the sequences are grouped by length once; an epoch shuffles inside each group and then the batches.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from specblock_zoo.errors import ConfigurationError

# The shortest sequence of a group has at least this share of the longest one's tokens: it bounds the padding.
NARROWEST = 0.88


def length_groups(lengths: Sequence[int], narrowest: float = NARROWEST) -> list[list[int]]:
    """Indices in groups whose shortest sequence is at least `narrowest` times their longest; longest group first."""
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if not groups or lengths[index] < narrowest * longest:
            groups.append([])
            longest = lengths[index]
        groups[-1].append(index)
    return groups


class LengthGroupedBatches(Sampler[list[int]]):
    """A batch sampler whose epochs differ and whose number of batches does not.

    Args:
        lengths: tokens per sequence.
        batch_tokens: padded tokens per batch; a longer sequence is a batch of its own.
        seed: of the order; the order is a function of seed and epoch.
        shuffle: False gives every epoch the same order, longest batches first.
        rank, world_size: this process takes every `world_size`-th batch; the first batches are repeated so that all
            processes have equally many.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_tokens: int,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_tokens < 1:
            raise ConfigurationError(f"batch_tokens is {batch_tokens}; expected at least 1.", "Correct it.")
        self.groups = [(max(1, batch_tokens // lengths[group[0]]), np.array(group)) for group in length_groups(lengths)]
        self.seed = seed
        self.shuffle = shuffle
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0

    def __len__(self) -> int:
        batches = sum(-(-len(group) // size) for size, group in self.groups)
        return -(-batches // self.world_size)

    def batches(self, epoch: int) -> list[list[int]]:
        """This process's batches of an epoch, in order."""
        generator = np.random.default_rng((self.seed, epoch))
        batches: list[list[int]] = []
        for size, group in self.groups:
            order = generator.permutation(group) if self.shuffle else group
            batches.extend(order[start : start + size].tolist() for start in range(0, len(order), size))
        if self.shuffle:
            batches = [batches[i] for i in generator.permutation(len(batches))]
        wanted = len(self) * self.world_size
        return [batches[i % len(batches)] for i in range(self.rank, wanted, self.world_size)]

    def __iter__(self) -> "EpochIterator":
        return EpochIterator(self)


class EpochIterator(Iterator[list[int]]):
    """One pass over the batches; its state is the epoch and how many batches it has given out.

    The sampler moves on to the next epoch when a pass gives out its first batch, not when the pass is made: trainers
    make passes that they never use.
    """

    def __init__(self, sampler: LengthGroupedBatches) -> None:
        self.sampler = sampler
        self.epoch = sampler.epoch
        self.yielded = 0
        self._batches = sampler.batches(self.epoch)

    def __next__(self) -> list[int]:
        if self.yielded == len(self._batches):
            raise StopIteration
        self.sampler.epoch = self.epoch + 1
        self.yielded += 1
        return self._batches[self.yielded - 1]

    def state_dict(self) -> dict[str, Any]:
        """Where this pass stands."""
        return {"epoch": self.epoch, "yielded": self.yielded}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to where another pass stood; one that had given out everything stands at the start of the next epoch.

        Lightning counts an epoch as done after its last batch and would take an empty pass for the whole next epoch.
        """
        finished = state["yielded"] == len(self.sampler)
        self.epoch, self.yielded = (state["epoch"] + 1, 0) if finished else (state["epoch"], state["yielded"])
        self._batches = self.sampler.batches(self.epoch)
        self.sampler.epoch = self.epoch + bool(self.yielded)
