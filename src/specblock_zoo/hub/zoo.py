"""List, find and load the drafters of the zoo, from the checkout's `zoo/` or from the copy packaged in a wheel."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from specblock_zoo.errors import ConfigurationError, UnknownNameError
from specblock_zoo.hub.entry import ENTRY_FILE, ZooEntry, read_entry, verify_files
from specblock_zoo.hub.fetch import check_is_drafter, fetch, is_repository, verify_or_forget
from specblock_zoo.models import registry
from specblock_zoo.models.pretrained import PretrainedDrafter

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
    """The entry called `name`, or the only one whose name without the tag is `name`; baselines need their tag.

    Raises:
        UnknownNameError: no entry, or several, fit; the message lists the nearest or the fitting names.
    """
    entries = {entry.name: entry for entry in list_entries(zoo)}
    if name in entries:
        return entries[name]
    fitting = [known for known in entries if known.startswith(f"{name}.")]
    default = [known for known in fitting if entries[known].kind == registry.DEFAULT_KIND]
    if len(default or fitting) == 1:
        return entries[(default or fitting)[0]]
    if fitting:
        raise UnknownNameError(f"{name!r} fits several drafters: {', '.join(fitting)}.", "Add the tag.")
    nearest = difflib.get_close_matches(name, entries, n=3, cutoff=0.4) or list(entries)
    known = ", ".join(nearest) if nearest else "none, the zoo is empty"
    raise UnknownNameError(f"No drafter is called {name!r}; nearest: {known}.", "Take one of these names, or a folder.")


def resolve(name_or_folder: str | Path, zoo: Path | None = None) -> Path:
    """Folder of an entry or drafter on this machine, given by zoo name or by path; nothing is downloaded.

    Raises:
        UnknownNameError: neither a folder with a drafter nor a name of the zoo.
    """
    folder = Path(name_or_folder).expanduser()
    if (folder / "config.json").is_file():
        return folder
    return (zoo or zoo_folder()) / find(str(name_or_folder), zoo).name


def locate(name: str, options: Mapping[str, Any]) -> Path:
    """Folder with a drafter's configuration and weights, checked; the lookup behind `from_pretrained`.

    Args:
        name: path of a folder, zoo name (the tag may be left out), or Hub repository `org/name`.
        options: see `fetch.fetch`; they matter for repositories only.

    Raises:
        UnknownNameError: nothing is called so, or it holds no drafter.
        WeightsMismatchError: a file has not the SHA-256 that its entry lists.
        ConfigurationError: the entry is a recipe.
        AccessError, HubError: see `fetch.fetch`.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return local(folder)
    if is_repository(name):
        return fetch(name, options)
    return home(find(name), options)


def local(folder: Path) -> Path:
    """`folder`, once it is known to hold a drafter whose files are what its entry (if any) says; errors as `locate`."""
    if not (folder / "config.json").is_file():
        raise UnknownNameError(f"{folder} has no config.json; expected a drafter's.", "Name the folder of a drafter.")
    check_is_drafter(folder / "config.json", str(folder))
    if (folder / ENTRY_FILE).is_file():
        refuse_recipe(entry := read_entry(folder))
        verify_files(entry, folder)
    return folder


def home(entry: ZooEntry, options: Mapping[str, Any], zoo: Path | None = None) -> Path:
    """Where the weights of an entry are: beside it, or in its repository; errors as `locate`."""
    refuse_recipe(entry)
    beside = (zoo or zoo_folder()) / entry.name
    if entry.repository is None or (entry.files and all((beside / name).is_file() for name in entry.files)):
        return local(beside)
    folder = fetch(entry.repository, {"revision": entry.repository_revision, **options})
    verify_or_forget(entry, folder)
    return folder


def refuse_recipe(entry: ZooEntry) -> None:
    """Raises `ConfigurationError` for an entry without weights."""
    if entry.status == "recipe":
        raise ConfigurationError(
            f"{entry.name} is a recipe: a configuration and a plan; no weights have been trained.",
            "Train it with `specblock fit`, or choose a trained one from `specblock zoo list`.",
        )


def load_drafter(
    name_or_folder: str | Path, dtype: torch.dtype = torch.float32, revision: str | None = None
) -> PretrainedDrafter:
    """Loads a drafter of any kind by zoo name, Hub repository or folder, ready to draft; listed files are checked.

    Args:
        name_or_folder, revision: see `PretrainedDrafter.from_pretrained`.
        dtype: of the weights; take the target's.

    Raises:
        UnknownNameError: the name is not in the zoo.
        WeightsMismatchError: a file is absent or changed.
    """
    options = {"revision": revision} if revision else {}
    drafter: PretrainedDrafter = registry.load(name_or_folder, dtype=dtype, **options)
    return drafter
