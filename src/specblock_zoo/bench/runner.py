"""Decode prompts plainly and with the drafter, interleaved, and record what happened."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specblock_zoo.bench.records import PromptRecord
from specblock_zoo.bench.report import DRAFTED, PLAIN, PLAIN_MASKED, PROMPT_LOOKUP
from specblock_zoo.bench.tasks import Prompt, Task, check_fits, encode_prompt
from specblock_zoo.bench.timing import Timed, explicit_mask, interleave, is_looping
from specblock_zoo.inference.prepack import optimize_for_cpu
from specblock_zoo.models.base import Drafter
from specblock_zoo.targets.registry import family_of

WARM_UP_TOKENS = 16
LOOKUP_TOKENS = 8
"""Tokens that transformers' prompt lookup copies per round; the setting its published figures here were taken with."""

Advance = Callable[[], None]


@dataclass(frozen=True)
class Question:
    """A prompt as token ids `[1, length]`, and how many new tokens its answer may have."""

    input_ids: Tensor
    max_new_tokens: int


@dataclass(frozen=True)
class Answer:
    """New tokens of one answer; `stats` of the drafter when one was used."""

    tokens: tuple[int, ...]
    stats: Any = None


@dataclass(frozen=True)
class Pair:
    """A target with its tokenizer, and the drafter to measure, all of one dtype."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    drafter: Drafter

    def cast(self, dtype: torch.dtype) -> None:
        """Casts both models in place; the drafter borrows the target's embeddings anew."""
        nn.Module.to(self.model, dtype)
        nn.Module.to(self.drafter, dtype)
        self.drafter.attach(family_of(self.model.config).embedding_weight(self.model))

    def prepack(self) -> None:
        """Prepacks the linear layers of both models for the CPU; every case, plain ones included, then runs on them."""
        for network in (self.model, self.drafter):
            optimize_for_cpu(network)

    def question(self, text: str, max_new_tokens: int) -> Question:
        """Encodes a user's message. Raises `PromptTooLongError` when prompt and answer do not fit the target."""
        input_ids = encode_prompt(self.tokenizer, text)
        check_fits(input_ids.shape[1], max_new_tokens, self.model.config.max_position_embeddings)
        return Question(input_ids.to(self.model.device), max_new_tokens)

    def text(self, tokens: Sequence[int], keep_special: bool = False) -> str:
        """Token ids as text; special tokens are left out unless kept."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=not keep_special))

    def plain(self, question: Question) -> Answer:
        """The target's greedy answer."""
        return self._generate(question)

    def plain_masked(self, question: Question) -> Answer:
        """The target's greedy answer through the masked attention kernel, see `timing.explicit_mask`."""
        with explicit_mask(self.model):
            return self._generate(question)

    def prompt_lookup(self, question: Question) -> Answer:
        """The answer with n-gram lookup in the text so far, transformers' own speculation without a drafter."""
        return self._generate(question, prompt_lookup_num_tokens=LOOKUP_TOKENS)

    def drafted(self, question: Question) -> Answer:
        """The same answer through `model.generate(assistant_model=drafter)`."""
        answer = self._generate(question, assistant_model=self.drafter)
        return Answer(answer.tokens, self.drafter.last_stats)

    def cases(self, prompt_lookup: bool) -> dict[str, Callable[[Question], Answer]]:
        """What is timed against each other; the drafted case comes last."""
        plain = {PLAIN: self.plain, PLAIN_MASKED: self.plain_masked}
        lookup = {PROMPT_LOOKUP: self.prompt_lookup} if prompt_lookup else {}
        return {**plain, **lookup, DRAFTED: self.drafted}

    def _generate(self, question: Question, **speculation: Any) -> Answer:
        ids = question.input_ids
        generate: Any = self.model.generate
        sequences = generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=question.max_new_tokens,
            do_sample=False,
            **speculation,
        )
        return Answer(tuple(sequences[0, ids.shape[1] :].tolist()))


@dataclass(frozen=True)
class Comparison:
    """Answers and times of one task: `records` to add up, and each prompt's answers by case."""

    records: tuple[PromptRecord, ...]
    answers: tuple[dict[str, Answer], ...]


@dataclass(frozen=True)
class RunSettings:
    """How a comparison is run.

    Attributes:
        max_new_tokens: at most that many per answer.
        prompt_lookup: also time transformers' prompt lookup.
    """

    max_new_tokens: int = 128
    prompt_lookup: bool = False


def compare(pair: Pair, task: Task, settings: RunSettings, advance: Advance = lambda: None) -> Comparison:
    """Answers every prompt of the task plainly, plainly with an explicit mask, and with the drafter, interleaved.

    Args:
        pair: target and drafter.
        task: the prompts; each is asked its first turn.
        settings: lengths and cases.
        advance: called after each answer, once per case and prompt.
    Raises:
        PromptTooLongError: before anything is decoded.
    """
    questions = [pair.question(prompt.turns[0], settings.max_new_tokens) for prompt in task.prompts]
    warm_up = Question(questions[0].input_ids, min(settings.max_new_tokens, WARM_UP_TOKENS))
    timings = interleave(pair.cases(settings.prompt_lookup), questions, warm_up, advance)
    by_prompt = [dict(zip(timings, row, strict=True)) for row in zip(*timings.values(), strict=True)]
    records = [
        prompt_record(task.name, prompt, question.input_ids.shape[1], timed)
        for prompt, question, timed in zip(task.prompts, questions, by_prompt, strict=True)
    ]
    answers = tuple({case: timed.outcome for case, timed in row.items()} for row in by_prompt)
    return Comparison(tuple(records), answers)


def prompt_record(task: str, prompt: Prompt, prompt_tokens: int, timed: dict[str, Timed[Answer]]) -> PromptRecord:
    """Puts one prompt's timed answers into a record."""
    drafted = timed[DRAFTED].outcome
    stats = drafted.stats
    counts = stats.counts
    return PromptRecord(
        task=task,
        id=prompt.id,
        category=prompt.category,
        prompt_tokens=prompt_tokens,
        new_tokens=len(drafted.tokens),
        equal=drafted.tokens == timed[PLAIN].outcome.tokens,
        looping=is_looping(drafted.tokens),
        rounds=counts.rounds,
        committed=counts.committed,
        offered={f"{block}.{slot}": count for (block, slot), count in counts.offered.items()},
        hit={f"{block}.{slot}": count for (block, slot), count in counts.hit.items()},
        draft_ms=stats.draft_ms,
        verify_ms=stats.verify_ms,
        other_ms=stats.other_ms,
        seconds={case: answer.seconds for case, answer in timed.items()},
        tokens={case: len(answer.outcome.tokens) for case, answer in timed.items()},
    )
