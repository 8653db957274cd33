"""Checkpoints a kill cannot spoil, and the newest one of a run."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins import TorchCheckpointIO

from specblock_zoo.data.files import replacing


class WholeCheckpoints(TorchCheckpointIO):
    """Writes each checkpoint beside its place, then renames it there.

    Lightning writes to the system's folder for temporary files and moves the result, which copies it in place, and may
    leave half of it, where that folder is on another file system.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Writes one checkpoint.

        Raises:
            ConfigurationError: the disk is full; an older checkpoint of that name stays.
        """
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(Path(path)) as half_done:
            torch.save(checkpoint, half_done)


def newest_last(trainer: Mapping[str, Any]) -> Path | None:
    """The newest `last*.ckpt` among the versions of a run; None before the first.

    Lightning looks into the folder of the version that is about to begin, which is empty.

    Args:
        trainer: the trainer's options as parsed: `logger`, `callbacks`, `default_root_dir`.
    """
    found = [file for folder, versions in _folders(trainer) for file in folder.glob(f"{versions}last*.ckpt")]
    return max(found, key=lambda file: file.stat().st_mtime_ns, default=None)


def places_of_last(trainer: Mapping[str, Any]) -> list[str]:
    """Where `newest_last` looks."""
    return [str(folder / versions) for folder, versions in _folders(trainer)]


def _folders(trainer: Mapping[str, Any]) -> Iterable[tuple[Path, str]]:
    """Folders of checkpoints, each with the pattern of the folders in it that are meant and a slash, or nothing."""
    for callback in _listed(trainer.get("callbacks")):
        if folder := _arguments(callback).get("dirpath"):
            yield Path(folder), ""
    root = Path(trainer.get("default_root_dir") or ".")
    yield root / "checkpoints", ""
    if trainer.get("logger") is False:
        return
    # Lightning takes none for its default.
    for logger in _listed(True if trainer.get("logger") is None else trainer["logger"]):
        named = _arguments(logger)
        save_dir = Path(named.get("save_dir") or root)
        yield save_dir / str(named.get("name") or "lightning_logs"), "*/checkpoints/"


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def _arguments(item: Any) -> Mapping[str, Any]:
    """Constructor arguments of a parsed object; none of a switch such as `logger: true`."""
    found = item.get("init_args") if hasattr(item, "get") else None
    return vars(found) if found is not None and not isinstance(found, Mapping) else found or {}
