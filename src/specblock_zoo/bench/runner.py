"""Decode prompts plainly and with one drafter, interleaved, in memory: what the demo shows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specblock_zoo.bench.ask import Answer, Ask, Question, ask_plainly, ask_with_drafter
from specblock_zoo.bench.dialogue import Interviewer, Item
from specblock_zoo.bench.host import circumstances
from specblock_zoo.bench.records import AnswerRecord
from specblock_zoo.bench.report import DRAFTED, PLAIN, PLAIN_MASKED
from specblock_zoo.bench.tasks import Task
from specblock_zoo.bench.timing import explicit_mask, turn_order
from specblock_zoo.inference.prepack import optimize_for_cpu
from specblock_zoo.models.base import Drafter
from specblock_zoo.targets.registry import family_of

WARM_UP_TOKENS = 16

Advance = Callable[[], None]


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

    def text(self, tokens: Sequence[int], keep_special: bool = False) -> str:
        """Token ids as text; special tokens are left out unless kept."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=not keep_special))

    def plain(self, question: Question) -> Answer:
        """The target's own answer."""
        return ask_plainly(self.model, question)

    def plain_masked(self, question: Question) -> Answer:
        """The target's own answer through the masked attention kernel, see `timing.explicit_mask`."""
        with explicit_mask(self.model):
            return ask_plainly(self.model, question)

    def drafted(self, question: Question) -> Answer:
        """The same answer with the drafter."""
        return ask_with_drafter(self.model, self.drafter, question)

    def cases(self) -> dict[str, Ask]:
        """What is timed against each other, by method."""
        return {PLAIN: self.plain, PLAIN_MASKED: self.plain_masked, DRAFTED: self.drafted}


KINDS = {PLAIN: "plain", PLAIN_MASKED: "plain_masked", DRAFTED: "drafter"}


@dataclass(frozen=True)
class Comparison:
    """Answers and times of one task: `records` to add up, and each prompt's first answers by method."""

    records: tuple[AnswerRecord, ...]
    answers: tuple[dict[str, Answer], ...]


def compare(pair: Pair, task: Task, max_new_tokens: int, advance: Advance = lambda: None) -> Comparison:
    """Answers every prompt of the task greedily: plainly, plainly with an explicit mask, and with the drafter.

    Args:
        pair: target and drafter.
        task: the prompts.
        max_new_tokens: at most that many per answer.
        advance: called after each answer, once per method and prompt.
    Raises:
        PromptTooLongError: before anything is decoded.
    """
    interviewer, cases = Interviewer(pair.model, pair.tokenizer, max_new_tokens), pair.cases()
    for prompt in task.prompts:
        interviewer.room_for(prompt)
    warm_up = Question(interviewer.encoded(task.prompts[0].turns[:1]), min(max_new_tokens, WARM_UP_TOKENS))
    for ask in cases.values():
        ask(warm_up)
    records, answers, made = [], [], circumstances(pair.model)
    for index, prompt in enumerate(task.prompts):
        item = Item(task.name, prompt)
        held = {}
        for name in turn_order(list(cases), index):
            held[name] = interviewer.hold(cases[name], item)
            advance()
        records += [held[name].record(name, KINDS[name], item, made) for name in cases]
        answers.append({name: held[name].answers[0] for name in cases})
    return Comparison(tuple(records), tuple(answers))
