"""Ask a target one question: plainly, with transformers' own speculation, or with a drafter."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specblock_zoo.bench.records import Work
from specblock_zoo.bench.work import (
    Commits,
    first_blocks,
    forwards_of,
    rank_confusion,
    work_of_forwards,
    work_of_stats,
)
from specblock_zoo.models.base import Drafter


@dataclass(frozen=True)
class Question:
    """A prompt as token ids, and how it is to be answered.

    Attributes:
        input_ids: `[1, length]`, int64, on the target's device.
        max_new_tokens: at most that many.
        temperature: 0 takes the best token; above 0 samples from the whole vocabulary (no top-k, no top-p).
        seed: of the sampling, of torch's global generator.
    """

    input_ids: Tensor
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0

    @property
    def rules(self) -> dict[str, Any]:
        """The keyword arguments of `generate` that choose tokens."""
        if self.temperature == 0:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}


@dataclass(frozen=True)
class Answer:
    """New tokens of one answer.

    Attributes:
        tokens: ids, the prompt left out.
        cost: seconds of the whole answer -> what it cost; called once the clock has stopped.
        stats: the rounds, of an answer that a drafter took part in (`inference.stats.DecodeStats`).
    """

    tokens: tuple[int, ...]
    cost: Callable[[float], Work]
    stats: Any = None


Ask = Callable[[Question], Answer]
"""One way of answering; what is timed against the others."""


def ask_plainly(
    model: PreTrainedModel, question: Question, assistant: PreTrainedModel | None = None, **options: Any
) -> Answer:
    """The answer that transformers decodes: alone, or with what `options` of `generate` ask for.

    Args:
        assistant: another language model that speculates, `options["assistant_model"]` for short.
    """
    commits = Commits()
    if assistant is not None:
        options["assistant_model"] = assistant
    with forwards_of(model) as judged, forwards_of(assistant) as drafted:
        tokens = _generate(model, question, streamer=commits, **options)
    return Answer(tokens, partial(work_of_forwards, commits, judged, drafted))


def ask_with_drafter(model: PreTrainedModel, drafter: Drafter, question: Question) -> Answer:
    """The same answer through `model.generate(assistant_model=drafter)`."""
    with first_blocks(drafter) as blocks:
        tokens = _generate(model, question, assistant_model=drafter)
    stats = drafter.last_stats
    return Answer(tokens, lambda _: work_of_stats(stats, rank_confusion(drafter, stats, blocks)), stats)


def _generate(model: PreTrainedModel, question: Question, **options: Any) -> tuple[int, ...]:
    ids = question.input_ids
    if question.temperature > 0:
        torch.manual_seed(question.seed)
    generate: Any = model.generate
    sequences = generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=question.max_new_tokens,
        **question.rules,
        **options,
    )
    return tuple(sequences[0, ids.shape[1] :].tolist())
