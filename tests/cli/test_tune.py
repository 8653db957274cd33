"""`specblock tune` stores a curve that the next `generate` finds."""

from pathlib import Path

import pytest
import torch

from specblock_zoo.bench import tune as tuning_module
from specblock_zoo.cli.main import main
from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.inference import costs as stored
from specblock_zoo.inference.verify import Form
from specblock_zoo.targets.local import load_target
from tests.support.tiny_pair import TinyFolders


def test_what_was_tuned_is_found(
    tiny_folders: TinyFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stored, "DEFAULT_CACHE_DIR", tmp_path)
    monkeypatch.setattr(tuning_module, "VERIFY_SIZES", (1, 4))
    monkeypatch.setattr(tuning_module, "BRANCH_STARTS", (1,))
    stored.forget()
    pair = [f"--target={tiny_folders.target}", f"--drafter={tiny_folders.drafter}", "--dtype=float32"]
    with pytest.raises(SystemExit) as end:
        main(["tune", *pair, "--rounds=1"])
    assert end.value.code in (0, None)
    files = [file.stem for file in (tmp_path / "costs").glob("*.json")]
    printed = capsys.readouterr().out
    assert len(files) == 2, "with later blocks and without"
    assert any(name in printed for name in files)
    assert "first block" in printed
    target, _ = load_target(tiny_folders.target, dtype=torch.float32)
    drafter = load_drafter(str(tiny_folders.drafter), dtype=torch.float32)
    for blocks in (1, 2):
        drafter.config.num_blocks = blocks
        found = stored.costs_for(target, drafter, Form.ADDITIVE, measure=False)
        assert found is not None
        assert found.verify.sizes == (1, 4)
    stored.forget()
