"""Plain and drafted decoding, compared in memory."""

import pytest
import torch

from specblock_zoo.bench.ask import Question
from specblock_zoo.bench.report import DRAFTED, PLAIN, PLAIN_MASKED
from specblock_zoo.bench.runner import Pair, compare
from specblock_zoo.bench.tasks import Prompt, Task, encode_prompt
from specblock_zoo.errors import PromptTooLongError
from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.targets.local import load_target
from tests.support.tiny_pair import POSITIONS, TinyFolders

TASK = Task("chat", tuple(Prompt(id=f"q/{i}", category="chat", turns=(f"what is {i}?",)) for i in range(2)))
TOKENS = 12


@pytest.fixture
def pair(tiny_folders: TinyFolders) -> Pair:
    model, tokenizer = load_target(tiny_folders.target, dtype=torch.float32)
    return Pair(model, tokenizer, load_drafter(tiny_folders.drafter))


def test_every_method_gives_the_same_text_in_float32_and_records_what_its_rounds_committed(pair: Pair) -> None:
    ticks: list[int] = []
    comparison = compare(pair, TASK, TOKENS, lambda: ticks.append(1))
    methods = {PLAIN, PLAIN_MASKED, DRAFTED}
    assert len(ticks) == len(comparison.records) == len(methods) * len(TASK.prompts)
    for answers in comparison.answers:
        assert set(answers) == methods
        assert {answer.tokens for answer in answers.values()} == {answers[PLAIN].tokens}
    for record in comparison.records:
        # The first token is the prefill's, so it is no round's.
        assert record.committed == record.new_tokens - 1
        assert record.dtype == "float32"
        assert not record.packed


def test_a_prompt_that_does_not_fit_stops_the_run_before_it_starts(pair: Pair) -> None:
    task = Task("chat", (*TASK.prompts, Prompt(id="long", category="chat", turns=("x" * POSITIONS,))))
    ticks: list[int] = []
    with pytest.raises(PromptTooLongError, match=f"{POSITIONS} positions"):
        compare(pair, task, TOKENS, lambda: ticks.append(1))
    assert not ticks


def test_casting_changes_both_models_and_shares_the_new_embeddings(pair: Pair) -> None:
    pair.drafted(Question(encode_prompt(pair.tokenizer, "hello"), 2))
    pair.cast(torch.bfloat16)
    assert {parameter.dtype for parameter in pair.model.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in pair.drafter.parameters()} == {torch.bfloat16}
    assert pair.drafter.embedding.data_ptr() == pair.model.get_input_embeddings().weight.data_ptr()
    assert pair.drafted(Question(encode_prompt(pair.tokenizer, "hello"), 4)).tokens
