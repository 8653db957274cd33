"""Maps between the drafter's reduced vocabulary and the target's vocabulary."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from specblock_zoo.errors import ConfigurationError, NoSupervisedTokensError, VocabularyMismatchError


class VocabMap(NamedTuple):
    """A draft vocabulary: which target tokens it holds and how its ids translate.

    Attributes:
        d2t: offsets, target id = draft id + d2t[draft id], int64 `[draft_vocab]`.
        t2d: true where the target id is in the draft vocabulary, bool `[target_vocab]`.
        coverage: share of the counted tokens inside the draft vocabulary, 0..1.
    """

    d2t: Int64[Tensor, " draft_vocab"]
    t2d: Bool[Tensor, " target_vocab"]
    coverage: float


def draft_to_target(d2t: Int64[Tensor, " draft_vocab"]) -> Int64[Tensor, " draft_vocab"]:
    """Target id of every draft id; ascending, since draft ids follow the order of target ids."""
    return torch.arange(d2t.shape[0], device=d2t.device) + d2t


def target_to_draft(t2d: Bool[Tensor, " target_vocab"]) -> Int64[Tensor, " target_vocab"]:
    """Draft id of every target id, -1 for tokens outside the draft vocabulary."""
    return torch.where(t2d, t2d.cumsum(0) - 1, -1)


def check_vocab_map(d2t: Int64[Tensor, " draft_vocab"], t2d: Bool[Tensor, " target_vocab"], vocab_size: int) -> None:
    """Raises `VocabularyMismatchError` unless both copies of the map agree and fit a target of `vocab_size` tokens."""
    hint = "Take both tensors from the same drafter folder, or rebuild the vocabulary map from the token counts."
    if t2d.shape[0] != vocab_size:
        raise VocabularyMismatchError(
            f"The vocabulary map covers {t2d.shape[0]} target tokens; the target has {vocab_size}.", hint
        )
    kept = t2d.nonzero().squeeze(-1)
    if kept.shape[0] != d2t.shape[0]:
        raise VocabularyMismatchError(
            f"t2d marks {kept.shape[0]} tokens as drafted; d2t has {d2t.shape[0]} entries.", hint
        )
    different = (draft_to_target(d2t) != kept).nonzero().squeeze(-1)
    if different.numel():
        first = int(different[0])
        raise VocabularyMismatchError(
            f"Draft id {first} is target id {first + int(d2t[first])} by d2t and {int(kept[first])} by t2d.", hint
        )


def build_vocab_map(counts: Int64[Tensor, " target_vocab"], size: int, always: Sequence[int] = ()) -> VocabMap:
    """Chooses the `size` most frequent target tokens, ties broken by the lower id, in the order of their ids.

    Args:
        counts: how often each target token occurs in the supervised training text.
        size: draft vocabulary, 1..target vocabulary.
        always: target ids kept whatever their count (end-of-text tokens), at most `size` different ones.

    Raises:
        ConfigurationError: `size` or `always` is out of range.
        NoSupervisedTokensError: all counts are zero.
    """
    forced = torch.tensor(sorted(set(always)), dtype=torch.int64)
    _check_choice(counts, size, forced)
    priority = counts.clone().cpu()
    priority[forced] = torch.iinfo(torch.int64).max
    kept = priority.argsort(descending=True, stable=True)[:size].sort().values
    t2d = torch.zeros(counts.shape[0], dtype=torch.bool)
    t2d[kept] = True
    coverage = int(counts.cpu()[kept].sum()) / int(counts.sum())
    return VocabMap(kept - torch.arange(size), t2d, coverage)


def _check_choice(counts: Int64[Tensor, " target_vocab"], size: int, forced: Int64[Tensor, " forced"]) -> None:
    vocab_size = counts.shape[0]
    if not 1 <= size <= vocab_size:
        raise ConfigurationError(
            f"The draft vocabulary is to hold {size} tokens; the target has {vocab_size}.", "Choose a size in between."
        )
    if forced.numel() > size:
        raise ConfigurationError(
            f"{forced.numel()} tokens are to be kept always in a draft vocabulary of {size}.", "Raise the size."
        )
    if forced.numel() and not 0 <= int(forced[0]) <= int(forced[-1]) < vocab_size:
        raise ConfigurationError(
            f"Ids to keep always run from {int(forced[0])} to {int(forced[-1])}; target ids are 0..{vocab_size - 1}.",
            "Take the ids from the target's own tokenizer.",
        )
    if not int(counts.sum()):
        raise NoSupervisedTokensError(
            "No token was counted: the total is 0, at least 1 is needed.", "Check that the answers are not empty."
        )
