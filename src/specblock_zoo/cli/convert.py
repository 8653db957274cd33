"""`specblock convert` and `specblock export`: a drafter's folder in another layout."""

from pathlib import Path
from typing import Literal

from specblock_zoo.errors import ConfigurationError, UnsupportedOptionError
from specblock_zoo.hub.export import FormatName
from specblock_zoo.hub.export import export as export_folder
from specblock_zoo.hub.zoo import local, locate
from specblock_zoo.models.registry import DEFAULT_KIND, DRAFTERS, kind_of_folder
from specblock_zoo.models.specblock.convert import from_published, to_published
from specblock_zoo.models.specblock.published import is_published


def convert(layout: Literal["published", "native"], folder: Path, out: Path) -> None:
    """Converts a drafter from the authors' published layout to ours, or from ours to theirs, bit for bit.

    Args:
        layout: what FOLDER is: published (becomes ours) or native (becomes published, where that can express it).
        folder: of the drafter.
        out: new folder; appears whole or not at all.

    Raises:
        UnknownNameError: FOLDER holds no drafter.
        ConfigurationError: FOLDER has the other layout, or OUT is in use.
        WeightsMismatchError: tensors are missing, extra or of another shape.
        UnsupportedOptionError: the published layout cannot express this drafter, or it is of another kind.
    """
    check_convertible(local(folder))
    found = "published" if is_published(folder) else "native"
    if found != layout:
        raise ConfigurationError(
            f"{folder} has the {found} layout, not the {layout} one.", f"Run: specblock convert {found} {folder} {out}"
        )
    (from_published if layout == "published" else to_published)(folder, out)
    print(f"{out}: converted, every tensor unchanged")


def export(drafter: str, out: Path, format: FormatName = "speculators") -> None:
    """Writes a drafter in the layout of a serving engine, read back and compared before it is shown.

    Args:
        drafter: zoo name, Hub repository or folder.
        out: new folder; appears whole or not at all.
        format: speculators (the container vLLM reads) or sglang.

    Raises:
        UnsupportedOptionError: the layout cannot express this drafter, or it is of another kind.
    """
    folder = locate(drafter, {})
    check_convertible(folder)
    caveat = export_folder(folder, out, format)
    print(f"{out}: written in the {format} layout. {caveat}")


def check_convertible(folder: Path) -> None:
    """Raises `UnsupportedOptionError` for a drafter of a kind that the layouts here are not made for."""
    found, expected = kind_of_folder(folder), DRAFTERS[DEFAULT_KIND]
    if found is not expected:
        raise UnsupportedOptionError(
            f"{folder} holds a drafter of the kind {found.title}; these layouts express {expected.title} only.",
            "Generate with it as it is: every command that takes a drafter takes this folder.",
        )
