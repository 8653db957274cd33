"""Records that contain what is measured are found, whatever the spelling, and none by chance."""

import pytest

from specblock_zoo.data.overlap import Overlap, Prompts, runs, text_of, words_of
from specblock_zoo.data.records import AnswerRecord
from specblock_zoo.errors import ConfigurationError

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
SHORT = "who wrote the first letter to the old king"
PROMPTS = Prompts.of([LONG, SHORT, "what is it"])


def record(text: str, name: str = "r") -> AnswerRecord:
    return AnswerRecord(name, "here:1", messages=({"role": "user", "content": "so"}, {"role": "x", "content": text}))


def refuse(ids: object) -> str:
    raise AssertionError("messages need no tokenizer")


def test_prompts_are_looked_for_as_runs_or_whole_or_not_at_all() -> None:
    assert len(PROMPTS.long) == 2
    assert PROMPTS.short == {9: frozenset({SHORT})}
    assert (PROMPTS.count, PROMPTS.too_short) == (2, 1)
    assert list(runs(["a", "b"], 3)) == []
    assert words_of("Don't-stop: 3\n") == ["don", "t", "stop", "3"]


@pytest.mark.parametrize(
    ("text", "shared", "whole"),
    [
        ("and " + LONG.upper().replace(" ", ",  "), 1, 0),
        (LONG.removesuffix(" fourteen"), 1, 0),
        (LONG.removesuffix(" thirteen fourteen"), 0, 0),
        (LONG.replace("seven", "ten"), 0, 0),
        (f"well: {SHORT}?", 0, 1),
        (SHORT.replace("old", "young"), 0, 0),
        ("what is it", 0, 0),
        (f"{SHORT} {LONG}", 1, 0),
    ],
)
def test_a_record_is_found_by_what_it_shares(text: str, shared: int, whole: int) -> None:
    found = Overlap()
    assert found.look_at(record(text), PROMPTS, refuse) == (shared + whole == 0)
    assert (found.records, len(found.shared), len(found.whole)) == (1, shared, whole)


def test_a_run_across_question_and_answer_counts_and_token_ids_are_decoded() -> None:
    ids = AnswerRecord("r", "here:1", prompt_ids=(1, 2), answer_ids=(3,))
    assert text_of(ids, lambda tokens: f"{tokens}") == "[1, 2, 3]"
    assert text_of(record("x"), refuse) == "so\nx"


def test_runs_that_are_shared_by_chance_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="words is 3; expected at least 8"):
        Prompts.of([LONG], 3)
