"""Walk a draft tree with the target's tokens, and count what was accepted.

The target's token is decided at each visited node, and the walk follows the child that equals it. Whatever was drafted,
the tokens read off are the target's own: greedy or sampled, the text has exactly the target's law.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields

import torch
from jaxtyping import Float
from torch import Tensor

from specblock_zoo.functional.sampling import draw
from specblock_zoo.functional.tree import LOOKUP_BLOCK, ROOT, path_to
from specblock_zoo.structures import DraftTree, Verdict

Choose = Callable[[int], tuple[int, bool]]
"""Row of the verify forward (0: root, j + 1: node j) -> the target's next token there, and whether it ends the text."""


def walk(tree: DraftTree, choose: Choose) -> Verdict:
    """Follows the target's tokens from the root for as long as the tree holds them.

    `choose` is called once per committed token, in text order. Nodes that repeat a token under one parent are followed
    together, and the longest of them is accepted.
    """
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    reached, committed = [ROOT], []
    while True:
        token, finished = choose(reached[0] + 1)
        committed.append(token)
        followed = [node for node, parent in enumerate(parents) if tokens[node] == token and parent in reached]
        reached = followed or reached
        if finished or not followed:
            return Verdict(tuple(path_to(parents, reached[0])), tuple(committed), finished)


def greedy_walk(tree: DraftTree, target_tokens: Sequence[int]) -> Verdict:
    """The walk where the target's best token at each row is known.

    Args:
        target_tokens: `len(tree) + 1` target ids, row 0 for the root.
    """
    return walk(tree, lambda row: (target_tokens[row], False))


def sampled_walk(tree: DraftTree, target_probs: Float[Tensor, "rows vocab"], generator: torch.Generator) -> Verdict:
    """The walk where the target's token is drawn at each visited row, one draw per committed token."""
    return walk(tree, lambda row: (int(draw(target_probs[row], generator)), False))


Place = tuple[int, int]
"""(block, slot)"""


@dataclass(frozen=True)
class AcceptanceCounts:
    """Sums over rounds; add them up, divide once.

    Attributes:
        rounds: decode rounds, the prefill excluded.
        committed: tokens committed in them.
        accepted: drafted tokens among these.
        offered: per (block, slot), rounds in which the walk reached a node with children proposed there. A merged node
            counts where it was first proposed; one that only the text so far proposed counts nowhere.
        hit: per (block, slot), those of them in which one of these children was the target's token.
        depth_offered, depth_hit: the same per depth, whatever block the children came from.
    """

    rounds: int = 0
    committed: int = 0
    accepted: int = 0
    offered: Counter[Place] = field(default_factory=Counter)
    hit: Counter[Place] = field(default_factory=Counter)
    depth_offered: Counter[int] = field(default_factory=Counter)
    depth_hit: Counter[int] = field(default_factory=Counter)

    def __add__(self, other: "AcceptanceCounts") -> "AcceptanceCounts":
        return AcceptanceCounts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def tau(self) -> float:
        """Committed tokens per decode round, >= 1; NaN before the first round."""
        return self.committed / self.rounds if self.rounds else float("nan")

    @property
    def alpha(self) -> dict[Place, float]:
        """P(accepted here | reached with proposals from here), per (block, slot)."""
        return {place: self.hit[place] / count for place, count in sorted(self.offered.items())}

    @property
    def alpha_by_depth(self) -> dict[int, float]:
        """P(accepted at this depth | accepted up to it and something was drafted), per depth, 1-based."""
        return {depth: self.depth_hit[depth] / count for depth, count in sorted(self.depth_offered.items())}


def count_round(tree: DraftTree, verdict: Verdict) -> AcceptanceCounts:
    """Counts of one round."""
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    places = list(zip(tree.blocks.tolist(), tree.slots.tolist(), strict=True))
    offered: set[Place] = set()
    hit: set[Place] = set()
    depths, reached = 0, [ROOT]
    for token in verdict.committed_tokens:
        children = [node for node, parent in enumerate(parents) if parent in reached]
        reached = [node for node in children if tokens[node] == token]
        offered |= {places[node] for node in children if places[node][0] != LOOKUP_BLOCK}
        hit |= {places[node] for node in reached if places[node][0] != LOOKUP_BLOCK}
        depths += bool(children)
    accepted = len(verdict.accepted_nodes)
    return AcceptanceCounts(
        rounds=1,
        committed=len(verdict.committed_tokens),
        accepted=accepted,
        offered=Counter(offered),
        hit=Counter(hit),
        depth_offered=Counter(range(1, depths + 1)),
        depth_hit=Counter(range(1, accepted + 1)),
    )


def count_rounds(rounds: Iterable[tuple[DraftTree, Verdict]]) -> AcceptanceCounts:
    """Counts of many rounds."""
    return sum((count_round(tree, verdict) for tree, verdict in rounds), AcceptanceCounts())
