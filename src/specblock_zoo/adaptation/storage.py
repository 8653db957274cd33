"""The state of an adapting drafter on disk: whole versions, and a pointer that moves in one step."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from specblock_zoo.data.files import replacing
from specblock_zoo.errors import ConfigurationError

POINTER = "CURRENT"
VERSION, SCRATCH = "version-", ".writing-"


@contextmanager
def new_version(folder: Path) -> Iterator[Path]:
    """Yields a scratch folder that becomes the current version at the end, or vanishes if the block raises.

    A kill at any moment leaves the version before it current; one writer at a time.

    Raises:
        OSError: the disk is full, or the folder cannot be written; the version before stays current.
        ConfigurationError: the disk was full at the very end, when the pointer moves; the same holds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    left_over = [*folder.glob(f"{SCRATCH}*"), *folder.glob(f"{VERSION}*")]
    scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=folder))
    try:
        yield scratch
        numbers = [int(path.name.removeprefix(VERSION)) for path in left_over if path.name.startswith(VERSION)]
        name = f"{VERSION}{1 + max(numbers, default=0)}"
        scratch.replace(folder / name)
        with replacing(folder / POINTER) as pointer:
            pointer.write_text(name)
    except SafetensorError as cause:
        # What safetensors makes of a full disk, in words only.
        raise OSError(f"{folder} could not be written: {cause}") from cause
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for path in left_over:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def has_version(folder: Path) -> bool:
    """Whether something was saved there."""
    return (folder / POINTER).is_file()


def current_version(folder: Path) -> Path:
    """The folder of the current version.

    Raises:
        ConfigurationError: nothing was saved there.
    """
    if not has_version(folder):
        raise ConfigurationError(f"{folder} holds no saved adaptation.", "Name a folder that `save` has written.")
    return folder / (folder / POINTER).read_text().strip()


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors, on whatever device, as safetensors."""
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, file)


def flat_optimizer(optimizer: torch.optim.Optimizer, prefix: str) -> dict[str, Tensor]:
    """An optimizer's tensors by `prefix.parameter.name`."""
    state = optimizer.state_dict()["state"]
    return {
        f"{prefix}.{index}.{name}": torch.as_tensor(value)
        for index, each in state.items()
        for name, value in each.items()
    }


def load_flat_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """The inverse of `flat_optimizer`; rates stay the optimizer's own."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        action, _, rest = name.partition(".")
        if action == prefix:
            index, _, key = rest.partition(".")
            state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
