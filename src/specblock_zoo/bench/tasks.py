"""Prompts of a measurement: task files, and prompts as token ids that are known to fit the target."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specblock_zoo.bench.records import Record, parse_lines
from specblock_zoo.errors import ConfigurationError, EmptyDataError, PromptTooLongError


class Prompt(Record):
    """One line of a task file; `turns` are what the user says, one after the other's answer."""

    id: str
    category: str
    turns: Annotated[tuple[str, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Task:
    """A named set of prompts."""

    name: str
    prompts: tuple[Prompt, ...]


def read_task(path: Path, limit: int | None = None) -> Task:
    """Reads a task file, JSON lines of `id`, `category`, `turns`; the task is named after the file.

    Args:
        path: the file.
        limit: take that many prompts spread evenly over the file, so that every category has its part; default all.
    Raises:
        BadRecordError: a line is not a prompt.
        ConfigurationError: there is no such file, the limit is below 1, or two prompts have one id.
        EmptyDataError: the file holds no prompt.
    """
    if not path.is_file():
        raise ConfigurationError(f"There is no task file {path}.", "Give JSON lines of id, category, turns.")
    if limit is not None and limit < 1:
        raise ConfigurationError(f"The limit is {limit}; expected at least 1.", "Leave it out to take all prompts.")
    prompts = tuple(parse_lines(path, Prompt))
    if not prompts:
        raise EmptyDataError(f"{path} holds 0 prompts; expected at least 1.", "Give JSON lines of id, category, turns.")
    check_ids(str(path), prompts)
    return Task(path.stem, tuple(prompts[index] for index in spread(len(prompts), limit or len(prompts))))


def check_ids(where: str, prompts: Sequence[Prompt]) -> None:
    """Raises `ConfigurationError` where two prompts have one id: records are told apart by it."""
    twice = [name for name, count in Counter(prompt.id for prompt in prompts).items() if count > 1]
    if twice:
        raise ConfigurationError(
            f"{where}: {len(prompts)} prompts have {len({prompt.id for prompt in prompts})} ids; {twice[0]!r} is there "
            "more than once.",
            "Give each prompt an id of its own.",
        )


def spread(total: int, count: int) -> list[int]:
    """`count` indices spread evenly over `total` items, or all where there are fewer."""
    taken = min(count, total)
    return [index * total // taken for index in range(taken)]


def encode_prompt(tokenizer: PreTrainedTokenizerBase, *said: str) -> Tensor:
    """Token ids `[1, length]` of a conversation, through the chat template where the tokenizer has one.

    Args:
        said: the user's message; of a longer conversation also the answer to it, the next message, and so on.
    """
    if tokenizer.chat_template:
        messages = [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(said)]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    else:
        ids = tokenizer("\n".join(said))["input_ids"]
    return torch.tensor([ids], dtype=torch.int64)


def check_fits(prompt_tokens: int, max_new_tokens: int, positions: int) -> None:
    """Raises `PromptTooLongError` unless prompt and answer fit the target's positions together."""
    if prompt_tokens + max_new_tokens > positions:
        raise PromptTooLongError(
            f"The prompt has {prompt_tokens} tokens and {max_new_tokens} new ones are asked for; "
            f"the target has {positions} positions.",
            "Shorten the prompt or ask for fewer new tokens.",
        )
