"""The module's own promises: what a checkpoint carries, what a step draws, what it builds."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer

from specblock_zoo.data.datamodule import FeatureDataModule
from specblock_zoo.errors import ConfigurationError, UnknownNameError
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.targets.local import load_target
from specblock_zoo.training.callbacks import save_folder
from specblock_zoo.training.module import AdamWSettings, DrafterModule, LossWeights, mix_seed
from specblock_zoo.training.rollout import RolloutSettings
from tests.support.fit import QUIET
from tests.support.tiny import TinyRun

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]


def trainer(folder: Path, **options: object) -> Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    return Trainer(default_root_dir=folder, **{"max_steps": 1, "limit_val_batches": 0, **quiet, **options})


def data(run: TinyRun) -> FeatureDataModule:
    return FeatureDataModule(str(run.cache), batch_tokens=400, val_fraction=0.1)


def fitted(run: TinyRun, folder: Path, **options: object) -> tuple[DrafterModule, Path]:
    """A module after one update, and its checkpoint."""
    module = DrafterModule(str(run.target), **options)  # type: ignore[arg-type]  # constructor arguments by name
    running = trainer(folder)
    running.fit(module, data(run))
    running.save_checkpoint(folder / "one.ckpt")
    return module, folder / "one.ckpt"


def test_a_checkpoint_alone_gives_the_drafter_back(tiny_run: TinyRun, tmp_path: Path) -> None:
    options = {"adamw": AdamWSettings(learning_rate=0.01), "weights": LossWeights(slot_weight=0.7)}
    module, file = fitted(tiny_run, tmp_path, drafter={"block_width": 3}, **options)
    loaded = DrafterModule.load_from_checkpoint(file)
    assert loaded.drafter is not None
    assert (loaded.adamw, loaded.weights) == (options["adamw"], options["weights"])
    assert loaded.drafter.config.block_width == 3
    for name, tensor in module.drafter.state_dict().items():
        assert torch.equal(loaded.drafter.state_dict()[name], tensor), name


def test_a_checkpoint_holds_the_drafter_and_nothing_of_the_target(tiny_run: TinyRun, tmp_path: Path) -> None:
    module, file = fitted(tiny_run, tmp_path)
    stored = torch.load(file, weights_only=True)["state_dict"]
    assert set(stored) == {f"drafter.{name}" for name in module.drafter.state_dict()}


def test_target_embeddings_and_head_are_not_trained(tiny_run: TinyRun, tmp_path: Path) -> None:
    module, _ = fitted(tiny_run, tmp_path)
    target, _ = load_target(tiny_run.target, torch.float32)
    assert torch.equal(module.token_embedding, target.get_input_embeddings().weight)
    assert torch.equal(module.teacher_head, target.lm_head.weight[module.drafter.draft_tokens])
    trained = {id(parameter) for group in module.optimizers().param_groups for parameter in group["params"]}
    assert trained == {id(parameter) for parameter in module.drafter.parameters()}


def test_norms_are_not_decayed(tiny_run: TinyRun, tmp_path: Path) -> None:
    module, _ = fitted(tiny_run, tmp_path, adamw=AdamWSettings(weight_decay=0.1))
    decays = {p.ndim > 1: group["weight_decay"] for group in module.optimizers().param_groups for p in group["params"]}
    assert decays == {True: 0.1, False: 0.0}


def test_the_drafter_records_where_it_comes_from(tiny_run: TinyRun, tmp_path: Path) -> None:
    module, _ = fitted(tiny_run, tmp_path, objective=RolloutSettings(block_sampling=(0.5,)))
    config, manifest = module.drafter.config, data(tiny_run).manifest
    assert config.train_blocks == 2
    assert tuple(config.tap_layers) == manifest.fingerprint.tap_layers
    assert config.target_name == str(tiny_run.target)
    assert config.tokenizer_hash == manifest.fingerprint.tokenizer_sha256
    assert config.vocab_coverage == manifest.vocab_coverage


def test_a_drafter_folder_can_be_continued(tiny_run: TinyRun, tmp_path: Path) -> None:
    first, _ = fitted(tiny_run, tmp_path / "first")
    save_folder(first.drafter, tmp_path / "drafter")
    still = AdamWSettings(learning_rate=0.0)
    second, _ = fitted(tiny_run, tmp_path / "second", initialise=str(tmp_path / "drafter"), adamw=still)
    for name, tensor in SpecBlockDrafter.from_pretrained(tmp_path / "drafter").state_dict().items():
        assert torch.equal(second.drafter.state_dict()[name], tensor), name


def test_the_seed_of_a_run_travels_in_its_checkpoint(tiny_run: TinyRun, tmp_path: Path) -> None:
    module, file = fitted(tiny_run, tmp_path)
    module.seed = 7
    module.trainer.save_checkpoint(file)
    assert DrafterModule.load_from_checkpoint(file).seed == 7


def test_draws_differ_by_step_seed_and_process_and_repeat_otherwise() -> None:
    draws = [mix_seed(seed, f"0/{step}", rank) for seed in (0, 1) for step in range(20) for rank in (0, 1)]
    assert len({draw % 2**32 for draw in draws}) == len(draws), "the generator keeps the low 32 bits only"
    assert mix_seed(3, "1/2", 0) == mix_seed(3, "1/2", 0)


def test_an_unknown_loss_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(UnknownNameError, match="rank_loss is 'none'; known: valid_prefix, ordinal"):
        DrafterModule("nowhere", objective=RolloutSettings(rank_loss="none"))


def test_other_data_modules_are_refused(tiny_run: TinyRun, tmp_path: Path) -> None:
    module = DrafterModule(str(tiny_run.target))
    with pytest.raises(ConfigurationError, match="NoneType"):
        trainer(tmp_path).fit(module, *[torch.utils.data.DataLoader([0])] * 2)


def test_default_settings_are_plain_values() -> None:
    for settings in (LossWeights(), AdamWSettings(), RolloutSettings()):
        assert all(isinstance(value, float | int | str | tuple) for value in asdict(settings).values())
