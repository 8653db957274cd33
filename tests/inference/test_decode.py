"""The loop's own promises: what a round reports, when it drafts, and that it can be watched round by round."""

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel, StoppingCriteria, StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from specblock_zoo.functional.lookup import NOTHING, chances_at
from specblock_zoo.inference.decode import Laps, Session, choosers, decode, lookup_in, prefill
from specblock_zoo.inference.text import Rules, Text
from specblock_zoo.inference.verify import Prompt, Verifier
from tests.support.decoding import TAPS, WIDTH, ScriptedDrafter, generate, prompt_ids, scripted_drafter, target_of

pytestmark = pytest.mark.contract

LENGTH, NEW = 5, 20


def session_of(drafter: ScriptedDrafter, target: PreTrainedModel) -> Session:
    drafter.attach(target.get_input_embeddings().weight)
    return Session(drafter, Verifier(target, TAPS, DynamicCache()), drafter.config.tree_settings)


def text_of(ids: torch.Tensor, *criteria: StoppingCriteria) -> Text:
    return Text(ids, Rules(stopping_criteria=StoppingCriteriaList(criteria)))


def prompt_for(ids: torch.Tensor) -> Prompt:
    return Prompt(ids, None, torch.arange(ids.shape[1])[None])


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_an_oracle_drafter_is_accepted_whole_every_round(num_blocks: int) -> None:
    target, ids = target_of("llama"), prompt_ids(LENGTH)
    script = generate(target, ids, NEW + 1)
    drafter = scripted_drafter(target, script, num_blocks=num_blocks, max_nodes=40)
    session, text = session_of(drafter, target), text_of(ids, MaxLengthCriteria(LENGTH + NEW))
    rows = prefill(session, prompt_for(ids), [text])
    rounds = list(decode(session, rows))
    assert rows
    assert torch.equal(text.ids, script[:, : LENGTH + NEW])
    assert all(len(each.verdict.accepted_nodes) == WIDTH * num_blocks for each in rounds[:-1])
    assert all(each.drafter_calls == num_blocks for each in rounds[:-2])
    assert sum(len(each.verdict.committed_tokens) for each in rounds) == NEW - 1


def test_rounds_can_be_watched_while_they_happen() -> None:
    target, ids = target_of("llama"), prompt_ids(LENGTH)
    drafter = scripted_drafter(target, generate(target, ids, NEW), num_blocks=1)
    session, text = session_of(drafter, target), text_of(ids, MaxLengthCriteria(LENGTH + NEW))
    rows = prefill(session, prompt_for(ids), [text])
    seen = LENGTH + 1
    for each in decode(session, rows):
        seen += len(each.verdict.committed_tokens)
        assert len(text) == seen
        assert session.verifier.cache.get_seq_length() == seen - 1
        assert min(each.draft_ms, each.verify_ms, each.other_ms) >= 0.0


def test_the_last_token_is_not_drafted_for() -> None:
    target, ids = target_of("llama"), prompt_ids(LENGTH)
    drafter = scripted_drafter(target, generate(target, ids, 2))
    session, text = session_of(drafter, target), text_of(ids, MaxLengthCriteria(LENGTH + 2))
    rows = prefill(session, prompt_for(ids), [text])
    (last,) = decode(session, rows)
    assert (len(last.tree), last.drafter_calls) == (0, 0)


@pytest.mark.parametrize("offset", range(1, 9))
def test_drafted_text_after_the_end_is_not_committed(offset: int) -> None:
    target, ids = target_of("qwen3"), prompt_ids(LENGTH)
    script = generate(target, ids, NEW)
    end = int(script[0, LENGTH + offset])
    drafter = scripted_drafter(target, script, num_blocks=2)
    session, text = session_of(drafter, target), text_of(ids, MaxLengthCriteria(99), EosTokenCriteria(end))
    rows = prefill(session, prompt_for(ids), [text])
    if rows:
        assert list(decode(session, rows))[-1].verdict.finished
    wanted = script[0, : LENGTH + script[0, LENGTH:].tolist().index(end) + 1]
    assert torch.equal(text.ids[0], wanted)


def test_best_tokens_of_all_nodes_at_once_equal_looking_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(2, 4, 9, generator=torch.Generator().manual_seed(0))

    class ElsewhereLogits(torch.Tensor):
        """Says it is not on the CPU, where the fast path is not taken."""

        device = torch.device("meta")

    def chosen(scores: torch.Tensor, rules: Rules) -> list[list[tuple[int, bool]]]:
        texts = [Text(torch.tensor([[1]]), rules) for _ in range(2)]
        return [[choose(node) for node in (0, 2, 3)] for choose in choosers(texts, scores)]

    lazily = chosen(logits, Rules())
    assert lazily == chosen(logits, Rules(keep_logits=True))
    assert lazily == chosen(logits.as_subclass(ElsewhereLogits), Rules())


def test_laps_are_milliseconds_since_the_last_one() -> None:
    laps = Laps(torch.device("cpu"))
    first, second = laps.lap(), laps.lap()
    assert 0.0 <= first < 1000.0
    assert 0.0 <= second < 1000.0


def test_padding_and_what_is_long_past_are_not_copied_from(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Text(torch.tensor([[0, 0, 5, 6, 5]]), Rules())
    mask = torch.tensor([False, False, True, True])
    assert lookup_in(text, mask).continuation(2).tokens == (6, 5)
    assert lookup_in(Text(torch.tensor([[0, 0, 0]]), Rules()), torch.tensor([False, False])).continuation(1) == NOTHING
    assert lookup_in(Text(torch.tensor([[5, 6, 5]]), Rules()), torch.ones(7, dtype=torch.bool)).continuation(1).tokens
    monkeypatch.setattr("specblock_zoo.inference.decode.MOST_INDEXED", 2)
    assert lookup_in(text, None).continuation(2) == NOTHING


@pytest.mark.parametrize(("rules", "temperature"), [(Rules(), 0.0), (Rules(do_sample=True), 1.0)])
def test_a_sampled_text_promises_less_to_a_copy(rules: Rules, temperature: float) -> None:
    copied = lookup_in(Text(torch.tensor([[5, 6, 5]]), rules), None).continuation(1)
    assert copied.chance == pytest.approx(chances_at(temperature)[0])
