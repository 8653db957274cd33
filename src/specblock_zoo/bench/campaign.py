"""A benchmark from its settings to its records: methods x tasks x temperatures, interleaved prompt by prompt."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specblock_zoo.bench.ask import Ask, Question
from specblock_zoo.bench.cost import verify_cost
from specblock_zoo.bench.dialogue import Interviewer, Item
from specblock_zoo.bench.folder import RUN_VERSION, Run, RunFolder, hash_identity
from specblock_zoo.bench.host import circumstances, cpu_capability, device_name, source_commit, versions
from specblock_zoo.bench.methods import Drafted, LoadDrafter, LoadTarget, Method, Workbench, read_methods
from specblock_zoo.bench.records import Provenance
from specblock_zoo.bench.settings import DTYPES, BenchSettings
from specblock_zoo.bench.suites import load_task
from specblock_zoo.bench.tasks import Task
from specblock_zoo.bench.timing import time_call, turn_order
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.inference.prepack import can_prepack
from specblock_zoo.models.configuration import DrafterConfig, drafter_fields
from specblock_zoo.targets.identity import identify

Advance = Callable[[], None]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Loaders:
    """How models are found by name, see `methods.Workbench`."""

    target: LoadTarget
    drafter: LoadDrafter


@dataclass(frozen=True)
class Plan:
    """A benchmark whose names and files are known to be right; nothing is loaded yet."""

    settings: BenchSettings
    methods: tuple[Method, ...]
    tasks: tuple[Task, ...]

    @property
    def items(self) -> tuple[Item, ...]:
        """Every item: task after task within a prompt's number, so that a run cut short has the same of each task."""
        return tuple(
            Item(task.name, task.prompts[index], temperature, seed)
            for index in range(self.settings.prompts)
            for temperature, seed in self.settings.draws
            for task in self.tasks
        )

    @property
    def turns(self) -> Iterator[tuple[Item, int, str]]:
        """Every item, its number among those of its task, temperature and seed, and the name of these."""
        together = len(self.items) // self.settings.prompts
        for index, item in enumerate(self.items):
            yield item, index // together, f"{item.task} {item.temperature} {item.seed}"


def plan(settings: BenchSettings) -> Plan:
    """Checks everything that needs no model.

    Raises:
        ConfigurationError: a value is out of range, a task file is absent, or has fewer prompts than asked for.
        UnknownNameError: an unknown kind of method, or task.
        BadRecordError: a line of a task file is broken.
    """
    settings.check()
    methods = read_methods(settings.methods)
    folder = None if settings.tasks_dir is None else Path(settings.tasks_dir).expanduser()
    tasks = tuple(load_task(name, folder, settings.prompts) for name in settings.tasks)
    if len({task.name for task in tasks}) < len(tasks):
        raise ConfigurationError(
            f"The tasks are {', '.join(task.name for task in tasks)}; one is there twice.", "Name each once."
        )
    if settings.packed and not can_prepack(DTYPES[settings.dtype]):
        raise ConfigurationError(
            f"{settings.dtype} weights cannot be prepacked by this torch build on this processor.",
            "Set packed to false.",
        )
    return Plan(settings, methods, tasks)


def load(planned: Plan, loaders: Loaders) -> Workbench:
    """Loads target and drafters, and checks that everything fits together before anything is timed.

    Raises:
        TargetMismatchError: a drafter was made for another target.
        PromptTooLongError: a prompt and its answers do not fit the target.
        SpecBlockError: whatever the loaders say.
    """
    settings = planned.settings
    model, tokenizer = loaders.target(settings.target, DTYPES[settings.dtype])
    bench = Workbench(settings.target, model, tokenizer, loaders.target, loaders.drafter, settings.packed)
    for method in planned.methods:
        method.spec.load(bench)
    interviewer = Interviewer(model, tokenizer, settings.max_new_tokens)
    bench.longest = max(interviewer.room_for(prompt) for task in planned.tasks for prompt in task.prompts)
    return bench


def describe_run(planned: Plan, bench: Workbench, command: str) -> Run:
    """What this run is; drafters are told apart by weights and configuration, assistants by weights.

    To be called before prepacking.
    """
    settings = planned.settings
    target = identify(settings.target, bench.model, bench.tokenizer)
    facts = ("target", "temperatures", "seeds", "prompts", "max_new_tokens", "dtype", "threads", "packed")
    identity: dict[str, Any] = {name: getattr(settings, name) for name in facts}
    identity |= {f"target {name}": value for name, value in asdict(target).items() if name != "name"}
    identity |= {
        f"method {each.name}": {"kind": each.kind, **each.spec.model_dump(mode="json")} for each in planned.methods
    }
    identity |= {f"task {task.name}": hash_prompts(task) for task in planned.tasks}
    identity |= {f"drafter {name}": hash_weights(drafter) for name, drafter in bench.drafters.items()}
    identity |= {f"drafter {name} configuration": hash_config(each.config) for name, each in bench.drafters.items()}
    identity |= {f"assistant {name}": hash_weights(assistant) for name, assistant in bench.assistants.items()}
    return Run(
        version=RUN_VERSION,
        sha256=hash_identity(identity),
        identity=identity,
        target=Path(settings.target).name if Path(settings.target).is_dir() else settings.target,
        methods={each.name: each.kind for each in planned.methods},
        drafters={each.name: each.spec.drafter for each in planned.methods if isinstance(each.spec, Drafted)},
        reference=settings.reference,
        provenance=Provenance(
            commit=source_commit(),
            command=command,
            device=device_name(bench.model.device),
            cpu_capability=cpu_capability(),
            threads=settings.threads,
            packed=settings.packed,
            dtype=settings.dtype,
            seed=settings.seeds[0],
            max_new_tokens=settings.max_new_tokens,
            versions=versions(),
        ),
    )


def hash_prompts(task: Task) -> str:
    """SHA-256 over the prompts of a task, twelve digits."""
    return hashlib.sha256("\n".join(prompt.model_dump_json() for prompt in task.prompts).encode()).hexdigest()[:12]


def hash_config(config: DrafterConfig) -> str:
    """SHA-256 over all fields of a drafter's configuration, its tree settings among them, twelve digits."""
    facts = {name: getattr(config, name) for name in drafter_fields(type(config))}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def hash_weights(network: nn.Module) -> str:
    """SHA-256 over names and values of a network's tensors, twelve digits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:12]


class Campaign:
    """A benchmark that is ready to run: `estimate` after `warm_up`, then `run`."""

    def __init__(self, planned: Plan, bench: Workbench, folder: RunFolder) -> None:
        self.plan, self.bench, self.folder = planned, bench, folder
        self.interviewer = Interviewer(bench.model, bench.tokenizer, planned.settings.max_new_tokens)
        bench.pack()
        self.asks: dict[str, Ask] = {method.name: method.spec.build(bench) for method in planned.methods}
        self.kinds = {method.name: method.kind for method in planned.methods}

    def remaining(self) -> list[tuple[Item, list[str]]]:
        """Items with the methods that have not answered them yet, in changing order (`turn_order`)."""
        names, done = list(self.asks), self.folder.done
        due = (
            (item, [name for name in turn_order(names, turn, series) if (name, item.place) not in done])
            for item, turn, series in self.plan.turns
        )
        return [(item, left) for item, left in due if left]

    def warm_up(self) -> dict[str, float]:
        """Lets every method answer twice, untimed by any record; returns seconds per token of the second answer."""
        settings, speeds = self.plan.settings, {}
        prompt = self.plan.tasks[0].prompts[0]
        tokens = min(settings.warm_up_tokens, settings.max_new_tokens)
        question = Question(self.interviewer.encoded(prompt.turns[:1]), tokens)
        for name, ask in self.asks.items():
            ask(question)
            timed = time_call(ask, question)
            speeds[name] = timed.seconds / max(1, len(timed.outcome.tokens))
        return speeds

    def estimate(self, speeds: dict[str, float]) -> float:
        """Seconds that the remaining answers take if each is as long as it may be."""
        tokens = self.plan.settings.max_new_tokens
        return sum(speeds[name] * tokens * len(item.prompt.turns) for item, names in self.remaining() for name in names)

    def run(self, advance: Advance = lambda: None) -> None:
        """Answers what remains; every record is on the disk before the next answer begins."""
        if self.plan.settings.verify_cost and not self.folder.run.verify_cost:
            costs = verify_cost(self.bench.model)
            self.folder.run = self.folder.run.model_copy(update={"verify_cost": costs})
            self.folder.save()
        made = circumstances(self.bench.model)
        for item, names in self.remaining():
            for name in names:
                held = self.interviewer.hold(self.asks[name], item)
                self.folder.append(held.record(name, self.kinds[name], item, made))
                advance()
