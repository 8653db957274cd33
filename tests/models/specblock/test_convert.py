"""Published and native folders hold the same tensors, bit for bit, there and back."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specblock_zoo.errors import ConfigurationError, UnsupportedOptionError, WeightsMismatchError
from specblock_zoo.models.specblock import SpecBlockDrafter, published
from specblock_zoo.models.specblock.convert import ORIGINAL_CONFIG, check_expressible, from_published, to_published
from tests.support.drafters import tiny_drafter

COMPATIBLE = {
    "shift": "between_layers",
    "advance_positions": False,
    "context_slots": 3,
    "head_dim": 4,
    "tap_layers": (),
}


def test_a_published_checkpoint_comes_back_byte_for_byte(golden_dir: Path, tmp_path: Path) -> None:
    from_published(golden_dir, tmp_path / "native")
    to_published(tmp_path / "native", tmp_path / "back")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == (golden_dir / name).read_bytes()
    tables = [torch.load(folder / "vocab_mapping.pt", weights_only=True) for folder in (golden_dir, tmp_path / "back")]
    torch.testing.assert_close(tables[0], tables[1], rtol=0, atol=0)


def test_both_formats_load_as_the_same_drafter(golden_dir: Path, tmp_path: Path) -> None:
    from_published(golden_dir, tmp_path / "native")
    ours, theirs = (SpecBlockDrafter.from_pretrained(folder) for folder in (tmp_path / "native", golden_dir))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    differing = {name for name, value in ours.config.to_dict().items() if value != theirs.config.to_dict().get(name)}
    assert differing <= {"architectures", "dtype", "transformers_version", "_name_or_path", "tap_layers"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_native_drafter_in_compatible_mode_survives_the_trip(tmp_path: Path, dtype: torch.dtype) -> None:
    tiny_drafter(attached=False, **COMPATIBLE).to(dtype).save_pretrained(tmp_path / "native")
    to_published(tmp_path / "native", tmp_path / "published")
    assert published.is_published(tmp_path / "published")
    from_published(tmp_path / "published", tmp_path / "back")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("native", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)


def test_a_kept_original_that_no_longer_fits_is_not_used(golden_dir: Path, tmp_path: Path) -> None:
    from_published(golden_dir, tmp_path / "native")
    original = tmp_path / "native" / ORIGINAL_CONFIG
    original.write_text(json.dumps({**json.loads(original.read_text()), "rope_theta": 5.0}))
    to_published(tmp_path / "native", tmp_path / "back")
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert written["rope_theta"] == json.loads((golden_dir / "config.json").read_text())["rope_theta"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shift", "every_layer"),
        ("advance_positions", True),
        ("context_slots", 1),
        ("head_dim", 6),
        ("rank_hidden_size", 16),
        ("rank_top", 10),
        ("tap_layers", (0, 1, 2)),
    ],
)
def test_what_the_published_layout_cannot_say_is_refused(field: str, value: object) -> None:
    check_expressible(tiny_drafter(attached=False, **COMPATIBLE).config)
    with pytest.raises(UnsupportedOptionError, match=field):
        check_expressible(tiny_drafter(attached=False, **{**COMPATIBLE, field: value}).config)


def test_a_failed_conversion_writes_nothing(tmp_path: Path) -> None:
    tiny_drafter(attached=False, **COMPATIBLE).save_pretrained(tmp_path / "native")
    config = tmp_path / "native" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "intermediate_size": 12}))
    with pytest.raises(WeightsMismatchError, match=r"gate_proj.*expected \(12, 16\), found \(24, 16\)"):
        to_published(tmp_path / "native", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["native"]


def test_a_used_folder_is_not_written_over(tmp_path: Path) -> None:
    tiny_drafter(attached=False, **COMPATIBLE).save_pretrained(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(ConfigurationError, match="not empty"):
        to_published(tmp_path, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
