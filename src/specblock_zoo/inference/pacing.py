"""How much to draft: the account of a drafter's rounds, kept across calls, and the decisions of one round.

With a cost curve a tree is as large as pays; `max_nodes` and `num_blocks` bound it and `min_path_prob` is not read.
Without one the settings alone decide. Neither changes the text.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from specblock_zoo.functional.costs import (
    Pricing,
    RoundCosts,
    Spending,
    block_profile,
    outcomes,
)
from specblock_zoo.functional.tree import Growth, Node, Start
from specblock_zoo.structures import DraftTree, TreeSettings, Verdict


@dataclass
class Pace:
    """The decisions of one round of one row, and what the account has to know of them."""

    pricing: Pricing
    starts: list[int] = field(default_factory=list)
    profiles: list[list[float]] = field(default_factory=list)

    def choose_starts(self, growth: Growth, settings: TreeSettings, block: int) -> Growth:
        """The starts from which block number `block` (>= 1) pays; none where it does not."""
        chosen = self.pricing.choose_starts(growth, settings.num_blocks - block, settings.max_nodes)
        if chosen.starts:
            self.starts.append(len(chosen.starts))
        return chosen

    def grown(self, nodes: Sequence[Node], starts: Sequence[Start], block: int) -> None:
        """Notes what block number `block` proposed below its starts."""
        self.profiles.append(block_profile(nodes, starts, block, self.pricing.chances(nodes)))

    def prune(self, nodes: Sequence[Node], settings: TreeSettings, max_depth: int) -> tuple[Node, ...]:
        """The nodes worth verifying."""
        return self.pricing.prune(nodes, settings.max_nodes, max_depth)


class Account:
    """What a drafter's rounds cost and gained under one cost curve; threads may share it."""

    def __init__(self, costs: RoundCosts) -> None:
        self.costs = costs
        self.spending = Spending()
        self._lock = threading.Lock()

    def pace(self, rows: int = 1) -> Pace:
        """For one round of one of `rows` sequences that are verified together."""
        return Pace(self.spending.pricing(self.costs, rows))

    def settle(
        self, paces: Sequence[Pace | None], drafts: Sequence[tuple[DraftTree, int]], verdicts: Sequence[Verdict]
    ) -> None:
        """Books the rounds that one target forward ended.

        Args:
            drafts: trees, and drafter forwards spent; rounds with neither, at a text's end, say nothing.
        """
        for pace, (tree, calls), verdict in zip(paces, drafts, verdicts, strict=True):
            if pace is not None and (calls or len(tree)):
                ms = self.costs.of(len(tree), pace.starts, pace.pricing.rows, drafted=calls > 0)
                seen = outcomes(tree, verdict) if calls else None
                self._book(ms, len(verdict.committed_tokens), seen, pace.profiles)

    def _book(
        self, ms: float, tokens: int, seen: Sequence[tuple[float, bool]] | None, profiles: Sequence[Sequence[float]]
    ) -> None:
        with self._lock:
            spending = self.spending.after(ms, tokens, seen)
            for profile in profiles:
                spending = spending.with_profile(profile)
            self.spending = spending


_accounts: WeakKeyDictionary[Any, dict[tuple[RoundCosts, bool], Account]] = WeakKeyDictionary()
_opening = threading.Lock()


def account_of(drafter: Any, costs: RoundCosts, sampled: bool) -> Account:
    """The account of a drafter object, one per cost curve; sampled text agrees less often, so it has its own."""
    with _opening:
        accounts = _accounts.setdefault(drafter, {})
        return accounts.setdefault((costs, sampled), Account(costs))
