"""`specblock demo`: the same answers plainly and with a drafter; same text, fewer target forwards, less time."""

import json as json_format
from dataclasses import dataclass
from typing import Any

import torch
from jsonargparse.typing import PositiveInt
from rich.console import Console
from rich.table import Table
from rich.tree import Tree
from transformers.utils.logging import disable_progress_bar

from specblock_zoo.bench.ask import Answer
from specblock_zoo.bench.host import cpu_capability, peak_memory_mib, versions
from specblock_zoo.bench.records import TaskResult
from specblock_zoo.bench.report import DRAFTED, PLAIN, better_baseline, task_result
from specblock_zoo.bench.runner import Comparison, Pair, compare
from specblock_zoo.bench.tasks import Prompt, Task
from specblock_zoo.bench.timing import thread_limit
from specblock_zoo.cli.drawing import draw_round, progress
from specblock_zoo.cli.generate import DEFAULT_TARGET, DtypeName, dtype_of
from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.inference.prepack import can_prepack
from specblock_zoo.targets.local import fast_dtype, load_target

DEFAULT_DRAFTER = "specblock-smollm2-135m"
QUESTIONS = (
    ("chat", "My flight was cancelled and I have six free hours in a city I do not know. What should I do?"),
    ("code", "Write a Python function that returns the second largest number of a list, and explain each line."),
    ("maths", "A baker sells 14 loaves an hour for 6 hours and throws 9 away. How many loaves were baked?"),
)


@dataclass(frozen=True)
class Outcome:
    """What the demo found.

    Attributes:
        exact: the comparison in float32, which decides equality, tau and the drawn round.
        packed: linear layers of both models were prepacked for the comparison in the speed dtype.
        speeds: dtype name -> summed-up comparison in that dtype.
        speed_dtype: the dtype whose speedup is reported first.
        threads: of torch during the comparisons.
    """

    exact: Comparison
    speeds: dict[str, TaskResult]
    speed_dtype: str
    threads: int
    packed: bool


def demo(
    target: str = DEFAULT_TARGET,
    drafter: str = DEFAULT_DRAFTER,
    max_new_tokens: PositiveInt = 128,
    dtype: DtypeName = "auto",
    threads: PositiveInt = 2,
    json: bool = False,
) -> None:
    """Answers three questions plainly and with a drafter, and shows that the text is the same and the time is not.

    Equality is checked in float32. The speedup is tokens per second over the better plain baseline, the median over the
    questions of interleaved runs, in bfloat16 where the processor multiplies it natively and in float32 elsewhere. On a
    CPU both sides run on prepacked weights (`optimize_for_cpu`), plain decoding included.

    Args:
        target: name of an embedded target, a model folder or a Hub repository.
        drafter: name in the zoo (the tag may be left out) or a folder.
        max_new_tokens: at most that many tokens per answer.
        dtype: of the speedup; auto asks the processor.
        threads: of both models; one is better than two where other work takes the second core.
        json: print one JSON object and nothing else.
    """
    disable_progress_bar()
    console = Console(stderr=json, highlight=False)
    with thread_limit(threads):
        with console.status(f"loading {target} and {drafter} in float32"):
            model, tokenizer = load_target(target, dtype=torch.float32)
            pair = Pair(model, tokenizer, load_drafter(drafter))
        speed_dtype = dtype_of(dtype) or fast_dtype(model.device)
        prepack = model.device.type == "cpu" and can_prepack(speed_dtype)
        outcome = measure(pair, max_new_tokens, speed_dtype, prepack, console)
    if json:
        print(json_format.dumps(as_json(outcome), allow_nan=False))
    else:
        show(outcome, pair, console)


def demo_task() -> Task:
    """The built-in questions, of our own writing."""
    return Task("demo", tuple(Prompt(id=name, category=name, turns=(text,)) for name, text in QUESTIONS))


def measure(pair: Pair, max_new_tokens: int, speed_dtype: torch.dtype, prepack: bool, console: Console) -> Outcome:
    """Compares in float32, then in the speed dtype if that is another one; models are changed in place, not copied."""
    task = demo_task()
    if prepack and speed_dtype is torch.float32:
        pair.prepack()
    total = len(pair.cases()) * len(task.prompts)
    with progress(f"answering in {name_of(torch.float32)}", total, console) as advance:
        exact = compare(pair, task, max_new_tokens, advance)
    speeds = {name_of(torch.float32): summed(exact)}
    if speed_dtype is not torch.float32:
        pair.cast(speed_dtype)
        if prepack:
            pair.prepack()
        with progress(f"answering in {name_of(speed_dtype)}", total, console) as advance:
            speeds[name_of(speed_dtype)] = summed(compare(pair, task, max_new_tokens, advance))
    return Outcome(exact, speeds, name_of(speed_dtype), torch.get_num_threads(), prepack)


def summed(comparison: Comparison) -> TaskResult:
    """One result over all questions, against the better plain baseline."""
    return task_result("demo", comparison.records, better_baseline(comparison.records))


def name_of(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The result as one JSON-ready object.

    `equal`, `tau`, `prompts`, `tokens` and `loop_share` are of the float32 comparison; `speedup` (median over questions
    against `baseline`), its quartiles and `draft_share` are of `dtype`; `peak_memory_mib` is of the whole process.
    """
    exact, chosen = outcome.speeds[name_of(torch.float32)], outcome.speeds[outcome.speed_dtype]
    return {
        "equal": exact.equal == exact.prompts,
        "tau": exact.tau,
        "speedup": chosen.speedup.median,
        "draft_share": chosen.draft_share,
        "prompts": exact.prompts,
        "tokens": exact.new_tokens,
        "dtype": outcome.speed_dtype,
        "speedup_by_dtype": {name: result.speedup.median for name, result in outcome.speeds.items()},
        "speedup_quartiles": chosen.speedup.quartiles,
        "equal_by_dtype": {name: result.equal for name, result in outcome.speeds.items()},
        "baseline": chosen.baseline,
        "packed": outcome.packed,
        "loop_share": exact.loop_share,
        "threads": outcome.threads,
        "cpu_capability": cpu_capability(),
        "versions": versions(),
        "peak_memory_mib": round(peak_memory_mib(), 1),
    }


def show(outcome: Outcome, pair: Pair, console: Console) -> None:
    """Prints the answers, one round's tree and the figures."""
    for (name, question), answers in zip(QUESTIONS, outcome.exact.answers, strict=True):
        console.rule(name)
        console.print(question, style="bold", markup=False)
        plain, drafted = (pair.text(answers[case].tokens) for case in (PLAIN, DRAFTED))
        if answers[PLAIN].tokens == answers[DRAFTED].tokens:
            console.print("plain and drafted, token for token the same:", style="green")
            console.print(plain, markup=False)
        else:
            console.print("DIFFERENT. plain:", style="red")
            console.print(plain, markup=False)
            console.print("drafted:", style="red")
            console.print(drafted, markup=False)
    console.rule("one round")
    for answer in [answers[DRAFTED] for answers in outcome.exact.answers if answers[DRAFTED].stats.history][:1]:
        console.print(best_round(answer, pair))
    console.print("green: accepted; red: the target's own token; grey: drafted in vain; numbers: draft probabilities")
    console.rule("figures")
    console.print(figures(outcome))


def best_round(answer: Answer, pair: Pair) -> Tree:
    """The tree of the answer's round that accepted most (the first of them)."""
    rounds = answer.stats.history
    chosen = max(range(len(rounds)), key=lambda index: len(rounds[index].verdict.accepted_nodes))
    # The first new token comes from the prefill; the root of a round is the last token before it.
    root = sum(len(earlier.verdict.committed_tokens) for earlier in rounds[:chosen])
    return draw_round(rounds[chosen], answer.tokens[root], lambda token: pair.text([token], keep_special=True))


def figures(outcome: Outcome) -> Table:
    """The figures, one column per dtype."""
    table = Table("figure", *(f"{name}{' *' if name == outcome.speed_dtype else ''}" for name in outcome.speeds))
    results = outcome.speeds.values()
    table.add_row("answers equal to plain", *(f"{result.equal} of {result.prompts}" for result in results))
    table.add_row("tau (tokens per target forward)", *(f"{result.tau or 1:.2f}" for result in results))
    table.add_row("speedup, median over questions", *(f"{result.speedup.median:.2f}x" for result in results))
    table.add_row("quartiles", *("{:.2f} - {:.2f}".format(*result.speedup.quartiles) for result in results))
    table.add_row("compared with", *(result.baseline for result in results))
    table.add_row("draft share of a round", *(f"{result.draft_share:.0%}" for result in results))
    table.add_row("draft / verify / other ms", *(round_ms(result) for result in results))
    table.add_row("answers in a loop", *(f"{result.loop_share:.0%}" for result in results))
    layout = "prepacked weights on both sides" if outcome.packed else "plain weights"
    table.caption = f"* headline dtype: {dtype_reason()}; threads: {outcome.threads}; {layout}; interleaved runs"
    return table


def round_ms(result: TaskResult) -> str:
    """Where the time of a round goes."""
    return f"{result.draft_ms:.1f} / {result.verify_ms:.1f} / {result.other_ms:.1f}"


def dtype_reason() -> str:
    """Why `auto` takes the dtype it takes."""
    return f"{cpu_capability()}; emulated bfloat16 is slower than float32"
