"""Arguments of a benchmark: which methods answer which tasks, and under what conditions."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from specblock_zoo.errors import ConfigurationError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
AT_LEAST_ONE = ("prompts", "max_new_tokens", "threads", "warm_up_tokens")


@dataclass(frozen=True)
class BenchSettings:
    """What a benchmark runs. A YAML file of these fields is a configuration; each is a flag as well.

    Attributes:
        methods: name -> `kind` (the name itself where left out) and the kind's parameters, see `methods.KINDS`.
        tasks: names in `suites.TASKS`, or paths of task files.
        target: name of an embedded target, a model folder or a Hub repository.
        out: folder of the run; resumed where it holds a part of this very run.
        tasks_dir: folder of task files (`mt_bench.jsonl`, ...); without one, prompts come from the Hub.
        prompts: per task, spread evenly over it.
        temperatures: 0 is greedy.
        seeds: of the sampling; greedy decoding, which draws nothing, runs once.
        max_new_tokens: at most that many per answer.
        dtype: of the target and of every drafter; float32 is where greedy texts must be equal.
        threads: of torch.
        packed: prepack all weights (`optimize_for_cpu`), plain decoding included; CPUs only.
        warm_up_tokens: of the untimed answer that each method gives first.
        reference: method that the others are compared with in a table of variants.
        verify_cost: also measure what one target forward over n nodes costs.
        dry_run: check everything, say what would run and how long, and answer nothing.
    """

    methods: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    tasks: list[str] = field(default_factory=list)
    target: str = "smollm2-135m"
    out: str | None = None
    tasks_dir: str | None = None
    prompts: int = 20
    temperatures: list[float] = field(default_factory=lambda: [0.0, 1.0])
    seeds: list[int] = field(default_factory=lambda: [0])
    max_new_tokens: int = 64
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: int = 2
    packed: bool = True
    warm_up_tokens: int = 16
    reference: str | None = None
    verify_cost: bool = True
    dry_run: bool = False

    def check(self) -> None:
        """Raises `ConfigurationError` for what cannot be run, naming the value."""
        for name in AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; expected at least 1.", "Correct it.")
        for name in ("methods", "tasks", "temperatures", "seeds"):
            values = getattr(self, name)
            if not values:
                raise ConfigurationError(f"The benchmark has no {name}.", "Give a configuration: --config FILE.")
            if len(set(values)) < len(values):
                raise ConfigurationError(f"{name} are {values}; one is there twice.", "Name each once.")
        if min(self.temperatures) < 0 or min(self.seeds) < 0:
            raise ConfigurationError(
                f"temperatures are {self.temperatures} and seeds {self.seeds}; expected none below 0.", "Correct them."
            )
        if self.reference is not None and self.reference not in self.methods:
            raise ConfigurationError(
                f"The reference is {self.reference!r}; the methods are {', '.join(self.methods)}.", "Name one of them."
            )

    @property
    def draws(self) -> tuple[tuple[float, int], ...]:
        """Every (temperature, seed) that each prompt is asked with."""
        return tuple(
            (temperature, seed)
            for temperature in self.temperatures
            for seed in (self.seeds if temperature > 0 else self.seeds[:1])
        )
