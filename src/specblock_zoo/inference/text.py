"""The growing text of one row: choose the target's next token from its logits, commit it, tell when the text ends.

Tokens are chosen one at a time, in text order, exactly as `GenerationMixin._sample` chooses them: the same processor
calls on the same prefixes, one multinomial draw per token, then the stopping criteria and one streamer call. So
processors with a memory, custom criteria and seeds give the text that plain `generate` gives.
"""

import copy
import math
from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList, TemperatureLogitsWarper
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.streamers import BaseStreamer

NO_LIMIT = 2**31


@dataclass(frozen=True)
class Rules:
    """What decides the text besides the target's logits.

    Attributes:
        logits_processor, stopping_criteria: as `generate` prepares them.
        do_sample: draw the token, with torch's global generator, instead of taking the best one.
        streamer: gets each committed token, `[1]` int64 on the host.
        keep_scores, keep_logits: keep the processed or raw logits of every committed token.
    """

    logits_processor: LogitsProcessorList = field(default_factory=LogitsProcessorList)
    stopping_criteria: StoppingCriteriaList = field(default_factory=StoppingCriteriaList)
    do_sample: bool = False
    streamer: BaseStreamer | None = None
    keep_scores: bool = False
    keep_logits: bool = False

    @property
    def max_length(self) -> int:
        """Longest text in tokens, prompt included."""
        lengths = [each.max_length for each in self.stopping_criteria if isinstance(each, MaxLengthCriteria)]
        return min(lengths, default=NO_LIMIT)

    @property
    def temperature(self) -> float:
        """Of the sampling; 0 where the best token is taken."""
        given = [each.temperature for each in self.logits_processor if isinstance(each, TemperatureLogitsWarper)]
        return math.prod(given) if self.do_sample else 0.0

    def of_row(self, row: int) -> "Rules":
        """The rules of one row of a batch: a repetition penalty knows how much padding each row has to leave out."""
        kept = LogitsProcessorList(copy.copy(each) for each in self.logits_processor)
        for each in kept:
            left_out = getattr(each, "prompt_ignore_length", None)
            if isinstance(left_out, Tensor):
                each.prompt_ignore_length = left_out[row : row + 1]
        return replace(self, logits_processor=kept)

    @property
    def need_only_best(self) -> bool:
        """Whether these rules read nothing of the logits but each row's best token."""
        known = all(type(each) in (EosTokenCriteria, MaxLengthCriteria) for each in self.stopping_criteria)
        return known and not (self.do_sample or self.logits_processor or self.keep_scores or self.keep_logits)


class Text:
    """Token ids of one sequence under `rules`; starts with the prompt `[1, length]`."""

    def __init__(self, prompt: Tensor, rules: Rules) -> None:
        self.rules = rules
        self.scores: list[Tensor] = []
        self.logits: list[Tensor] = []
        self._length = prompt.shape[1]
        self._buffer = prompt.new_empty(1, 2 * self._length + 64)
        self._buffer[:, : self._length] = prompt
        self._end_tokens = {
            int(token)
            for criterion in rules.stopping_criteria
            if isinstance(criterion, EosTokenCriteria)
            for token in criterion.eos_token_id.flatten().tolist()
        }

    def __len__(self) -> int:
        return self._length

    @property
    def ids(self) -> Tensor:
        """All tokens so far, int64 `[1, length]`."""
        return self._buffer[:, : self._length]

    @property
    def end_tokens(self) -> Set[int]:
        """Tokens that end it."""
        return self._end_tokens

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed."""
        return max(0, self.rules.max_length - self._length)

    def choose(self, logits: Tensor) -> tuple[int, bool]:
        """Commits the target's next token given its logits `[vocab]`; returns it and whether the text ends with it."""
        # `_sample` keeps a float32 copy on the device of the ids; equal dtypes make draws with one seed equal.
        raw = logits[None].to(copy=True, dtype=torch.float32, device=self._buffer.device)
        process: Callable[[Tensor, Tensor], Tensor] = self.rules.logits_processor  # type: ignore[assignment]  # LongTensor
        scores = process(self.ids, raw)
        if self.rules.keep_scores:
            self.scores.append(scores)
        if self.rules.keep_logits:
            self.logits.append(raw)
        chosen = torch.multinomial(scores.softmax(-1), num_samples=1) if self.rules.do_sample else scores.argmax(-1)
        token = int(chosen)
        self._append(token)
        finished = bool(self.rules.stopping_criteria(self.ids, tuple(self.scores) if self.rules.keep_scores else None))
        self._stream(token)
        return token, finished

    def commit_best(self, token: int) -> tuple[int, bool]:
        """Commits a token known to be the best one; only where `rules.need_only_best`."""
        self._append(token)
        self._stream(token)
        return token, token in self._end_tokens or self._length >= self.rules.max_length

    def _append(self, token: int) -> None:
        if self._length == self._buffer.shape[1]:
            self._buffer = torch.cat((self._buffer, torch.empty_like(self._buffer)), dim=1)
        self._buffer[0, self._length] = token
        self._length += 1

    def _stream(self, token: int) -> None:
        if self.rules.streamer is not None:
            self.rules.streamer.put(torch.tensor([token]))
