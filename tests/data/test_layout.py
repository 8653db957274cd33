import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specblock_zoo.data.examples import Example
from specblock_zoo.data.feature_cache import open_shard, read_row, write_shard
from specblock_zoo.data.layout import (
    ENCODINGS,
    LAST_HIDDEN,
    LOGSUMEXP,
    TAIL_MASS,
    TEACHERS,
    TOP_IDS,
    TOP_LOG_PROBS,
    Layout,
    best_tokens,
    from_bits,
    relative_errors,
    to_bits,
)
from specblock_zoo.errors import ConfigurationError

HIDDEN, DRAFT_VOCAB, TOP = 16, 24, 5


def layout(state_dtype="bfloat16", teacher="last_hidden"):
    return Layout((1, 3), HIDDEN, DRAFT_VOCAB, state_dtype, teacher, TOP if teacher == "topk" else 0)


def example(length):
    ids = np.arange(length, dtype=np.int32)
    return Example("a", ids, ids % 2 == 0)


@pytest.mark.parametrize("teacher", TEACHERS)
@pytest.mark.parametrize("state_dtype", ENCODINGS)
@pytest.mark.parametrize("length", [1, 7])
def test_every_layout_is_read_from_disk_as_it_was_encoded(tmp_path, state_dtype, teacher, length):
    chosen = layout(state_dtype, teacher)
    taps = [torch.randn(length, HIDDEN), 100 * torch.randn(length, HIDDEN)]
    columns = chosen.encode(taps, torch.randn(length, HIDDEN), torch.randn(DRAFT_VOCAB, HIDDEN))
    shard = write_shard(tmp_path / "s.arrow", chosen, [example(length)], [columns])
    direct = chosen.decode(example(length), columns.__getitem__)
    read = read_row(open_shard(tmp_path, shard), 0, chosen)
    assert read.teacher.keys() == direct.teacher.keys()
    for name, column in direct.teacher.items():
        np.testing.assert_array_equal(read.teacher[name], column)
        assert len(column) == length
    for first, second, states in zip(read.taps, direct.taps, taps, strict=True):
        np.testing.assert_array_equal(first, second)
        assert first.shape == (length, HIDDEN)
        assert relative_errors(states, first).max() < 0.06


@pytest.mark.parametrize("teacher", TEACHERS)
@pytest.mark.parametrize("state_dtype", ENCODINGS)
def test_bytes_per_token_are_those_of_the_columns(state_dtype, teacher):
    chosen = layout(state_dtype, teacher)
    columns = chosen.encode([torch.randn(9, HIDDEN)] * 2, torch.randn(9, HIDDEN), torch.randn(DRAFT_VOCAB, HIDDEN))
    assert 9 * chosen.bytes_per_token == sum(column.nbytes for column in columns.values()) + 9 * 5


def test_bits_keep_every_bfloat16_and_round_the_rest_as_torch_does():
    states = torch.tensor([1.0, -0.0, float("inf"), 1e-40, 1.00390625, 3.14159])
    assert torch.equal(from_bits(to_bits(states)), states.bfloat16())
    every = np.arange(2**16, dtype=np.uint16)
    np.testing.assert_array_equal(to_bits(from_bits(every)), every)


@settings(max_examples=20)
@given(size=st.sampled_from([1e-30, 1e-3, 1.0, 1e4]), outlier=st.sampled_from([1.0, 300.0]), seed=st.integers(0, 99))
def test_float8_errs_by_a_sixteenth_of_each_number_whatever_the_token_s_size(size, outlier, seed):
    states = size * torch.randn(6, HIDDEN, generator=torch.Generator().manual_seed(seed))
    states[:, 0] *= outlier
    encoding = ENCODINGS["float8"]
    stored = from_bits(encoding.decode(*encoding.encode(states))).float()
    # The smallest numbers of a token are subnormal: their step is a fixed share of its largest number.
    step = states.abs().amax(-1, keepdim=True) / 448 * 2**-9
    assert ((stored - states).abs() <= states.abs() / 16 + states.abs() / 128 + step).all()


def test_a_token_of_zeros_stays_zero_in_float8():
    encoding = ENCODINGS["float8"]
    assert not encoding.decode(*encoding.encode(torch.zeros(2, HIDDEN))).any()


def test_the_best_tokens_and_the_tail_are_the_target_s_distribution():
    states, head = torch.randn(6, HIDDEN), torch.randn(DRAFT_VOCAB, HIDDEN)
    columns = best_tokens(states, head, TOP)
    logits = states @ head.T
    probs, ids = logits.softmax(-1).topk(TOP)
    np.testing.assert_array_equal(columns[TOP_IDS], ids)
    np.testing.assert_allclose(np.exp(columns[TOP_LOG_PROBS].astype(np.float32)), probs, rtol=5e-3)
    np.testing.assert_allclose(columns[TAIL_MASS], 1 - probs.sum(-1), atol=1e-6)
    np.testing.assert_allclose(columns[LOGSUMEXP], logits.logsumexp(-1), rtol=1e-6)


def test_more_tokens_than_the_draft_vocabulary_has_are_all_of_it():
    columns = best_tokens(torch.randn(3, HIDDEN), torch.randn(4, HIDDEN), 9)
    assert columns[TOP_IDS].shape == (3, 4)
    np.testing.assert_allclose(columns[TAIL_MASS], 0, atol=1e-6)


def test_the_pieces_of_a_large_matrix_are_put_together_in_order(monkeypatch):
    states, head = torch.randn(11, HIDDEN), torch.randn(DRAFT_VOCAB, HIDDEN)
    whole = best_tokens(states, head, TOP)
    monkeypatch.setattr("specblock_zoo.data.layout.CHUNK_ELEMENTS", 3 * DRAFT_VOCAB)
    for name, column in best_tokens(states, head, TOP).items():
        # A product of three rows need not round as one of eleven.
        np.testing.assert_allclose(column, whole[name], rtol=1e-3, atol=1e-6)


def test_cutting_shortens_every_column():
    chosen = layout(teacher="topk")
    columns = chosen.encode([torch.randn(9, HIDDEN)] * 2, torch.randn(9, HIDDEN), torch.randn(DRAFT_VOCAB, HIDDEN))
    cut = chosen.decode(example(9), columns.__getitem__).cut(4)
    arrays = [cut.input_ids, cut.loss_mask, *cut.taps, *cut.teacher.values()]
    assert {len(array) for array in arrays} == {4}


@pytest.mark.parametrize(("change", "named"), [({"state_dtype": "int8"}, "int8"), ({"teacher": "all"}, "all")])
def test_unknown_forms_are_refused_with_those_there_are(change, named):
    with pytest.raises(ConfigurationError, match=named):
        layout(**change)


def test_the_teacher_last_hidden_keeps_the_states():
    states = torch.randn(3, HIDDEN)
    columns = layout().encode([torch.randn(3, HIDDEN)] * 2, states, torch.randn(DRAFT_VOCAB, HIDDEN))
    np.testing.assert_array_equal(columns[LAST_HIDDEN], to_bits(states))
