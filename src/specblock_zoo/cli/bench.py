"""`specblock bench`: run a benchmark, report it, and put its figures beside a drafter of the zoo."""

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from specblock_zoo.bench import markdown
from specblock_zoo.bench.campaign import Campaign, Loaders, describe_run, load, plan
from specblock_zoo.bench.folder import RECORDS_FILE, RunFolder, measuring_into, read_folder
from specblock_zoo.bench.host import public_command
from specblock_zoo.bench.plots import draw_all
from specblock_zoo.bench.records import write_atomically, write_records, write_results
from specblock_zoo.bench.results import behind, method_of, results_of
from specblock_zoo.bench.settings import BenchSettings
from specblock_zoo.bench.summary import details_json, summarize_records, summary_json
from specblock_zoo.bench.timing import thread_limit
from specblock_zoo.cli.drawing import progress
from specblock_zoo.errors import ConfigurationError, UnknownNameError
from specblock_zoo.hub.pairing import check_pair
from specblock_zoo.hub.zoo import load_drafter, resolve
from specblock_zoo.models.base import Drafter
from specblock_zoo.targets.local import load_target


def run(settings: BenchSettings) -> None:
    """Answers every prompt with every method, interleaved, into a folder that a later call resumes.

    Args:
        settings: what to run; see `configs/bench`.

    Raises:
        SpecBlockError: bad input, found before anything is timed; see `plan`, `load` and `RunFolder.open`.
    """
    disable_progress_bar()
    console = Console(stderr=True, highlight=False)
    planned = plan(settings)
    if settings.out is None:
        raise ConfigurationError("No folder is named.", "Add --out DIR.")
    with thread_limit(settings.threads), measuring_into(Path(settings.out)):
        with console.status(f"loading {settings.target} and its drafters"):
            bench = load(planned, Loaders(load_target, checked_drafter))
            described = describe_run(planned, bench, public_command(sys.argv))
        folder = RunFolder.open(Path(settings.out), described)
        campaign = Campaign(planned, bench, folder)
        left = sum(len(names) for _, names in campaign.remaining())
        with console.status("warming up"):
            minutes = campaign.estimate(campaign.warm_up()) / 60
        total = len(planned.items) * len(planned.methods)
        console.print(
            f"{len(planned.methods)} methods x {len(planned.items)} questions: {total} answers, {left} to do, "
            f"at most about {minutes:.0f} minutes"
        )
        if settings.dry_run:
            return
        with progress("answering", left, console) as advance:
            campaign.run(advance)
    console.print(f"{settings.out}: done. Next: specblock bench report {settings.out}")


def checked_drafter(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Drafter:
    """A drafter in the target's dtype that is known to belong to the target."""
    drafter: Drafter = load_drafter(name, dtype=model.dtype)
    check_pair(model, tokenizer, drafter)
    return drafter


def report(folder: Path) -> None:
    """Writes summary.json, details.json, report.md and the plots of a run into its folder; the run may be unfinished.

    Args:
        folder: of the run.

    Raises:
        ConfigurationError, BadRecordError, EmptyDataError: the folder holds no run, or no record.
        MissingPackageError: matplotlib is not installed.
    """
    summary = summarize_records(*read_folder(folder))
    pictures = draw_all(summary, folder)
    for name, content in (("summary.json", summary_json(summary)), ("details.json", details_json(summary))):
        write_atomically(folder / name, json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_atomically(folder / "report.md", markdown.report(summary, pictures))
    print(f"{folder / 'report.md'}: {len(summary.records)} records, {len(pictures)} plots")


def results(folder: Path, drafter: str, method: str | None = None, out: Path | None = None) -> None:
    """Writes a drafter's results.json, and the records behind it, from a run.

    Args:
        folder: of the run.
        drafter: name in the zoo (the tag may be left out), or its folder.
        method: of the run that stands for the drafter; when not given the one that drafts as it ships, else the first.
        out: folder to write to; the drafter's own when not given.

    Raises:
        ConfigurationError: the run did not measure this drafter.
        UnknownNameError: no such drafter.
    """
    run, records = read_folder(folder)
    home = resolve(drafter)
    chosen = method or method_of(run, lambda name: name == drafter or folder_of(name) == home.resolve())
    found = results_of(run, records, chosen, home.resolve().name)
    target = out or home
    target.mkdir(parents=True, exist_ok=True)
    write_records(behind(records, chosen), target / RECORDS_FILE)
    print(f"{write_results(found, target)}: {found.overall.prompts} prompts of method {chosen}")


def folder_of(drafter: str) -> Path | None:
    """Where a drafter of a run's configuration lies, if it still does."""
    try:
        return resolve(drafter).resolve()
    except UnknownNameError:
        return None


BENCH_COMMANDS: dict[str, Any] = {"run": run, "report": report, "results": results}
