"""Helpers shared by tests."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

REPOSITORY = Path(__file__).resolve().parents[2]
FIXTURE_NAMES = ("llama_tiny", "qwen3_tiny")


def find_fixtures() -> Path | None:
    """Folder of golden numbers, or None where the checkout stands alone."""
    folder = REPOSITORY.parent / "shared" / "fixtures"
    return folder if folder.is_dir() else None


def golden_tensors(golden_dir: Path, name: str) -> dict[str, Tensor]:
    """Arrays of `<name>.safetensors` in one folder of golden numbers."""
    return load_file(golden_dir / f"{name}.safetensors")


def golden_json(golden_dir: Path, name: str) -> dict[str, Any]:
    """Content of `<name>.json` in one folder of golden numbers."""
    loaded: dict[str, Any] = json.loads((golden_dir / f"{name}.json").read_text())
    return loaded
