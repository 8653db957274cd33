"""From answer records to the token sequences a cache holds: limits, counts of what is dropped, a seeded choice."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from specblock_zoo.data.chat import encode_record
from specblock_zoo.data.records import AnswerRecord
from specblock_zoo.errors import NoSupervisedTokensError, TargetMismatchError


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
    """What became of the records read."""

    records_read: int = 0
    dropped_long_prompt: int = 0
    dropped_no_supervised: int = 0
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
    return replace(example, input_ids=example.input_ids[:end], loss_mask=example.loss_mask[:end])


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


def eligible_examples(
    records: Iterable[AnswerRecord], tokenizer: PreTrainedTokenizerBase, limits: Limits, vocab_size: int, target: str
) -> tuple[list[Example], Counts]:
    """Every record within the limits as an `Example`, and the counts of the others.

    Raises:
        TargetMismatchError: a record names another target or holds an id outside the vocabulary.
        NoSupervisedTokensError: no record has a supervised token within the limits.
    """
    examples: list[Example] = []
    read = long_prompt = unsupervised = truncated = 0
    for record in records:
        read += 1
        input_ids, loss_mask = encode_record(record, tokenizer)
        whole = Example(record.id, input_ids, loss_mask)
        _check_record(record, whole, vocab_size, target)
        if limits.max_prompt_tokens is not None and loss_mask.any() and loss_mask.argmax() > limits.max_prompt_tokens:
            long_prompt += 1
            continue
        example = _trim(whole, limits.max_length)
        if not len(example):
            unsupervised += 1
            continue
        truncated += example.supervised_tokens < whole.supervised_tokens
        examples.append(example)
    if not examples:
        raise NoSupervisedTokensError(
            f"None of {read} records has a supervised token within max_length {limits.max_length} "
            f"and max_prompt_tokens {limits.max_prompt_tokens}.",
            "Check that the answers are not empty and raise the limits.",
        )
    return examples, Counts(read, long_prompt, unsupervised, truncated)


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
