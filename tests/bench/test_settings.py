"""Settings are checked before anything is loaded, and every configuration in the checkout passes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from specblock_zoo.bench.methods import read_methods
from specblock_zoo.bench.settings import BenchSettings
from specblock_zoo.bench.suites import TASKS
from specblock_zoo.errors import ConfigurationError
from tests.support import REPOSITORY

CONFIGS = sorted((REPOSITORY / "configs" / "bench").glob("*.yaml"))
VALID: dict[str, Any] = {"methods": {"plain": None}, "tasks": ["nq"]}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_is_valid(path: Path) -> None:
    settings = BenchSettings(**yaml.safe_load(path.read_text()))
    settings.check()
    assert {method.name for method in read_methods(settings.methods)} == set(settings.methods)
    assert set(settings.tasks) <= set(TASKS)


def test_greedy_decoding_runs_once_whatever_the_seeds() -> None:
    settings = BenchSettings(**VALID, temperatures=[0.0, 0.7], seeds=[3, 4])
    assert settings.draws == ((0.0, 3), (0.7, 3), (0.7, 4))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"methods": {}}, "no methods"),
        ({"tasks": []}, "no tasks"),
        ({"tasks": ["nq", "nq"]}, "there twice"),
        ({"prompts": 0}, "prompts is 0"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"temperatures": [-1.0]}, "below 0"),
        ({"reference": "eagle"}, "reference is 'eagle'; the methods are plain"),
    ],
)
def test_what_cannot_be_run_is_named(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        BenchSettings(**{**VALID, **changes}).check()
