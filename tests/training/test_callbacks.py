"""The drafter's folder is always whole and always loads."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.folders import read_tensors
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.training.callbacks import AverageWeights, CompileFeedForward, ExportDrafter, save_folder
from tests.support.drafters import tiny_drafter
from tests.support.fit import QUIET, fit
from tests.support.tiny import TinyRun

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]
STEPS = ["--trainer.max_steps=4", "--model.adamw.learning_rate=0.01", "--model.adamw.warmup_fraction=0"]


def test_the_folder_loads_as_the_same_drafter_without_embeddings(tmp_path: Path) -> None:
    drafter = tiny_drafter(seed=0)
    save_folder(drafter, tmp_path / "drafter")
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "drafter").iterdir()} == {0o644}
    loaded = SpecBlockDrafter.from_pretrained(tmp_path / "drafter")
    assert not loaded.is_attached
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_a_second_save_replaces_the_first_and_leaves_nothing_behind(tmp_path: Path) -> None:
    save_folder(tiny_drafter(seed=0), tmp_path / "drafter")
    save_folder(tiny_drafter(seed=1), tmp_path / "drafter")
    loaded = SpecBlockDrafter.from_pretrained(tmp_path / "drafter")
    assert torch.equal(loaded.lm_head.weight, tiny_drafter(seed=1).lm_head.weight)
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]
    assert sorted(path.name for path in (tmp_path / "drafter").iterdir()) == ["config.json", "model.safetensors"]


def test_weights_can_be_split_and_load_as_before(tmp_path: Path) -> None:
    drafter = tiny_drafter(seed=0)
    save_folder(drafter, tmp_path / "drafter", max_shard_size=4096)
    assert len(list((tmp_path / "drafter").glob("model-*.safetensors"))) > 1
    loaded = SpecBlockDrafter.from_pretrained(tmp_path / "drafter")
    assert torch.equal(loaded.lm_head.weight, drafter.lm_head.weight)


def test_weights_that_were_split_otherwise_leave_no_file_behind(tmp_path: Path) -> None:
    folder = tmp_path / "drafter"
    counts = []
    for seed, size in enumerate((4096, 8192, "1GB", 4096)):
        save_folder(tiny_drafter(seed=seed), folder, max_shard_size=size)
        (folder / "notes.txt").touch()
        # All files together, and those that transformers reads.
        found = read_tensors(folder)["lm_head.weight"], SpecBlockDrafter.from_pretrained(folder).lm_head.weight
        assert all(torch.equal(each, tiny_drafter(seed=seed).lm_head.weight) for each in found)
        counts.append(len(list(folder.glob("model*.safetensors"))))
        assert (folder / "model.safetensors.index.json").is_file() == (counts[-1] > 1)
    assert counts[0] == counts[3] > counts[1] > counts[2] == 1
    assert (folder / "notes.txt").is_file()


def test_an_interrupted_save_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_folder(tiny_drafter(seed=0), tmp_path / "drafter")

    def interrupt(self: SpecBlockDrafter, folder: str, **options: object) -> None:
        (Path(folder) / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(SpecBlockDrafter, "save_pretrained", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_folder(tiny_drafter(seed=1), tmp_path / "drafter")
    loaded = SpecBlockDrafter.from_pretrained(tmp_path / "drafter")
    assert torch.equal(loaded.lm_head.weight, tiny_drafter(seed=0).lm_head.weight)
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]


def test_the_folder_lies_beside_the_checkpoints_or_where_it_is_told(tmp_path: Path) -> None:
    trainer = Trainer(accelerator="cpu", logger=False, callbacks=[ModelCheckpoint(tmp_path / "checkpoints")])
    assert ExportDrafter().destination(trainer) == tmp_path / "checkpoints" / "drafter"
    assert ExportDrafter(str(tmp_path / "mine")).destination(trainer) == tmp_path / "mine"


def test_a_run_without_a_place_to_export_to_is_refused() -> None:
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(ConfigurationError, match="no folder"):
        ExportDrafter().setup(trainer, trainer.lightning_module, "fit")


class GivenScores(Callback):
    """Logs the score of each update."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = scores

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
        pl_module.log("score", self.scores[trainer.global_step - 1])


@pytest.mark.filterwarnings("ignore:Experiment logs directory", "ignore:Checkpoint directory")
def test_the_best_drafter_is_kept_apart_from_the_last_also_over_a_resume(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    # Whether Lightning's loggers reach the root's handlers depends on who imported it first.
    monkeypatch.setattr("specblock_zoo.training.callbacks.rank_zero_info", said.append)
    flags = [
        f"--trainer.callbacks+={GivenScores.__module__}.GivenScores",
        "--trainer.callbacks.scores=[1, 3, 2, 0]",
        "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint",
        *("--trainer.callbacks.monitor=score", "--trainer.callbacks.mode=max", "--trainer.callbacks.save_top_k=-1"),
        *("--trainer.callbacks.every_n_train_steps=1", "--trainer.callbacks.filename={step}"),
        "--trainer.callbacks+=specblock_zoo.training.callbacks.ExportDrafter",
        "--trainer.callbacks+=specblock_zoo.training.callbacks.ExportDrafter",
        "--trainer.callbacks.which=best",
    ]
    places = tmp_path / "run" / "version_0" / "checkpoints"
    assert fit(tiny_run, tmp_path, *flags, "--trainer.max_steps=3") == 0
    assert f"{places / 'drafter-best'}: drafter of update 2 (best, score 3)" in said
    assert f"{places / 'drafter'}: drafter of update 3 (last)" in said
    assert fit(tiny_run, tmp_path, *flags, "--trainer.max_steps=4", f"--ckpt_path={places / 'step=3.ckpt'}") == 0
    for folder, step in (("drafter-best", 2), ("drafter", 4)):
        exported = SpecBlockDrafter.from_pretrained(places / folder).lm_head.weight
        assert torch.equal(exported, stored(tmp_path, f"step={step}.ckpt")["state_dict"]["drafter.lm_head.weight"])


def test_the_best_needs_a_monitor_and_there_is_no_third_kind(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="which is 'first'; expected last or best"):
        ExportDrafter(which="first")
    trainer = Trainer(accelerator="cpu", logger=False, callbacks=[ModelCheckpoint(tmp_path / "checkpoints")])
    with pytest.raises(ConfigurationError, match="no ModelCheckpoint has a monitor"):
        ExportDrafter(which="best").setup(trainer, trainer.lightning_module, "fit")


def stored(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return torch.load(folder / "run" / "version_0" / "checkpoints" / name, weights_only=True)


def average_flags(first: bool) -> list[str]:
    """Checkpoints of every step, exported; the average listed before or after the export."""
    export = ["--trainer.callbacks+=specblock_zoo.training.callbacks.ExportDrafter"]
    average = ["--trainer.callbacks+=specblock_zoo.training.callbacks.AverageWeights", "--trainer.callbacks.decay=0.5"]
    keep = [
        "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint",
        "--trainer.callbacks.every_n_train_steps=1",
        "--trainer.callbacks.save_top_k=-1",
        "--trainer.callbacks.filename={step}",
    ]
    return [*STEPS, *(average + export if first else export + average), *keep]


@pytest.mark.parametrize("first", [True, False], ids=["before the export", "after the export"])
def test_averages_follow_their_formula_and_are_what_is_exported(tiny_run: TinyRun, tmp_path: Path, first: bool) -> None:
    assert fit(tiny_run, tmp_path, *average_flags(first)) == 0
    name = "drafter.lm_head.weight"
    files = [stored(tmp_path, f"step={step}.ckpt") for step in range(1, 5)]
    average = files[0]["current_model_state"][name]
    for file in files[1:]:
        average = 0.5 * average + 0.5 * file["current_model_state"][name]
        torch.testing.assert_close(file["state_dict"][name], average)
    exported = SpecBlockDrafter.from_pretrained(tmp_path / "run" / "version_0" / "checkpoints" / "drafter")
    assert torch.equal(exported.lm_head.weight, files[-1]["state_dict"][name])
    assert not torch.equal(exported.lm_head.weight, files[-1]["current_model_state"][name])


def test_a_resumed_average_is_the_uninterrupted_one(tiny_run: TinyRun, tmp_path: Path) -> None:
    assert fit(tiny_run, tmp_path / "whole", *average_flags(True)) == 0
    middle = tmp_path / "whole" / "run" / "version_0" / "checkpoints" / "step=2.ckpt"
    assert fit(tiny_run, tmp_path / "resumed", *average_flags(True), f"--ckpt_path={middle}") == 0
    whole, resumed = (stored(tmp_path / name, "step=4.ckpt") for name in ("whole", "resumed"))
    for kind in ("state_dict", "current_model_state"):
        for name, tensor in whole[kind].items():
            assert torch.equal(tensor, resumed[kind][name]), (kind, name)


def test_before_training_there_is_no_average() -> None:
    assert AverageWeights().drafter_weights() is None


def test_compiled_feed_forwards_compute_the_same_and_keep_their_names() -> None:
    drafter = tiny_drafter()
    states = torch.randn(3, 5, drafter.config.hidden_size)
    names, expected = list(drafter.state_dict()), [layer.mlp(states) for layer in drafter.layers]
    module = torch.nn.Module()
    module.drafter = drafter
    CompileFeedForward(backend="eager").on_fit_start(None, module)  # type: ignore[arg-type]  # neither is read
    for rows in (states, states[:2]):
        for layer, outcome in zip(drafter.layers, expected, strict=True):
            torch.testing.assert_close(layer.mlp(rows), outcome[: len(rows)])
    assert list(drafter.state_dict()) == names
    assert all(layer.mlp._compiled_call_impl is not None for layer in drafter.layers)


@pytest.mark.parametrize("every", [2, 9])
@pytest.mark.parametrize("average", [[], ["--config=configs/callbacks/average.yaml"]], ids=["plain", "averaged"])
def test_the_last_updates_are_stored_and_exported_though_no_interval_ends_there(
    tiny_run: TinyRun, tmp_path: Path, average: list[str], every: int
) -> None:
    keep = [
        "--trainer.callbacks+=specblock_zoo.training.callbacks.ExportDrafter",
        "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint",
        f"--trainer.callbacks.every_n_train_steps={every}",
        "--trainer.callbacks.save_last=true",
    ]
    assert fit(tiny_run, tmp_path, *average, "--trainer.max_steps=3", "--trainer.max_epochs=9", *keep) == 0
    last = stored(tmp_path, "last.ckpt")
    assert last["global_step"] == 3
    exported = SpecBlockDrafter.from_pretrained(tmp_path / "run" / "version_0" / "checkpoints" / "drafter")
    name = "drafter.lm_head.weight"
    assert torch.equal(exported.lm_head.weight, last["state_dict"][name])
    if average:
        assert not torch.equal(last["current_model_state"][name], last["state_dict"][name])


def test_an_average_loaded_before_the_module_has_moved_is_where_it_will_be(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    monkeypatch.setattr(EMAWeightAveraging, "setup", lambda self, *_: built.append(self._device))
    where = torch.device("meta")
    trainer = SimpleNamespace(state=SimpleNamespace(fn=TrainerFn.FITTING), strategy=SimpleNamespace(root_device=where))
    for callback in (AverageWeights(), AverageWeights(device="cpu")):
        callback._build(trainer, torch.nn.Linear(1, 1))
    assert built == [where, torch.device("cpu")]
