import json

import numpy as np
import pytest

from specblock_zoo.data.examples import Limits, Reading, choose_examples, eligible_examples
from specblock_zoo.data.records import AnswerRecord, read_records
from specblock_zoo.errors import BadRecordError, NoSupervisedTokensError, TargetMismatchError
from tests.support.tiny_pair import character_tokenizer

TOKENIZER = character_tokenizer()


def record(name, prompt, answer, target=None):
    ids = tuple(range(4, 4 + prompt)), tuple(range(40, 40 + answer))
    return AnswerRecord(name, f"f:{name}", prompt_ids=ids[0], answer_ids=ids[1], target=target)


def eligible(records, **limits):
    return eligible_examples(records, Limits(**{"max_length": 50, **limits}), Reading(TOKENIZER, "t", 96))


def test_the_answer_is_supervised_and_the_prompt_is_not():
    (example,), _ = eligible([record("a", 3, 2)])
    assert example.input_ids.tolist() == [4, 5, 6, 40, 41]
    assert example.loss_mask.tolist() == [False, False, False, True, True]


def test_every_record_read_is_counted_once():
    records = [record("ok", 3, 4), record("long", 9, 4), record("none", 3, 0), record("cut", 3, 20), record("b", 3, 4)]
    examples, counts = eligible(records, max_length=12, max_prompt_tokens=8, max_records=2)
    chosen, counts = choose_examples(examples, counts, Limits(12, 8, max_records=2))
    assert counts.records_read == 5
    assert (counts.dropped_long_prompt, counts.dropped_no_supervised, counts.truncated) == (1, 1, 1)
    assert (counts.not_chosen, counts.records, counts.sequences) == (1, 2, 5)
    assert counts.tokens == sum(map(len, chosen))
    assert counts.supervised_tokens == sum(example.supervised_tokens for example in chosen)
    dropped = counts.dropped_long_prompt + counts.dropped_no_supervised + counts.not_chosen
    assert counts.records + dropped == counts.records_read


def test_an_answer_beyond_max_length_is_dropped_not_kept_unsupervised():
    examples, counts = eligible([record("a", 12, 4), record("b", 3, 4)], max_length=12)
    assert [example.id for example in examples] == ["b"]
    assert counts.dropped_no_supervised == 1


def test_no_supervised_token_at_all_is_an_error_that_names_the_limits():
    with pytest.raises(NoSupervisedTokensError, match=r"None of 2 records.*max_length 50"):
        eligible([record("a", 3, 0), record("b", 5, 0)])


def test_an_id_outside_the_vocabulary_is_refused_with_its_place():
    bad = AnswerRecord("a", "file:7", prompt_ids=(4,), answer_ids=(96,))
    with pytest.raises(TargetMismatchError, match=r"file:7: token id 96 .* 96"):
        eligible([bad])


def test_answers_of_another_target_are_refused_with_both_names():
    eligible([record("a", 3, 2, target="t")])
    with pytest.raises(TargetMismatchError, match=r"'other'.*'t'"):
        eligible([record("a", 3, 2, target="other")])


def test_max_tokens_stops_at_the_first_record_that_reaches_it():
    examples, counts = eligible([record(str(i), 2, 5) for i in range(10)])
    for bound, expected in [(1, 1), (5, 1), (6, 2), (50, 10), (99, 10)]:
        chosen, _ = choose_examples(examples, counts, Limits(50, max_tokens=bound))
        assert len(chosen) == expected


def test_the_choice_is_a_function_of_the_seed():
    examples, counts = eligible([record(str(i), 2, 3) for i in range(20)])

    def names(seed):
        return [e.id for e in choose_examples(examples, counts, Limits(50, max_records=8, seed=seed))[0]]

    assert names(0) == names(0)
    assert names(0) != names(1)
    assert len(set(names(0))) == 8


def test_a_bad_record_in_the_middle_is_named_by_line_and_skipped_only_when_asked(tmp_path):
    file = tmp_path / "r.jsonl"
    good = [json.dumps({"id": name, "prompt_ids": [4, 5], "answer_ids": [6, 7]}) for name in "abc"]
    file.write_text("\n".join([good[0], "{ half a rec", good[1], good[0], good[2]]) + "\n")
    with pytest.raises(BadRecordError, match=rf"{file}:2: not JSON"):
        eligible_examples(read_records([file]), Limits(50), Reading(TOKENIZER, "t", 96))
    reading = Reading(TOKENIZER, "t", 96, skip_bad=True)
    examples, counts = eligible_examples(read_records([file], reading.on_bad), Limits(50), reading)
    assert [example.id for example in examples] == ["a", "b", "c"]
    assert (counts.records_read, counts.skipped_bad) == (5, 2)
    assert [problem.split(": ")[0] for problem in reading.skipped] == [f"{file}:2", f"{file}:4"]


def test_lengths_and_masks_have_compact_dtypes():
    (example,), _ = eligible([record("a", 3, 2)])
    assert (example.input_ids.dtype, example.loss_mask.dtype) == (np.int32, np.bool_)
