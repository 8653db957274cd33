"""The index finds what a search of the whole text finds, and its chances are what it has seen."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.functional.lookup import BELIEF, CHANCES, LONGEST, NOTHING, Copied, Lookup, chances_at

texts = st.lists(st.integers(0, 2), max_size=40)


def searched(text: Sequence[int], most: int) -> tuple[tuple[int, ...], int]:
    """What followed the latest earlier occurrence of the longest end of the text, and how long that end is."""
    for length in range(min(LONGEST, len(text) - 1), 0, -1):
        for start in range(len(text) - length - 1, -1, -1):
            if text[start : start + length] == text[-length:]:
                copied = list(text)
                for index in range(most):
                    copied.append(copied[start + length + index])
                return tuple(copied[len(text) :]), length
    return (), 0


@given(prompt=texts, committed=texts, most=st.integers(1, 12))
def test_a_continuation_is_what_a_search_of_the_whole_text_finds(
    prompt: list[int], committed: list[int], most: int
) -> None:
    lookup = Lookup(prompt)
    lookup.extend(committed)
    copied = lookup.continuation(most)
    tokens, length = searched(prompt + committed, most)
    assert copied.tokens == tokens
    assert len(copied.chances) == len(tokens)
    assert all(0.0 < chance < 1.0 for chance in copied.chances)
    if not committed and length:
        assert list(copied.chances) == [CHANCES[0.0][min(length + place, LONGEST) - 1] for place in range(most)]


@given(prompt=texts, committed=texts)
def test_chances_are_counted_by_match_length_over_committed_tokens(prompt: list[int], committed: list[int]) -> None:
    tried = [BELIEF] * LONGEST
    right = [BELIEF * chance for chance in CHANCES[0.0]]
    text = list(prompt)
    for token in committed:
        found, length = searched(text, 1)
        if length:
            tried[length - 1] += 1
            right[length - 1] += found == (token,)
        text.append(token)
    lookup = Lookup(prompt)
    lookup.extend(committed)
    _, length = searched(text, 1)
    expected = right[length - 1] / tried[length - 1] if length else 0.0
    assert lookup.continuation(1).chance == pytest.approx(expected)


@given(prompt=texts, pieces=st.lists(texts, max_size=4))
def test_tokens_may_come_in_any_pieces(prompt: list[int], pieces: list[list[int]]) -> None:
    one, many = Lookup(prompt), Lookup(prompt)
    one.extend([token for piece in pieces for token in piece])
    for piece in pieces:
        many.extend(piece)
        many.continuation(3)
    assert one.continuation(5) == many.continuation(5)


@pytest.mark.parametrize("temperature", sorted(CHANCES))
def test_sampled_texts_repeat_themselves_less(temperature: float) -> None:
    assert chances_at(temperature) == CHANCES[temperature]
    warmer = chances_at(temperature + 0.1)
    assert all(high <= low for low, high in zip(CHANCES[temperature], warmer, strict=True))
    assert Lookup([1, 2, 1], temperature).continuation(1).chance == pytest.approx(CHANCES[temperature][0])


def test_between_and_beyond_what_was_measured() -> None:
    assert chances_at(0.85)[0] == pytest.approx((CHANCES[0.7][0] + CHANCES[1.0][0]) / 2)
    assert chances_at(5.0) == CHANCES[1.0]


def test_a_loop_goes_on_for_ever() -> None:
    assert Lookup([9, 1, 2, 1, 2, 1]).continuation(5).tokens == (2, 1, 2, 1, 2)


def test_nothing_is_copied_where_nothing_repeats_itself() -> None:
    assert Lookup([1, 2, 3]).continuation(4) == NOTHING
    assert Lookup([]).continuation(4) == NOTHING
    assert Lookup([1, 1]).continuation(0) == NOTHING
    assert (Copied().chance, NOTHING.tokens) == (0.0, ())


def test_longer_matches_go_on_more_often() -> None:
    for chances in CHANCES.values():
        assert list(chances) == sorted(chances)
        assert len(chances) == LONGEST
        assert 0.0 < chances[0] < chances[-1] < 1.0


def test_nothing_is_copied_from_below_a_token_that_ends_the_text() -> None:
    copied = Copied((5, 2, 7), (0.5, 0.6, 0.7))
    assert copied.until({2}) == Copied((5, 2), (0.5, 0.6))
    assert copied.until({9}) == copied
    assert NOTHING.until({2}) == NOTHING
