"""Conversations to token ids and loss mask. Answers of the assistant are supervised, everything else is context."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from specblock_zoo.data.records import AnswerRecord
from specblock_zoo.errors import BadRecordError

Messages = Sequence[Mapping[str, Any]]
Tokens = tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]


def _render(tokenizer: PreTrainedTokenizerBase, messages: Messages, answer_follows: bool) -> str:
    text = tokenizer.apply_chat_template(
        [dict(message) for message in messages], tokenize=False, add_generation_prompt=answer_follows
    )
    return str(text)


def answer_spans(
    tokenizer: PreTrainedTokenizerBase, messages: Messages, where: str
) -> tuple[str, list[tuple[int, int]]]:
    """The rendered conversation and the character span of every answer, found by rendering its prefixes.

    A span starts where generation would start and ends where the template ends the turn, end-of-turn marker included.
    This needs no `{% generation %}` marks, which the stock Llama and Qwen templates lack.

    Raises:
        BadRecordError: the template renders a prefix differently when more follows (it rewrites earlier turns).
    """
    text = _render(tokenizer, messages, answer_follows=False)
    spans = []
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _render(tokenizer, messages[:turn], answer_follows=True)
        after = _render(tokenizer, messages[: turn + 1], answer_follows=False)
        if not (text.startswith(before) and text.startswith(after)):
            raise BadRecordError(
                f"{where}: the chat template renders turn {turn} differently when later turns follow.",
                "Give the record as prompt_ids and answer_ids, or one record per answer.",
            )
        # Templates end a turn with a line break that the target never writes.
        spans.append((len(before), len(after.rstrip())))
    return text, spans


def encode_messages(tokenizer: PreTrainedTokenizerBase, messages: Messages, where: str) -> Tokens:
    """Token ids int32 `[seq]` and loss mask bool `[seq]` of a conversation; true where a token starts in an answer."""
    text, spans = answer_spans(tokenizer, messages, where)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    starts = np.array([start for start, _ in encoded["offset_mapping"]], dtype=np.int64)
    loss_mask = np.zeros(len(starts), dtype=np.bool_)
    for first, last in spans:
        loss_mask |= (first <= starts) & (starts < last)
    return np.array(encoded["input_ids"], dtype=np.int32), loss_mask


def encode_record(record: AnswerRecord, tokenizer: PreTrainedTokenizerBase) -> Tokens:
    """Token ids int32 `[seq]` and loss mask bool `[seq]` of a record of either form."""
    if record.messages is not None:
        return encode_messages(tokenizer, record.messages, record.where)
    prompt_ids, answer_ids = record.prompt_ids or (), record.answer_ids or ()
    loss_mask = np.repeat([False, True], [len(prompt_ids), len(answer_ids)])
    return np.array([*prompt_ids, *answer_ids], dtype=np.int32), loss_mask
