"""Is a drafter sound beyond its mean? Acceptance curve, rank head, calibration, kinds of prompts, long contexts.

Usage: python benchmarks/drafter_health.py --tasks FOLDER [--cache CACHE] [--drafter NAME] [--run.seconds 300]

Along the text: what `specblock validate` counts on the cache's validation records. Decoded, greedily: the drafter's own
greedy chain over all blocks it was trained for gives the curve; its trees give the rest. Tasks take turns until half of
the time is over, lengths of context after them, so that every figure has its part whatever the time. Tau is the
drafter's alone; `--run.tree={}` leaves the tree as it ships, copies from the text included.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveInt
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specblock_zoo.bench.ask import Answer, Ask, Question
from specblock_zoo.bench.dialogue import Interviewer, Item
from specblock_zoo.bench.health import (
    SlotFigure,
    acceptance_curve,
    calibration_figures,
    judge_curve,
    rank_figures,
    tau_figures,
)
from specblock_zoo.bench.host import circumstances
from specblock_zoo.bench.methods import Drafted, Plain, Workbench
from specblock_zoo.bench.records import write_atomically
from specblock_zoo.bench.suites import TASKS, find_file
from specblock_zoo.bench.tasks import Prompt, encode_prompt, read_task, spread
from specblock_zoo.bench.timing import is_looping, thread_limit
from specblock_zoo.cli.bench import checked_drafter
from specblock_zoo.cli.demo import DEFAULT_DRAFTER
from specblock_zoo.cli.generate import DEFAULT_TARGET
from specblock_zoo.data.datamodule import FeatureDataModule
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.functional.acceptance import AcceptanceCounts
from specblock_zoo.functional.buckets import NUM_BUCKETS
from specblock_zoo.functional.objective import LossReport
from specblock_zoo.hub.zoo import locate
from specblock_zoo.inference.prepack import can_prepack
from specblock_zoo.structures import Round
from specblock_zoo.targets.local import load_target
from specblock_zoo.training.module import DrafterModule
from specblock_zoo.training.rollout import RolloutSettings

STARTS = 0.25
"""Later blocks along the text start from that share of the positions."""
KINDS = {"mt_bench": "chat", "humaneval": "code", "wmt23": "non-English", "math500": "mathematics"}
KINDS_SHARE, CONTEXTS_SHARE = 0.5, 0.9
GOLDEN = 0.618034
"""Multiples of it, less their whole part, lie evenly however many there are."""


@dataclass(frozen=True)
class Health:
    """How much is looked at.

    Attributes:
        seconds: of decoding, about: a question under way is finished.
        threads: of torch.
        prompts: of each task, spread evenly over it; all turns are asked.
        max_new_tokens: of each answer.
        batches: of validation records along the text, the longest first.
        lengths: prompt tokens of the long contexts.
        long_prompts: contexts of each length; `checked` of them are compared with plain decoding.
        tree: fields of `TreeSettings` in place of the drafter's own; none leaves it as it ships.
    """

    seconds: float = 300.0
    threads: PositiveInt = 2
    prompts: PositiveInt = 8
    max_new_tokens: PositiveInt = 48
    batches: PositiveInt = 8
    lengths: tuple[PositiveInt, ...] = (256, 1024, 2048, 3072)
    long_prompts: PositiveInt = 4
    checked: int = 1
    tree: dict[str, Any] = field(default_factory=lambda: {"lookup_tokens": 0})


HEALTH = Health()


@dataclass
class Seen:
    """Answers of one kind, or at one length; how many were compared with plain decoding's, and were equal."""

    answers: list[Answer] = field(default_factory=list)
    checked: int = 0
    equal: int = 0

    def figures(self) -> dict[str, Any]:
        """Tau with its interval, and what may flatter it."""
        own = tau_figures([(each.stats.committed, each.stats.rounds) for each in self.answers])
        looping = sum(is_looping(each.tokens) for each in self.answers)
        return {**own, "looping": looping, "checked": self.checked, "equal": self.equal}


class KeepReport(Callback):
    """Keeps the sums of a validation, which the module divides and forgets."""

    report: LossReport

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        metric: Any = pl_module.validation_metric
        self.report = metric.report


@dataclass(frozen=True)
class Examination:
    """A pair under examination, as answering methods of the benchmark."""

    interviewer: Interviewer
    asks: dict[str, Ask]
    run: Health

    @classmethod
    def of(cls, target: str, drafter: str, run: Health) -> "Examination":
        """Loads both, in float32. Errors as `specblock bench`."""
        model, tokenizer = load_target(target, torch.float32)
        bench = Workbench(target, model, tokenizer, load_target, checked_drafter, packed=can_prepack())
        config: Any = bench.drafter(drafter).config
        whole = {"num_blocks": config.train_blocks, "max_nodes": config.train_blocks * config.block_width}
        bare = {"min_path_prob": 0.0, "lookup_tokens": 0, "cost_curve": "off"}
        specs = {
            "plain": Plain(),
            "tree": Drafted(drafter=drafter, tree=run.tree),
            "chain": Drafted(drafter=drafter, mode="chain", tree={**whole, **bare}),
        }
        for spec in specs.values():
            spec.load(bench)
        bench.pack()
        asks = {name: spec.build(bench) for name, spec in specs.items()}
        return cls(Interviewer(model, tokenizer, run.max_new_tokens), asks, run)


def along_the_text(target: str, drafter: str, cache: str, batches: int) -> LossReport:
    """Sums over the cache's validation records, every slot of every block the drafter was trained for."""
    folder = locate(drafter, {})
    blocks = json.loads((folder / "config.json").read_text(encoding="utf-8"))["train_blocks"]
    objective = RolloutSettings(block_sampling=(STARTS,) * (blocks - 1))
    module = DrafterModule(target, initialise=str(folder), objective=objective)
    keep = KeepReport()
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=batches,
        callbacks=[keep],
    )
    trainer.validate(module, datamodule=FeatureDataModule(cache), verbose=False)
    return keep.report


def text_figures(report: LossReport) -> dict[str, Any]:
    """Curve and rank head along the text."""
    blocks, slots = report.rows.shape
    places = [(block, slot) for block in range(blocks) for slot in range(slots)]
    rows, hits = ({place: int(counts[place]) for place in places} for counts in (report.rows, report.hits))
    return {
        "curve": curve_figures(acceptance_curve(rows, hits)),
        "rank": rank_figures(report.confusion.sum((0, 1)).tolist()),
    }


def curve_figures(curve: Sequence[SlotFigure]) -> dict[str, Any]:
    """A curve and the verdict on it."""
    return {"alpha": [asdict(figure) for figure in curve], **judge_curve(curve)}


def read_tasks(folder: Path) -> dict[str, tuple[Prompt, ...]]:
    """The prompts of every known task that the folder has a file of."""
    found = {}
    for name in TASKS:
        try:
            file = find_file(name, folder)
        except ConfigurationError:
            continue
        found[name] = read_task(file).prompts
    if not found:
        raise ConfigurationError(f"{folder} holds no task file.", f"Put files there: {', '.join(TASKS)} (.jsonl).")
    return found


def questions(tasks: Mapping[str, Sequence[Prompt]], prompts: int) -> Iterator[tuple[str, Prompt]]:
    """Task and prompt, the tasks in turn, `prompts` of each spread evenly over it."""
    chosen = {name: [every[place] for place in spread(len(every), prompts)] for name, every in tasks.items()}
    for number in range(prompts):
        yield from ((name, some[number]) for name, some in chosen.items() if number < len(some))


def decoded(exam: Examination, asked: Sequence[tuple[str, Prompt]], in_time: Callable[[float], bool]) -> dict[str, Any]:
    """Curve, rank head, calibration and kinds, of as many questions as the time allows."""
    kinds: dict[str, Seen] = {}
    counts, ranks = AcceptanceCounts(), Counter[str]()
    rounds: list[list[Round]] = []
    for task, prompt in asked:
        if kinds and not in_time(KINDS_SHARE):
            break
        held = exam.interviewer.hold(exam.asks["tree"], Item(task, prompt))
        ranks.update(held.work.rank_confusion)
        rounds.append([round_ for answer in held.answers for round_ in answer.stats.history])
        for turn, answer in enumerate(held.answers):
            kinds.setdefault(label(task, turn), Seen()).answers.append(answer)
        first = Prompt(id=prompt.id, category=prompt.category, turns=prompt.turns[:1])
        chain = exam.interviewer.hold(exam.asks["chain"], Item(task, first))
        counts += chain.answers[0].stats.counts
    table = [[ranks[f"{guess}.{true}"] for guess in range(NUM_BUCKETS)] for true in range(NUM_BUCKETS)]
    return {
        "curve": curve_figures(acceptance_curve(counts.offered, counts.hit)),
        "rank": rank_figures(table),
        "calibration": calibration_figures(rounds),
        "kinds": {name: seen.figures() for name, seen in kinds.items()},
    }


def label(task: str, turn: int) -> str:
    """What the table calls a turn of a task."""
    kind = f" ({KINDS[task]})" if task in KINDS else ""
    return f"{task}{kind}, later turn" if turn else f"{task}{kind}"


def long_prompts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], length: int) -> Iterator[Tensor]:
    """Prompts of `length` tokens, without end: real text run together, from places all over it, as one message."""
    one, other = (encode_prompt(tokenizer, letter)[0].tolist() for letter in "ab")
    # What the template puts behind a message.
    after = next(place for place, pair in enumerate(zip(one[::-1], other[::-1], strict=False)) if pair[0] != pair[1])
    stream = tokenizer("\n\n".join(texts), add_special_tokens=False)["input_ids"]
    stream = stream * -(-2 * length // len(stream))
    places = len(stream) - length
    for number in count():
        at = int(number * GOLDEN * places) % places
        ids = encode_prompt(tokenizer, str(tokenizer.decode(stream[at : at + length])))
        whole = ids.shape[1]
        yield torch.cat((ids[:, : length - after], ids[:, whole - after :]), dim=1)


def contexts(exam: Examination, texts: Sequence[str], in_time: Callable[[float], bool]) -> dict[str, Any]:
    """Tau by length of the prompt, and whether the texts are plain decoding's; shorter ones first, in turn."""
    who, run = exam.interviewer, exam.run
    positions = who.model.config.max_position_embeddings
    lengths = [length for length in run.lengths if length + run.max_new_tokens <= positions]
    sources = {length: long_prompts(who.tokenizer, texts, length) for length in lengths}
    found = {length: Seen() for length in lengths}
    for number in range(run.long_prompts):
        for length in lengths:
            if number and not in_time(CONTEXTS_SHARE):
                break
            question = Question(next(sources[length]), run.max_new_tokens)
            answer, seen = exam.asks["tree"](question), found[length]
            seen.answers.append(answer)
            if number < run.checked:
                seen.checked += 1
                seen.equal += exam.asks["plain"](question).tokens == answer.tokens
    return {str(length): seen.figures() for length, seen in found.items()}


def tables(found: dict[str, Any]) -> Iterator[Table]:
    """The figures as tables."""
    parts = {"along the text": found.get("text"), "decoded": found["decoded"]}
    for name, figures in parts.items():
        if figures:
            yield curve_table(name, figures["curve"])
            yield rank_table(name, figures["rank"])
    yield calibration_table(found["decoded"]["calibration"])
    yield tau_table("kind", found["decoded"]["kinds"])
    yield tau_table("prompt tokens", found["contexts"])


def curve_table(name: str, curve: dict[str, Any]) -> Table:
    """Alpha by slot, with the verdict below."""
    said = "; ".join(f"block {each['block']}: {each['gain']:+.3f} ({each['recovers']})" for each in curve["boundaries"])
    caption = (
        f"falls within blocks: {curve['monotone']} {curve['rises']}; recovers at boundaries: {said or 'one block'}"
    )
    table = Table("block", "slot", "alpha", "n", title=f"acceptance, {name}", caption=caption)
    for each in curve["alpha"]:
        table.add_row(str(each["block"]), str(each["slot"]), f"{each['alpha']:.3f}", str(each["rows"]))
    return table


def rank_table(name: str, rank: dict[str, Any]) -> Table:
    """Confusion, each true bucket's row summing to 1."""
    share = {key: "-" if rank[key] is None else f"{rank[key]:.3f}" for key in ("accuracy", "majority_accuracy")}
    caption = f"accuracy {share['accuracy']}, majority {share['majority_accuracy']}, n {rank['rows']}"
    table = Table("true \\ predicted", *map(str, range(NUM_BUCKETS)), title=f"rank head, {name}", caption=caption)
    for bucket, row in enumerate(rank["confusion"]):
        table.add_row(str(bucket), *(f"{each:.2f}" for each in row))
    return table


def calibration_table(figures: dict[str, Any]) -> Table:
    """Bins of path probability."""
    paths, fitted = figures["paths"], figures["paths_fitted"]
    values = (paths["ece"], fitted["ece"], figures["log_loss"], figures["log_loss_fitted"])
    ece, ece_fitted, loss, loss_fitted = ("-" if value is None else f"{value:.4f}" for value in values)
    caption = f"ECE {ece} (fitted {ece_fitted}); log-loss {loss} (fitted {loss_fitted}) over {figures['outcomes']}"
    table = Table("path probability", "nodes", "predicted", "accepted", title="calibration", caption=caption)
    for each in paths["bins"]:
        shares = (f"{each[name]:.3f}" for name in ("predicted", "accepted"))
        table.add_row(f"{each['from']:.1f}-{each['to']:.1f}", str(each["nodes"]), *shares)
    return table


def tau_table(title: str, rows: dict[str, Any]) -> Table:
    """Tau with its interval, row by row."""
    table = Table(title, "n", "rounds", "tau", "95 %", "loops", "equal to plain")
    for name, row in rows.items():
        interval = "-" if row["interval"] is None else "{:.2f}-{:.2f}".format(*row["interval"])
        tau = "-" if row["tau"] is None else f"{row['tau']:.2f}"
        equal = f"{row['equal']} of {row['checked']}" if row["checked"] else ""
        table.add_row(name, str(row["n"]), str(row["rounds"]), tau, interval, str(row["looping"]), equal)
    return table


def main(
    tasks: Path,
    drafter: str = DEFAULT_DRAFTER,
    target: str = DEFAULT_TARGET,
    cache: str | None = None,
    out: Path | None = None,
    run: Health = HEALTH,
) -> int:
    """Examines a drafter, float32 and prepacked; 1 when a text differs from plain decoding's.

    Args:
        tasks: folder of task files (JSON lines of id, category, turns); long contexts are made of their text.
        drafter: name in the zoo or a folder.
        target: name of an embedded target, a model folder or a Hub repository.
        cache: feature cache with its draft vocabulary, for the figures along the text.
        out: a JSON file for all figures.
    """
    every = read_tasks(tasks)
    texts = [turn for prompts in every.values() for prompt in prompts for turn in prompt.turns]
    with thread_limit(run.threads):
        text = {} if cache is None else {"text": text_figures(along_the_text(target, drafter, cache, run.batches))}
        exam = Examination.of(target, drafter, run)
        began = time.monotonic()

        def in_time(share: float) -> bool:
            return time.monotonic() - began < share * run.seconds

        found: dict[str, Any] = {
            **text,
            "decoded": decoded(exam, list(questions(every, run.prompts)), in_time),
            "contexts": contexts(exam, texts, in_time),
            "drafter": drafter,
            "run": asdict(run),
            "seconds": round(time.monotonic() - began, 1),
            **circumstances(exam.interviewer.model),
        }
    if out is not None:
        write_atomically(out, json.dumps(found, indent=2) + "\n")
    console = Console()
    for table in tables(found):
        console.print(table)
    return int(any(row["equal"] < row["checked"] for row in found["contexts"].values()))


if __name__ == "__main__":
    raise SystemExit(auto_cli(main, as_positional=False))
