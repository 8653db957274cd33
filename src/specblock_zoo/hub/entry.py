"""The typed zoo entry `entry.yaml`: what a drafter is, what it was trained on, and what its files must hash to."""

import hashlib
import re
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

import yaml
from pydantic import Field, StringConstraints, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticSerializationError

from specblock_zoo.bench.records import Count, PositiveCount, Record, Share, describe, write_atomically
from specblock_zoo.errors import ConfigurationError, WeightsMismatchError
from specblock_zoo.models.registry import DEFAULT_KIND, DRAFTERS

ENTRY_FILE = "entry.yaml"
ENTRY_VERSION: Literal[2] = 2
MOST_BYTES = 100_000
"""Of the fields below. Version 1 had none of `entry_version`, `reported`, `plan` and `repository_revision`."""
NAME_PATTERN = re.compile(r"specblock-([a-z0-9]+(?:[.-][a-z0-9]+)*)\.(?:k(\d+)m(\d+)|([a-z][a-z0-9]*))-([a-z0-9]+)")

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[\w-][\w.-]*$")]
Text = Annotated[str, StringConstraints(min_length=1)]


class NameParts(NamedTuple):
    """A zoo name taken apart: `specblock-<target>.k<block_width>m<num_blocks>-<variant>`.

    Baselines are called `specblock-<target>.<kind>-<variant>`, and have neither width nor count.
    """

    target: str
    block_width: int | None
    num_blocks: int | None
    variant: str
    kind: str = DEFAULT_KIND


def parse_name(name: str) -> NameParts:
    """Takes a zoo name apart.

    Raises:
        ConfigurationError: the name does not follow the grammar.
    """
    match = NAME_PATTERN.fullmatch(name)
    if match is None:
        raise ConfigurationError(
            f"{name!r} is not a zoo name; expected e.g. 'specblock-smollm2-135m.k4m1-v1'.",
            "Use specblock-<target>.k<block width>m<blocks>-<variant>, for a baseline .<kind>-<variant>, lower case.",
        )
    target, block_width, num_blocks, kind, variant = match.groups()
    if kind:
        return NameParts(target, None, None, variant, kind)
    return NameParts(target, int(block_width), int(num_blocks), variant)


class TargetReference(Record):
    """The target the drafter was trained for.

    Attributes:
        name: what `--target` takes, e.g. `smollm2-135m`.
        repository: Hub repository of the target.
        revision: commit, tag or package version of the weights used.
        family: transformers model type, e.g. `llama`.
        licence: the target's own licence.
    """

    name: Text
    repository: Text
    revision: Text
    family: Text
    licence: Text


class DraftVocabulary(Record):
    """Reduced vocabulary of the drafter; `coverage` is the share of supervised training tokens inside it, 0..1.

    Coverage is absent where whoever trained the drafter has not told it.
    """

    size: PositiveCount
    coverage: Share | None = None


class DataSource(Record):
    """One source of training text, with the licence its origin states and the answer tokens taken from it."""

    name: Text
    licence: Text
    tokens: Count


class TrainingOverlap(Record):
    """What `specblock overlap` found: training records that hold something of an evaluation prompt.

    Attributes:
        words: length of a run of words that counts as shared.
        records: looked at.
        shared: of them, those that share a run with a prompt, or contain a shorter prompt whole.
        prompts: looked for.
        tasks: that these are of.
        left_out: whether the shared ones were left out of training.
    """

    words: PositiveCount
    records: PositiveCount
    shared: Count
    prompts: PositiveCount
    tasks: Annotated[tuple[Text, ...], Field(min_length=1)]
    left_out: bool


class Training(Record):
    """How the weights came to be.

    Attributes:
        tokens_seen: supervised tokens visited, repeats included.
        hours: wall time of training.
        device: processor or accelerator, with the number of threads.
        command: the command line that trained it.
        commit: source commit.
        versions: package -> version.
        seed: of the run.
        data: sources of the training text.
        overlap: with evaluation prompts; None where it was not looked for.
    """

    tokens_seen: PositiveCount
    hours: Annotated[float, Field(gt=0)]
    device: Text
    command: Text
    commit: Text
    versions: dict[str, str]
    seed: int
    data: Annotated[tuple[DataSource, ...], Field(min_length=1)]
    overlap: TrainingOverlap | None = None


class Reported(Record):
    """A number somebody else reports about this drafter; this project has not measured it.

    Attributes:
        figure: what it is, e.g. `tau`.
        value: as reported.
        setting: under which conditions, as far as told.
        source: who reports it.
    """

    figure: Text
    value: float
    setting: Text
    source: Text


class ZooEntry(Record):
    """One drafter of the zoo.

    Attributes:
        entry_version: of the schema, `ENTRY_VERSION`.
        name: `specblock-<target>.<tag>`, e.g. `specblock-smollm2-135m.k4m1-v1`; k and m repeat block width and count.
        status: `trained` (by this project or its user: weights beside the entry, or in `repository` and checked against
            `files`), `published` (by others, in `repository`; ours is only the loader) or `recipe` (configuration and
            plan, no weights).
        summary: one sentence.
        target, draft_vocabulary: see there; a recipe may lack the vocabulary.
        kind: `model_type` of the drafter; another than the default is what the name has in place of k and m.
        block_width, num_blocks: slots per block and default blocks per round.
        tap_layers: 0-based target layers read; none where the drafter reads the target's last state.
        licence: of the weights.
        training: provenance; required for `trained`, and for nothing else.
        repository, repository_revision: Hub repository with the weights, and commit or tag; required for `published`.
        files: file name -> SHA-256 of its content; required for `trained`.
        reported: other people's numbers.
        plan: how a `recipe` would be trained; required for it.
    """

    entry_version: Literal[2]
    name: str
    status: Literal["trained", "published", "recipe"]
    summary: Text
    target: TargetReference
    kind: str = DEFAULT_KIND
    block_width: PositiveCount
    num_blocks: PositiveCount
    tap_layers: tuple[Count, ...]
    draft_vocabulary: DraftVocabulary | None = None
    licence: Text
    training: Training | None = None
    repository: str | None = None
    repository_revision: str | None = None
    files: dict[FileName, Sha256] = {}
    reported: tuple[Reported, ...] = ()
    plan: str | None = None

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if self.kind not in DRAFTERS:
            raise ValueError(f"kind {self.kind!r} is not known; known: {', '.join(DRAFTERS)}")
        parts = parse_name(self.name)
        what = "target, kind"
        stated: tuple[str | int | None, ...] = (parts.target, parts.kind)
        actual: tuple[str | int | None, ...] = (self.target.name, self.kind)
        if self.kind == parts.kind == DEFAULT_KIND:
            what, stated = "target, block width, blocks", parts[:3]
            actual = (self.target.name, self.block_width, self.num_blocks)
        if stated != actual:
            raise ValueError(f"name {self.name!r} states ({what}) {stated}, the fields {actual}")
        return self

    @model_validator(mode="after")
    def _check_status(self) -> Self:
        needed = {
            "trained": ("training", "files", "draft_vocabulary"),
            "published": ("repository",),
            "recipe": ("plan",),
        }
        missing = [field for field in needed[self.status] if not getattr(self, field)]
        if missing:
            raise ValueError(f"status {self.status!r} needs {', '.join(missing)}")
        if self.status != "trained" and self.training:
            raise ValueError(f"status {self.status!r} has no training of ours, but training is filled in")
        weights = [name for name in self.files if name.endswith(".safetensors")]
        if self.status == "recipe" and weights:
            raise ValueError(f"status 'recipe' has no weights, but files lists {', '.join(weights)}")
        return self


class _PlainLoader(yaml.SafeLoader):
    """Refuses aliases: a few lines of them stand for more than fits into any memory."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.YAMLError(f"aliases are not taken (line {mark.line + 1})")
        return super().compose_node(parent, index)


def read_entry(folder: Path) -> ZooEntry:
    """Reads `folder/entry.yaml`.

    Raises:
        ConfigurationError: no such file, not YAML, an unknown or missing field, or a value of the wrong type.
    """
    path = folder / ENTRY_FILE
    try:
        # One byte more than it may have tells a file that is too long.
        with path.open("rb") as stream:
            text = stream.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigurationError(f"{folder} has no {ENTRY_FILE}.", "Name a folder of the zoo.") from error
    if len(text) > MOST_BYTES:
        raise ConfigurationError(f"{path} has more than {MOST_BYTES:,} bytes.", "An entry is a page of text.")
    try:
        fields = yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not YAML: {error}", "Correct the file.") from error
    return parse_entry(fields, str(path))


def parse_entry(fields: object, where: str) -> ZooEntry:
    """Checks the fields of an entry; `where` names their origin in errors.

    Raises:
        ConfigurationError: another schema version, an unknown or missing field, or a value against the rules.
    """
    found = fields.get("entry_version", 1) if isinstance(fields, dict) else ENTRY_VERSION
    if found != ENTRY_VERSION:
        older = isinstance(found, int) and found < ENTRY_VERSION
        raise ConfigurationError(
            f"{where} follows version {found} of the entry schema; this package reads version {ENTRY_VERSION}.",
            "Bring it up to date with scripts/seal_entry.py." if older else "Upgrade specblock-zoo.",
        )
    try:
        # JSON mode keeps types strict (no "4" for 4) while a list may fill a tuple.
        return ZooEntry.model_validate_json(TypeAdapter(object).dump_json(fields))
    except ValidationError as error:
        raise ConfigurationError(f"{where}: {describe(error)}.", "Correct the named fields.") from error
    except PydanticSerializationError as error:
        raise ConfigurationError(f"{where}: {error}.", "An entry holds text, numbers and lists.") from error


def write_entry(entry: ZooEntry, folder: Path) -> Path:
    """Writes `folder/entry.yaml` whole or not at all, fields in declaration order, and returns its path."""
    path = folder / ENTRY_FILE
    fields = entry.model_dump(mode="json", exclude_defaults=True)
    write_atomically(path, yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=100))
    return path


def hash_files(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    """SHA-256 of each named file of `folder`, as `ZooEntry.files` stores it."""
    digests = {}
    for name in names:
        with (folder / name).open("rb") as stream:
            digests[name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return digests


def verify_files(entry: ZooEntry, folder: Path) -> None:
    """Raises `WeightsMismatchError` when a file listed in the entry is absent or has another content."""
    for name, expected in entry.files.items():
        if not (folder / name).is_file():
            raise WeightsMismatchError(f"{folder} lacks {name}, which {entry.name} lists.", "Fetch the entry again.")
        found = hash_files(folder, (name,))[name]
        if found != expected:
            raise WeightsMismatchError(
                f"{folder / name} has SHA-256 {found[:12]}..., the entry says {expected[:12]}...",
                "The file was cut or changed: fetch it again, or correct the entry if the change is meant.",
            )
