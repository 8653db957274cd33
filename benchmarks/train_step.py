"""What a training step costs: the lean one against the plain one, in memory and time, at two vocabulary sizes.

Usage: python benchmarks/train_step.py [--rounds 5]

Plain computes every block at every position with dense masks and holds the logits of all slots at once; lean is what
`specblock fit` runs. A third row leaves the sampling of later starts out of lean. All make the same update: forward,
backward, clipping, AdamW. Steps alternate in one process for time; memory is the peak of a process that runs one kind
only. Text and weights are made up so that half of the rows survive each slot, as in a drafter half trained.

Prints a table and ends with one JSON line: per setting, lean / plain.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jsonargparse import auto_cli
from rich.console import Console
from rich.table import Table
from torch import Tensor

from specblock_zoo.bench.gpu import half_right
from specblock_zoo.bench.host import status_mib
from specblock_zoo.bench.timing import interleave, summarize
from specblock_zoo.functional.objective import LossReport, release_objective
from specblock_zoo.functional.vocab import target_to_draft
from specblock_zoo.models.specblock import SpecBlockConfig, SpecBlockDrafter
from specblock_zoo.models.specblock.dense import dense_blocks
from specblock_zoo.training.rollout import RolloutSettings
from specblock_zoo.training.specblock import rollout
from specblock_zoo.training.teachers import Teacher

TEACHER_SCALE = 20.0


@dataclass(frozen=True)
class Setting:
    """Sizes of one comparison; the drafter has SmolLM2-135M's shapes but for its draft vocabulary."""

    draft_vocab: int
    sequences: int
    length: int
    layers: int = 2
    hidden: int = 576


SETTINGS = {"smollm2": Setting(8192, 8, 256), "d32k": Setting(32_000, 4, 192), "tiny": Setting(256, 2, 24, 2, 64)}
SHOWN = ("smollm2", "d32k")
VARIANTS = ("plain", "lean", "lean, no sampling")
FORWARD_SAMPLING = {"lean": RolloutSettings(), "lean, no sampling": RolloutSettings(block_sampling=(1.0, 1.0))}


class Bench:
    """A drafter, its optimizer and one batch; `step` makes one update in the way its name says."""

    def __init__(self, setting: Setting) -> None:
        torch.manual_seed(0)
        heads = setting.hidden // 64
        config = SpecBlockConfig(
            draft_vocab_size=setting.draft_vocab,
            hidden_size=setting.hidden,
            target_hidden_size=setting.hidden,
            intermediate_size=setting.hidden * 8 // 3,
            num_hidden_layers=setting.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 3 or 1,
        )
        self.drafter = SpecBlockDrafter(config)
        self.drafter.attach(torch.randn(config.vocab_size, setting.hidden))
        half_right(self.drafter)
        self.teacher = Teacher(torch.randn(setting.draft_vocab, setting.hidden), target_to_draft(self.drafter.t2d))
        self.batch = make_batch(setting, self.teacher)
        # A rate of zero: an update costs the same, and the share of surviving rows stays what it is.
        self.optimizer = torch.optim.AdamW(self.drafter.parameters(), lr=0.0, foreach=True)

    def step(self, variant: str) -> LossReport:
        """One update; returns the report without its graph."""
        self.optimizer.zero_grad()
        report = self.plain() if variant == "plain" else self.lean(FORWARD_SAMPLING[variant])
        report.total().backward()
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), 1.0)
        self.optimizer.step()
        return report.detach()

    def lean(self, settings: RolloutSettings) -> LossReport:
        """The training step's forward."""
        return rollout(self.drafter, self.batch, self.teacher, settings, torch.Generator().manual_seed(0))

    def plain(self) -> LossReport:
        """Every block everywhere, all logits at once."""
        tokens, depths = self.batch["input_ids"], (2, 2)
        blocks = dense_blocks(self.drafter, self.batch["features"][:, :-1], tokens[:, 1:], depths)
        logits = F.linear(self.batch["last_hidden"][:, 1:].to(self.teacher.head.dtype), self.teacher.head)
        counted = F.pad(self.batch["loss_mask"][:, 2:], (0, 1))
        everything = torch.ones(logits.shape[-1], dtype=torch.bool)
        return release_objective(blocks, logits, counted, everything, (0, 2, 4))


def make_batch(setting: Setting, teacher: Teacher) -> dict[str, Tensor]:
    """Right-padded text of draft tokens 0 and 1, most of it supervised, of which the teacher is sure."""
    shape = (setting.sequences, setting.length)
    tokens = torch.randint(2, shape)
    lengths = torch.linspace(0.88, 1, setting.sequences).mul(setting.length).long()
    inside = torch.arange(setting.length) < lengths[:, None]
    following = F.pad(tokens[:, 1:], (0, 1))
    return {
        "input_ids": tokens,
        "attention_mask": inside,
        "loss_mask": inside & (torch.arange(setting.length) > setting.length // 8),
        "features": torch.randn(*shape, 3 * setting.hidden).bfloat16(),
        "last_hidden": (TEACHER_SCALE * F.normalize(teacher.head[following], dim=-1)).bfloat16(),
    }


@dataclass(frozen=True)
class Memory:
    """MiB: resident before the first step, at the peak."""

    before: float
    peak: float


def own_memory(setting: str, variant: str) -> Memory:
    """Two updates of one kind in this process."""
    bench = Bench(SETTINGS[setting])
    before = status_mib("VmRSS")
    for _ in range(2):
        bench.step(variant)
    return Memory(before, status_mib("VmHWM"))


def measure_memory(setting: str, variant: str) -> Memory:
    """The same in a fresh process."""
    command = [sys.executable, __file__, f"--only={setting}", f"--variant={variant}"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Memory(**json.loads(output.splitlines()[-1]))


def compare(setting: str, rounds: int, table: Table) -> dict[str, float]:
    """Measures one setting, adds its rows to the table and returns lean / plain."""
    memory = {variant: measure_memory(setting, variant) for variant in VARIANTS}
    bench = Bench(SETTINGS[setting])
    cases: dict[str, Callable[[int], LossReport]] = {
        variant: lambda _, variant=variant: bench.step(variant) for variant in VARIANTS
    }
    timed = interleave(cases, range(rounds), warm_up=0)
    seconds = {variant: summarize([call.seconds for call in calls]) for variant, calls in timed.items()}
    for variant in VARIANTS:
        rows = timed[variant][0].outcome.rows
        table.add_row(
            setting,
            variant,
            f"{int(rows.sum()):,}",
            f"{memory[variant].peak:,.0f}",
            f"{memory[variant].peak - memory[variant].before:,.0f}",
            f"{seconds[variant].median:.2f} ({seconds[variant].low:.2f}-{seconds[variant].high:.2f})",
        )
    return {
        "memory_ratio": round(memory["lean"].peak / memory["plain"].peak, 3),
        "time_ratio": round(seconds["lean"].median / seconds["plain"].median, 3),
    }


def main(rounds: int = 5, only: str | None = None, variant: str | None = None) -> None:
    """Compares the training steps.

    Args:
        rounds: timed steps of each kind.
        only: one setting instead of both: smollm2, d32k, tiny.
        variant: print the memory of this kind of step instead; needs `only`.
    """
    if variant is not None:
        print(json.dumps(vars(own_memory(str(only), variant))))
        return
    table = Table("setting", "step", "rows graded", "peak MiB", "of it the step's", "s per step (quartiles)")
    ratios = {name: compare(name, rounds, table) for name in ([only] if only else SHOWN)}
    Console().print(table)
    print(json.dumps(ratios))


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
