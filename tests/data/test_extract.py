import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.data.examples import Example
from specblock_zoo.data.extract import Extractor, length_sorted_batches
from specblock_zoo.data.layout import Layout, from_bits
from specblock_zoo.functional.vocab import build_vocab_map
from specblock_zoo.targets.gemma2 import GEMMA2
from specblock_zoo.targets.llama import LLAMA

DRAFT_VOCAB, FAMILIES = 24, ("llama", "gemma2")


@pytest.fixture(
    scope="module", params=[LLAMA.tiny_model(), GEMMA2.tiny_model(final_logit_softcapping=0.5)], ids=FAMILIES
)
def extractor(request):
    model = request.param
    vocab = build_vocab_map(torch.arange(96), DRAFT_VOCAB)
    return Extractor.of(model, Layout((1, 2, 3), 32, DRAFT_VOCAB, teacher="topk", teacher_top=DRAFT_VOCAB), vocab)


def examples(*lengths):
    draw = np.random.default_rng(0)
    made = (draw.integers(4, 96, length, dtype=np.int32) for length in lengths)
    return [Example(f"r{i}", ids, np.ones(len(ids), dtype=np.bool_)) for i, ids in enumerate(made)]


def test_any_batch_gives_what_each_sequence_alone_gives(extractor):
    sequences = examples(5, 19, 11, 2)
    together = {i: result for batch in extractor.batches(sequences, 60) for i, result in batch}
    for i, sequence in enumerate(sequences):
        (alone,) = extractor.forward([sequence])
        pairs = zip(*(result.decoded(extractor.layout).taps for result in (together[i], alone)), strict=True)
        for found, expected in pairs:
            states = (from_bits(bits.copy()).float() for bits in (found, expected))
            torch.testing.assert_close(*states, rtol=2**-7, atol=1e-4)


def test_the_teacher_is_the_target_s_own_distribution_over_the_draft_vocabulary(extractor):
    (sequence,) = examples(9)
    (result,) = extractor.forward([sequence])
    logits = extractor.model(torch.from_numpy(sequence.input_ids).long()[None]).logits[0, :, -DRAFT_VOCAB:]
    expected = logits.log_softmax(-1)
    ids = torch.from_numpy(result.columns["teacher_ids"].astype(np.int64))
    found = torch.from_numpy(result.columns["teacher_log_probs"]).float()
    torch.testing.assert_close(found, expected.gather(-1, ids), atol=1e-2, rtol=1e-2)
    assert 0 < result.state_error < 0.003


@given(lengths=st.lists(st.integers(1, 40), max_size=30), bound=st.integers(1, 100))
def test_forward_batches_hold_every_sequence_once_within_the_bound(lengths, bound):
    batches = list(length_sorted_batches(lengths, bound))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= bound
