"""`specblock zoo list | info | pull | verify | push`: find drafters, check them, fetch them, publish one's own."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from specblock_zoo.bench.records import read_results
from specblock_zoo.hub.card import MeasuredEntry, drafter_card, measured_entries, zoo_cells
from specblock_zoo.hub.publish import Destination, Kind, Publication, plan_dataset, plan_drafter, publish
from specblock_zoo.hub.verify import verify
from specblock_zoo.hub.zoo import find, list_entries, locate, zoo_folder

MEBIBYTE = 1 << 20


def list_drafters() -> None:
    """Lists the drafters of the zoo: target, status, tau, speedup and the device they were measured on."""
    table = Table(Column("drafter", no_wrap=True), "status", "tau", "speedup [95 %]", "measured in")
    for measured in measured_entries():
        name, _, status, tau, speedup, _, device = zoo_cells(measured)
        table.add_row(name, status, tau, speedup, device)
    Console().print(table)


def info(name: str) -> None:
    """Shows the card of one drafter: what it is, what it was trained on, how it was measured.

    Args:
        name: in the zoo (the tag may be left out).
    """
    entry = find(name)
    print(drafter_card(MeasuredEntry(entry, read_results(zoo_folder() / entry.name))).text.strip())


def pull(name: str, revision: str | None = None) -> None:
    """Fetches a drafter into the local cache, checks its hashes, and says where it is.

    Args:
        name: in the zoo, or a Hub repository.
        revision: tag, branch or commit of the repository.
    """
    started = time.perf_counter()
    folder = locate(name, {"revision": revision} if revision else {})
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    print(f"{folder}\n{size / MEBIBYTE:.1f} MiB, checked, in {time.perf_counter() - started:.1f} s")


def verify_entries(name: str | None = None) -> None:
    """Checks entries of the zoo: schema, hashes, configuration, every tensor's name and shape, results.

    Args:
        name: of one entry; default all.

    Raises:
        SpecBlockError: the first thing that is wrong, after all entries were looked at.
    """
    entries = (find(name),) if name else list_entries()
    verdicts = [verify(entry, zoo_folder() / entry.name) for entry in entries]
    for verdict in verdicts:
        state = f"WRONG: {verdict.fault}" if verdict.fault else "ok"
        print(f"{verdict.name}: {state} ({', '.join(verdict.checked)})")
    for verdict in verdicts:
        if verdict.fault is not None:
            raise verdict.fault


@dataclass(frozen=True)
class PushOptions:
    """Where and how to publish.

    Attributes:
        repo: ORG/NAME; created if it is not there.
        tag: of this version; default the zoo name's own, e.g. k4m1-v1.
        private: whether a new repository is private.
        create_pr: open a pull request instead of writing to the main branch; it gets no tag.
        kind: model (a drafter), or dataset (answer records with a card).
        yes: really send; without it only the plan is shown.
    """

    repo: str
    tag: str | None = None
    private: bool = False
    create_pr: bool = False
    kind: Kind = "model"
    yes: bool = False


def push(folder: Path, settings: PushOptions) -> None:
    """Publishes a drafter or answer records on the Hub; by default only shows files, sizes and card.

    Args:
        folder: of the drafter (with entry.yaml and results.json), or of the answer records (with README.md).
        settings: where and how.

    Raises:
        PublishError: results, licence or a clean provenance are missing, or the tag exists.
        AccessError, HubError: the Hub refuses, or the exchange broke; the repository is as it was or lacks the tag.
    """
    plan = (plan_drafter if settings.kind == "model" else plan_dataset)(folder, settings.repo)
    show_plan(plan, settings)
    if not settings.yes:
        print("Nothing was sent: add --yes true to publish.")
        return
    receipt = publish(plan, Destination(settings.repo, settings.tag, settings.private, settings.create_pr))
    tagged = f", tag {receipt.tag}" if receipt.tag else ""
    print(
        f"{receipt.url}\ncommit {receipt.commit}{tagged}: {receipt.bytes / MEBIBYTE:.1f} MiB in {receipt.seconds:.1f} s"
    )


def show_plan(plan: Publication, settings: PushOptions) -> None:
    """Prints what would be sent: card, files and sizes."""
    table = Table("file", "bytes", title=f"{plan.kind} {settings.repo}: {plan.title}")
    for file in plan.files:
        table.add_row(file.name, f"{file.size:,}")
    table.caption = f"{plan.bytes / MEBIBYTE:.1f} MiB, tag {settings.tag or plan.tag}"
    print(plan.card.strip())
    Console().print(table)


ZOO_COMMANDS: dict[str, Any] = {
    "list": list_drafters,
    "info": info,
    "pull": pull,
    "verify": verify_entries,
    "push": push,
}
