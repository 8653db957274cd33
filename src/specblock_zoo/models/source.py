"""From what a user calls a drafter to the folder that holds it.

Models know folders only. Zoo names and Hub repositories belong to a higher layer, which hands its lookup down here when
the package is imported.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FETCH_OPTIONS = ("revision", "token", "cache_dir", "local_files_only", "force_download")
"""Keyword arguments of `from_pretrained` that concern where files come from, not what is built from them."""

Locate = Callable[[str, Mapping[str, Any]], Path]
"""(name, repository or path; fetch options) -> folder with `config.json`, checked."""

_lookups: list[Locate] = []


def install(locate: Locate) -> None:
    """Makes `locate` the lookup of every drafter; calling it again replaces the one before."""
    _lookups[:] = [locate]


def folder_of(name: Any, options: dict[str, Any]) -> Path:
    """The folder of a drafter. Takes the fetch options out of `options`, so that what remains is about building it.

    Args:
        name: zoo name, Hub repository, or path of a folder.
        options: keyword arguments of `from_pretrained`; changed in place.
    """
    fetch = {option: options.pop(option) for option in FETCH_OPTIONS if option in options}
    for locate in _lookups:
        return locate(str(name), fetch)
    return Path(str(name))
