"""Who may watch a generate call: drafters that learn from what the target says about their trees."""

from typing import Protocol

from torch import Tensor

from specblock_zoo.inference.cache import Pairs
from specblock_zoo.inference.text import Text
from specblock_zoo.structures import DraftBlock, DraftTree, Verdict


class Observer(Protocol):
    """Told about every row and round of one generate call; it may keep the tensors, and must not change them.

    `text` tells rows apart; it goes on growing.
    """

    def drafted(self, text: Text, pairs: Pairs, block: DraftBlock) -> None:
        """The drafter took in `pairs` and drafted its first block, one row, at the last of them."""

    def judged(self, text: Text, tree: DraftTree, verdict: Verdict, logits: Tensor) -> None:
        """The target scored the tree: `logits` `[nodes + 1, vocab]`, row 0 the root's, row j + 1 node j's."""
