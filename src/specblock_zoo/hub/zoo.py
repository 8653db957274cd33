"""List, find and load the drafters of the zoo, from the checkout's `zoo/` or from the copy packaged in a wheel."""

import difflib
from pathlib import Path

import torch

from specblock_zoo.errors import UnknownNameError
from specblock_zoo.hub.entry import ENTRY_FILE, ZooEntry, read_entry, verify_files
from specblock_zoo.models.specblock.modeling_specblock import SpecBlockDrafter

PACKAGED = Path(__file__).parents[1] / "_zoo"
CHECKOUT = Path(__file__).parents[3] / "zoo"


def zoo_folder() -> Path:
    """Folder that holds the entries: `_zoo` inside an installed wheel, else `zoo/` of the checkout."""
    return PACKAGED if PACKAGED.is_dir() else CHECKOUT


def list_entries(zoo: Path | None = None) -> tuple[ZooEntry, ...]:
    """All entries, by name.

    Args:
        zoo: folder of entry folders; default `zoo_folder()`.
    Raises:
        ConfigurationError: an entry cannot be read.
        UnknownNameError: a folder is not named after its entry.
    """
    folders = sorted(path.parent for path in (zoo or zoo_folder()).glob(f"*/{ENTRY_FILE}"))
    entries = []
    for folder in folders:
        entry = read_entry(folder)
        if entry.name != folder.name:
            raise UnknownNameError(f"Folder {folder.name!r} holds the entry {entry.name!r}.", "Name both alike.")
        entries.append(entry)
    return tuple(entries)


def find(name: str, zoo: Path | None = None) -> ZooEntry:
    """The entry called `name`, or the only one whose name without the tag is `name`.

    Raises:
        UnknownNameError: no entry, or several, fit; the message lists the nearest or the fitting names.
    """
    entries = {entry.name: entry for entry in list_entries(zoo)}
    if name in entries:
        return entries[name]
    fitting = [known for known in entries if known.startswith(f"{name}.")]
    if len(fitting) == 1:
        return entries[fitting[0]]
    if fitting:
        raise UnknownNameError(f"{name!r} fits several drafters: {', '.join(fitting)}.", "Add the tag.")
    nearest = difflib.get_close_matches(name, entries, n=3, cutoff=0.4) or list(entries)
    known = ", ".join(nearest) if nearest else "none, the zoo is empty"
    raise UnknownNameError(f"No drafter is called {name!r}; nearest: {known}.", "Take one of these names, or a folder.")


def resolve(name_or_folder: str | Path, zoo: Path | None = None) -> Path:
    """Folder of a drafter given by zoo name or by path; an existing folder with a `config.json` wins.

    Raises:
        UnknownNameError: neither a folder with a drafter nor a name of the zoo.
    """
    folder = Path(name_or_folder).expanduser()
    if (folder / "config.json").is_file():
        return folder
    return (zoo or zoo_folder()) / find(str(name_or_folder), zoo).name


def load_drafter(name_or_folder: str | Path, dtype: torch.dtype = torch.float32) -> SpecBlockDrafter:
    """Loads a drafter by zoo name or folder, ready to draft; files that an entry lists are checked first.

    Raises:
        UnknownNameError: the name is not in the zoo.
        WeightsMismatchError: a file is absent or changed.
    """
    folder = resolve(name_or_folder)
    if (folder / ENTRY_FILE).is_file():
        verify_files(read_entry(folder), folder)
    drafter: SpecBlockDrafter = SpecBlockDrafter.from_pretrained(folder, dtype=dtype)
    drafter.train(mode=False)
    return drafter
