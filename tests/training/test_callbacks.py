"""The drafter's folder is always whole and always loads."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.training.callbacks import ExportDrafter, save_folder
from tests.support.drafters import tiny_drafter


def test_the_folder_loads_as_the_same_drafter_without_embeddings(tmp_path: Path) -> None:
    drafter = tiny_drafter(seed=0)
    save_folder(drafter, tmp_path / "drafter")
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


def test_an_interrupted_save_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_folder(tiny_drafter(seed=0), tmp_path / "drafter")

    def interrupt(self: SpecBlockDrafter, folder: str) -> None:
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
