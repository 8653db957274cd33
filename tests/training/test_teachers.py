"""What each form of the teacher says, against the target's own distribution."""

import numpy as np
import pytest
import torch

from specblock_zoo.data import layout
from specblock_zoo.targets.registry import FAMILIES
from specblock_zoo.training.teachers import TEACHERS, Teacher, TokenTeacher, TopTeacher

HIDDEN, VOCAB, DRAFT_VOCAB = 16, 30, 20
# Draft token i is target token i + 5.
DRAFT_IDS = torch.cat((torch.full((5,), -1), torch.arange(DRAFT_VOCAB), torch.full((5,), -1)))
SEQUENCE, STATE = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 3, 1, 2])
EVERYTHING = slice(0, 4)


@pytest.fixture
def head():
    return torch.randn(DRAFT_VOCAB, HIDDEN)


def batch_of(head, top):
    """Two sequences of five tokens with every form of the teacher's columns."""
    states = torch.randn(2, 5, HIDDEN).bfloat16()
    columns = [layout.best_tokens(row.float(), head, top) for row in states]
    batch = {name: torch.from_numpy(np.stack([c[name] for c in columns]).astype(kind)) for name, kind in KINDS.items()}
    return {**batch, layout.LAST_HIDDEN: states, "input_ids": torch.randint(5, 25, (2, 5))}


FORMS = ("topk", "last_hidden")
KINDS = {layout.TOP_IDS: np.int64, layout.TOP_LOG_PROBS: np.float16, layout.TAIL_MASS: np.float32}


def test_every_stored_form_has_its_teacher():
    assert TEACHERS.keys() == layout.TEACHERS.keys()


@pytest.mark.parametrize("name", TEACHERS)
def test_every_teacher_gives_distributions_in_any_pieces(name, head):
    rows = TEACHERS[name](head, DRAFT_IDS).rows(batch_of(head, 4), SEQUENCE, STATE)
    whole = rows(EVERYTHING)
    assert whole.dtype == torch.float32
    torch.testing.assert_close(whole.sum(-1), torch.ones(4), atol=2e-3, rtol=0)
    torch.testing.assert_close(torch.cat([rows(slice(0, 3)), rows(slice(3, 9))]), whole)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_whole_distribution_is_the_targets_own(family):
    """Also where the target does something to its logits after the head."""
    caps = {"final_logit_softcapping": 0.3} if family.name in ("gemma2", "gemma3") else {}
    target = family.tiny_model(**caps)
    ids = torch.arange(4, 12).view(2, 4)
    states = family.decoder(target)(ids).last_hidden_state
    teacher = Teacher(family.head_weight(target), torch.arange(96), family.logit_cap(target.config))
    sequence, state = torch.tensor([0, 0, 1]), torch.tensor([1, 3, 2])
    probs = teacher.rows({layout.LAST_HIDDEN: states}, sequence, state)(EVERYTHING)
    expected = target(ids).logits[sequence, state].softmax(-1)
    torch.testing.assert_close(probs, expected)
    without = Teacher(teacher.head, teacher.draft_ids).rows({layout.LAST_HIDDEN: states}, sequence, state)(EVERYTHING)
    assert torch.allclose(without, expected, atol=1e-3) == (not caps), "a law about caps needs a cap that matters"


def test_all_tokens_kept_are_the_whole_distribution(head):
    batch = batch_of(head, DRAFT_VOCAB)
    kept, full = (TEACHERS[name](head, DRAFT_IDS).rows(batch, SEQUENCE, STATE) for name in ("topk", "last_hidden"))
    torch.testing.assert_close(kept(EVERYTHING), full(EVERYTHING), atol=1e-3, rtol=1e-2)


def test_the_mass_of_the_other_tokens_is_kept_and_spread_evenly(head):
    batch = batch_of(head, 4)
    kept, full = (TEACHERS[name](head, DRAFT_IDS).rows(batch, SEQUENCE, STATE) for name in ("topk", "last_hidden"))
    best = full(EVERYTHING).topk(4)
    torch.testing.assert_close(kept(EVERYTHING).gather(-1, best.indices), best.values, atol=1e-3, rtol=1e-2)
    others = kept(EVERYTHING).scatter(-1, best.indices, float("nan"))
    others = others[~others.isnan()].view(4, -1)
    assert torch.equal(others.amax(-1), others.amin(-1))
    torch.testing.assert_close(others.sum(-1), 1 - best.values.sum(-1), atol=1e-3, rtol=0)


def test_all_tokens_kept_differ_by_the_rounding_of_float16_alone(head):
    batch = batch_of(head, DRAFT_VOCAB)
    kept, full = (TEACHERS[name](head, DRAFT_IDS).rows(batch, SEQUENCE, STATE)(EVERYTHING) for name in FORMS)
    rounding = full.log().abs() * 2**-11
    assert ((kept - full).abs() <= full * rounding.expm1() + 1e-6).all()


@pytest.mark.parametrize("top", [1, 2, 4])
def test_few_tokens_err_by_the_tail_at_most(head, top):
    """Total variation, of the distribution and so of the gradient of cross-entropy in the logits."""
    batch = batch_of(head, top)
    kept, full = (TEACHERS[name](head, DRAFT_IDS).rows(batch, SEQUENCE, STATE)(EVERYTHING) for name in FORMS)
    tail = 1 - full.topk(top).values.sum(-1)
    distance = 0.5 * (kept - full).abs().sum(-1)
    assert (distance <= tail + 1e-3).all()
    assert distance.max() > 1e-3, "a bound on nothing"


def test_mass_outside_the_draft_vocabulary_is_in_no_teacher(head):
    """The tail is what is left of the distribution over the draft vocabulary, not of the one over the whole."""
    batch = batch_of(head, 4)
    states = batch[layout.LAST_HIDDEN][SEQUENCE, STATE].float()
    outside = states.sum(0, keepdim=True).expand(5, HIDDEN) * 4
    # In float64, where what is inside does not vanish beside the rest.
    whole = torch.nn.functional.linear(states, torch.cat((outside, head, outside))).double().softmax(-1)
    inside = whole[:, DRAFT_IDS >= 0]
    assert (inside.sum(-1) < 0.5).any(), "tokens outside must matter for this to say something"
    expected = (inside / inside.sum(-1, keepdim=True)).float()
    best = expected.topk(4)
    kept, full = (TEACHERS[name](head, DRAFT_IDS).rows(batch, SEQUENCE, STATE)(EVERYTHING) for name in FORMS)
    torch.testing.assert_close(full, expected)
    torch.testing.assert_close(kept.gather(-1, best.indices), best.values, atol=1e-3, rtol=1e-2)
    torch.testing.assert_close(batch[layout.TAIL_MASS][SEQUENCE, STATE], 1 - best.values.sum(-1), atol=1e-5, rtol=1e-4)


def test_the_text_is_certain_of_its_next_token(head):
    batch = batch_of(head, 4)
    probs = TokenTeacher(head, DRAFT_IDS).rows(batch, SEQUENCE, STATE)(EVERYTHING)
    assert torch.equal(probs.argmax(-1) + 5, batch["input_ids"][SEQUENCE, STATE + 1])
    assert torch.equal(probs.amax(-1), torch.ones(4))


def test_rows_that_do_not_count_are_finite(head):
    batch = {name: torch.zeros_like(column) for name, column in batch_of(head, 4).items()}
    last = torch.full((4,), 4)
    for kind in (TopTeacher, TokenTeacher):
        assert kind(head, DRAFT_IDS).rows(batch, SEQUENCE, last)(EVERYTHING).isfinite().all()
