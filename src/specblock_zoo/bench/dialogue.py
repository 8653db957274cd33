"""Hold a conversation with a method, and record what it cost."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specblock_zoo.bench.ask import Answer, Ask, Question
from specblock_zoo.bench.records import AnswerRecord, Place, Work
from specblock_zoo.bench.tasks import Prompt, check_fits, encode_prompt
from specblock_zoo.bench.timing import time_call


@dataclass(frozen=True)
class Item:
    """One prompt to be asked in one way by every method."""

    task: str
    prompt: Prompt
    temperature: float = 0.0
    seed: int = 0

    @property
    def place(self) -> Place:
        """What records of this item have in common."""
        return Place(self.task, self.prompt.id, self.temperature, self.seed)

    def seed_of(self, turn: int) -> int:
        """Seed of a turn: the same for every method, another for every prompt, so that their draws are independent."""
        return zlib.crc32(f"{self.seed}/{self.task}/{self.prompt.id}/{turn}".encode())


@dataclass(frozen=True)
class Conversation:
    """A method's answers to the turns of a prompt, with what they cost."""

    answers: tuple[Answer, ...]
    seconds: float
    prompt_tokens: int
    work: Work

    def record(self, method: str, kind: str, item: Item, circumstances: dict[str, Any]) -> AnswerRecord:
        """The line of `records.jsonl`; `circumstances` as `host.circumstances` gives them."""
        return AnswerRecord(
            **vars(self.work),
            **circumstances,
            method=method,
            kind=kind,
            task=item.task,
            id=item.prompt.id,
            category=item.prompt.category,
            temperature=item.temperature,
            seed=item.seed,
            prompt_tokens=self.prompt_tokens,
            answers=tuple(answer.tokens for answer in self.answers),
            seconds=self.seconds,
        )


@dataclass(frozen=True)
class Interviewer:
    """Asks methods on a target's behalf: encodes, bounds and times. `max_new_tokens`: of each answer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_new_tokens: int

    def room_for(self, prompt: Prompt) -> int:
        """Tokens of all turns and of answers as long as they may be.

        Raises:
            PromptTooLongError: they do not fit the target's positions.
        """
        said = [text for turn in prompt.turns for text in (turn, "")][:-1]
        length = encode_prompt(self.tokenizer, *said).shape[1]
        new = len(prompt.turns) * self.max_new_tokens
        check_fits(length, new, self.model.config.max_position_embeddings)
        return length + new

    def encoded(self, said: Sequence[str]) -> Tensor:
        """Token ids of a conversation, on the target's device. Raises `PromptTooLongError`."""
        ids = encode_prompt(self.tokenizer, *said)
        check_fits(ids.shape[1], self.max_new_tokens, self.model.config.max_position_embeddings)
        return ids.to(self.model.device)

    def hold(self, ask: Ask, item: Item) -> Conversation:
        """Asks every turn; later ones follow the method's own answers. Only the answering is timed."""
        answers: list[Answer] = []
        works: list[Work] = []
        said: list[str] = []
        seconds, prompt_tokens = 0.0, 0
        for turn, text in enumerate(item.prompt.turns):
            ids = self.encoded([*said, text])
            question = Question(ids, self.max_new_tokens, item.temperature, item.seed_of(turn))
            timed = time_call(ask, question)
            answers.append(timed.outcome)
            works.append(timed.outcome.cost(timed.seconds))
            seconds, prompt_tokens = seconds + timed.seconds, prompt_tokens + ids.shape[1]
            said += [text, str(self.tokenizer.decode(list(timed.outcome.tokens), skip_special_tokens=True))]
        return Conversation(tuple(answers), seconds, prompt_tokens, sum(works[1:], works[0]))
