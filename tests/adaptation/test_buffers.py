"""Buffers hold what they say, and no more."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.adaptation.buffers import (
    QUERY,
    HeadBuffer,
    HeadRows,
    TextBuffer,
    TextRows,
    TopRows,
    tensors_of,
    top_rows,
)
from specblock_zoo.training.teachers import TopTeacher

HIDDEN, TOP = 6, 3


def distributions(count: int) -> TopRows:
    return top_rows(torch.randn(count, 12), TOP)


def head_rows(count: int, rejected: int = 0) -> HeadRows:
    flags = torch.arange(count) < rejected
    return HeadRows(torch.randn(count, HIDDEN).half(), distributions(count), flags, ~flags)


def text_rows(length: int, uncovered: int = 1) -> TextRows:
    ids, features = torch.randint(9, (length,)).int(), torch.randn(length, HIDDEN).bfloat16()
    return TextRows(ids, features, torch.ones(length, dtype=torch.bool), distributions(length), uncovered)


def test_top_rows_give_the_distribution_back() -> None:
    scores = torch.randn(5, 12)
    rows = top_rows(scores, 12)
    teacher = TopTeacher(torch.zeros(12, 1), torch.arange(12))
    columns = {name: column[None] for name, column in rows.batch().items()}
    probs = teacher.rows(columns, torch.zeros(5, dtype=torch.int64), torch.arange(5))(slice(None))
    torch.testing.assert_close(probs, scores.softmax(-1), atol=2e-3, rtol=0)
    cut = top_rows(scores, TOP)
    torch.testing.assert_close(cut.log_probs.float().exp().sum(-1) + cut.tail, torch.ones(5), atol=2e-3, rtol=0)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=8))
def test_head_buffer_keeps_the_newest(sizes: list[tuple[int, int]]) -> None:
    buffer, every = HeadBuffer(capacity=7, needed=5), []
    for count, rejected in sizes:
        rows = head_rows(count, min(count, rejected))
        buffer.add(rows)
        every.append(rows.normed)
        assert len(buffer) <= 7
    torch.testing.assert_close(buffer.rows().normed, torch.cat(every)[-7:])
    fresh = sum(min(count, rejected) for count, rejected in sizes)
    assert buffer.is_full == (fresh >= 5)
    buffer.spent()
    assert not buffer.is_full
    assert buffer.unread == 0
    assert len(buffer) == min(7, sum(count for count, _ in sizes))
    buffer.clear()
    assert (len(buffer), buffer.nbytes) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6), st.integers(0, 6))
def test_slots_of_earlier_queries_leave(sizes: list[tuple[int, int]], first: int) -> None:
    buffer, every = HeadBuffer(capacity=100, needed=1), []
    for number, (count, rejected) in enumerate(sizes):
        rows = head_rows(count, min(count, rejected))
        buffer.add(rows, number)
        every.append(rows.normed)
    buffer.forget(first)
    kept = every[first:]
    assert torch.equal(buffer.rows().normed, torch.cat([every[0][:0], *kept]))
    assert buffer.fresh == sum(min(pair) for pair in sizes[first:])
    buffer.add(head_rows(2, 2), 9)
    assert len(buffer) == sum(map(len, kept)) + 2


def test_what_an_update_has_used_stays_used() -> None:
    buffer = HeadBuffer(capacity=100, needed=1)
    buffer.forget(3)
    buffer.add(head_rows(4, 4), 0)
    buffer.spent()
    buffer.add(head_rows(4, 1), 1)
    buffer.forget(0)
    assert buffer.fresh == 1


def test_slots_saved_without_their_queries_are_of_the_oldest() -> None:
    buffer, other = HeadBuffer(100, 1), HeadBuffer(100, 1)
    buffer.add(head_rows(4), 7)
    other.load({name: tensor for name, tensor in buffer.state().items() if name != QUERY})
    other.add(head_rows(2), 8)
    other.forget(1)
    assert len(other) == 2


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2)), max_size=8))
def test_text_buffer_keeps_the_newest_texts_that_teach(sizes: list[tuple[int, int]]) -> None:
    buffer = TextBuffer(capacity=8, needed=4)
    for length, uncovered in sizes:
        buffer.add(text_rows(length, uncovered))
    assert len(buffer) <= 8
    kept = [length for length, uncovered in sizes if uncovered and length <= 8]
    held = [len(text) for text in buffer.texts()]
    assert held == kept[len(kept) - len(held) :]
    assert buffer.is_full == (sum(u for length, u in sizes if length <= 8) >= 4)


@pytest.mark.parametrize(
    ("make", "rows"), [(HeadBuffer, head_rows(4, 2)), (TextBuffer, text_rows(5, 3))], ids=["head", "text"]
)
def test_a_saved_buffer_comes_back(make: type, rows: object) -> None:
    buffer, other = make(100, 2), make(100, 2)
    buffer.add(rows)
    buffer.add(rows)
    other.load(buffer.state())
    assert (other.fresh, len(other), other.nbytes) == (buffer.fresh, len(buffer), buffer.nbytes)
    for name, tensor in buffer.state().items():
        assert torch.equal(tensor, other.state()[name])


def test_no_buffer_holds_text() -> None:
    names = {*tensors_of(head_rows(1)), *tensors_of(text_rows(1))}
    distribution = {"target.ids", "target.log_probs", "target.tail"}
    assert names == {"normed", "rejected", "covered", "input_ids", "features", "loss_mask", *distribution}


@given(st.integers(1, 30), st.integers(0, 30), st.integers(1, 40), st.integers(0, 3))
def test_an_update_reads_what_is_new_first_and_no_more_than_it_may(old: int, new: int, most: int, seed: int) -> None:
    buffer = HeadBuffer(capacity=1000, needed=5)
    buffer.add(head_rows(old))
    buffer.spent()
    if new:
        buffer.add(head_rows(new))
    numbered = torch.arange(old + new).half()[:, None].expand(-1, HIDDEN)
    buffer._tensors["normed"] = numbered
    read = buffer.rows(most, seed).normed[:, 0].int().tolist()
    assert read == sorted(set(read)), "in order, none twice"
    assert len(read) == min(most, old + new)
    assert sum(number >= old for number in read) == min(most, new)
    assert read == buffer.rows(most, seed).normed[:, 0].int().tolist()


def test_what_was_read_is_known_after_loading() -> None:
    buffer, other = HeadBuffer(capacity=9, needed=5), HeadBuffer(capacity=9, needed=5)
    buffer.add(head_rows(5, rejected=2))
    buffer.spent()
    buffer.add(head_rows(3, rejected=1))
    other.load(buffer.state())
    assert (other.fresh, other.unread, len(other)) == (1, 3, 8)
