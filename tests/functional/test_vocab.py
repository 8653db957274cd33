"""Draft ids and target ids translate into each other, and bad maps are refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.errors import ConfigurationError, NoSupervisedTokensError, VocabularyMismatchError
from specblock_zoo.functional.vocab import build_vocab_map, check_vocab_map, draft_to_target, target_to_draft

memberships = st.lists(st.booleans(), min_size=1, max_size=40).filter(any)
count_lists = st.lists(st.integers(0, 5), min_size=1, max_size=30).filter(any)


def offsets_of(t2d):
    kept = t2d.nonzero().squeeze(-1)
    return kept - torch.arange(len(kept))


@given(memberships)
def test_maps_invert(membership):
    t2d = torch.tensor(membership)
    targets = draft_to_target(offsets_of(t2d))
    drafts = target_to_draft(t2d)
    assert drafts[targets].tolist() == list(range(len(targets)))
    assert (drafts >= 0).tolist() == membership
    assert drafts[~t2d].eq(-1).all()


@given(count_lists, st.data())
def test_the_most_frequent_tokens_are_kept(counts, data):
    size = data.draw(st.integers(1, len(counts)))
    always = data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=size))
    built = build_vocab_map(torch.tensor(counts), size, always)
    by_frequency = sorted(range(len(counts)), key=lambda token: (token not in always, -counts[token], token))
    kept = sorted(by_frequency[:size])
    assert draft_to_target(built.d2t).tolist() == kept
    assert built.coverage == sum(counts[token] for token in kept) / sum(counts)
    check_vocab_map(built.d2t, built.t2d, len(counts))


def test_a_whole_vocabulary_maps_to_itself():
    built = build_vocab_map(torch.ones(7, dtype=torch.int64), 7)
    assert (built.d2t.tolist(), built.coverage) == ([0] * 7, 1.0)


def test_counts_are_left_as_they_are():
    counts = torch.tensor([3, 1, 2])
    build_vocab_map(counts, 2, always=[1])
    assert counts.tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("vocab_size", "change", "both_values"),
    [
        (6, lambda d2t, t2d: (d2t, t2d), ("5", "6")),
        (5, lambda d2t, t2d: (d2t[:-1], t2d), ("3", "2")),
        (5, lambda d2t, t2d: (d2t + torch.tensor([0, 1, 0]), t2d), ("target id 3", "2 by t2d")),
    ],
    ids=["other target", "other size", "other token"],
)
def test_maps_that_disagree_are_refused(vocab_size, change, both_values):
    t2d = torch.tensor([True, False, True, False, True])
    with pytest.raises(VocabularyMismatchError) as caught:
        check_vocab_map(*change(offsets_of(t2d), t2d), vocab_size)
    assert all(value in caught.value.problem for value in both_values)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("counts", "size", "always", "error"),
    [
        ([1, 2], 3, [], ConfigurationError),
        ([1, 2], 0, [], ConfigurationError),
        ([1, 2, 3], 1, [0, 1], ConfigurationError),
        ([1, 2, 3], 2, [3], ConfigurationError),
        ([1, 2, 3], 2, [-1], ConfigurationError),
        ([0, 0], 1, [], NoSupervisedTokensError),
    ],
)
def test_impossible_choices_are_refused(counts, size, always, error):
    with pytest.raises(error):
        build_vocab_map(torch.tensor(counts), size, always)
