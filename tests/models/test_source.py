"""Models ask a lookup for folders, and keep only the options that concern building."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from specblock_zoo.models import source


@pytest.fixture
def lookups() -> Iterator[list[Any]]:
    before = list(source._lookups)
    yield source._lookups
    source._lookups[:] = before


def test_the_package_installs_one_lookup(lookups: list[Any]) -> None:
    assert len(lookups) == 1


def test_fetch_options_go_to_the_lookup_and_the_rest_stays(lookups: list[Any]) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def locate(name: str, options: Mapping[str, Any]) -> Path:
        asked.append((name, dict(options)))
        return Path("found")

    source.install(locate)
    options = {"revision": "v1", "dtype": "auto", "token": None}
    assert source.folder_of(Path("a") / "b", options) == Path("found")
    assert asked == [("a/b", {"revision": "v1", "token": None})]
    assert options == {"dtype": "auto"}


def test_without_a_lookup_a_name_is_a_folder(lookups: list[Any]) -> None:
    lookups.clear()
    assert source.folder_of("a/b", {}) == Path("a/b")
