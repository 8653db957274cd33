"""`specblock tune`: what a wider tree costs on this machine, stored for every later `generate`."""

from contextlib import nullcontext
from dataclasses import replace

import torch
from jsonargparse.typing import PositiveInt
from rich.console import Console
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from specblock_zoo.bench.timing import thread_limit
from specblock_zoo.bench.tune import BRANCH, can_plot, plot, table_of, tune
from specblock_zoo.cli.demo import DEFAULT_DRAFTER
from specblock_zoo.cli.drawing import progress
from specblock_zoo.cli.generate import DEFAULT_TARGET, DtypeName, dtype_of
from specblock_zoo.hub.pairing import check_pair
from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.inference.costs import folder_of_costs, key_of, store
from specblock_zoo.inference.modes import form_of
from specblock_zoo.inference.prepack import optimize_for_cpu
from specblock_zoo.models.base import Drafter
from specblock_zoo.targets.local import load_target
from specblock_zoo.targets.registry import family_of


def tune_costs(
    target: str = DEFAULT_TARGET,
    drafter: str = DEFAULT_DRAFTER,
    dtype: DtypeName = "auto",
    threads: PositiveInt | None = None,
    packed: bool = False,
    rounds: PositiveInt = 9,
) -> None:
    """Measures verify(n) and draft(starts) of a pair and stores the curve that `generate` sizes its trees by.

    Prints a table; draws a PNG beside the stored curve where matplotlib is installed. The curve holds for these shapes,
    dtype, threads, weight layout, device and torch version; a later `generate` under the same ones finds it.

    Args:
        target: name of an embedded target, a model folder or a Hub repository.
        drafter: name in the zoo (the tag may be left out) or a folder.
        dtype: of both models; auto takes bfloat16 where the device multiplies it natively, else float32.
        threads: of torch; its own default when not given.
        packed: measure prepacked weights (`optimize_for_cpu`).
        rounds: timed rounds; each runs every width once, and the medians are kept.

    Raises:
        UnknownNameError: no such drafter.
        TargetMismatchError: the drafter was made for another target.
        UnsupportedOptionError: the weights cannot be prepacked.
    """
    disable_progress_bar()
    console = Console(highlight=False)
    with thread_limit(threads) if threads else nullcontext():
        model, assistant = load_pair(target, drafter, dtype_of(dtype), packed)
        with progress("measuring", rounds + 1, console) as advance:
            tuning = tune(model, assistant, form_of(model), rounds, advance)
        key = key_of(model, assistant)
    console.print(table_of(tuning))
    # Where later blocks were timed, the curve serves calls that draft them and calls that do not.
    kinds = {False, any(kind == BRANCH for kind, _ in tuning.summaries)}
    file = [store(replace(key, branches=kind), tuning.costs, folder_of_costs()) for kind in sorted(kinds)][-1]
    print(f"{file}: {key.device}, {key.dtypes[0]}, {key.threads} threads{', packed' if packed else ''}")
    if can_plot():
        plot(tuning, file.with_suffix(".png"))
        print(file.with_suffix(".png"))
    if torch.get_num_threads() != key.threads:
        print(f"Later calls find it under torch.set_num_threads({key.threads}).")


def load_pair(target: str, drafter: str, dtype: torch.dtype | None, packed: bool) -> tuple[PreTrainedModel, Drafter]:
    """A target and its drafter, met and, if wished for, prepacked; errors as in `tune_costs`."""
    model, tokenizer = load_target(target, dtype=dtype)
    assistant: Drafter = load_drafter(drafter, dtype=model.dtype)
    check_pair(model, tokenizer, assistant)
    assistant.attach(family_of(model.config).embedding_weight(model))
    for network in (model, assistant) if packed else ():
        optimize_for_cpu(network)
    return model, assistant
