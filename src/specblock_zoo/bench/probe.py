"""Real accepted length during training: decode a few prompts with the drafter as it is."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specblock_zoo.bench.methods import with_tree
from specblock_zoo.bench.tasks import check_fits, encode_prompt, read_task
from specblock_zoo.data.records import read_records
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.inference.stats import tau_of
from specblock_zoo.targets.local import load_target
from specblock_zoo.training.module import DrafterModule


class TauProbe(Callback):
    """Logs `tau` (committed tokens / decode rounds, prefill excluded) after every validation epoch.

    Greedy decoding with the drafter's own tree settings but without a cost curve, on the target in float32: a curve
    that was timed on a machine busy with training would draft otherwise from run to run. The validation step's
    `val_tau_teacher_forced` says what the drafter learned; this says what it is worth.

    Args:
        prompts: JSON lines of `turns` (the first is asked) or of `prompt_ids`, as in task files and answer records.
        num_prompts: that many, spread evenly over a task file, the first ones of answer records.
        max_new_tokens: at most that many tokens per prompt.
    """

    def __init__(self, prompts: str, num_prompts: int = 8, max_new_tokens: int = 64) -> None:
        self.prompts = Path(prompts)
        self.num_prompts = num_prompts
        self.max_new_tokens = max_new_tokens
        self.target: PreTrainedModel | None = None
        self.input_ids: tuple[Tensor, ...] = ()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.target is None and trainer.is_global_zero:
            self.target, tokenizer = load_target(cast(DrafterModule, pl_module).target, torch.float32)
            self.input_ids = tuple(read_prompts(self.prompts, tokenizer, self.num_prompts))
            for ids in self.input_ids:
                check_fits(ids.shape[1], self.max_new_tokens, self.target.config.max_position_embeddings)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        tau = self.measure(cast(DrafterModule, pl_module)) if trainer.is_global_zero else 0.0
        # Every process needs it: a ModelCheckpoint that monitors tau refuses to run without.
        pl_module.log("tau", trainer.strategy.broadcast(tau), prog_bar=True)

    def measure(self, module: DrafterModule) -> float:
        """Tau over all prompts, on the module's device."""
        target: Any = self.target
        target.to(module.device)
        drafter = with_tree(module.drafter, {"cost_curve": "off"})
        stats = []
        for ids in self.input_ids:
            ids = ids.to(module.device)
            target.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                assistant_model=drafter,
                max_new_tokens=self.max_new_tokens,
                do_sample=False,
            )
            stats.append(drafter.last_stats)
        return tau_of(stats)


def read_prompts(path: Path, tokenizer: PreTrainedTokenizerBase, count: int) -> Iterator[Tensor]:
    """Token ids `[1, length]` of `count` prompts of a task file or a file of answer records.

    Raises:
        ConfigurationError: there is no such file, or an answer record has messages instead of token ids.
        BadRecordError, EmptyDataError: the file is neither.
    """
    if _is_task(path):
        yield from (encode_prompt(tokenizer, prompt.turns[0]) for prompt in read_task(path, count).prompts)
        return
    for record, _ in zip(read_records([path]), range(count), strict=False):
        if record.prompt_ids is None:
            raise ConfigurationError(
                f"{record.where} has messages; the probe reads prompt_ids or turns.", "Give a file of either form."
            )
        yield torch.tensor([record.prompt_ids])


def _is_task(path: Path) -> bool:
    if path.suffix == ".gz" or not path.is_file():
        return False
    with path.open("rb") as lines:
        first = lines.readline()
    try:
        return "turns" in json.loads(first)
    except (ValueError, TypeError):
        return False
