"""What is recorded is what the models computed, checked against forwards of their own."""

import pytest
import torch
from torch import Tensor

from specblock_zoo.adaptation import feedback as recording
from specblock_zoo.adaptation.feedback import CaptureSettings, Recorder, is_outside
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.functional.tree import LOOKUP_BLOCK
from specblock_zoo.inference.decode import Session
from specblock_zoo.inference.grow import Pairs
from specblock_zoo.inference.text import Rules, Text
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.structures import DraftBlock, DraftTree, Verdict
from tests.support.adapting import NEW, plain_text, target
from tests.support.decoding import TAPS, generate, prompt_ids, random_drafter

VOCAB_TOP = CaptureSettings(top=1000)


class Watching(SpecBlockDrafter):
    """A drafter whose queries are recorded by a recorder the test holds."""

    def query(self):
        from contextlib import nullcontext

        self.recorder = Recorder(self, VOCAB_TOP)
        return nullcontext((self, self.recorder))


@pytest.fixture(scope="module", params=[0, 3], ids=["drafted", "copied too"])
def watched(request: pytest.FixtureRequest) -> tuple[Watching, Tensor]:
    drafter = random_drafter(target(), max_nodes=12, lookup_tokens=request.param, lookup_alone=0.0)
    drafter.__class__ = Watching
    return drafter, generate(target(), prompt_ids(8, 0), NEW, assistant_model=drafter)


def test_the_text_is_recorded_as_training_reads_it(watched: tuple[Watching, Tensor]) -> None:
    drafter, text = watched
    assert torch.equal(text, plain_text(0))
    feedback = drafter.recorder.finish()[0].text
    outputs = target()(text, output_hidden_states=True)
    states = torch.cat([outputs.hidden_states[tap + 1] for tap in TAPS], -1)[0]
    length = len(feedback)
    assert feedback.input_ids[1:].tolist() == text[0, 1:length].tolist()
    torch.testing.assert_close(feedback.features[:-1], states[: length - 1].bfloat16(), atol=0.05, rtol=0.02)
    # The prompt has eight tokens; the ninth comes from reading it, before any tree.
    assert feedback.loss_mask.tolist() == [False] * 9 + [True] * (length - 9)
    before = slice(8, length - 1)
    best = outputs.logits[0, before].log_softmax(-1).max(-1)
    assert torch.equal(feedback.target.ids[before, 0].long(), best.indices), "every target token can be drafted here"
    torch.testing.assert_close(feedback.target.log_probs[before, 0].float(), best.values, atol=2e-3, rtol=0)


def test_slots_are_recorded_as_far_as_their_path_is_right(watched: tuple[Watching, Tensor]) -> None:
    drafter, _ = watched
    feedback, rounds = drafter.recorder.finish()[0], drafter.last_stats.history
    rows = feedback.head
    logits = drafter.lm_head(rows.normed.float())
    # With every target token in the draft vocabulary, the best of the top rows is the committed token.
    wrong = logits.argmax(-1) != rows.target.ids[:, 0]
    assert torch.equal(wrong, rows.rejected)
    assert any(each.drafter_calls == 0 for each in rounds[:-1]) == (drafter.config.lookup_tokens > 0)
    rounds = [each for each in rounds if each.drafter_calls]
    assert len(rows) >= len(rounds)
    assert int(rows.covered.sum()) <= sum(len(each.verdict.accepted_nodes) for each in rounds)
    assert feedback.text.uncovered == sum(is_outside(each.tree, each.verdict) for each in rounds)
    assert feedback.difficulty > 0


@pytest.mark.parametrize(
    ("accepted", "committed", "expected"),
    [
        ((), (9,), True),
        ((0,), (5, 9), True),
        ((0, 1), (5, 6, 9), False),
        ((0, 2), (5, 7, 9), False),
        ((0,), (5,), False),
    ],
    ids=["at the root", "after a node", "after a leaf", "after a copy", "the text ended"],
)
def test_a_rejection_needs_a_proposal(accepted: tuple[int, ...], committed: tuple[int, ...], expected: bool) -> None:
    """Node 0 below the root, 1 drafted below it; 2 copied below it, and 3 copied below that."""
    none, parents = torch.zeros(4, dtype=torch.int64), torch.tensor([-1, 0, 0, 2])
    blocks = torch.tensor([0, 0, LOOKUP_BLOCK, LOOKUP_BLOCK])
    tree = DraftTree(torch.tensor([5, 6, 7, 8]), parents, none.float(), blocks, *[none] * 4)
    assert is_outside(tree, Verdict(accepted, committed, False)) is expected


def test_long_texts_keep_their_end() -> None:
    drafter = random_drafter(target())
    whole, cut = Recorder(drafter, CaptureSettings(4)), Recorder(drafter, CaptureSettings(4, max_length=6))
    for recorder in (whole, cut):
        torch.manual_seed(0)
        play(recorder, drafter)
    long, short = whole.finish()[0].text, cut.finish()[0].text
    assert (len(long), len(short)) == (12, 6)
    for name in ("input_ids", "features", "loss_mask"):
        assert torch.equal(getattr(long, name)[-6:], getattr(short, name))
    assert torch.equal(long.target.ids[-6:], short.target.ids)


def test_a_mistake_costs_the_feedback_only(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(random_drafter(target()), CaptureSettings())
    recorder.judged(None, None, None, None)
    assert recorder.failed
    assert recorder.finish() == []
    assert "feedback of this query is lost" in caplog.text


def test_a_query_holds_no_more_than_its_feedback_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the scores of all its rounds over the draft vocabulary, nor the features of a whole long prompt."""
    drafter = random_drafter(target())
    found = []
    for rounds in (32, 2):
        monkeypatch.setattr(recording, "ROUNDS_AT_ONCE", rounds)
        recorder = Recorder(drafter, CaptureSettings(4, max_length=6))
        torch.manual_seed(0)
        play(recorder, drafter)
        [row] = recorder._rows.values()
        assert len(row.scores) < rounds
        assert row.pairs[0].features.untyped_storage().nbytes() == 6 * 3 * drafter.config.target_hidden_size * 4
        found.append(recorder.finish()[0].text.target)
    for name in ("ids", "log_probs", "tail"):
        assert torch.equal(getattr(found[0], name), getattr(found[1], name))


def test_a_recorder_that_failed_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(random_drafter(target()), CaptureSettings())
    for _ in range(3):
        recorder.judged(None, None, None, None)
        recorder.drafted(None, None, None)
    assert caplog.text.count("feedback of this query is lost") == 1


@pytest.mark.parametrize("settings", [{"top": 0}, {"max_length": 1}])
def test_captures_of_nothing_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(settings))} = {next(iter(settings.values()))}"):
        CaptureSettings(**settings)


def test_nobody_watches_by_default() -> None:
    drafter = random_drafter(target())
    with drafter.query() as (drafting, observer):
        assert drafting is drafter
        assert observer is None
    assert Session.__dataclass_fields__["observer"].default is None


def play(recorder: Recorder, drafter: SpecBlockDrafter) -> None:
    """A prompt of nine pairs and two rounds of one token each, without models."""
    text, width = Text(torch.zeros(1, 1, dtype=torch.int64), Rules()), drafter.config.block_width
    first = 0
    for count in (9, 1, 1):
        features = torch.randn(1, count, 3 * drafter.config.target_hidden_size)
        recorder.drafted(text, Pairs(features, torch.randint(40, (1, count)), first), block(drafter, width))
        none = torch.zeros(0, dtype=torch.int64)
        recorder.judged(
            text, DraftTree(*[none] * 8), Verdict((), (3,), False), torch.randn(1, drafter.config.vocab_size)
        )
        first += count


def block(drafter: SpecBlockDrafter, width: int) -> DraftBlock:
    hidden = torch.randn(1, width, drafter.config.hidden_size)
    return DraftBlock(hidden, torch.randn(1, width, drafter.config.draft_vocab_size), torch.randn(1, width, 4))
