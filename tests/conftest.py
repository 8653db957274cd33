"""Fixtures of the whole test suite."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import FIXTURE_NAMES, find_fixtures

# The same examples on every run, and no time limit per example: a busy machine must not turn a law into a coin toss.
settings.register_profile("reproducible", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("reproducible")


@pytest.fixture(scope="session")
def fixtures_dir() -> Path:
    """Folder of golden numbers made with the authors' release; skips where it does not lie beside the checkout."""
    found = find_fixtures()
    if found is None:
        pytest.skip("golden fixtures are not beside this checkout")
    return found


@pytest.fixture(params=FIXTURE_NAMES, scope="session")
def golden_dir(request: pytest.FixtureRequest, fixtures_dir: Path) -> Path:
    """Each folder of golden numbers in turn: `llama_tiny`, `qwen3_tiny`."""
    return fixtures_dir / str(request.param)
