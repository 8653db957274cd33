import numpy as np
import pytest

from specblock_zoo.data.chat import answer_spans, encode_record, prompt_ids
from specblock_zoo.data.records import AnswerRecord
from specblock_zoo.errors import BadRecordError, ConfigurationError
from tests.support.templates import END_OF_TURN, MARKED, QWEN3, TEMPLATES
from tests.support.tiny_pair import character_tokenizer

PLAIN = (
    "{% for m in messages %}<s>{{ m['role'] }}:{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)
# Every answer begins inside a thought.
OPENED = PLAIN.replace("'] }}:", "'] }}:{% if m['role'] == 'assistant' %}<think>{% endif %}").replace(
    "assistant:{% endif %}", "assistant:<think>{% endif %}"
)
# Never shows the answer as it was prompted.
ABSURD = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}says:{% endif %}"
MESSAGES = [
    {"role": "user", "content": "ab"},
    {"role": "assistant", "content": "cde"},
    {"role": "user", "content": "f"},
    {"role": "assistant", "content": "g"},
]
THOUGHTS = [
    {"role": "user", "content": "ab"},
    {"role": "assistant", "content": "cde", "reasoning_content": "why ab"},
    {"role": "user", "content": "f"},
    {"role": "assistant", "content": "<think>\nwhy f\n</think>\n\ng"},
]


def tokenizer_with(template):
    tokenizer = character_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def supervised(template, messages, supervise_reasoning=True):
    """Per sequence the supervised text; characters outside the tokenizer's set become question marks."""
    record = AnswerRecord("a", "f:1", messages=tuple(messages))
    tokenizer = tokenizer_with(template)
    texts = []
    for ids, mask in encode_record(record, tokenizer, supervise_reasoning):
        assert (ids.dtype, mask.dtype, ids.shape) == (np.int32, np.bool_, mask.shape)
        tokens = tokenizer.convert_ids_to_tokens(ids[mask])
        texts.append("".join("?" if token == "<unk>" else token for token in tokens))
    return texts


def spans_of(template, messages):
    return [
        [text[start:end] for start, end in spans]
        for text, spans in answer_spans(tokenizer_with(template), messages, "f:1")
    ]


def test_every_answer_is_supervised_with_its_end_of_turn_and_nothing_else():
    assert supervised(PLAIN, MESSAGES) == ["cde</s>g</s>"]


@pytest.mark.parametrize("name", ["llama-3.1", "smollm2"])
def test_stock_templates_without_thoughts_give_one_sequence_with_every_answer(name):
    end = END_OF_TURN[name]
    assert spans_of(TEMPLATES[name], MESSAGES) == [[f"cde{end}", f"g{end}"]]
    system = {"role": "system", "content": "s"}
    assert spans_of(TEMPLATES[name], [system, *MESSAGES]) == [[f"cde{end}", f"g{end}"]]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_answer_starts_where_generation_would_start(name):
    tokenizer = tokenizer_with(TEMPLATES[name])
    ((text, ((start, _),)),) = answer_spans(tokenizer, MESSAGES[:2], "f:1")
    prompt = tokenizer.apply_chat_template(
        MESSAGES[:1], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert text[:start] == prompt


def test_an_answer_without_a_thought_is_supervised_after_the_empty_thought_of_the_prompt():
    assert spans_of(QWEN3, MESSAGES[:2]) == [["cde<|im_end|>"]]


def test_thoughts_of_both_forms_are_supervised_with_their_answer():
    expected = "<think>\nwhy ab\n</think>\n\ncde<|im_end|>"
    assert spans_of(QWEN3, THOUGHTS[:2]) == [[expected]]
    inline = [THOUGHTS[0], {"role": "assistant", "content": "<think>\nwhy ab\n</think>\n\ncde"}]
    assert spans_of(QWEN3, inline) == [[expected]]


def test_a_template_that_drops_earlier_thoughts_gives_one_sequence_per_answer_as_it_was_made():
    sequences = spans_of(QWEN3, THOUGHTS)
    assert sequences == [["<think>\nwhy f\n</think>\n\ng<|im_end|>"], ["<think>\nwhy ab\n</think>\n\ncde<|im_end|>"]]
    whole, part = (text for text, _ in answer_spans(tokenizer_with(QWEN3), THOUGHTS, "f:1"))
    assert "why ab" not in whole, "what the target saw when it answered the second question"
    assert part.endswith("cde<|im_end|>\n")


def test_the_answers_of_a_rewriting_template_are_each_supervised_once_without_thoughts_too():
    assert spans_of(QWEN3, MESSAGES) == [["g<|im_end|>"], ["cde<|im_end|>"]]


def test_reasoning_is_left_out_on_request():
    assert supervised(QWEN3, THOUGHTS[:2])[0].startswith("<think>")
    (said,) = supervised(QWEN3, THOUGHTS[:2], supervise_reasoning=False)
    assert "why" not in said
    assert "think" not in said
    assert "cde" in said


@pytest.mark.parametrize(
    ("template", "content", "said"),
    [
        (PLAIN, "<think>ab", "g</s>"),
        (PLAIN, "a<think>b</think>c<think>d", "acg</s>"),
        (OPENED, "ab</think>c", "c</s>"),
        (OPENED, "ab", ""),
    ],
)
def test_a_thought_that_was_cut_off_ends_with_its_answer(template, content, said):
    messages = [MESSAGES[0], {"role": "assistant", "content": content}, *MESSAGES[2:]]
    assert "".join(supervised(template, messages, supervise_reasoning=False)) == said


def test_a_template_s_own_marks_are_believed():
    assert supervised(MARKED, MESSAGES) == ["cdeg"]


def test_a_conversation_without_an_answer_has_no_supervised_token():
    for template in (PLAIN, QWEN3, MARKED):
        assert supervised(template, MESSAGES[:1]) == [""]


def test_what_follows_the_last_answer_is_context():
    assert supervised(PLAIN, MESSAGES[:3]) == ["cde</s>"]


def test_messages_give_the_ids_of_the_rendered_conversation():
    tokenizer = tokenizer_with(PLAIN)
    ((ids, _),) = encode_record(AnswerRecord("a", "f:1", messages=tuple(MESSAGES)), tokenizer)
    rendered = tokenizer.apply_chat_template(MESSAGES, tokenize=False)
    assert ids.tolist() == tokenizer(rendered, add_special_tokens=False)["input_ids"]


def test_an_answer_that_never_stands_after_its_prompt_is_refused_with_the_place():
    with pytest.raises(BadRecordError, match=r"f:1: .* turn 1"):
        supervised(ABSURD, MESSAGES[:2])


def test_messages_without_a_template_are_refused():
    with pytest.raises(ConfigurationError, match="no chat template"):
        supervised(None, MESSAGES)


def test_token_records_need_no_template():
    record = AnswerRecord("a", "f:1", prompt_ids=(4, 5), answer_ids=(6,))
    ((ids, mask),) = encode_record(record, tokenizer_with(None))
    assert ids.tolist() == [4, 5, 6]
    assert mask.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("prompt", "answer", "kept"),
    [
        ("a", "<think>ab</think>cd", "cd"),
        ("a", "ab</think>cd", "cd"),
        ("a<think>", "ab</think>cd", "cd"),
        ("a", "cd", "cd"),
        ("a", "<think>ab", ""),
        ("a<think>", "ab", ""),
        ("<think>a</think>b", "cd", "cd"),
        ("a", "c<think>ab</think>d<think>e", "cd"),
    ],
)
def test_reasoning_of_token_records_is_left_out_on_request(prompt, answer, kept):
    tokenizer = character_tokenizer()
    tokenizer.add_tokens(["<think>", "</think>"])
    before, ids = (tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (prompt, answer))
    record = AnswerRecord("a", "f:1", prompt_ids=before, answer_ids=ids)
    ((sequence, mask),) = encode_record(record, tokenizer, supervise_reasoning=False)
    assert "".join(tokenizer.convert_ids_to_tokens(sequence[mask])) == kept
    ((_, everything),) = encode_record(record, tokenizer)
    assert everything.sum() == len(ids)


def test_reasoning_of_token_records_needs_marks_that_are_tokens():
    record = AnswerRecord("a", "f:1", prompt_ids=(4,), answer_ids=(5,))
    with pytest.raises(ConfigurationError, match="<think>"):
        encode_record(record, character_tokenizer(), supervise_reasoning=False)


def test_a_prompt_follows_the_template_and_its_switch():
    tokenizer = tokenizer_with(QWEN3)
    plain = prompt_ids(tokenizer, MESSAGES[:1])
    assert plain == prompt_ids(tokenizer, MESSAGES[:1], thinking=True)
    quiet = prompt_ids(tokenizer, MESSAGES[:1], thinking=False)
    assert quiet[: len(plain)] == plain
    assert len(quiet) > len(plain)
