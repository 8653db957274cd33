"""What the architecture tests look at: the files of the checkout."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "specblock_zoo"
SCRIPTS = ROOT / "scripts"
BINARY_SUFFIXES = {".safetensors", ".arrow", ".gz", ".png", ".pt", ".gguf"}


def source_files() -> list[Path]:
    """Modules of the package, `__init__` files excluded."""
    return sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def python_files() -> list[Path]:
    """Every Python file of the package, its scripts and its tests."""
    return sorted(path for folder in (PACKAGE, SCRIPTS, ROOT / "tests") for path in folder.rglob("*.py"))


@cache
def project_texts() -> dict[Path, str]:
    """Text of every file git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    paths = [ROOT / name for name in names if name and Path(name).suffix not in BINARY_SUFFIXES]
    return {path: path.read_text(encoding="utf-8") for path in paths if path.is_file()}
