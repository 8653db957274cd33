"""Who writes the answers: one protocol, one table. A served target can take the place of the local one."""

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from specblock_zoo.errors import UnknownNameError


@dataclass(frozen=True)
class Question:
    """One prompt as the engine gets it."""

    id: str
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """What the target wrote.

    Attributes:
        answer_ids: its tokens, the end-of-text token included where it was reached.
        finish: `eos`, or `length` where the limit cut it.
    """

    answer_ids: list[int]
    finish: str


class AnswerEngine(Protocol):
    """Samples from the target's own distribution: no top-k, no top-p, no penalty, whatever its folder asks for."""

    def answer(self, questions: Sequence[Question], temperature: float, max_new_tokens: int, seed: int) -> list[Answer]:
        """The answers, in order; a function of the arguments alone. Temperature 0 takes the likeliest token."""


@dataclass(frozen=True)
class LocalEngine:
    """The target in this process, through transformers' `generate`."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def _ends(self) -> list[int]:
        found = self.model.generation_config.eos_token_id if self.model.generation_config else None
        found = self.tokenizer.eos_token_id if found is None else found
        return list(found) if isinstance(found, list) else [] if found is None else [found]

    @torch.inference_mode()
    def answer(self, questions: Sequence[Question], temperature: float, max_new_tokens: int, seed: int) -> list[Answer]:
        """See `AnswerEngine`; the questions are one left-padded batch."""
        ends = self._ends
        pad = ends[0] if ends else 0
        longest = max(len(question.prompt_ids) for question in questions)
        rows = [[pad] * (longest - len(q.prompt_ids)) + list(q.prompt_ids) for q in questions]
        real = [[0] * (longest - len(q.prompt_ids)) + [1] * len(q.prompt_ids) for q in questions]
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        config = GenerationConfig(
            max_new_tokens=max_new_tokens, eos_token_id=ends or None, pad_token_id=pad, **sampling
        )
        # `generate` takes what a configuration leaves open, such as penalties, from the model's own: it has this one.
        plain: Any = copy.copy(self.model)
        plain.generation_config = config
        device = self.model.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(batch_seed(questions, seed))
            output = plain.generate(
                input_ids=torch.tensor(rows, device=device),
                attention_mask=torch.tensor(real, device=device),
                generation_config=config,
            )
        return [cut_at_end(row, ends) for row in output[:, longest:].tolist()]


def batch_seed(questions: Sequence[Question], seed: int) -> int:
    """A seed for one batch: the same for the same questions in every run, resumed or not, 63 bits."""
    names = "\n".join([str(seed), *(question.id for question in questions)])
    return int.from_bytes(hashlib.sha256(names.encode()).digest()[:8]) >> 1


def cut_at_end(tokens: Sequence[int], ends: Sequence[int]) -> Answer:
    """Tokens up to the first end of text, which is kept."""
    for index, token in enumerate(tokens):
        if token in ends:
            return Answer(list(tokens[: index + 1]), "eos")
    return Answer(list(tokens), "length")


ENGINES: dict[str, Callable[[PreTrainedModel, PreTrainedTokenizerBase], AnswerEngine]] = {"local": LocalEngine}


def engine_class(name: str) -> Callable[[PreTrainedModel, PreTrainedTokenizerBase], AnswerEngine]:
    """The engine of that name.

    Raises:
        UnknownNameError: there is none; those there are are named.
    """
    if name not in ENGINES:
        raise UnknownNameError(f"engine is {name!r}; known: {', '.join(ENGINES)}.", "Choose one of them.")
    return ENGINES[name]
