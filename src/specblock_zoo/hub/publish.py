"""Publish a drafter or answer records on the Hub: planned and checked on disk, then one commit and one tag."""

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, DatasetCard, HfApi

from specblock_zoo.bench.records import RESULTS_FILE, Results, read_results
from specblock_zoo.data.records import read_records
from specblock_zoo.errors import PublishError
from specblock_zoo.hub.card import MeasuredEntry, card_text, drafter_card
from specblock_zoo.hub.entry import ENTRY_FILE, ZooEntry, parse_name, read_entry
from specblock_zoo.hub.fetch import explained, is_repository
from specblock_zoo.hub.plot import PLOT_FILE, results_svg
from specblock_zoo.hub.verify import verify

Kind = Literal["model", "dataset"]
CARD_FILE = "README.md"
NO_LICENCE = re.compile(r"\b(unclear|unknown|none|tbd|proprietary)\b|^\?*$", re.IGNORECASE)
EXTRA_FILES = ("records.jsonl", "model.safetensors.index.json")


@dataclass(frozen=True)
class PlannedFile:
    """One file of the commit: its name in the repository, and where its content is."""

    name: str
    content: Path | bytes

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size


@dataclass(frozen=True)
class Publication:
    """What would be sent: complete, checked, and nothing else.

    Attributes:
        kind: of repository.
        title: first line of the commit message.
        files: in the order they are shown; the card is one of them.
        tag: default name of the version.
        replaces: endings of files in the repository that belong to an earlier version and go with this commit.
    """

    kind: Kind
    title: str
    files: tuple[PlannedFile, ...]
    tag: str
    replaces: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.size for file in self.files)

    @property
    def card(self) -> str:
        """Text of the card."""
        content = next(file.content for file in self.files if file.name == CARD_FILE)
        return content.decode() if isinstance(content, bytes) else content.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Destination:
    """Where to send it.

    Attributes:
        repo: `org/name`; created if it is not there.
        tag: of the version; none with a pull request, whose commit is not on the main branch yet.
        private: whether a new repository is private.
        create_pr: open a pull request instead of writing to the main branch.
    """

    repo: str
    tag: str | None = None
    private: bool = False
    create_pr: bool = False


@dataclass(frozen=True)
class Receipt:
    """What was done: commit, its page or pull request, tag, bytes handed over and seconds it took."""

    commit: str
    url: str
    tag: str | None
    bytes: int
    seconds: float


def plan_drafter(folder: Path, repo: str) -> Publication:
    """The publication of a drafter's folder.

    Args:
        folder: with `entry.yaml`, `results.json`, `config.json` and the weights.
        repo: `org/name`; the card's snippet loads from there.

    Raises:
        PublishError: no entry, no results, no clear licence, or a provenance that nobody could check out.
        WeightsMismatchError, ConfigurationError: files, entry and results contradict each other; see `verify`.
    """
    check_repository(repo)
    if not (folder / ENTRY_FILE).is_file():
        raise PublishError(
            f"{folder} has no {ENTRY_FILE}; a drafter is published with its provenance.",
            f"Write {ENTRY_FILE} and complete it with scripts/seal_entry.py.",
        )
    entry = read_entry(folder)
    fault = verify(entry, folder).fault
    if fault is not None:
        raise fault
    results = publishable_results(entry, read_results(folder))
    card = card_text(drafter_card(MeasuredEntry(entry, results), source=repo))
    drawn = (PlannedFile(CARD_FILE, card.encode()), PlannedFile(PLOT_FILE, results_svg(results).encode()))
    named = [ENTRY_FILE, RESULTS_FILE, *entry.files, *(name for name in EXTRA_FILES if (folder / name).is_file())]
    files = [PlannedFile(name, folder / name) for name in dict.fromkeys(named)]
    tag = entry.name.removeprefix(f"specblock-{parse_name(entry.name).target}.")
    return Publication(
        "model",
        entry.name,
        (*drawn, *files),
        tag,
        replaces=(".safetensors", ".safetensors.index.json"),
    )


def publishable_results(entry: ZooEntry, results: Results | None) -> Results:
    """The results of an entry that may be published. Raises `PublishError` with the first reason why it may not."""
    if entry.status != "trained" or entry.training is None:
        raise PublishError(
            f"{entry.name} has the status {entry.status!r}; only weights trained by whoever publishes them are sent.",
            "Weights of others stay where they are, and a recipe has none.",
        )
    if results is None:
        raise PublishError(
            f"{entry.name} has no {RESULTS_FILE}.", "Measure it first: specblock bench, then specblock bench results."
        )
    for what, licence in ((entry.name, entry.licence), *((s.name, s.licence) for s in entry.training.data)):
        check_licence(what, licence)
    for what, commit in (("trained", entry.training.commit), ("measured", results.provenance.commit)):
        if not re.fullmatch(r"[0-9a-f]{7,40}", commit):
            raise PublishError(
                f"{entry.name} was {what} at commit {commit!r}; expected a clean one that others can check out.",
                "Commit the changes and repeat that step.",
            )
    return results


def check_licence(what: str, licence: str) -> None:
    """Raises `PublishError` for a licence that grants nothing clear."""
    if NO_LICENCE.search(licence.strip()):
        raise PublishError(
            f"The licence of {what} is {licence!r}; expected one that allows publishing.", "Settle the licence first."
        )


def check_repository(repo: str) -> None:
    """Raises `PublishError` unless `repo` has the form `org/name`."""
    if not is_repository(repo):
        raise PublishError(f"{repo!r} is not a repository name; expected 'org/name'.", "Give --repo ORG/NAME.")


def plan_dataset(folder: Path, repo: str) -> Publication:
    """The publication of answer records as a dataset; every line is read and checked.

    Args:
        folder: with `*.jsonl` or `*.jsonl.gz` and a `README.md` whose metadata names the licence.
        repo: `org/name`.

    Raises:
        PublishError: no such folder, no card, no licence in it, or no records.
        BadRecordError: a line is not an answer record.
    """
    check_repository(repo)
    if not folder.is_dir():
        raise PublishError(f"{folder} is not a folder.", "Name the folder of the answer records.")
    shards = sorted(path for path in folder.iterdir() if path.name.endswith((".jsonl", ".jsonl.gz")))
    if not shards:
        raise PublishError(f"{folder} has no .jsonl or .jsonl.gz file.", "Name the folder of the answer records.")
    card = folder / CARD_FILE
    if not card.is_file():
        raise PublishError(f"{folder} has no {CARD_FILE}.", "Write a card that names origin and licence of the data.")
    licence = DatasetCard.load(card).data.license
    if not licence:
        raise PublishError(f"{card} names no licence.", "Add `license:` to the block between --- lines at its top.")
    check_licence(str(folder), str(licence))
    count = sum(1 for _ in read_records(shards))
    files = tuple(PlannedFile(path.name, path) for path in (card, *shards))
    return Publication("dataset", f"{count:,} answer records", files, tag="v1", replaces=(".jsonl", ".jsonl.gz"))


def publish(publication: Publication, destination: Destination) -> Receipt:
    """Sends a publication: one commit on top of the commit seen first, then a tag.

    An interruption before the commit leaves the repository as it was; the tag comes last, so a tag is always whole.

    Raises:
        PublishError: the tag exists.
        AccessError: the token may not write there.
        HubError: somebody else pushed meanwhile, or the exchange broke.
    """
    started, api, repo, kind = time.perf_counter(), HfApi(), destination.repo, publication.kind
    tag = None if destination.create_pr else destination.tag or publication.tag
    with explained(repo):
        api.create_repo(repo, repo_type=kind, private=destination.private, exist_ok=True)
        parent = api.repo_info(repo, repo_type=kind).sha
        tags = {found.name for found in api.list_repo_refs(repo, repo_type=kind).tags}
        if tag in tags:
            raise PublishError(f"{repo} has a tag {tag!r} already.", "Give the new version another --tag.")
        commit: CommitInfo = api.create_commit(
            repo,
            operations=[*_additions(publication), *_deletions(api, publication, repo)],
            commit_message=publication.title,
            repo_type=kind,
            create_pr=destination.create_pr,
            parent_commit=parent,
        )
        if tag is not None:
            api.create_tag(repo, tag=tag, revision=commit.oid, repo_type=kind)
    seconds = time.perf_counter() - started
    return Receipt(commit.oid, commit.pr_url or commit.commit_url, tag, publication.bytes, seconds)


def _additions(publication: Publication) -> list[CommitOperationAdd]:
    return [CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=file.content) for file in publication.files]


def _deletions(api: HfApi, publication: Publication, repo: str) -> list[CommitOperationDelete]:
    kept = {file.name for file in publication.files}
    there = api.list_repo_files(repo, repo_type=publication.kind)
    return [CommitOperationDelete(name) for name in there if name.endswith(publication.replaces) and name not in kept]
