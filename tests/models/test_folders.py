"""Folders appear whole or not at all; tensors are read from safetensors only."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specblock_zoo.errors import ConfigurationError, WeightsMismatchError
from specblock_zoo.models.folders import check_shapes, fresh_folder, read_named, read_shapes, read_tensors


def test_a_folder_appears_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with fresh_folder(out) as scratch:
        (scratch / "file").write_text("x")
        assert not out.exists()
    assert (out / "file").read_text() == "x"
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(scratch: Path) -> None:
        (scratch / "file").write_text("x")
        raise RuntimeError

    with pytest.raises(RuntimeError), fresh_folder(tmp_path / "out") as scratch:
        fail(scratch)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays_there(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with fresh_folder(tmp_path / "out") as scratch:
        (scratch / "file").write_text("x")
    with pytest.raises(ConfigurationError, match="not empty"), fresh_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "out" / "file").read_text() == "x"


def test_shards_are_joined_and_headers_tell_the_shapes(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, 3)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.zeros(4)}, tmp_path / "model-00002-of-00002.safetensors")
    tensors = read_tensors(tmp_path)
    assert read_shapes(tmp_path) == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert torch.equal(tensors["a"], torch.ones(2, 3))


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(WeightsMismatchError, match="safetensors"):
        read_tensors(tmp_path)


@pytest.mark.parametrize("read", [read_tensors, read_shapes])
@pytest.mark.parametrize("size", [0, 50, -1])
def test_a_file_cut_short_is_refused_with_its_size(tmp_path: Path, read: Callable[[Path], object], size: int) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(2, 3)}, file)
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(WeightsMismatchError, match=rf"{file} has {file.stat().st_size} bytes and cannot be read"):
        read(tmp_path)


def test_differing_shapes_are_named(tmp_path: Path) -> None:
    check_shapes({"a": (1,)}, {"a": (1,)}, tmp_path)
    with pytest.raises(WeightsMismatchError, match=r"a: expected \(1,\), found \(2,\); b: expected None, found \(3,\)"):
        check_shapes({"a": (1,)}, {"a": (2,), "b": (3,)}, tmp_path)


def test_named_tensors_are_found_in_whatever_part_holds_them(tmp_path: Path) -> None:
    parts = [tmp_path / f"model-{number}.safetensors" for number in (1, 2)]
    save_file({"a": torch.ones(2), "b": torch.zeros(1)}, parts[0])
    save_file({"c": torch.ones(1)}, parts[1])
    found = read_named(parts, ("a", "c", "absent"))
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"a": [1.0, 1.0], "c": [1.0]}
    parts[1].write_bytes(b"half")
    with pytest.raises(WeightsMismatchError, match="model-2"):
        read_named(parts, ("a",))
