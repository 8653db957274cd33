"""What a verify forward over n nodes costs: the curve that decides how large a tree may be."""

import statistics
from collections.abc import Sequence

import torch
from transformers import DynamicCache, PreTrainedModel

from specblock_zoo.bench.records import Milliseconds, PositiveCount, Record
from specblock_zoo.bench.timing import time_call
from specblock_zoo.functional.tree import ROOT, Node, flatten
from specblock_zoo.inference.modes import form_of
from specblock_zoo.inference.verify import Prompt, Verifier
from specblock_zoo.structures import DraftTree

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
CONTEXT = 256
REPEATS = 7


class CostPoint(Record):
    """Milliseconds of a verify forward over `rows` tokens (the root among them): the median and the quartiles."""

    rows: PositiveCount
    ms: Milliseconds
    low: Milliseconds
    high: Milliseconds


@torch.no_grad()
def verify_cost(
    model: PreTrainedModel, rows: Sequence[int] = ROWS, context: int = CONTEXT, repeats: int = REPEATS
) -> tuple[CostPoint, ...]:
    """Times target forwards over trees of growing size, the sizes interleaved, behind `context` cached tokens.

    Args:
        rows: tree sizes, the root counted; those that leave the target's positions are left out.
        context: cached tokens, fewer where the target has no room for more.
        repeats: forwards per size, after one that is not timed.
    """
    positions = model.config.max_position_embeddings
    fitting = [count for count in rows if 2 * count <= positions]
    context = min(context, positions - max(fitting))
    ids = torch.arange(context, device=model.device)[None] % model.config.vocab_size
    verifier = Verifier(model, (0,), DynamicCache(), form_of(model))
    verifier.read(Prompt(ids, None, torch.arange(context, device=model.device)[None]))
    times: dict[int, list[float]] = {count: [] for count in fitting}
    for repeat in range(repeats + 1):
        for count in fitting:
            tree = star(count - 1)
            timed = time_call(lambda each: verifier.judge([0], [each]), tree)
            verifier.cache.crop(-count)
            if repeat:
                times[count].append(1000.0 * timed.seconds)
    verifier.close()
    return tuple(_point(count, values) for count, values in times.items())


def star(nodes: int) -> DraftTree:
    """A tree of that many children of the root; the cost does not depend on the shape."""
    return flatten([Node(index, ROOT, 0.0, 0, 0, 0, 1) for index in range(nodes)])


def _point(rows: int, values: Sequence[float]) -> CostPoint:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return CostPoint(rows=rows, ms=middle, low=low, high=high)
