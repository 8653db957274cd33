"""Folders written whole or not at all, and the tensors inside them."""

import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from specblock_zoo.errors import ConfigurationError, WeightsMismatchError

Shapes = dict[str, tuple[int, ...]]


@contextmanager
def fresh_folder(out: Path) -> Iterator[Path]:
    """Yields a scratch folder beside `out` that becomes `out` at the end, or vanishes if the block raises.

    Raises:
        ConfigurationError: `out` exists and is not an empty folder.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} exists and is not empty.", "Name a new folder, or remove that one first.")
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield scratch
        scratch.chmod(0o755)
        scratch.replace(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def weight_files(folder: Path) -> list[Path]:
    """The files `model.safetensors` or `model-00001-of-....safetensors` of a folder, by name.

    Raises:
        WeightsMismatchError: there is none; other formats are not read, because they may run code.
    """
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise WeightsMismatchError(
            f"{folder} has no model*.safetensors file.",
            "Save the weights as safetensors: drafter.save_pretrained(folder).",
        )
    return files


@contextmanager
def _whole(file: Path) -> Iterator[None]:
    try:
        yield
    except SafetensorError as cause:
        raise WeightsMismatchError(
            f"{file} has {file.stat().st_size} bytes and cannot be read as safetensors ({cause}).",
            "It was cut short or overwritten: copy or fetch it again.",
        ) from cause


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors files (shards are joined).

    Raises:
        WeightsMismatchError: there is no such file, or one is not whole.
    """
    tensors: dict[str, Tensor] = {}
    for file in weight_files(folder):
        tensors |= read_file(file)
    return tensors


def read_named(files: Iterable[Path], names: Collection[str]) -> dict[str, Tensor]:
    """The tensors of these names in safetensors files; raises `WeightsMismatchError` when a file is not whole."""
    found: dict[str, Tensor] = {}
    for file in files:
        with _whole(file), safe_open(file, framework="pt") as opened:
            held = set(opened.keys())
            found |= {name: opened.get_tensor(name) for name in names if name in held}
    return found


def read_file(file: Path) -> dict[str, Tensor]:
    """All tensors of one safetensors file; raises `WeightsMismatchError` when it is not whole."""
    with _whole(file):
        return load_file(file)


def read_pickled(file: Path) -> dict[str, Tensor]:
    """All tensors of a pickled file, of which no code is run.

    Raises:
        WeightsMismatchError: it is cut short, or holds anything but tensors.
    """
    try:
        found: dict[str, Tensor] = torch.load(file, weights_only=True, map_location="cpu")
    except (UnpicklingError, EOFError, RuntimeError) as cause:
        raise WeightsMismatchError(
            f"{file} has {file.stat().st_size} bytes and does not load as tensors only.",
            "It was cut short, or holds code: fetch it again, or take the safetensors file of the release.",
        ) from cause
    return found


def read_shapes(folder: Path) -> Shapes:
    """Shapes of the same tensors, read from the files' headers only; errors as `read_tensors`."""
    shapes: Shapes = {}
    for file in weight_files(folder):
        with _whole(file), safe_open(file, framework="pt") as opened:
            names = opened.keys()
            shapes |= {name: tuple(opened.get_slice(name).get_shape()) for name in names}
    return shapes


def check_shapes(expected: Shapes, found: Shapes, where: Path) -> None:
    """Raises `WeightsMismatchError` naming every tensor that is missing, extra or of another shape."""
    differing = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if differing:
        described = "; ".join(f"{name}: expected {expected.get(name)}, found {found.get(name)}" for name in differing)
        raise WeightsMismatchError(
            f"{where} does not hold the tensors its config.json describes: {described}.",
            "Check that config.json and the weights come from the same release.",
        )
