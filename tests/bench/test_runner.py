"""Plain and drafted decoding, compared."""

import pytest
import torch

from specblock_zoo.bench.report import DRAFTED, PLAIN, PLAIN_MASKED, PROMPT_LOOKUP
from specblock_zoo.bench.runner import Pair, RunSettings, compare
from specblock_zoo.bench.tasks import Prompt, Task
from specblock_zoo.errors import PromptTooLongError
from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.targets.local import load_target
from tests.support.tiny_pair import POSITIONS, TinyFolders

TASK = Task("chat", tuple(Prompt(id=f"q/{i}", category="chat", turns=(f"what is {i}?",)) for i in range(3)))
TOKENS = 12


@pytest.fixture
def pair(tiny_folders: TinyFolders) -> Pair:
    model, tokenizer = load_target(tiny_folders.target, dtype=torch.float32)
    return Pair(model, tokenizer, load_drafter(tiny_folders.drafter))


def test_every_case_gives_the_same_text_in_float32(pair: Pair) -> None:
    ticks: list[int] = []
    settings = RunSettings(TOKENS, prompt_lookup=True)
    comparison = compare(pair, TASK, settings, lambda: ticks.append(1))
    cases = {PLAIN, PLAIN_MASKED, PROMPT_LOOKUP, DRAFTED}
    assert len(ticks) == len(cases) * len(TASK.prompts)
    for record, answers in zip(comparison.records, comparison.answers, strict=True):
        assert record.equal
        assert set(record.seconds) == set(record.tokens) == set(answers) == cases
        assert {answer.tokens for answer in answers.values()} == {answers[PLAIN].tokens}
        assert record.new_tokens == len(answers[DRAFTED].tokens) <= TOKENS


def test_the_record_counts_what_the_rounds_committed(pair: Pair) -> None:
    for record, answers in zip(*vars(compare(pair, TASK, RunSettings(TOKENS))).values(), strict=True):
        stats = answers[DRAFTED].stats
        # The first token is the prefill's, so it is no round's.
        assert record.committed == stats.committed == record.new_tokens - 1
        assert record.rounds == len(stats.history)
        assert record.draft_ms == pytest.approx(sum(each.draft_ms for each in stats.history))


def test_a_changed_text_is_not_called_equal(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Pair.drafted

    def tampered(self: Pair, question):
        answer = honest(self, question)
        return type(answer)((*answer.tokens[:-1], answer.tokens[-1] + 1), answer.stats)

    monkeypatch.setattr(Pair, "drafted", tampered)
    assert not any(record.equal for record in compare(pair, TASK, RunSettings(TOKENS)).records)


def test_a_prompt_that_does_not_fit_stops_the_run_before_it_starts(pair: Pair) -> None:
    task = Task("chat", (*TASK.prompts, Prompt(id="long", category="chat", turns=("x" * POSITIONS,))))
    ticks: list[int] = []
    with pytest.raises(PromptTooLongError, match=f"{POSITIONS} positions"):
        compare(pair, task, RunSettings(TOKENS), lambda: ticks.append(1))
    assert not ticks


def test_casting_changes_both_models_and_shares_the_new_embeddings(pair: Pair) -> None:
    pair.drafted(pair.question("hello", 2))
    pair.cast(torch.bfloat16)
    assert {parameter.dtype for parameter in pair.model.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in pair.drafter.parameters()} == {torch.bfloat16}
    assert pair.drafter.embedding.data_ptr() == pair.model.get_input_embeddings().weight.data_ptr()
    assert pair.drafted(pair.question("hello", 4)).tokens
