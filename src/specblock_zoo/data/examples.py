"""From answer records to the token sequences a cache holds: limits, counts of what is dropped, a seeded choice."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from specblock_zoo.data.chat import encode_record
from specblock_zoo.data.records import AnswerRecord
from specblock_zoo.errors import BadRecordError, NoSupervisedTokensError, TargetMismatchError

# Between a record's id and the number of a further sequence of the same record.
PART_MARK = "#part"


@dataclass(frozen=True)
class Example:
    """One sequence that ends at its last supervised token: later states would enter no loss.

    Attributes:
        input_ids: int32 `[seq]`.
        loss_mask: bool `[seq]`, true where the token is part of an answer.
    """

    id: str
    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def supervised_tokens(self) -> int:
        """How many tokens enter the loss."""
        return int(self.loss_mask.sum())

    def cut(self, end: int) -> "Example":
        """The first `end` tokens."""
        return replace(self, input_ids=self.input_ids[:end], loss_mask=self.loss_mask[:end])


@dataclass(frozen=True)
class Limits:
    """Bounds on what enters a cache; None means no bound.

    Attributes:
        max_length: tokens per sequence; longer ones are cut at the end.
        max_prompt_tokens: tokens before the first supervised one; records above are dropped.
        max_records: records, chosen at random by `seed`.
        max_tokens: supervised tokens over all chosen records (the last record may exceed it).
    """

    max_length: int
    max_prompt_tokens: int | None = None
    max_records: int | None = None
    max_tokens: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Counts:
    """What became of the records read.

    A record whose template rewrites earlier turns gives one sequence per rewritten answer, so that `sequences` may
    exceed the records they come from; from there on sequences are counted.
    """

    records_read: int = 0
    skipped_bad: int = 0
    dropped_long_prompt: int = 0
    dropped_no_supervised: int = 0
    sequences: int = 0
    truncated: int = 0
    not_chosen: int = 0
    records: int = 0
    tokens: int = 0
    supervised_tokens: int = 0

    def as_dict(self) -> dict[str, int]:
        """Name to count, in this order."""
        return asdict(self)


def _trim(example: Example, max_length: int) -> Example:
    supervised = np.flatnonzero(example.loss_mask[:max_length])
    end = int(supervised[-1]) + 1 if len(supervised) else 0
    return example.cut(end)


def _check_record(record: AnswerRecord, example: Example, vocab_size: int, target: str) -> None:
    if record.target is not None and record.target != target:
        raise TargetMismatchError(
            f"{record.where}: answered by the target {record.target!r}; the cache is for {target!r}.",
            "Use answers of this very target: the drafter learns its distribution.",
        )
    largest = int(example.input_ids.max(initial=0))
    if largest >= vocab_size:
        raise TargetMismatchError(
            f"{record.where}: token id {largest} is outside the target's vocabulary of {vocab_size}.",
            "The records were tokenised for another target; tokenise them again.",
        )


@dataclass(frozen=True)
class Reading:
    """How records become sequences.

    Attributes:
        target: name of the target the records must come from, where they name one.
        vocab_size: of the target.
        supervise_reasoning: whether `<think> ... </think>` enters the loss.
        skip_bad: go on after a record that cannot be used; each is named in `skipped`.
    """

    tokenizer: PreTrainedTokenizerBase
    target: str
    vocab_size: int
    supervise_reasoning: bool = True
    skip_bad: bool = False
    skipped: list[str] = field(default_factory=list)

    def on_bad(self, error: BadRecordError) -> None:
        """Notes a bad record where `skip_bad`, else raises."""
        if not self.skip_bad:
            raise error
        self.skipped.append(error.problem)

    def sequences(self, records: Iterable[AnswerRecord]) -> Iterator[list[Example]]:
        """The sequences of each record that can be used; the others go to `on_bad`.

        Raises:
            TargetMismatchError: a record names another target or holds an id outside the vocabulary.
        """
        for record in records:
            try:
                pairs = encode_record(record, self.tokenizer, self.supervise_reasoning)
            except BadRecordError as error:
                self.on_bad(error)
                continue
            names = [record.id, *(f"{record.id}{PART_MARK}{part}" for part in range(1, len(pairs)))]
            examples = [Example(name, *pair) for name, pair in zip(names, pairs, strict=True)]
            for example in examples:
                _check_record(record, example, self.vocab_size, self.target)
            yield examples


def eligible_examples(
    records: Iterable[AnswerRecord], limits: Limits, reading: Reading
) -> tuple[list[Example], Counts]:
    """Every sequence within the limits, and the counts of the others.

    Raises:
        BadRecordError: a record cannot be used, and bad ones are not to be skipped.
        TargetMismatchError: see `Reading.sequences`.
        NoSupervisedTokensError: no record has a supervised token within the limits.
    """
    examples: list[Example] = []
    used = sequences = long_prompt = unsupervised = truncated = 0
    for wholes in reading.sequences(records):
        used += 1
        for whole in wholes:
            sequences += 1
            mask = whole.loss_mask
            if limits.max_prompt_tokens is not None and mask.any() and mask.argmax() > limits.max_prompt_tokens:
                long_prompt += 1
                continue
            example = _trim(whole, limits.max_length)
            if not len(example):
                unsupervised += 1
                continue
            truncated += example.supervised_tokens < whole.supervised_tokens
            examples.append(example)
    skipped = len(reading.skipped)
    if not examples:
        raise NoSupervisedTokensError(
            f"None of {used + skipped} records has a supervised token within max_length {limits.max_length} "
            f"and max_prompt_tokens {limits.max_prompt_tokens}.",
            "Check that the answers are not empty and raise the limits.",
        )
    return examples, Counts(used + skipped, skipped, long_prompt, unsupervised, sequences, truncated)


def choose_examples(examples: list[Example], counts: Counts, limits: Limits) -> tuple[list[Example], Counts]:
    """A seeded random order of the examples, cut at `max_records` and at `max_tokens` supervised tokens."""
    order = np.random.default_rng(limits.seed).permutation(len(examples))[: limits.max_records]
    if limits.max_tokens is not None:
        before = np.cumsum([0, *(examples[i].supervised_tokens for i in order)])[:-1]
        order = order[before < limits.max_tokens]
    chosen = [examples[i] for i in order]
    return chosen, replace(
        counts,
        not_chosen=len(examples) - len(chosen),
        records=len(chosen),
        tokens=sum(len(example) for example in chosen),
        supervised_tokens=sum(example.supervised_tokens for example in chosen),
    )
