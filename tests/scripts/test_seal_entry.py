"""Sealing an entry fills in what the files say and nothing else."""

import shutil
from pathlib import Path

import pytest
import yaml

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.hub.entry import ENTRY_FILE, read_entry, verify_files, write_entry
from specblock_zoo.hub.verify import verify
from tests.support.measured import entry
from tests.support.scripts import load_script
from tests.support.tiny_pair import VOCAB_SIZE, TinyFolders, tiny_drafter

script = load_script("seal_entry")


@pytest.fixture
def folder(tmp_path: Path, tiny_folders: TinyFolders) -> Path:
    shutil.copytree(tiny_folders.drafter, tmp_path / "drafter")
    fields = yaml.safe_load(write_entry(entry(), tmp_path / "drafter").read_text())
    for computed in ("files", "draft_vocabulary", "tap_layers", "block_width", "num_blocks"):
        del fields[computed]
    (tmp_path / "drafter" / ENTRY_FILE).write_text(yaml.safe_dump(fields))
    return tmp_path / "drafter"


def test_a_sealed_entry_matches_its_files(folder: Path) -> None:
    script.seal(folder)
    sealed = read_entry(folder)
    verify_files(sealed, folder)
    assert (sealed.block_width, sealed.num_blocks, sealed.tap_layers) == (4, 2, (1, 2, 3))
    assert sealed.draft_vocabulary is not None
    assert (sealed.draft_vocabulary.size, sealed.draft_vocabulary.coverage) == (VOCAB_SIZE // 2, 0.9)
    assert sealed.training == entry().training


def test_split_weights_are_sealed_part_by_part(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    tiny_drafter().save_pretrained(folder, max_shard_size="8KB")
    script.seal(folder)
    sealed = read_entry(folder)
    parts = {file.name for file in folder.glob("model-*.safetensors")}
    assert len(parts) > 1
    assert set(sealed.files) == {"config.json", "model.safetensors.index.json", *parts}
    assert verify(sealed, folder).fault is None


def test_an_entry_that_would_not_be_read_is_not_written(folder: Path) -> None:
    path = folder / ENTRY_FILE
    path.write_text(path.read_text() + "remark: x\n")
    before = path.read_text()
    with pytest.raises(ConfigurationError, match="remark"):
        script.seal(folder)
    assert path.read_text() == before
