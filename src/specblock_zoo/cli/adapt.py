"""`specblock adapt`: replay a stream of prompts under several adaptation policies and report what each gained."""

import json
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from jsonargparse.typing import PositiveInt
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from specblock_zoo.adaptation.policies import POLICIES, check_policies, drafter_of
from specblock_zoo.adaptation.saving import base_of
from specblock_zoo.adaptation.session import AdaptiveDrafter, checked
from specblock_zoo.adaptation.settings import AdaptationConfig
from specblock_zoo.bench.folder import measuring_into
from specblock_zoo.bench.records import write_atomically
from specblock_zoo.bench.replay import Replay, Stream, arrivals, asker
from specblock_zoo.bench.replay_plot import check_plotting, plot_replay
from specblock_zoo.bench.replay_summary import summarize_replay
from specblock_zoo.bench.tasks import check_fits, encode_prompt
from specblock_zoo.cli.generate import DEFAULT_TARGET, DtypeName, dtype_of
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.hub.pairing import check_pair
from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.inference.prepack import optimize_for_cpu
from specblock_zoo.targets.local import load_target

SUMMARY, PLOT = "summary.json", "actions.png"


@dataclass(frozen=True)
class ReplaySettings:
    """What is replayed with.

    Attributes:
        target: name of an embedded target, a model folder or a Hub repository.
        drafter: name in the zoo (the tag may be left out) or a folder.
        policies: asked in turn with each prompt.
        max_new_tokens: at most that many tokens of answer.
        dtype: of both models; auto takes bfloat16 where the device multiplies it natively, else float32.
        limit: prompts of each segment at most.
        save_every: queries between two saves of all states, from which an interrupted replay goes on.
    """

    target: str = DEFAULT_TARGET
    drafter: str = "specblock-smollm2-135m"
    policies: list[str] = field(default_factory=lambda: list(POLICIES))
    max_new_tokens: PositiveInt = 64
    dtype: DtypeName = "auto"
    limit: PositiveInt | None = None
    save_every: PositiveInt = 50


STREAM, REPLAY, ADAPTATION = Stream(), ReplaySettings(), AdaptationConfig()


def adapt(
    tasks: str | None = None,
    out: str = "adaptation",
    stream: Stream = STREAM,
    replay: ReplaySettings = REPLAY,
    adaptation: AdaptationConfig = ADAPTATION,
) -> None:
    """Replays prompts under adaptation policies, interleaved; writes records.jsonl, summary.json and a plot.

    Run again with the same folder, it goes on where it was interrupted.

    Args:
        tasks: folder of task files (JSON lines of id, category, turns) that the stream names.
        out: folder for records, states, summary and plot.
        stream: which prompts arrive, and in which order.
        replay: models, policies and lengths.
        adaptation: how drafters adapt.

    Raises:
        ConfigurationError: no task folder, an empty stream, or a folder of another replay.
        UnknownNameError: no such policy or drafter.
        PromptTooLongError: before anything is decoded.
    """
    if tasks is None:
        raise ConfigurationError("No folder of task files is named.", "Add --tasks FOLDER.")
    check_policies(tuple(replay.policies))
    check_plotting()
    every = arrivals(stream, Path(tasks), replay.limit)
    disable_progress_bar()
    model, tokenizer = load_target(replay.target, dtype=dtype_of(replay.dtype))
    drafter = checked(load_drafter(replay.drafter, dtype=model.dtype))
    check_pair(model, tokenizer, drafter)
    encode = partial(encode_prompt, tokenizer)
    positions = model.config.max_position_embeddings
    for prompt in {arrival.prompt.id: arrival.prompt for arrival in every}.values():
        check_fits(encode(prompt.turns[0]).shape[1], replay.max_new_tokens, positions)
    if adaptation.prepack:
        optimize_for_cpu(model)
    drafters = {policy: drafter_of(policy, drafter, adaptation) for policy in replay.policies}
    ask = asker(model, encode, replay.max_new_tokens)
    facts = {name: getattr(replay, name) for name in ("target", "drafter", "max_new_tokens")}
    facts |= {
        "dtype": str(model.dtype),
        "weights": base_of(drafter),
        "adaptation": json.loads(json.dumps(asdict(adaptation), default=str)),
    }
    run = Replay(stream.name, drafters, ask, Path(out), replay.save_every, facts)
    with measuring_into(run.out), Progress(transient=True) as bar:
        shown = bar.add_task(stream.name, total=len(every) * len(drafters))
        records = run.run(every, lambda: bar.advance(shown))
    for each in drafters.values():
        if isinstance(each, AdaptiveDrafter):
            each.close()
    summary = summarize_replay(records)
    write_atomically(run.out / SUMMARY, json.dumps(summary, indent=2) + "\n")
    plot_replay(records, run.out / PLOT)
    Console().print(as_table(stream.name, summary[stream.name]))


def as_table(name: str, figures: dict[str, dict[str, object]]) -> Table:
    """A stream's figures for the terminal."""
    columns = ("net_tokens_per_s", "net_tokens_per_s_ratio", "tau", "update_share", "regret")
    table = Table("policy", *columns, title=name, title_justify="left")
    for policy, each in figures.items():
        table.add_row(policy, *(f"{each[column]:.3f}" if column in each else "" for column in columns))
    return table
