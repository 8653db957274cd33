"""The loop's own promises: what a round reports, when it drafts, and that it can be watched round by round."""

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel, StoppingCriteria, StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from specblock_zoo.inference.cache import DrafterCache
from specblock_zoo.inference.decode import Laps, Session, chooser, decode, prefill
from specblock_zoo.inference.text import Rules, Text
from specblock_zoo.inference.verify import Prompt, Reading, Verifier
from tests.support.decoding import TAPS, WIDTH, ScriptedDrafter, generate, prompt_ids, scripted_drafter, target_of

LENGTH, NEW = 5, 20


def session_of(
    drafter: ScriptedDrafter, target: PreTrainedModel, ids: torch.Tensor, criteria: list[StoppingCriteria]
) -> Session:
    drafter.attach(target.get_input_embeddings().weight)
    text = Text(ids, Rules(stopping_criteria=StoppingCriteriaList(criteria)))
    return Session(drafter, Verifier(target, TAPS, DynamicCache()), text, drafter.config.tree_settings, DrafterCache())


def prompt_for(ids: torch.Tensor) -> Prompt:
    return Prompt(ids, None, torch.arange(ids.shape[1])[None])


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_an_oracle_drafter_is_accepted_whole_every_round(num_blocks: int) -> None:
    target, ids = target_of("llama"), prompt_ids(LENGTH)
    script = generate(target, ids, NEW + 1)
    drafter = scripted_drafter(target, script, num_blocks=num_blocks, max_nodes=40)
    session = session_of(drafter, target, ids, [MaxLengthCriteria(LENGTH + NEW)])
    pairs, finished = prefill(session, prompt_for(ids))
    rounds = list(decode(session, pairs))
    assert not finished
    assert torch.equal(session.text.ids, script[:, : LENGTH + NEW])
    assert all(len(each.verdict.accepted_nodes) == WIDTH * num_blocks for each in rounds[:-1])
    assert all(each.drafter_calls == num_blocks for each in rounds[:-2])
    assert sum(len(each.verdict.committed_tokens) for each in rounds) == NEW - 1


def test_rounds_can_be_watched_while_they_happen() -> None:
    target, ids = target_of("llama"), prompt_ids(LENGTH)
    drafter = scripted_drafter(target, generate(target, ids, NEW), num_blocks=1)
    session = session_of(drafter, target, ids, [MaxLengthCriteria(LENGTH + NEW)])
    pairs, _ = prefill(session, prompt_for(ids))
    seen = LENGTH + 1
    for each in decode(session, pairs):
        seen += len(each.verdict.committed_tokens)
        assert len(session.text) == seen
        assert session.verifier.cache.get_seq_length() == seen - 1
        assert min(each.draft_ms, each.verify_ms, each.other_ms) >= 0.0


def test_the_last_token_is_not_drafted_for() -> None:
    target, ids = target_of("llama"), prompt_ids(LENGTH)
    drafter = scripted_drafter(target, generate(target, ids, 2))
    session = session_of(drafter, target, ids, [MaxLengthCriteria(LENGTH + 2)])
    pairs, _ = prefill(session, prompt_for(ids))
    (last,) = decode(session, pairs)
    assert (len(last.tree), last.drafter_calls) == (0, 0)


@pytest.mark.parametrize("offset", range(1, 9))
def test_drafted_text_after_the_end_is_not_committed(offset: int) -> None:
    target, ids = target_of("qwen3"), prompt_ids(LENGTH)
    script = generate(target, ids, NEW)
    end = int(script[0, LENGTH + offset])
    drafter = scripted_drafter(target, script, num_blocks=2)
    session = session_of(drafter, target, ids, [MaxLengthCriteria(99), EosTokenCriteria(end)])
    pairs, finished = prefill(session, prompt_for(ids))
    if not finished:
        assert list(decode(session, pairs))[-1].verdict.finished
    wanted = script[0, : LENGTH + script[0, LENGTH:].tolist().index(end) + 1]
    assert torch.equal(session.text.ids[0], wanted)


def test_best_tokens_of_all_rows_at_once_equal_looking_row_by_row() -> None:
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    fast, slow = Text(torch.tensor([[1]]), Rules()), Text(torch.tensor([[1]]), Rules(keep_logits=True))
    fast_choose, slow_choose = (chooser(text, Reading(logits, logits[None])) for text in (fast, slow))
    assert [fast_choose(row) for row in (0, 2, 3)] == [slow_choose(row) for row in (0, 2, 3)]


def test_laps_are_milliseconds_since_the_last_one() -> None:
    laps = Laps(torch.device("cpu"))
    first, second = laps.lap(), laps.lap()
    assert 0.0 <= first < 1000.0
    assert 0.0 <= second < 1000.0
