"""The manifest of a feature cache: what it was made from, and which shards are committed."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from specblock_zoo.data.files import replacing
from specblock_zoo.errors import CacheMismatchError, CorruptCacheError
from specblock_zoo.targets.base import TAP_CONVENTION
from specblock_zoo.targets.identity import TargetIdentity

MANIFEST_FILE = "manifest.json"
FORMAT = 2
REBUILD = "Build another cache with `specblock cache`, in an empty folder."


@dataclass(frozen=True)
class Fingerprint:
    """Everything that decides the bytes of a cache; two caches with equal fingerprints are equal.

    `target` only names the target where a revision or weight hash is there: a folder may move. `template_sha256` is
    part of `tokenizer_sha256` as well; on its own it tells an edited chat template from another tokenizer.
    """

    target: str
    target_revision: str | None
    weights_sha256: str | None
    config_sha256: str
    tokenizer_sha256: str
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    tap_layers: tuple[int, ...]
    dtype: str
    data_sha256: str
    max_length: int
    max_prompt_tokens: int | None
    max_records: int | None
    max_tokens: int | None
    seed: int
    shard_size: int
    draft_vocab_size: int
    vocabulary_sha256: str | None = None
    template_sha256: str | None = None
    attention: str | None = None
    state_dtype: str = "bfloat16"
    teacher: str = "last_hidden"
    teacher_top: int = 0
    supervise_reasoning: bool = True
    tap_convention: str = TAP_CONVENTION
    format: int = FORMAT

    def differences(self, expected: Mapping[str, Any]) -> str:
        """The fields whose value is not the expected one, with both values; empty when all agree."""
        found = vars(self)
        return "; ".join(
            f"{name} is {found[name]!r}, not {value!r}"
            for name, value in expected.items()
            if _plain(found[name]) != _plain(value)
        )

    def what_decides(self) -> dict[str, Any]:
        """The fields that must agree on resuming: all but the target's name, where weights or revision speak for it."""
        named = not (self.target_revision or self.weights_sha256)
        return {name: value for name, value in vars(self).items() if named or name != "target"}


def shard_name(number: int) -> str:
    """File of the shard with this number, from 0."""
    return f"shard-{number:05d}.arrow"


def shard_number(name: str) -> int:
    """The number in a shard's name."""
    return int(Path(name).stem.removeprefix("shard-"))


@dataclass(frozen=True)
class Shard:
    """One committed shard file.

    Attributes:
        state_error: mean over tokens and taps of the stored state's error over the state's size.
        sha256: of the file.
    """

    file: str
    records: int
    tokens: int
    supervised_tokens: int
    bytes: int
    state_error: float = 0.0
    sha256: str = ""


@dataclass(frozen=True)
class Manifest:
    """What a cache folder holds.

    Attributes:
        counts: records and tokens read, dropped and kept (see `examples.Counts`).
        vocab_coverage: share of the eligible supervised tokens inside the draft vocabulary, 0..1.
        records: how many the finished cache holds.
        package_version: of specblock-zoo; informative.
    """

    fingerprint: Fingerprint
    counts: Mapping[str, int]
    vocab_coverage: float
    records: int
    package_version: str
    shards: tuple[Shard, ...] = field(default=())

    @property
    def complete(self) -> bool:
        """Whether every record is in a committed shard."""
        return self.committed("records") == self.records

    @property
    def state_error(self) -> float:
        """Mean over the committed tokens of `Shard.state_error`."""
        return sum(s.state_error * s.tokens for s in self.shards) / max(1, self.committed("tokens"))

    def committed(self, what: str) -> int:
        """Sum over the committed shards of `records`, `tokens`, `supervised_tokens` or `bytes`."""
        return sum(getattr(shard, what) for shard in self.shards)

    def with_shard(self, shard: Shard) -> "Manifest":
        """This manifest with one more committed shard; shards are in the order of their names."""
        return replace(self, shards=tuple(sorted((*self.shards, shard), key=lambda s: s.file)))

    def free_name(self) -> str:
        """Name of the next shard: the first that no committed one has."""
        taken = {shard.file for shard in self.shards}
        return next(name for name in map(shard_name, count()) if name not in taken)

    def require(self, folder: str | Path, **expected: Any) -> None:
        """Raises `CacheMismatchError` naming every fingerprint field that differs from what the run expects.

        Args:
            expected: fingerprint fields by name, e.g. `tap_layers=(1, 14, 26), hidden_size=576, vocab_size=49152`.
        """
        differences = self.fingerprint.differences(expected)
        if differences:
            raise CacheMismatchError(f"The feature cache {folder} does not fit this run: {differences}.", REBUILD)

    def require_target(self, folder: str | Path, identity: TargetIdentity, config: PreTrainedConfig) -> None:
        """Raises `CacheMismatchError`, naming both values, unless the cache was built with exactly this target.

        Weights are compared by hash where both are local files, by Hub commit where both have one; a cache built from
        the Hub and a target read from a folder can only be compared by configuration and tokenizer.
        """
        hashes = {"target_revision": identity.revision, "weights_sha256": identity.weights_sha256}
        found = vars(self.fingerprint)
        comparable = {name: value for name, value in hashes.items() if value is not None and found[name] is not None}
        self.require(
            folder,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            vocab_size=config.vocab_size,
            config_sha256=identity.config_sha256,
            tokenizer_sha256=identity.tokenizer_sha256,
            **comparable,
        )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file so that a reader sees the old text or the new one, never half of it."""
    with replacing(path) as half_done, half_done.open("w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=2)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes `manifest.json` of a cache folder, atomically."""
    write_json(folder / MANIFEST_FILE, asdict(manifest))


def _build(cls: type, values: Mapping[str, Any]) -> Any:
    names = {f.name for f in fields(cls)}
    if set(values) != names:
        raise ValueError(f"{cls.__name__} has fields {sorted(set(values) ^ names)} too many or too few")
    return cls(**values)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a cache folder.

    Raises:
        CorruptCacheError: there is none, or it cannot be read.
        CacheMismatchError: another version of the cache format.
    """
    path = folder / MANIFEST_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        found = values["fingerprint"]["format"]
        if found != FORMAT:
            raise CacheMismatchError(f"{path} has cache format {found}; this version reads format {FORMAT}.", REBUILD)
        fingerprint = {**values["fingerprint"], "tap_layers": tuple(values["fingerprint"]["tap_layers"])}
        values["fingerprint"] = _build(Fingerprint, fingerprint)
        values["shards"] = tuple(_build(Shard, shard) for shard in values["shards"])
        return _build(Manifest, values)
    except FileNotFoundError as cause:
        raise CorruptCacheError(
            f"{folder} is not a feature cache: it has no {MANIFEST_FILE}.", "Build one with `specblock cache`."
        ) from cause
    except (ValueError, KeyError, TypeError) as cause:
        if isinstance(cause, CacheMismatchError):
            raise
        raise CorruptCacheError(f"{path} cannot be read ({cause}).", REBUILD) from cause
