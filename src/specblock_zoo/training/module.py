"""The training system around a drafter: wiring only, the mathematics is in `rollout` and `functional`."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from transformers import PreTrainedModel

from specblock_zoo.data.datamodule import FeatureDataModule
from specblock_zoo.errors import ConfigurationError, check_values
from specblock_zoo.functional.objective import SLOT_WEIGHT, LossReport
from specblock_zoo.functional.vocab import VocabMap, draft_to_target, target_to_draft
from specblock_zoo.models import registry
from specblock_zoo.models.pretrained import PretrainedDrafter
from specblock_zoo.targets.identity import identify
from specblock_zoo.targets.parts import load_target_parts
from specblock_zoo.targets.registry import family_of
from specblock_zoo.training.checks import check_objective, check_same_drafter, check_same_vocabulary
from specblock_zoo.training.initialise import drafter_config
from specblock_zoo.training.methods import METHODS
from specblock_zoo.training.metrics import ReportMetric
from specblock_zoo.training.rollout import RolloutSettings
from specblock_zoo.training.schedules import warmup_cosine
from specblock_zoo.training.teachers import TEACHERS


@dataclass(frozen=True)
class LossWeights:
    """How slots and the rank head enter the total loss.

    Attributes:
        slot_weight: slot k weighs slot_weight ** k, > 0.
        rank_weight: weight of the rank loss beside the draft loss, >= 0.
        min_rows: slots with fewer rows in a batch weigh less, in proportion; 1 = plain means (paper).
        block_weight: block m weighs block_weight ** m, > 0.
    """

    slot_weight: float = SLOT_WEIGHT
    rank_weight: float = 1.0
    min_rows: int = 1
    block_weight: float = 1.0

    def __post_init__(self) -> None:
        check_values(
            self,
            {
                "slot_weight": (self.slot_weight > 0, "a number above 0"),
                "rank_weight": (self.rank_weight >= 0, "a number from 0"),
                "min_rows": (self.min_rows >= 1, "an integer from 1"),
                "block_weight": (self.block_weight > 0, "a number above 0"),
            },
        )


@dataclass(frozen=True)
class AdamWSettings:
    """AdamW and its schedule: linear warm-up, then a cosine to zero.

    Attributes:
        learning_rate: the peak.
        weight_decay: on matrices only, not on norms.
        betas: decay of the gradient's first and second moments.
        warmup_fraction: share of all updates, 0..1 (paper: 0.015).
    """

    learning_rate: float = 1e-4
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    warmup_fraction: float = 0.015

    def __post_init__(self) -> None:
        check_values(
            self,
            {
                "learning_rate": (self.learning_rate >= 0, "a number from 0"),
                "weight_decay": (self.weight_decay >= 0, "a number from 0"),
                "betas": (all(0 <= beta < 1 for beta in self.betas), "two numbers from 0, below 1"),
                "warmup_fraction": (0 <= self.warmup_fraction <= 1, "a share, 0..1"),
            },
        )


OBJECTIVE = RolloutSettings()
WEIGHTS = LossWeights()
ADAMW = AdamWSettings()

# Checkpoints store these constructor arguments, and are read with `weights_only=True`.
torch.serialization.add_safe_globals([LossWeights, AdamWSettings, RolloutSettings])


class DrafterModule(LightningModule):
    """Trains a drafter on cached features of its frozen target.

    The drafter is built in `setup`, when the data module's vocabulary map is known, or from a checkpoint, which carries
    its configuration: `DrafterModule.load_from_checkpoint(path).drafter` needs neither target nor data.

    Args:
        target: name of an embedded target, model folder, or Hub repository; the one the cache was built with.
        drafter: `model_type`, a kind of `models.registry` (default: specblock), and fields of its configuration that
            differ from the target's shapes and the defaults.
        initialise: `target` copies the target's last layers and fits the input layer to them, `scratch` draws random
            weights (paper), anything else is a drafter folder to continue from.
        objective: losses and the share of positions that later blocks start from.
        weights: slots and rank head in the total loss.
        adamw: optimizer and schedule.
    """

    drafter: PretrainedDrafter
    token_embedding: Tensor
    teacher_head: Tensor
    draft_ids: Tensor

    def __init__(
        self,
        target: str = "smollm2-135m",
        drafter: dict[str, Any] | None = None,
        initialise: str = "target",
        objective: RolloutSettings = OBJECTIVE,
        weights: LossWeights = WEIGHTS,
        adamw: AdamWSettings = ADAMW,
    ) -> None:
        super().__init__()
        check_objective(objective)
        self.save_hyperparameters()
        self.target = target
        self.drafter_options = dict(drafter or {})
        self.initialise = initialise
        self.objective = objective
        self.weights = weights
        self.adamw = adamw
        self.drafter = None  # type: ignore[assignment]  # built in setup, before anything else reads it
        self.seed = torch.initial_seed()
        # Of the drafter in a checkpoint that is about to be loaded: it brings its own weights.
        self.stored_config: dict[str, Any] | None = None

    def setup(self, stage: str) -> None:
        """Reads parts of the target, checks that the cache is its own, builds the drafter, keeps what losses need."""
        if hasattr(self, "teacher_head"):
            return
        data = self._data()
        model, tokenizer = load_target_parts(self.target, self._copied_layers)
        data.manifest.require_target(data.cache_dir or "online", identify(self.target, model, tokenizer), model.config)
        self.teacher = data.manifest.fingerprint.teacher
        vocab = data.vocab_map()
        if self.drafter is None:
            self.drafter = self._new_drafter(model, data, vocab)
        check_same_vocabulary(self.drafter.t2d, vocab.t2d)
        family = family_of(model.config)
        # Clones, so that the copied layers are freed; embeddings and head may be views of one file.
        self.register_buffer("token_embedding", family.embedding_weight(model).detach().clone(), persistent=False)
        self.register_buffer(
            "teacher_head", family.head_weight(model)[draft_to_target(vocab.d2t)].detach(), persistent=False
        )
        self.teacher_cap = family.logit_cap(model.config)
        self.register_buffer("draft_ids", target_to_draft(vocab.t2d), persistent=False)
        weights = self.weights
        shape = METHODS[self.drafter.config.model_type].report_shape(self.drafter.config, self.objective)
        self.validation_metric = ReportMetric(*shape, weights.slot_weight, weights.rank_weight, weights.block_weight)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        report = self._shared_step(batch, f"{self.current_epoch}/{batch_idx}")
        weights = self.weights
        loss = report.total(weights.slot_weight, weights.rank_weight, weights.min_rows, weights.block_weight)
        size = batch["input_ids"].shape[0]
        self.log("train_loss_nats", loss, prog_bar=True, batch_size=size)
        self.log("train_alpha_b0_s0", report.alpha()[0, 0], prog_bar=True, batch_size=size)
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        # The same starts every epoch, so that epochs can be compared.
        self.validation_metric.update(self._shared_step(batch, f"validation/{batch_idx}"))

    def on_validation_epoch_end(self) -> None:
        for name, value in self.validation_metric.compute().items():
            self.log(f"val_{name}", value, prog_bar=name == "tau_teacher_forced")
        self.validation_metric.reset()

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        settings = self.adamw
        matrices = [parameter for parameter in self.drafter.parameters() if parameter.ndim > 1]
        norms = [parameter for parameter in self.drafter.parameters() if parameter.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": norms, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=settings.betas)
        total = self.trainer.estimated_stepping_batches
        # With a bound on epochs, that has set the training data up. Lightning restores the place in it where it sets it
        # up after a checkpoint was read, and would not do so again: a resumed run would begin its pass anew.
        self.trainer.fit_loop._combined_loader = None
        schedule = warmup_cosine(optimizer, total, settings.warmup_fraction)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # Through JSON, so that only plain types enter the checkpoint.
        checkpoint["drafter_config"] = json.loads(self.drafter.config.to_json_string())
        checkpoint["seed"] = self.seed

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seed = checkpoint["seed"]
        config = registry.read_config(checkpoint["drafter_config"])
        if self.drafter is None:
            self.drafter = registry.kind_of(config.model_type).model(config)
            return
        check_same_drafter(self.drafter.config, config)
        check_same_vocabulary(self.drafter.t2d, checkpoint["state_dict"]["drafter.t2d"])

    def _data(self) -> FeatureDataModule:
        data = self.trainer.datamodule  # type: ignore[attr-defined]  # Lightning sets it in fit and validate
        if not isinstance(data, FeatureDataModule):
            raise ConfigurationError(
                f"The trainer has {type(data).__name__} as its data module; the drafter needs a FeatureDataModule.",
                "Pass datamodule=FeatureDataModule(cache_dir) to trainer.fit or trainer.validate.",
            )
        return data

    def _shared_step(self, batch: dict[str, Tensor], draw: str) -> LossReport:
        # A borrowed tensor does not follow the module between devices; the buffer does.
        self.drafter.attach(self.token_embedding)
        generator = torch.Generator().manual_seed(mix_seed(self.seed, draw, self.global_rank))
        teacher = TEACHERS[self.teacher](self.teacher_head, self.draft_ids, self.teacher_cap)
        rollout = METHODS[self.drafter.config.model_type].rollout
        return rollout(self.drafter, batch, teacher, self.objective, generator)

    @property
    def _copied_layers(self) -> int:
        """How many of the target's last layers a new drafter may be started from."""
        if self.initialise != "target" or self.stored_config is not None:
            return 0
        kind = registry.kind_of(self.drafter_options.get("model_type", registry.DEFAULT_KIND)).config
        return int(self.drafter_options.get("num_hidden_layers", kind.num_hidden_layers))

    def _new_drafter(self, target: PreTrainedModel, data: FeatureDataModule, vocab: VocabMap) -> PretrainedDrafter:
        manifest = data.manifest
        facts = {
            "tap_layers": list(manifest.fingerprint.tap_layers),
            "draft_vocab_size": len(vocab.d2t),
            "train_blocks": 1 + len(self.objective.block_sampling),
            "target_name": self.target,
            "target_revision": manifest.fingerprint.target_revision,
            "tokenizer_hash": manifest.fingerprint.tokenizer_sha256,
            "vocab_coverage": vocab.coverage,
        }
        if self.initialise in ("target", "scratch"):
            config = drafter_config(target.config, facts, self.drafter_options)
        elif self.stored_config is None:
            return self._stored_drafter(Path(self.initialise))
        else:
            # Sized by the cache, so that another one is refused in words when the checkpoint is loaded.
            sizes = {name: facts[name] for name in ("tap_layers", "draft_vocab_size")}
            config = registry.read_config(self.stored_config | sizes)
        drafter = registry.kind_of(config.model_type).model(config)
        drafter.d2t.copy_(vocab.d2t)
        drafter.t2d.copy_(vocab.t2d)
        if self.initialise == "target" and self.stored_config is None:
            drafter.attach(family_of(target.config).embedding_weight(target))
            METHODS[config.model_type].initialise(drafter, target, data.train_dataloader())
        return drafter

    def _stored_drafter(self, folder: Path) -> PretrainedDrafter:
        if not (folder / "config.json").is_file():
            raise ConfigurationError(
                f"model.initialise is {str(folder)!r}; expected target, scratch, or a drafter's folder.",
                "Correct the name, or give a folder that holds config.json and model.safetensors.",
            )
        drafter: PretrainedDrafter = registry.load(folder, dtype=torch.float32)
        return drafter.train()


def mix_seed(seed: int, draw: str, rank: int) -> int:
    """A seed for one draw of one process: the same for the same arguments in every run, resumed or not, 63 bits."""
    return random.Random(f"{seed}/{draw}/{rank}").getrandbits(63)
