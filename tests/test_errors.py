"""Errors teach: they tell the problem and the remedy, and survive the trip between processes."""

import copy
import pickle

import pytest

from specblock_zoo import errors
from specblock_zoo.errors import SpecBlockError

ERRORS = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, SpecBlockError)]


@pytest.mark.parametrize("error", ERRORS)
def test_message_is_problem_then_hint(error: type[SpecBlockError]) -> None:
    assert str(error("The drafter has 3 taps, the target 2.", "Retrain it.")) == (
        "The drafter has 3 taps, the target 2. Retrain it."
    )


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    "travel", [copy.copy, lambda raised: pickle.loads(pickle.dumps(raised))], ids=["copy", "pickle"]
)
def test_problem_and_hint_survive_copies(error: type[SpecBlockError], travel) -> None:
    arrived = travel(error("a", "b"))
    assert (type(arrived), arrived.problem, arrived.hint) == (error, "a", "b")


@pytest.mark.parametrize("error", [value for value in ERRORS if value is not SpecBlockError])
def test_every_error_is_also_a_builtin_one(error: type[SpecBlockError]) -> None:
    """Callers that do not know this package still catch bad values as ValueError, missing packages as ImportError."""
    assert issubclass(error, ValueError | ImportError | RuntimeError)
