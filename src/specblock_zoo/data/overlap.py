"""Do training records hold what a drafter is measured on? Runs of words that both contain."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from specblock_zoo.data.records import AnswerRecord
from specblock_zoo.errors import ConfigurationError

RUN_WORDS = 13
SHORTEST = 8
WORD = re.compile(r"\w+")

Decode = Callable[[Sequence[int]], str]


def words_of(text: str) -> list[str]:
    """Its words in lower case, without marks or spacing; letters that look alike in Unicode are one."""
    return WORD.findall(unicodedata.normalize("NFKC", text).lower())


def runs(words: Sequence[str], length: int) -> Iterable[str]:
    """Every run of `length` words."""
    return (" ".join(words[start : start + length]) for start in range(len(words) - length + 1))


@dataclass(frozen=True)
class Prompts:
    """Evaluation prompts, as what a record must not contain.

    Attributes:
        run_words: words of a run that counts as shared.
        long: runs of the texts that have so many words.
        short: words -> texts of so many, fewer than `run_words` and at least `SHORTEST`: those are looked for whole.
        count: texts that are looked for.
        too_short: texts of fewer words; any record may hold those by chance, so they are not.
    """

    run_words: int
    long: frozenset[str]
    short: dict[int, frozenset[str]]
    count: int
    too_short: int

    @classmethod
    def of(cls, texts: Iterable[str], run_words: int = RUN_WORDS) -> "Prompts":
        """What is looked for.

        Raises:
            ConfigurationError: `run_words` is below `SHORTEST`.
        """
        if run_words < SHORTEST:
            raise ConfigurationError(
                f"words is {run_words}; expected at least {SHORTEST}: shorter runs are shared by chance.",
                f"The usual figure is {RUN_WORDS}.",
            )
        every = [words_of(text) for text in texts]
        long = frozenset(run for words in every for run in runs(words, run_words))
        whole = [words for words in every if SHORTEST <= len(words) < run_words]
        short = {len(words): frozenset(" ".join(w) for w in whole if len(w) == len(words)) for words in whole}
        too_short = sum(len(words) < SHORTEST for words in every)
        return cls(run_words, long, short, len(every) - too_short, too_short)

    def shared_run(self, text: str) -> bool:
        """Whether the text has a run of words in common with a prompt."""
        return not self.long.isdisjoint(runs(words_of(text), self.run_words))

    def whole_prompt(self, text: str) -> bool:
        """Whether the text contains one of the shorter prompts."""
        words = words_of(text)
        return any(not whole.isdisjoint(runs(words, length)) for length, whole in self.short.items())


@dataclass
class Overlap:
    """What was found.

    Attributes:
        records: looked at.
        shared: ids of records that share a run of words with a prompt.
        whole: ids of further records that contain a shorter prompt whole.
    """

    records: int = 0
    shared: list[str] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)

    def look_at(self, record: AnswerRecord, prompts: Prompts, decode: Decode) -> bool:
        """Counts a record; returns whether it shares nothing."""
        text = text_of(record, decode)
        self.records += 1
        if prompts.shared_run(text):
            self.shared.append(record.id)
        elif prompts.whole_prompt(text):
            self.whole.append(record.id)
        else:
            return True
        return False


def text_of(record: AnswerRecord, decode: Decode) -> str:
    """A record's whole text, question and answer; `decode` turns token ids into text without special tokens."""
    if record.messages is not None:
        return "\n".join(str(message["content"]) for message in record.messages)
    return decode([*(record.prompt_ids or ()), *(record.answer_ids or ())])
