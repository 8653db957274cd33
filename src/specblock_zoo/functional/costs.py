"""What the forwards of a round cost and what drafted nodes are worth: the tree that earns most tokens per millisecond.

A round commits one token for sure and every node with its path probability, so a set of nodes is worth their sum.
Whatever the costs, the best set of a given size is the likeliest one, ancestors included; only its size has to be
chosen. Prices follow Dinkelbach's rule for ratios: where a token is priced at the milliseconds it costs in the long
run, the rounds with the largest surplus (price x tokens - milliseconds) have the best rate. Ours; the paper fixes the
number of blocks and the budget.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import compress

from specblock_zoo.functional.tree import ROOT, Growth, Node, Start, subtree
from specblock_zoo.structures import DraftTree, Verdict

LOOKAHEAD = 2
"""Blocks that are imagined before one is run: a curve with steps may make two worth what one is not."""


@dataclass(frozen=True)
class Curve:
    """Milliseconds by size: as measured at `sizes` (ascending, from 1), linear in between, the last slope beyond."""

    sizes: tuple[int, ...]
    ms: tuple[float, ...]

    @classmethod
    def fitted(cls, measured: Mapping[int, float]) -> "Curve":
        """The nearest curve that never falls (least squares): more work cannot cost less, a measurement can say so."""
        pools: list[tuple[float, int]] = []
        for size in sorted(measured):
            pools.append((measured[size], 1))
            while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
                (low, few), (high, many) = pools.pop(), pools.pop()
                pools.append(((low * few + high * many) / (few + many), few + many))
        return cls(tuple(sorted(measured)), tuple(mean for mean, count in pools for _ in range(count)))

    def at(self, size: float) -> float:
        """Milliseconds at any size >= 1."""
        if len(self.sizes) == 1:
            return self.ms[0]
        upper = min(max(bisect_right(self.sizes, size), 1), len(self.sizes) - 1)
        lower = upper - 1
        slope = (self.ms[upper] - self.ms[lower]) / (self.sizes[upper] - self.sizes[lower])
        return self.ms[lower] + slope * (size - self.sizes[lower])


@dataclass(frozen=True)
class RoundCosts:
    """What a round is made of, in milliseconds.

    Attributes:
        verify: target forward, by its tokens (root included) over all rows of a batch.
        first_block: refresh of the drafter and its first block.
        branch: a later block, by its start nodes.
    """

    verify: Curve
    first_block: float
    branch: Curve

    @property
    def plain(self) -> float:
        """A token without a drafter."""
        return self.verify.at(1)

    def of(self, nodes: int, starts: Sequence[int], rows: int = 1, drafted: bool = True) -> float:
        """One row's share of a round.

        Args:
            nodes: of the tree, root not counted.
            starts: start nodes of each later block that was run.
            rows: sequences that the target's forward serves together.
            drafted: whether the drafter was run at all.
        """
        drafting = self.first_block + sum(map(self.branch.at, starts)) if drafted else 0.0
        return self.verify_table(nodes, rows)[nodes] + drafting

    def verify_table(self, most: int, rows: int = 1) -> tuple[float, ...]:
        """One row's share of the target forward over 0..most nodes."""
        return _verify_table(self.verify, 1 << max(most, 1).bit_length(), rows)


@lru_cache(maxsize=64)
def _verify_table(verify: Curve, most: int, rows: int) -> tuple[float, ...]:
    return tuple(verify.at(rows * (nodes + 1)) / rows for nodes in range(most + 1))


@dataclass(frozen=True)
class Calibration:
    """Draft probability -> how often the target agrees: a logistic line, refitted round by round.

    Identity at first. The fit is the mode of the decayed likelihood of past outcomes under a normal prior around the
    identity, one Newton step per round; a drafter that was right is hardly touched, an overconfident one is corrected
    within some twenty rounds.

    Attributes:
        slope, offset: of the log-odds.
        information: of the outcomes seen, without the prior's: slope-slope, slope-offset, offset-offset.
    """

    slope: float = 1.0
    offset: float = 0.0
    information: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def probability(self, log_prob: float) -> float:
        """Probability that the target takes a token, given that it took the ones before it. Rises with `log_prob`."""
        return _sigmoid(self.slope * _log_odds(log_prob) + self.offset)

    def after(self, outcomes: Sequence[tuple[float, bool]], keep: float) -> "Calibration":
        """The line after a round's outcomes (log-probability of a token given its path, whether it was taken).

        Args:
            keep: how much of what was known before counts on, 0..1.
        """
        aa, ab, bb = (keep * each for each in self.information)
        pull_a, pull_b = PRIOR_INFORMATION * (1.0 - self.slope), -PRIOR_INFORMATION * self.offset
        pull_a, pull_b = (1.0 - keep) * pull_a, (1.0 - keep) * pull_b
        for log_prob, taken in outcomes:
            odds, chance = _log_odds(log_prob), self.probability(log_prob)
            weight, surprise = chance * (1.0 - chance), float(taken) - chance
            aa, ab, bb = aa + weight * odds * odds, ab + weight * odds, bb + weight
            pull_a, pull_b = pull_a + surprise * odds, pull_b + surprise
        known_a, known_b = aa + PRIOR_INFORMATION, bb + PRIOR_INFORMATION
        determinant = known_a * known_b - ab * ab
        slope = self.slope + (known_b * pull_a - ab * pull_b) / determinant
        offset = self.offset + (known_a * pull_b - ab * pull_a) / determinant
        # Never falling, so that a likelier sibling stays likelier.
        return Calibration(min(max(slope, 0.2), 3.0), min(max(offset, -3.0), 3.0), (aa, ab, bb))


PRIOR_INFORMATION = 4.0


def _log_odds(log_prob: float) -> float:
    chance = min(max(math.exp(log_prob), 1e-6), 1.0 - 1e-6)
    return math.log(chance / (1.0 - chance))


def _sigmoid(odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-odds))


def path_probabilities(nodes: Sequence[Node], calibration: Calibration, known: Sequence[float] = ()) -> list[float]:
    """Calibrated probability that the target's text runs through each node; never above the parent's.

    What was looked up says itself how often it is right.

    Args:
        known: those of the first nodes.
    """
    chances = list(known)
    for node in nodes[len(known) :]:
        above, before = (chances[node.parent], nodes[node.parent].log_prob) if node.parent != ROOT else (1.0, 0.0)
        given = min(0.0, node.log_prob - before)
        chances.append(above * (math.exp(given) if node.looked_up else calibration.probability(given)))
    return chances


def best_count(ranked: Sequence[float], price: float, verify: Sequence[float], most: int) -> tuple[int, float]:
    """How many of the likeliest nodes to keep, and the surplus: price x expected tokens - verify milliseconds.

    The curve need not be convex, so every count is looked at; of equal ones the smallest is taken.

    Args:
        ranked: path probabilities, descending.
        price: milliseconds that a committed token is worth.
        verify: milliseconds of a forward over 0, 1, ... nodes, at least `most` + 1 of them.
        most: bound on the nodes.
    """
    tokens, count, surplus = 1.0, 0, price - verify[0]
    for kept, chance in enumerate(ranked[:most], start=1):
        tokens += chance
        if price * tokens - verify[kept] > surplus:
            count, surplus = kept, price * tokens - verify[kept]
    return count, surplus


@dataclass(frozen=True)
class Pricing:
    """What the decisions of one round weigh.

    Attributes:
        costs: of the forwards.
        price: milliseconds that one committed token is worth.
        calibration: of the draft probabilities.
        outlook: expected path probabilities of a later block's nodes below a start of probability 1; empty: like this
            round's first block. Descending.
        rows: sequences verified together.
    """

    costs: RoundCosts
    price: float
    calibration: Calibration = Calibration()
    outlook: tuple[float, ...] = ()
    rows: int = 1
    _weighed: list[tuple[tuple[Node, ...], list[float]]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def chances(self, nodes: Sequence[Node]) -> list[float]:
        """Their path probabilities. A tree is weighed several times while it grows: what was known last time stays."""
        nodes = tuple(nodes)
        before, known = self._weighed.pop() if self._weighed else ((), [])
        chances = path_probabilities(nodes, self.calibration, known if nodes[: len(before)] == before else ())
        self._weighed.append((nodes, chances))
        return chances

    def prune(self, nodes: Sequence[Node], most: int, max_depth: int) -> tuple[Node, ...]:
        """The nodes worth verifying, at most `most` of them and none deeper than `max_depth`, in their old order."""
        chances = self.chances(nodes)
        allowed = [index for index, node in enumerate(nodes) if node.depth <= max_depth]
        allowed.sort(key=lambda index: -chances[index])
        ranked = [chances[index] for index in allowed]
        verify = self.costs.verify_table(min(most, len(ranked)), self.rows)
        count, _ = best_count(ranked, self.price, verify, most)
        return subtree(nodes, sorted(allowed[:count]))

    def choose_starts(self, growth: Growth, blocks_left: int, most: int) -> Growth:
        """Keeps the starts from which the next block should grow; none when it does not pay for itself.

        Args:
            growth: the tree so far with the starts it offers.
            blocks_left: blocks that may still be run, this one included.
            most: bound on the nodes of the whole tree.
        """
        chances = self.chances(growth.nodes)
        starts = sorted(growth.starts, key=lambda start: -chances[start.node])
        masses, blocks = [chances[start.node] for start in starts], min(blocks_left, LOOKAHEAD)
        # Never more than could be kept: with eight blocks and a beam of ten, pricing would cost more than drafting.
        ranked, enough = sorted(chances, reverse=True), max(most, len(starts))
        outlook = (self.outlook or tuple(ranked))[:enough]
        found, best = 0, self._surplus(ranked, most)
        for count in _counts(len(starts)):
            imagined, spent = ranked[:most], 0.0
            parents = masses[:count]
            for _ in range(blocks):
                spent += self.costs.branch.at(len(parents))
                below = best_products(parents, outlook, enough)
                imagined = sorted(imagined + below[:most], reverse=True)[:most]
                surplus = self._surplus(imagined, most) - spent
                if surplus > best:
                    found, best = count, surplus
                parents = below[:count]
        kept = {start.node for start in starts[:found]}
        return Growth(growth.nodes, tuple(start for start in growth.starts if start.node in kept))

    def _surplus(self, ranked: Sequence[float], most: int) -> float:
        """Of the best set of nodes with the path probabilities `ranked`, descending."""
        verify = self.costs.verify_table(min(most, len(ranked)), self.rows)
        return best_count(ranked, self.price, verify, most)[1]


def best_products(first: Sequence[float], second: Sequence[float], most: int) -> list[float]:
    """The `most` largest products of a number of each, descending; both descending, none negative.

    Below the m-th and n-th numbers lie products of which m x n - 1 others are no smaller, so few have to be formed.
    """
    products = [one * other for place, one in enumerate(first[:most], start=1) for other in second[: most // place]]
    return sorted(products, reverse=True)[:most]


def _counts(most: int) -> list[int]:
    """All counts up to four, then every doubling, and all there are."""
    return [count for count in range(1, most + 1) if count <= 4 or count == most or count & (count - 1) == 0]


def block_profile(nodes: Sequence[Node], starts: Sequence[Start], block: int, chances: Sequence[float]) -> list[float]:
    """Path probabilities of a later block's nodes relative to their start, the n-th best averaged over its starts."""
    below: dict[int, list[float]] = {start.node: [] for start in starts}
    for index, node in enumerate(nodes):
        if node.block != block:
            continue
        above = node.parent
        while above not in below and above != ROOT:
            above = nodes[above].parent
        if above in below and chances[above] > 0.0:
            below[above].append(chances[index] / chances[above])
    ranked = [sorted(each, reverse=True) for each in below.values()]
    longest = max(map(len, ranked), default=0)
    return [sum(each[place] for each in ranked if place < len(each)) / len(ranked) for place in range(longest)]


def outcomes(tree: DraftTree, verdict: Verdict) -> list[tuple[float, bool]]:
    """Each drafted node whose parent the text reached: its log-probability given its path, and whether the target took
    it. Nodes that were looked up too have that chance, not the drafter's, and are left out."""
    tokens, parents, log_probs = tree.tokens.tolist(), tree.parents.tolist(), tree.log_probs.tolist()
    looked_up = tree.looked_up.tolist()
    seen: list[tuple[float, bool]] = []
    reached = {ROOT}
    for token in verdict.committed_tokens:
        children = [node for node, parent in enumerate(parents) if parent in reached]
        above = [log_probs[parents[node]] if parents[node] != ROOT else 0.0 for node in children]
        given = [min(0.0, log_probs[node] - before) for node, before in zip(children, above, strict=True)]
        taken = [tokens[node] == token for node in children]
        own = [not looked_up[node] for node in children]
        seen += compress(zip(given, taken, strict=True), own)
        reached = {node for node, hit in zip(children, taken, strict=True) if hit}
    return seen


@dataclass(frozen=True)
class Spending:
    """What the rounds of a drafter cost and gained so far, older ones counting less.

    Attributes:
        ms: by the cost curve, so that the same rounds give the same sums on a busy machine.
        tokens: committed.
        calibration: of the draft probabilities.
        outlook: decayed sums of later blocks' profiles, see `block_profile`.
        blocks: decayed number of those.
        guess: tokens at the target's own price that stand for what is not known yet; it decays too.
    """

    ms: float = 0.0
    tokens: float = 0.0
    calibration: Calibration = Calibration()
    outlook: tuple[float, ...] = ()
    blocks: float = 0.0
    guess: float = 4.0

    def pricing(self, costs: RoundCosts, rows: int = 1) -> Pricing:
        """What the next round weighs. A token is never worth more than the target alone takes for it."""
        per_token = (self.ms + self.guess * costs.plain) / (self.tokens + self.guess)
        known = self.blocks >= FEWEST_BLOCKS
        outlook = tuple(each / self.blocks for each in self.outlook) if known else ()
        return Pricing(costs, min(per_token, costs.plain), self.calibration, outlook, rows)

    def after(self, ms: float, tokens: int, outcomes: Sequence[tuple[float, bool]] | None) -> "Spending":
        """After a round of one row; without `outcomes` one that was not drafted, and so says nothing of the drafter."""
        spent = replace(self, ms=KEEP * self.ms + ms, tokens=KEEP * self.tokens + tokens, guess=KEEP * self.guess)
        if outcomes is None:
            return spent
        return replace(
            spent,
            calibration=self.calibration.after(outcomes, KEEP),
            outlook=tuple(KEEP * each for each in self.outlook),
            blocks=KEEP * self.blocks,
        )

    def with_profile(self, profile: Sequence[float]) -> "Spending":
        """After a later block whose nodes had these relative path probabilities."""
        longest = max(len(profile), len(self.outlook))
        old, new = (list(each) + [0.0] * (longest - len(each)) for each in (self.outlook, profile))
        summed = tuple(before + added for before, added in zip(old, new, strict=True))
        return replace(self, outlook=summed, blocks=self.blocks + 1.0)


KEEP = 0.98
"""Share of what was known that counts on after a round: about fifty rounds."""
FEWEST_BLOCKS = 2.0
"""Later blocks to have seen; before, and again once they are forgotten, the round's first block tells what to expect.
So a later block that never paid is tried again after a while."""
