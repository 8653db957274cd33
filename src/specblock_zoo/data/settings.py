"""Arguments of an extraction: which records, which target, what is kept of its states."""

from dataclasses import dataclass

import torch

from specblock_zoo.data.examples import Limits
from specblock_zoo.errors import ConfigurationError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
AT_LEAST_ONE = (
    "max_length",
    "max_records",
    "max_tokens",
    "draft_vocab_size",
    "shard_size",
    "batch_tokens",
    "teacher_top",
    "num_threads",
)


def check_device(device: str) -> None:
    """Raises `ConfigurationError` unless torch can put a tensor there."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as cause:
        raise ConfigurationError(
            f"device is {device!r}; torch cannot use it here ({str(cause).splitlines()[0]}).",
            "Give cpu, or a device of this machine.",
        ) from cause


@dataclass(frozen=True)
class Extraction:
    """Which states of which target for which records.

    Attributes:
        records: files of answer records, `.jsonl` or `.jsonl.gz`.
        target: name of an embedded target, a model folder, or a Hub repository.
        tap_layers: 0-based target layers to store; the family's three when not given.
        max_length: tokens per sequence; longer ones are cut.
        max_prompt_tokens: records with a longer prompt are dropped and counted.
        max_records, max_tokens: a seeded random choice of at most so many records, or about so many supervised tokens.
        draft_vocab_size: size of the reduced vocabulary chosen from the supervised tokens.
        vocabulary: folder of a drafter or of another cache whose draft vocabulary is taken as it is, to train that
            drafter further; draft_vocab_size is then not read.
        shard_size: records per shard; also how much is lost when the run is killed.
        batch_tokens: padded tokens per target forward.
        dtype: of the target's weights: float32, bfloat16, float16; the fastest exact one of the device when not given.
        device: where the target runs.
        num_threads: CPU threads of the target forward; torch's own choice when not given.
        seed: of the choice and the order of the records.
        teacher: what is kept of the target's distribution: last_hidden (all of it), topk (its best tokens and the mass
            of the rest), tokens (nothing: the text is the teacher).
        teacher_top: tokens kept by the teacher `topk`.
        state_dtype: of the taps on disk: bfloat16, or float8 with one scale per token and layer (half the bytes).
        supervise_reasoning: whether `<think> ... </think>` enters the loss.
        skip_bad: leave out records that cannot be used, naming and counting them, instead of stopping at the first.
    """

    records: list[str]
    target: str
    tap_layers: list[int] | None = None
    max_length: int = 1024
    max_prompt_tokens: int | None = None
    max_records: int | None = None
    max_tokens: int | None = None
    draft_vocab_size: int = 8192
    vocabulary: str | None = None
    shard_size: int = 256
    batch_tokens: int = 2048
    dtype: str | None = None
    device: str = "cpu"
    num_threads: int | None = None
    seed: int = 0
    teacher: str = "last_hidden"
    teacher_top: int = 16
    state_dtype: str = "bfloat16"
    supervise_reasoning: bool = True
    skip_bad: bool = False

    def check(self) -> None:
        """Raises `ConfigurationError` unless every bound is at least one, every name known and the device there."""
        check_device(self.device)
        if self.seed < 0:
            raise ConfigurationError(f"seed is {self.seed}; expected at least 0.", "Correct the argument.")
        for name in AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} is {value}; expected at least 1.", "Correct the argument.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ConfigurationError(f"dtype is {self.dtype!r}; expected one of {', '.join(DTYPES)}.", "Choose one.")

    @property
    def limits(self) -> Limits:
        """Bounds on the sequences."""
        return Limits(self.max_length, self.max_prompt_tokens, self.max_records, self.max_tokens, self.seed)


@dataclass(frozen=True, kw_only=True)
class CacheSettings(Extraction):
    """Arguments of `specblock cache`.

    Attributes:
        out: the cache folder; made when it does not exist, resumed when it holds a part of this very cache.
        max_bytes: refuse a cache that would be larger.
        dry_run: say what it would cost in bytes and time, and write nothing.
        workers: processes of this machine that divide the shards among them, each with a target of its own; on
            `cuda`, each on the next device.
        worker: this process is one of several that were started by other means, on one machine or many: `0/4` to `3/4`.
            They meet in the folder `out` and need not run at the same time.
    """

    out: str
    max_bytes: int | None = None
    dry_run: bool = False
    workers: int = 1
    worker: str | None = None

    def check(self) -> None:
        """Also raises `ConfigurationError` unless workers are sensible numbers."""
        super().check()
        if self.workers < 1 or (self.workers > 1 and self.worker is not None):
            raise ConfigurationError(
                f"workers is {self.workers} and worker is {self.worker!r}; expected at least 1 worker, or one of them.",
                "Give --workers for processes of this machine, or --worker for one that you start yourself.",
            )
        index, count = self.share
        if not 0 <= index < count:
            raise ConfigurationError(
                f"worker is {self.worker!r}; expected 0/{count} to {count - 1}/{count}.", "Count from 0."
            )

    @property
    def share(self) -> tuple[int, int]:
        """Which worker this is, from 0, and of how many.

        Raises:
            ConfigurationError: `worker` is not two numbers.
        """
        index, _, count = (self.worker or "0/1").partition("/")
        if not (index.isdecimal() and count.isdecimal() and int(count)):
            raise ConfigurationError(f"worker is {self.worker!r}; expected two numbers, e.g. 0/4.", "Correct it.")
        return int(index), int(count)
