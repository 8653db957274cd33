"""`specblock bench`: run a benchmark, report it, and put its figures beside a drafter of the zoo."""

import sys
from pathlib import Path

from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from specblock_zoo.bench.campaign import Campaign, Loaders, describe_run, load, plan
from specblock_zoo.bench.folder import RunFolder
from specblock_zoo.bench.host import public_command
from specblock_zoo.bench.settings import BenchSettings
from specblock_zoo.bench.timing import thread_limit
from specblock_zoo.cli.drawing import progress
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.hub.pairing import check_pair
from specblock_zoo.hub.zoo import load_drafter
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
    with thread_limit(settings.threads):
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


BENCH_COMMANDS = {"run": run}
