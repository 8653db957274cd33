"""Columns of a shard: how a tap's states are stored, and in which form the teacher is kept beside them.

Arrow has no bfloat16 and no float8, and libraries that convert would widen them to float32: states are stored as
integers of the same bits, one column per tap, so that a run with fewer taps reads fewer bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from datasets import Features, LargeList, Value
from torch import Tensor

from specblock_zoo.data.examples import Example
from specblock_zoo.data.manifest import Fingerprint
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.functional.sampling import capped

LAST_HIDDEN = "last_hidden"
TOP_IDS, TOP_LOG_PROBS, TAIL_MASS, LOGSUMEXP = "teacher_ids", "teacher_log_probs", "teacher_tail", "teacher_logsumexp"
LARGEST_FLOAT8 = 448.0
BYTES_PER_ID_AND_MASK = 5
# Logits worked on at once while the teacher's best tokens are sought.
CHUNK_ELEMENTS = 1 << 24

Bits = npt.NDArray[np.uint16]
Columns = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class CachedExample:
    """One sequence and the bits of its bfloat16 states; views into the mapped file where they are stored as such.

    Attributes:
        input_ids: int32 `[seq]`.
        loss_mask: bool `[seq]`.
        taps: uint16 `[seq, hidden]` per tap layer, in order.
        teacher: the teacher's columns by name, each `[seq, ...]`.
    """

    id: str
    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]
    taps: tuple[Bits, ...]
    teacher: Columns

    def __len__(self) -> int:
        return len(self.input_ids)

    def cut(self, end: int) -> "CachedExample":
        """The first `end` tokens."""
        return replace(
            self,
            input_ids=self.input_ids[:end],
            loss_mask=self.loss_mask[:end],
            taps=tuple(tap[:end] for tap in self.taps),
            teacher={name: column[:end] for name, column in self.teacher.items()},
        )


def to_bits(states: Tensor) -> Bits:
    """The bits of `states` rounded to bfloat16, uint16, same shape."""
    bits: Bits = states.to(torch.bfloat16).contiguous().view(torch.uint16).cpu().numpy()
    return bits


def from_bits(bits: Bits) -> Tensor:
    """The bfloat16 tensor with these bits, sharing their memory (which must be writable)."""
    return torch.from_numpy(bits).view(torch.bfloat16)


@dataclass(frozen=True)
class StateEncoding:
    """How the states `[seq, hidden]` of one tap are written.

    Attributes:
        parts: column suffix -> Arrow type.
        bytes_per_token: from the hidden size.
        encode: states to one array per part.
        decode: those arrays to bfloat16 bits `[seq, hidden]`.
    """

    parts: Mapping[str, str]
    bytes_per_token: Callable[[int], int]
    encode: Callable[[Tensor], tuple[npt.NDArray[Any], ...]]
    decode: Callable[..., Bits]


def _encode_float8(states: Tensor) -> tuple[npt.NDArray[Any], ...]:
    wide = states.float()
    scale = wide.abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST_FLOAT8
    narrow = (wide / scale[:, None]).to(torch.float8_e4m3fn)
    return narrow.view(torch.uint8).cpu().numpy(), scale.cpu().numpy()


def _decode_float8(bits: npt.NDArray[np.uint8], scale: npt.NDArray[np.float32]) -> Bits:
    narrow = torch.from_numpy(bits.copy()).view(torch.float8_e4m3fn)
    return to_bits(narrow.float() * torch.from_numpy(scale.copy())[:, None])


ENCODINGS: dict[str, StateEncoding] = {
    "bfloat16": StateEncoding({"": "uint16"}, lambda hidden: 2 * hidden, lambda s: (to_bits(s),), lambda bits: bits),
    # e4m3 with one scale per token and tap: about 2.6 % error, half the bytes.
    "float8": StateEncoding({"": "uint8", "_scale": "float32"}, lambda h: h + 4, _encode_float8, _decode_float8),
}


@dataclass(frozen=True)
class TeacherForm:
    """What is kept of the target's distribution.

    Attributes:
        parts: column -> Arrow type, from the size of the draft vocabulary.
        bytes_per_token: from hidden size, draft vocabulary and `teacher_top`.
        encode: last states `[seq, hidden]`, head rows `[draft_vocab, hidden]`, `teacher_top`, the cap of the target's
            logits or None -> columns.
    """

    parts: Callable[[int], dict[str, str]]
    bytes_per_token: Callable[[int, int, int], int]
    encode: Callable[[Tensor, Tensor, int, float | None], dict[str, npt.NDArray[Any]]]


def _id_type(draft_vocab_size: int) -> str:
    return "uint16" if draft_vocab_size <= 1 << 16 else "int32"


@torch.no_grad()
def best_tokens(last_hidden: Tensor, head: Tensor, top: int, cap: float | None = None) -> dict[str, npt.NDArray[Any]]:
    """The teacher's `top` best draft tokens at every position, of its distribution over the draft vocabulary.

    Log-probabilities instead of logits: near zero, where the mass is, float16 resolves them finely. Nothing is
    renormalised: `teacher_tail` is the mass of all other draft tokens, `teacher_logsumexp` gives the logits back.
    """
    columns: dict[str, list[Tensor]] = {name: [] for name in (TOP_IDS, TOP_LOG_PROBS, TAIL_MASS, LOGSUMEXP)}
    for states in last_hidden.split(max(1, CHUNK_ELEMENTS // head.shape[0])):
        logits = capped(torch.nn.functional.linear(states.to(head.dtype), head).float(), cap)
        logsumexp = logits.logsumexp(-1)
        values, ids = logits.topk(min(top, head.shape[0]))
        log_probs = values - logsumexp[:, None]
        tail = (1 - log_probs.exp().sum(-1)).clamp(min=0)
        for name, found in zip(columns, (ids, log_probs.half(), tail, logsumexp), strict=True):
            columns[name].append(found.cpu())
    arrays = {name: torch.cat(parts).numpy() for name, parts in columns.items()}
    return {**arrays, TOP_IDS: arrays[TOP_IDS].astype(_id_type(head.shape[0]))}


TEACHERS: dict[str, TeacherForm] = {
    "last_hidden": TeacherForm(
        lambda draft_vocab: {LAST_HIDDEN: "uint16"},
        lambda hidden, draft_vocab, top: 2 * hidden,
        lambda last_hidden, *_: {LAST_HIDDEN: to_bits(last_hidden)},
    ),
    "topk": TeacherForm(
        lambda draft_vocab: {
            TOP_IDS: _id_type(draft_vocab),
            TOP_LOG_PROBS: "float16",
            TAIL_MASS: "float32",
            LOGSUMEXP: "float32",
        },
        lambda hidden, draft_vocab, top: top * (2 + np.dtype(_id_type(draft_vocab)).itemsize) + 8,
        best_tokens,
    ),
    "tokens": TeacherForm(lambda draft_vocab: {}, lambda *sizes: 0, lambda *_: {}),
}


def tap_column(layer: int) -> str:
    """Name of the column that holds the output of a tap layer."""
    return f"layer_{layer}"


@dataclass(frozen=True)
class Layout:
    """The columns of a cache. Build it with `layout_of` where there is a fingerprint.

    Raises:
        ConfigurationError: no such encoding or teacher form.
    """

    tap_layers: tuple[int, ...]
    hidden_size: int
    draft_vocab_size: int
    state_dtype: str = "bfloat16"
    teacher: str = "last_hidden"
    teacher_top: int = 0

    def __post_init__(self) -> None:
        for name, value, table in (("state_dtype", self.state_dtype, ENCODINGS), ("teacher", self.teacher, TEACHERS)):
            if value not in table:
                raise ConfigurationError(f"{name} is {value!r}; expected one of {', '.join(table)}.", "Choose one.")

    @property
    def _encoding(self) -> StateEncoding:
        return ENCODINGS[self.state_dtype]

    @property
    def bytes_per_token(self) -> int:
        """Disk cost of one token: its taps, its teacher, its id and its mask."""
        teacher = TEACHERS[self.teacher].bytes_per_token(self.hidden_size, self.draft_vocab_size, self.teacher_top)
        return len(self.tap_layers) * self._encoding.bytes_per_token(self.hidden_size) + teacher + BYTES_PER_ID_AND_MASK

    @property
    def schema(self) -> Features:
        """The Arrow schema of a shard; large lists, because 64-bit offsets never overflow."""
        taps = {tap_column(i) + part: kind for i in self.tap_layers for part, kind in self._encoding.parts.items()}
        columns = {"input_ids": "int32", "loss_mask": "uint8", **taps, **self._teacher_parts}
        return Features({"id": Value("string")} | {name: LargeList(Value(kind)) for name, kind in columns.items()})

    @property
    def _teacher_parts(self) -> dict[str, str]:
        return TEACHERS[self.teacher].parts(self.draft_vocab_size)

    def encode(
        self, taps: Sequence[Tensor], last_hidden: Tensor, head: Tensor, cap: float | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Columns `[seq, ...]` of one sequence.

        Args:
            taps: states `[seq, hidden]` per tap layer, in order.
            last_hidden: states after the final norm `[seq, hidden]`.
            head: rows of the target's head for the draft vocabulary `[draft_vocab, hidden]`.
            cap: of the target's logits, see `TargetFamily.logit_cap`.
        """
        columns: dict[str, npt.NDArray[Any]] = {}
        for layer, states in zip(self.tap_layers, taps, strict=True):
            parts = zip(self._encoding.parts, self._encoding.encode(states), strict=True)
            columns |= {tap_column(layer) + part: array for part, array in parts}
        return columns | TEACHERS[self.teacher].encode(last_hidden, head, self.teacher_top, cap)

    def decode(self, example: Example, column: Callable[[str], npt.NDArray[Any]]) -> CachedExample:
        """What training reads, from flat or shaped columns; without a copy where the bits are stored as they are."""
        per_token = {TAIL_MASS, LOGSUMEXP, *(tap_column(layer) + "_scale" for layer in self.tap_layers)}

        def shaped(name: str) -> npt.NDArray[Any]:
            return column(name).reshape(-1) if name in per_token else column(name).reshape(len(example), -1)

        taps = []
        for layer in self.tap_layers:
            arrays = (shaped(tap_column(layer) + part) for part in self._encoding.parts)
            taps.append(self._encoding.decode(*arrays))
        teacher = {name: shaped(name) for name in self._teacher_parts}
        return CachedExample(example.id, example.input_ids, example.loss_mask, tuple(taps), teacher)


def layout_of(fingerprint: Fingerprint) -> Layout:
    """The columns of a cache with this fingerprint."""
    return Layout(
        fingerprint.tap_layers,
        fingerprint.hidden_size,
        fingerprint.draft_vocab_size,
        fingerprint.state_dtype,
        fingerprint.teacher,
        fingerprint.teacher_top,
    )


def relative_errors(states: Tensor, stored: Bits) -> Tensor:
    """Error of each token's stored state over the state's size, `[seq]`, from `[seq, hidden]` each."""
    wide = states.float().cpu()
    difference = from_bits(np.array(stored)).float() - wide
    return difference.norm(dim=-1) / wide.norm(dim=-1).clamp(min=torch.finfo(torch.float32).tiny)
