import numpy as np
import pytest

from specblock_zoo.data.chat import answer_spans, encode_record
from specblock_zoo.data.records import AnswerRecord
from specblock_zoo.errors import BadRecordError
from tests.support.tiny_pair import character_tokenizer

PLAIN = (
    "{% for m in messages %}<s>{{ m['role'] }}:{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)
# Drops what earlier answers thought, as reasoning templates do.
FORGETFUL = (
    "{% for m in messages %}<s>{{ m['role'] }}:"
    "{% if loop.last or m['role'] == 'user' %}{{ m['content'] }}{% endif %}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)
MESSAGES = [
    {"role": "user", "content": "ab"},
    {"role": "assistant", "content": "cde"},
    {"role": "user", "content": "f"},
    {"role": "assistant", "content": "g"},
]


@pytest.fixture
def tokenizer():
    tokenizer = character_tokenizer()
    tokenizer.chat_template = PLAIN
    return tokenizer


def supervised(tokenizer, messages):
    ids, mask = encode_record(AnswerRecord("a", "f:1", messages=tuple(messages)), tokenizer)
    assert (ids.dtype, mask.dtype, ids.shape) == (np.int32, np.bool_, mask.shape)
    return tokenizer.convert_ids_to_tokens(ids[mask])


def test_every_answer_is_supervised_with_its_end_of_turn_and_nothing_else(tokenizer):
    assert supervised(tokenizer, MESSAGES) == ["c", "d", "e", "</s>", "g", "</s>"]


def test_a_conversation_without_an_answer_has_no_supervised_token(tokenizer):
    assert supervised(tokenizer, MESSAGES[:1]) == []


def test_the_answer_starts_where_generation_would_start(tokenizer):
    text, ((start, end), _) = answer_spans(tokenizer, MESSAGES, "f:1")
    assert text[:start] == tokenizer.apply_chat_template(MESSAGES[:1], tokenize=False, add_generation_prompt=True)
    assert text[start:end] == "cde</s>"


def test_messages_give_the_ids_of_the_rendered_conversation(tokenizer):
    ids, _ = encode_record(AnswerRecord("a", "f:1", messages=tuple(MESSAGES)), tokenizer)
    rendered = tokenizer.apply_chat_template(MESSAGES, tokenize=False)
    assert ids.tolist() == tokenizer(rendered, add_special_tokens=False)["input_ids"]


def test_a_template_that_rewrites_earlier_turns_is_refused_with_the_place(tokenizer):
    tokenizer.chat_template = FORGETFUL
    with pytest.raises(BadRecordError, match=r"f:1: .* turn 1"):
        supervised(tokenizer, MESSAGES)
    assert supervised(tokenizer, MESSAGES[:2]) == ["c", "d", "e", "</s>"]


def test_token_records_need_no_template():
    ids, mask = encode_record(AnswerRecord("a", "f:1", prompt_ids=(4, 5), answer_ids=(6,)), character_tokenizer())
    assert ids.tolist() == [4, 5, 6]
    assert mask.tolist() == [False, False, True]
