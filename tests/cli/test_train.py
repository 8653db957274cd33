"""`specblock fit` and `validate`, from the flags to the files."""

import csv
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch.cli import LightningCLI

from specblock_zoo.cli.commands import COMMANDS
from specblock_zoo.cli.main import main
from specblock_zoo.cli.plan import target_shapes
from specblock_zoo.cli.train import SpecBlockCLI
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.targets.registry import family_of
from specblock_zoo.training.methods import METHODS
from tests.support import REPOSITORY
from tests.support.fit import QUIET, fit, run_options
from tests.support.tiny import TinyRun, build_tiny_cache, save_tiny_target

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]
CONFIGS = sorted((REPOSITORY / "configs" / "train").glob("*.yaml"))
CHECKPOINT = [
    "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint",
    "--trainer.callbacks.save_last=true",
    "--trainer.callbacks.every_n_train_steps=1",
    "--trainer.callbacks.save_top_k=-1",
    "--trainer.callbacks.filename={step}",
    "--trainer.callbacks+=specblock_zoo.training.callbacks.ExportDrafter",
]


def checkpoints(folder: Path) -> Path:
    return folder / "run" / "version_0" / "checkpoints"


def rows(folder: Path, column: str) -> list[float]:
    with (folder / "run" / "version_0" / "metrics.csv").open() as lines:
        return [float(row[column]) for row in csv.DictReader(lines) if row.get(column)]


def test_only_the_subcommands_we_mean_to_offer() -> None:
    assert set(SpecBlockCLI.subcommands()) == {"fit", "validate"} <= set(LightningCLI.subcommands())
    assert not set(COMMANDS) & set(SpecBlockCLI.subcommands())


def test_the_loss_falls_on_a_repeated_batch_and_validation_is_logged(tiny_run: TinyRun, tmp_path: Path) -> None:
    assert fit(tiny_run, tmp_path, "--trainer.max_steps=12", "--model.adamw.learning_rate=0.005") == 0
    losses = rows(tmp_path, "train_loss_nats")
    assert losses[-1] < 0.7 * losses[0]
    assert rows(tmp_path, "val_tau_teacher_forced")[-1] >= 1
    assert rows(tmp_path, "val_rows")[-1] > 0
    for name in (
        "val_alpha_b0_s0",
        "val_alpha_b2_s3",
        "val_precision_0",
        "val_recall_3",
        "val_f1_2",
        "val_share_1",
        "val_confusion_0_3",
    ):
        assert all(0 <= value <= 1 for value in rows(tmp_path, name))


@pytest.fixture(scope="module", params=["--trainer.max_epochs=-1", "--trainer.max_epochs=20"])
def whole_and_resumed(
    request: pytest.FixtureRequest, tiny_run: TinyRun, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Runs of eight updates, one uninterrupted, one resumed after the fifth, in the middle of an epoch of three."""
    folder = tmp_path_factory.mktemp("resumed")
    flags = ["--trainer.max_steps=8", "--data.batch_tokens=120", "--trainer.check_val_every_n_epoch=2", *CHECKPOINT]
    flags.append(request.param)
    assert fit(tiny_run, folder / "whole", *flags) == 0
    middle = checkpoints(folder / "whole") / "step=5.ckpt"
    assert fit(tiny_run, folder / "resumed", *flags, f"--ckpt_path={middle}") == 0
    return folder / "whole", folder / "resumed"


def test_a_resumed_run_ends_bit_for_bit_where_an_uninterrupted_one_does(whole_and_resumed: tuple[Path, Path]) -> None:
    whole, resumed = (torch.load(checkpoints(run) / "last.ckpt", weights_only=True) for run in whole_and_resumed)
    assert whole["global_step"] == resumed["global_step"] == 8
    assert whole["epoch"] >= 1
    assert whole["state_dict"].keys() == resumed["state_dict"].keys()
    for name, tensor in whole["state_dict"].items():
        assert torch.equal(tensor, resumed["state_dict"][name]), name
    middle = torch.load(checkpoints(whole_and_resumed[0]) / "step=5.ckpt", weights_only=True)["state_dict"]
    assert any(not torch.equal(tensor, middle[name]) for name, tensor in whole["state_dict"].items())


def test_a_resumed_schedule_goes_on_from_the_update_and_not_from_the_epoch(
    whole_and_resumed: tuple[Path, Path],
) -> None:
    for update, run in ((5, 0), (6, 1), (8, 1)):
        stored = torch.load(checkpoints(whole_and_resumed[run]) / f"step={update}.ckpt", weights_only=True)
        assert stored["lr_schedulers"][0]["last_epoch"] == update > stored["epoch"] + 1
        # One update of warm-up, then seven on a half cosine.
        expected = 1e-4 * 0.5 * (1 + math.cos(math.pi * (update - 1) / 7))
        assert stored["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.filterwarnings("ignore:.*there is no last checkpoint available")
def test_last_finds_the_run_before_and_the_first_run_starts_anew(tiny_run: TinyRun, tmp_path: Path) -> None:
    """Each run writes a version of its own."""
    versions = "--trainer.logger.version=null"
    for version, steps in enumerate((2, 3)):
        flags = [versions, f"--trainer.max_steps={steps}", "--ckpt_path=last", *CHECKPOINT]
        assert fit(tiny_run, tmp_path, *flags) == 0
        folder = tmp_path / "run" / f"version_{version}" / "checkpoints"
        assert (
            sorted(file.name for file in folder.glob("step=*"))
            == ["step=1.ckpt", "step=2.ckpt", "step=3.ckpt"][2 * version : steps]
        )


def test_the_exported_folder_is_the_checkpoints_drafter(tiny_run: TinyRun, tmp_path: Path) -> None:
    assert fit(tiny_run, tmp_path, "--trainer.max_steps=2", *CHECKPOINT) == 0
    stored = torch.load(checkpoints(tmp_path) / "last.ckpt", weights_only=True)["state_dict"]
    drafter = SpecBlockDrafter.from_pretrained(checkpoints(tmp_path) / "drafter")
    assert {f"drafter.{name}" for name in drafter.state_dict()} == set(stored)
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(tensor, stored[f"drafter.{name}"]), name


def test_validate_scores_a_checkpoint_as_its_training_run_did(tiny_run: TinyRun, tmp_path: Path) -> None:
    assert fit(tiny_run, tmp_path, "--trainer.max_epochs=1", *CHECKPOINT) == 0
    expected = rows(tmp_path, "val_loss_nats")[-1]
    options = run_options(tiny_run, tmp_path / "validation")
    assert main(["validate", *options, f"--ckpt_path={checkpoints(tmp_path) / 'last.ckpt'}"]) == 0
    assert rows(tmp_path / "validation", "val_loss_nats")[-1] == pytest.approx(expected, rel=1e-6)


def test_a_checkpoints_settings_are_not_changed_in_silence(
    tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    own = ["--model.adamw.learning_rate=0.0002", "--model.drafter={block_width: 3}"]
    assert fit(tiny_run, tmp_path, "--trainer.max_steps=1", *own, *CHECKPOINT) == 0
    resumed = ["--trainer.max_steps=2", f"--ckpt_path={checkpoints(tmp_path) / 'last.ckpt'}"]
    changed = ["--model.adamw.learning_rate=0.0003", "--model.drafter.block_width=2"]
    assert fit(tiny_run, tmp_path / "changed", *resumed, *changed) == 2
    said = capsys.readouterr().err
    assert "--model.adamw.learning_rate is 0.0003, the checkpoint's is 0.0002" in said
    assert "--model.drafter.block_width is 2, the checkpoint's is 3" in said
    for folder, flags in (("same", own), ("none", [])):
        with caplog.at_level("INFO"):
            assert fit(tiny_run, tmp_path / folder, *resumed, *flags) == 0
        assert ("--model.adamw.learning_rate is the checkpoint's, 0.0002" in caplog.text) == (folder == "none")


def test_a_cache_of_another_target_ends_with_exit_code_two(
    tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny_target(tmp_path / "other", seed=1)
    options = run_options(tiny_run, tmp_path)
    assert main(["fit", *options, f"--model.target={tmp_path / 'other'}", "--trainer.max_steps=1"]) == 2
    said = capsys.readouterr().err
    assert "error:" in said
    assert "weights_sha256" in said
    assert not (tmp_path / "run" / "version_0" / "checkpoints").exists()


def test_a_checkpoint_of_another_vocabulary_ends_with_exit_code_two(
    tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(tiny_run, tmp_path, "--trainer.max_steps=1", *CHECKPOINT) == 0
    other = build_tiny_cache(tmp_path / "cache", tiny_run.target, tiny_run.records, draft_vocab_size=40)
    flags = ["--trainer.max_steps=2", f"--data.cache_dir={other}", f"--ckpt_path={checkpoints(tmp_path) / 'last.ckpt'}"]
    assert fit(tiny_run, tmp_path / "again", *flags) == 2
    assert "draft_vocab_size is 48 there and 40 here" in capsys.readouterr().err
    # A run from a drafter's folder, which is not read again.
    own = [f"--model.initialise={checkpoints(tmp_path) / 'drafter'}", *CHECKPOINT]
    assert fit(tiny_run, tmp_path / "own", "--trainer.max_steps=1", *own) == 0
    flags[-1] = f"--ckpt_path={checkpoints(tmp_path / 'own') / 'last.ckpt'}"
    assert fit(tiny_run, tmp_path / "own again", *flags) == 2
    assert "draft_vocab_size is 48 there and 40 here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--model.drafter.tap_layers=[1,2]", "tap_layers is [1, 2, 3], not [1, 2]"),
        ("--model.drafter.blok_width=4", "no option blok_width"),
        ("--model.drafter.block_width=0", "block_width"),
        ("--model.objective.draft_loss=squared", "draft_loss is 'squared'"),
        ("--model.objective.block_sampling=[2.0]", "block_sampling"),
        ("--model.initialise=nowhere", "nowhere"),
        ("--data.cache_dir=nowhere", "nowhere"),
        ("--model.target=/nowhere", "nowhere"),
        ("--data.val_fraction=1.5", "1.5"),
        ("--trainer.max_epochs=-1", "finite"),
        ("--trainer.accelerator=gpu", "gpu"),
        ("--ckpt_path=nowhere.ckpt", "no checkpoint nowhere.ckpt"),
        (f"--ckpt_path={__file__}", "is no whole checkpoint"),
    ],
)
def test_every_mistake_is_one_paragraph_and_exit_code_two(
    tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, words: str
) -> None:
    assert fit(tiny_run, tmp_path, "--trainer.max_epochs=1", flag) == 2
    paragraph = capsys.readouterr().err.strip().splitlines()[-1]
    assert paragraph.startswith("error: ")
    assert words in paragraph


@pytest.fixture(scope="module")
def family_runs(tiny_run: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TinyRun]:
    """A tiny target and cache for each family that the configurations name."""
    folder = tmp_path_factory.mktemp("qwen3")
    save_tiny_target(folder / "target", family="qwen3")
    cache = build_tiny_cache(folder / "cache", folder / "target", tiny_run.records)
    return {"llama": tiny_run, "qwen3": TinyRun(folder / "target", cache, tiny_run.records)}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_training_configuration_runs_on_a_tiny_target_of_its_family(
    family_runs: dict[str, TinyRun], tmp_path: Path, config: Path
) -> None:
    settings = yaml.safe_load(config.read_text())
    run = family_runs[family_of(target_shapes(settings["model"]["target"])).name]
    # What follows from the size of the target and the number of machines; everything else stays as configured.
    small = {"draft_vocab_size": 48, "tap_layers": [1, 2, 3]}
    flags = [f"--model.drafter.{name}={value}" for name, value in small.items() if name in settings["model"]["drafter"]]
    machine = ["--trainer.devices=1", "--trainer.num_nodes=1", "--trainer.strategy=auto"]
    options = [*run_options(run, tmp_path), *flags, *machine, "--trainer.fast_dev_run=true", "--trainer.max_epochs=1"]
    assert main(["fit", f"--config={config}", *options]) == 0


@pytest.mark.parametrize("name", ["average", "tau", "compile"])
def test_shipped_callbacks_add_to_a_configuration(
    tiny_run: TinyRun, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Averaged weights and the best tau are kept; nothing of the configuration's own callbacks is lost."""
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **options: None)
    files = [CONFIGS[-1].parent / "smollm2-135m.yaml", CONFIGS[-1].parents[1] / "callbacks" / f"{name}.yaml"]
    flags = ["--trainer.max_epochs=1"]
    if name == "tau":
        flags += [f"--trainer.callbacks.prompts={tiny_run.records}", "--trainer.callbacks.max_new_tokens=4"]
    assert main(["fit", *(f"--config={file}" for file in files), *run_options(tiny_run, tmp_path), *flags]) == 0
    kept = [file.name for file in checkpoints(tmp_path).iterdir()]
    assert {"last.ckpt", "drafter"} <= set(kept)
    if name == "average":
        stored = torch.load(checkpoints(tmp_path) / "last.ckpt", weights_only=True)
        assert stored["averaging_state"]["n_averaged"] > 0
    if name == "tau":
        assert rows(tmp_path, "tau")[-1] >= 1
        assert [file for file in kept if file.startswith("best-tau=")]
        assert "drafter-best" in kept


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_can_be_the_logger(tiny_run: TinyRun, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    flags = ["--trainer.max_steps=1", "--trainer.logger=lightning.pytorch.loggers.TensorBoardLogger"]
    assert fit(tiny_run, tmp_path, *flags, f"--trainer.logger.save_dir={tmp_path / 'board'}") == 0
    assert list((tmp_path / "board").rglob("events.out.tfevents.*"))


def test_clipping_bounds_the_update_and_bfloat16_products_leave_weights_float32(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    flags = ["--trainer.max_steps=1", "--model.adamw.warmup_fraction=0", "--trainer.precision=bf16-mixed", *CHECKPOINT]
    assert fit(tiny_run, tmp_path, *flags, "--trainer.gradient_clip_val=1e-3") == 0
    stored = torch.load(checkpoints(tmp_path) / "last.ckpt", weights_only=True)
    assert {tensor.dtype for name, tensor in stored["state_dict"].items() if name.endswith("weight")} == {torch.float32}
    # After one update AdamW's first moment is (1 - beta1) times the clipped gradient.
    moments = [state["exp_avg"] for state in stored["optimizer_states"][0]["state"].values()]
    norm = torch.stack([moment.norm() for moment in moments]).norm() / 0.1
    assert norm == pytest.approx(1e-3, rel=1e-2)


def test_the_default_configuration_needs_a_cache_folder_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = REPOSITORY / "configs" / "train" / "smollm2-135m.yaml"
    with pytest.raises(SystemExit) as ended:
        main(["fit", f"--config={config}", f"--data.cache_dir={tmp_path}", "--print_config"])
    assert ended.value.code == 0
    assert yaml.safe_load(capsys.readouterr().out)["data"]["cache_dir"] == str(tmp_path)


def test_validate_does_not_score_a_new_drafter_where_there_is_no_last_checkpoint(
    tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", *run_options(tiny_run, tmp_path), "--ckpt_path=last"]) == 2
    said = capsys.readouterr().err
    assert "there is no last.ckpt" in said
    assert str(tmp_path / "run") in said


@pytest.mark.parametrize("changed", ["--data.batch_tokens=300", "--data.seed=1", "--data.val_fraction=0.2"])
def test_a_run_is_not_gone_on_with_on_other_batches(
    tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: str
) -> None:
    assert fit(tiny_run, tmp_path, "--trainer.max_steps=1", *CHECKPOINT) == 0
    last = checkpoints(tmp_path) / "last.ckpt"
    assert fit(tiny_run, tmp_path / "on", "--trainer.max_steps=2", changed, f"--ckpt_path={last}") == 2
    name, _, value = changed.removeprefix("--data.").partition("=")
    assert f"{name} is {value} here and" in capsys.readouterr().err
    assert main(["validate", *run_options(tiny_run, tmp_path / "scored"), changed, f"--ckpt_path={last}"]) == 0


def test_a_run_from_a_drafter_goes_on_without_it(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fit(tiny_run, tmp_path / "first", "--trainer.max_steps=1", *CHECKPOINT) == 0
    folder = checkpoints(tmp_path / "first") / "drafter"
    own = [f"--model.initialise={folder}", *CHECKPOINT]
    assert fit(tiny_run, tmp_path / "second", "--trainer.max_steps=1", *own) == 0
    shutil.rmtree(folder)

    def again(*_: object) -> None:
        raise AssertionError("started from the target again")

    monkeypatch.setitem(METHODS, "specblock", replace(METHODS["specblock"], initialise=again))
    for run in ("first", "second"):
        last = f"--ckpt_path={checkpoints(tmp_path / run) / 'last.ckpt'}"
        assert fit(tiny_run, tmp_path / f"{run} on", "--trainer.max_steps=2", last) == 0
        assert main(["validate", *run_options(tiny_run, tmp_path / f"{run} scored"), last]) == 0


def test_the_data_module_alone_divides_batches_among_processes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "--print_config"])
    assert yaml.safe_load(capsys.readouterr().out)["trainer"]["use_distributed_sampler"] is False
