"""Conversations to token ids and loss mask. Answers of the assistant are supervised, everything else is context."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from specblock_zoo.data.records import AnswerRecord
from specblock_zoo.errors import BadRecordError, ConfigurationError

Messages = Sequence[Mapping[str, Any]]
Span = tuple[int, int]
Mask = npt.NDArray[np.bool_]
Tokens = tuple[npt.NDArray[np.int32], Mask]

GENERATION_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
THINK, THINK_END = "<think>", "</think>"
# An answer that was cut off may end inside its thought.
REASONING = re.compile(f"{re.escape(THINK)}.*?(?:{re.escape(THINK_END)}|\\Z)", re.DOTALL)
# Templates that know the switch write an empty thought for answers without one; the others ignore it.
THINKING_SWITCH = "enable_thinking"


def _render(tokenizer: PreTrainedTokenizerBase, messages: Messages, answer_follows: bool, **options: Any) -> str:
    if tokenizer.chat_template is None:
        raise ConfigurationError(
            "The target's tokenizer has no chat template, so messages cannot be rendered.",
            "Give the records as prompt_ids and answer_ids, or set a template in the tokenizer's folder.",
        )
    text = tokenizer.apply_chat_template(
        [dict(message) for message in messages], tokenize=False, add_generation_prompt=answer_follows, **options
    )
    return str(text)


def prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: Messages, thinking: bool | None = None) -> list[int]:
    """Token ids of a conversation that an answer is to follow.

    Args:
        thinking: sets the template's switch for reasoning; its own default where None.
    """
    options = {} if thinking is None else {THINKING_SWITCH: thinking}
    text = _render(tokenizer, messages, answer_follows=True, **options)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _marked_spans(tokenizer: PreTrainedTokenizerBase, messages: Messages) -> tuple[str, list[Span]]:
    """The rendered conversation and what the template itself marks with `{% generation %}`."""
    # Annotated as a string; with the mask asked for it is a pair of lists.
    render: Any = render_jinja_template
    texts, spans = render(
        [[dict(message) for message in messages]],
        chat_template=tokenizer.chat_template,
        return_assistant_tokens_mask=True,
        **tokenizer.special_tokens_map,
    )
    return texts[0], [(start, end) for start, end in spans[0]]


def _thinks(message: Mapping[str, Any]) -> bool:
    return bool(message.get("reasoning_content")) or THINK_END in str(message["content"])


def _prefix_span(tokenizer: PreTrainedTokenizerBase, messages: Messages, turn: int, text: str) -> Span | None:
    """Where the answer of a turn stands in `text`, or None where `text` is not what the target saw when it answered."""
    switch = {THINKING_SWITCH: _thinks(messages[turn])}
    before = _render(tokenizer, messages[:turn], answer_follows=True, **switch)
    after = _render(tokenizer, messages[: turn + 1], answer_follows=False, **switch)
    if not (text.startswith(before) and text.startswith(after)):
        return None
    # Templates end a turn with a line break that the target never writes.
    return len(before), len(after.rstrip())


def answer_spans(
    tokenizer: PreTrainedTokenizerBase, messages: Messages, where: str
) -> Iterator[tuple[str, list[Span]]]:
    """Rendered conversations and the character spans of their answers, so that every answer is in exactly one.

    Mostly one conversation. A template that rewrites earlier turns (drops what they thought) gives more: an answer that
    stands differently in the whole conversation is supervised in the conversation that ends with it.

    Spans are those of `{% generation %}` where the template has it. The stock Llama and Qwen templates do not; there a
    span starts where generation would start and ends where the turn ends, end-of-turn marker included.

    Raises:
        BadRecordError: an answer does not stand after its own prompt even where it is last.
    """
    if GENERATION_MARK.search(str(tokenizer.chat_template)):
        yield _marked_spans(tokenizer, messages)
        return
    left = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
    if not left:
        yield _render(tokenizer, messages, answer_follows=False), []
    end = len(messages)
    while left:
        switch = {THINKING_SWITCH: _thinks(messages[left[-1]])}
        text = _render(tokenizer, messages[:end], answer_follows=False, **switch)
        found = {turn: _prefix_span(tokenizer, messages, turn, text) for turn in left}
        if found[left[-1]] is None and end == left[-1] + 1:
            raise BadRecordError(
                f"{where}: the chat template renders the answer of turn {left[-1]} differently from its own prompt.",
                "Give the record as prompt_ids and answer_ids.",
            )
        if any(found.values()):
            yield text, [span for span in found.values() if span is not None]
        left = [turn for turn, span in found.items() if span is None]
        end = left[-1] + 1 if left else 0


def _token_mask(starts: npt.NDArray[np.int64], spans: Sequence[Span]) -> Mask:
    mask = np.zeros(len(starts), dtype=np.bool_)
    for first, last in spans:
        mask |= (first <= starts) & (starts < last)
    return mask


def encode_messages(
    tokenizer: PreTrainedTokenizerBase, messages: Messages, where: str, supervise_reasoning: bool = True
) -> list[Tokens]:
    """Token ids int32 `[seq]` and loss mask bool `[seq]` of a conversation; true where a token starts in an answer.

    Args:
        supervise_reasoning: False leaves out `<think> ... </think>`, marks included.
    """
    sequences = []
    for text, spans in answer_spans(tokenizer, messages, where):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        starts = np.array([start for start, _ in encoded["offset_mapping"]], dtype=np.int64)
        loss_mask = _token_mask(starts, spans)
        if not supervise_reasoning:
            loss_mask &= ~_token_mask(starts, list(_thoughts(text, spans)))
        sequences.append((np.array(encoded["input_ids"], dtype=np.int32), loss_mask))
    return sequences


def _thoughts(text: str, spans: Sequence[Span]) -> Iterator[Span]:
    """Where the answers in `spans` think; a prompt may have opened the thought, and an answer may end in it."""
    seen = 0
    for first, last in sorted(spans):
        prompt = text[seen:first]
        opening = THINK if prompt.rfind(THINK) > prompt.rfind(THINK_END) else ""
        for thought in REASONING.finditer(opening + text[first:last]):
            start, end = (place + first - len(opening) for place in thought.span())
            yield max(first, start), end
        seen = last


def _reasoning_mask(tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Mask:
    """True inside `<think> ... </think>` of an answer in tokens; an answer may begin inside, and may end there."""
    vocab = tokenizer.get_vocab()
    if THINK not in vocab or THINK_END not in vocab:
        raise ConfigurationError(
            f"supervise_reasoning is false, but {THINK} and {THINK_END} are no single tokens of this tokenizer.",
            "Give the records as messages, where reasoning is found in the text.",
        )
    ids = np.array(answer_ids, dtype=np.int64)
    starts, ends = ids == vocab[THINK], ids == vocab[THINK_END]
    closed_before = np.cumsum(ends) - ends
    opened = np.cumsum(starts)
    marks = [token for token in prompt_ids if token in (vocab[THINK], vocab[THINK_END])]
    if marks[-1:] == [vocab[THINK]] or (ends.any() and not starts[: int(ends.argmax())].any()):
        # The prompt opened the thought; one that is not recorded whole may have, too.
        opened = opened + 1
    mask: Mask = opened > closed_before
    return mask


def encode_record(
    record: AnswerRecord, tokenizer: PreTrainedTokenizerBase, supervise_reasoning: bool = True
) -> list[Tokens]:
    """Sequences of a record of either form: token ids int32 `[seq]` and loss mask bool `[seq]` each."""
    if record.messages is not None:
        return encode_messages(tokenizer, record.messages, record.where, supervise_reasoning)
    prompt, answer = record.prompt_ids or (), record.answer_ids or ()
    loss_mask = np.repeat([False, True], [len(prompt), len(answer)])
    if not supervise_reasoning:
        loss_mask[len(prompt) :] &= ~_reasoning_mask(tokenizer, prompt, answer)
    return [(np.array([*prompt, *answer], dtype=np.int32), loss_mask)]
