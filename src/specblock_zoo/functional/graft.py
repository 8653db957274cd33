"""Graft a copied continuation into a tree: one tree, whoever proposed its nodes. Ours."""

import math
from collections.abc import Sequence

from specblock_zoo.functional.lookup import Copied
from specblock_zoo.functional.tree import LOOKUP_BLOCK, ROOT, Node


def graft(nodes: Sequence[Node], copied: Copied) -> tuple[Node, ...]:
    """The tree with the copy in it: along nodes that carry its tokens, then new ones below the last of these.

    Where drafter and copy agree, both must err for the token to be wrong, as if they did so independently: measured on
    56 answers of SmolLM2-135M-Instruct, agreement of two halves is right in 0.7 to 0.8 of the cases. What hangs below
    such a node rises with it, so that all other chances given the parent stay what they were.
    """
    if not copied.tokens:
        return tuple(nodes)
    grown: list[Node] = []
    last, matched = ROOT, 0
    for index, node in enumerate(nodes):
        before, above = (each[node.parent].log_prob if node.parent != ROOT else 0.0 for each in (nodes, grown))
        given = min(node.log_prob - before, 0.0)
        if node.parent == last and matched < len(copied.tokens) and node.token == copied.tokens[matched]:
            given = math.log1p((copied.chances[matched] - 1.0) * (1.0 - math.exp(given)))
            node, last, matched = node._replace(looked_up=True), index, matched + 1
        grown.append(node._replace(log_prob=above + given))
    log_prob = grown[last].log_prob if last != ROOT else 0.0
    for place in range(matched, len(copied.tokens)):
        log_prob += math.log(copied.chances[place])
        grown.append(Node(copied.tokens[place], last, log_prob, LOOKUP_BLOCK, place, 0, place + 1, looked_up=True))
        last = len(grown) - 1
    return tuple(grown)


def likelier_chain(nodes: Sequence[Node], copied: Copied) -> tuple[Node, ...]:
    """The drafted chain or the copied one, whichever promises more tokens: what attention without a mask can judge."""
    return max((tuple(nodes), graft((), copied)), key=expected_tokens)


def expected_tokens(nodes: Sequence[Node]) -> float:
    """Drafted tokens that will be accepted if the path probabilities are true."""
    return sum(math.exp(node.log_prob) for node in nodes)
