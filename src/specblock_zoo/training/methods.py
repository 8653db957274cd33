"""Training methods by `model_type` of the drafter: the table."""

from specblock_zoo.training import eagle3, medusa, specblock
from specblock_zoo.training.method import TrainingMethod

METHODS: dict[str, TrainingMethod] = {
    "specblock": specblock.METHOD,
    "eagle3": eagle3.METHOD,
    "medusa": medusa.METHOD,
}
