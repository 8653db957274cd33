"""Errors teach: they tell the problem and the remedy, and survive the trip between processes."""

import copy
import pickle

import pytest

from specblock_zoo import errors
from specblock_zoo.data.datamodule import FeatureDataModule
from specblock_zoo.errors import ConfigurationError, SpecBlockError
from specblock_zoo.training.method import Assumptions
from specblock_zoo.training.module import AdamWSettings, LossWeights

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


OUT_OF_RANGE = {
    LossWeights: {
        "slot_weight": (0.0,),
        "rank_weight": (-1.0, float("nan")),
        "min_rows": (0,),
        "block_weight": (-1.0,),
    },
    AdamWSettings: {
        "learning_rate": (-1e-3, float("nan")),
        "weight_decay": (-0.1,),
        "betas": ((0.9, 1.0), (-0.1, 0.9)),
        "warmup_fraction": (1.5, -0.1),
    },
    Assumptions: {
        "train_tokens": (0,),
        "supervised": (0.0, 1.1),
        "alpha": (-0.1, 2.0),
        "device_tflops": (0.0,),
        "utilisation": (0.0, 3.0),
    },
    FeatureDataModule: {"batch_tokens": (0,), "max_length": (0,), "val_fraction": (1.0, -0.1), "seed": (-1,)},
}
CASES = [(kind, name, value) for kind, rows in OUT_OF_RANGE.items() for name, found in rows.items() for value in found]


@pytest.mark.parametrize(("kind", "name", "value"), CASES)
def test_numbers_out_of_range_are_named_with_their_value(kind: type, name: str, value: object) -> None:
    kind()
    with pytest.raises(ConfigurationError, match=rf"{kind.__name__}\.{name} is ") as caught:
        kind(**{name: value})
    assert repr(value) in caught.value.problem
