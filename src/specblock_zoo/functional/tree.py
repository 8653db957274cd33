"""Draft trees on the host: grow block proposals into nodes, choose the next block's starts, prune, flatten.

The release's rules (SpecBlock, arXiv 2605.07243) and ours are told apart by `TreeSettings` alone. Everything works on
Python numbers: a round has tens of nodes, and the walk that follows reads them one by one.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from specblock_zoo.structures import DraftTree, TreeSettings

ROOT = -1
NO_TOKEN = -1
LOOKUP_BLOCK = -1
"""Block of nodes that no drafter forward proposed; their slot is the place in the copy, their bucket 0."""
GIVE_UP_BUCKET = 3
# (greedy probability from which on, width): the release's ADAPTIVE_SLOT0 and ADAPTIVE_ALL tables.
WidthRules = tuple[tuple[float, int], ...]
CONFIDENT_ROOT_WIDTHS: WidthRules = ((0.9, 3), (0.8, 5), (0.6, 8))
CONFIDENT_SLOT_WIDTHS: WidthRules = ((0.95, 2), (0.85, 3))


class Node(NamedTuple):
    """One drafted token. `parent` indexes the node list (-1: the root); `log_prob` sums the path, in nats.

    `looked_up`: found in the text so far too, and as likely as that makes it; see `functional.graft`.
    """

    token: int
    parent: int
    log_prob: float
    block: int
    slot: int
    bucket: int
    depth: int
    looked_up: bool = False


class Start(NamedTuple):
    """A node the next block may grow from, with the block row and slot whose state conditions it."""

    node: int
    row: int
    slot: int


@dataclass(frozen=True)
class Proposals:
    """What one drafter forward proposes, on the host; one row per start of the block.

    Attributes:
        tokens: `[rows][slots][width]` target ids, best first; -1 marks an id the target does not have.
        log_probs: same shape, draft log-probabilities in nats, <= 0.
        buckets: `[rows][slots]` predicted rank bucket, 0..3.
    """

    tokens: Sequence[Sequence[Sequence[int]]]
    log_probs: Sequence[Sequence[Sequence[float]]]
    buckets: Sequence[Sequence[int]]


@dataclass(frozen=True)
class Growth:
    """A tree being grown: its nodes (parents first) and the starts of the next block."""

    nodes: tuple[Node, ...] = ()
    starts: tuple[Start, ...] = (Start(ROOT, 0, ROOT),)


def candidate_width(settings: TreeSettings) -> int:
    """Candidates per slot that growth can use, greedy one included."""
    return 1 if settings.chain else max(1, settings.beam_width, *settings.branching)


def grow_block(growth: Growth, proposals: Proposals, settings: TreeSettings, block: int) -> Growth:
    """Adds a block's proposals below `growth.starts`; returns the larger tree and all starts the block offers.

    The greedy chains of all rows come first, then the siblings, row by row (the release's node order). Independent
    slots come best path first.

    Args:
        growth: tree so far; `proposals` has one row per start.
        block: index of the block, 0 for the one conditioned on the target.
    """
    grower = _Grower(growth.nodes, settings.merge_duplicates, block)
    if settings.independent_slots and not settings.chain:
        starts = _grow_product(grower, growth.starts, proposals, settings.max_nodes)
        return Growth(tuple(grower.nodes), starts)
    chains = [grower.add_chain(start.node, row, proposals) for row, start in enumerate(growth.starts)]
    if settings.chain:
        return Growth(tuple(grower.nodes), tuple(Start(chain[-1], row, len(chain) - 1) for row, chain in _full(chains)))
    offered = _Starts()
    for row, (start, chain) in enumerate(zip(growth.starts, chains, strict=True)):
        widths = slot_widths(proposals, row, settings, first=block == 0)
        offered.add_chain(row, chain, widths, _hitchhikes(proposals.buckets[row], settings, first=block == 0))
        for slot in range(len(chain)):
            parent = chain[slot - 1] if slot else start.node
            for node in grower.add_siblings(parent, (row, slot), widths[slot], proposals):
                offered.siblings.append(Start(node, row, slot))
    return Growth(tuple(grower.nodes), offered.ordered(unique=settings.merge_duplicates))


def slot_widths(proposals: Proposals, row: int, settings: TreeSettings, first: bool) -> list[int]:
    """Candidates of each slot of a row, greedy one included: rank bucket, then the confidence rules.

    Args:
        first: the row belongs to the first block, whose slot 0 is as wide as the beam whatever its bucket.
    """
    widths: list[int] = []
    gave_up = False
    gives_up = settings.branching[GIVE_UP_BUCKET] == 0
    for slot, bucket in enumerate(proposals.buckets[row]):
        greedy_prob = math.exp(proposals.log_probs[row][slot][0])
        if first and slot == 0:
            widths.append(_capped(settings.beam_width, greedy_prob, CONFIDENT_ROOT_WIDTHS, settings.confident_root))
            continue
        gave_up = gave_up or (gives_up and bucket == GIVE_UP_BUCKET)
        width = _capped(settings.branching[bucket], greedy_prob, CONFIDENT_SLOT_WIDTHS, settings.confident_slots)
        widths.append(1 if gave_up else max(1, width))
    return widths


def select_starts(growth: Growth, settings: TreeSettings, block: int, slots: int, max_depth: int) -> Growth:
    """Keeps the starts from which block number `block` (>= 1) should grow, best first where they are cut.

    Args:
        slots: block width K.
        max_depth: nodes deeper than this can never be committed.
    """
    floor = log_floor(settings)
    starts = [
        start
        for start in growth.starts
        if growth.nodes[start.node].depth < max_depth and growth.nodes[start.node].log_prob >= floor
    ]
    limit = settings.beam_width
    if settings.bound_all_starts:
        survivors = set(_best(growth.nodes, settings.max_nodes))
        starts = [start for start in starts if start.node in survivors]
    elif block == 1:
        limit = len(starts)
    else:
        limit = min(limit, max(1, (settings.max_nodes - len(growth.nodes)) // slots))
    if len(starts) > limit:
        starts = sorted(starts, key=lambda start: -growth.nodes[start.node].log_prob)[:limit]
    return Growth(growth.nodes, tuple(starts))


def prune(nodes: Sequence[Node], settings: TreeSettings, max_depth: int) -> tuple[Node, ...]:
    """The best `max_nodes` nodes by path probability, in their old order, parents re-indexed.

    Scores never increase along a path and parents come first, so a stable top-n keeps every ancestor.
    """
    floor = log_floor(settings)
    allowed = [index for index, node in enumerate(nodes) if node.depth <= max_depth and node.log_prob >= floor]
    if len(allowed) > settings.max_nodes:
        allowed = sorted(sorted(allowed, key=lambda index: -nodes[index].log_prob)[: settings.max_nodes])
    return subtree(nodes, allowed)


def subtree(nodes: Sequence[Node], kept: Sequence[int]) -> tuple[Node, ...]:
    """The nodes `kept` (ascending indices, every parent among them), parents re-indexed."""
    renumbered = {ROOT: ROOT} | {old: new for new, old in enumerate(kept)}
    return tuple(nodes[index]._replace(parent=renumbered[nodes[index].parent]) for index in kept)


def log_floor(settings: TreeSettings) -> float:
    """Lowest path log-probability a node may have, in nats."""
    return math.log(settings.min_path_prob) if settings.min_path_prob > 0.0 else -math.inf


def flatten(nodes: Sequence[Node]) -> DraftTree:
    """The nodes as a `DraftTree` of host tensors."""
    columns = list(zip(*nodes, strict=True)) or [()] * len(Node._fields)
    named = dict(zip(Node._fields, columns, strict=True))
    others = ("log_prob", "looked_up")
    integers = {name: torch.tensor(named[name], dtype=torch.int64) for name in Node._fields if name not in others}
    return DraftTree(
        tokens=integers["token"],
        parents=integers["parent"],
        log_probs=torch.tensor(named["log_prob"], dtype=torch.float32),
        blocks=integers["block"],
        slots=integers["slot"],
        buckets=integers["bucket"],
        depths=integers["depth"],
        looked_up=torch.tensor(named["looked_up"], dtype=torch.bool),
    )


def ancestor_matrix(parents: Sequence[int]) -> Bool[Tensor, "rows rows"]:
    """Who sees whom in the verify forward: row 0 is the root, row j + 1 node j; a row sees its ancestors and itself."""
    rows = [[False] * (len(parents) + 1) for _ in range(len(parents) + 1)]
    rows[0][0] = True
    for index, parent in enumerate(parents, start=1):
        rows[index][:index] = rows[parent + 1][:index]
        rows[index][index] = True
    return torch.tensor(rows, dtype=torch.bool)


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """Nodes from the root's child down to `node`, both included; empty for the root."""
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]


def paths(parents: Sequence[int]) -> Int64[Tensor, "leaves length"]:
    """Root-to-leaf rows in lexicographic order; entry 0 is the root, node j is j + 1, -1 pads."""
    inner = set(parents)
    rows = sorted(
        [0, *(node + 1 for node in path_to(parents, leaf))] for leaf in range(len(parents)) if leaf not in inner
    )
    length = max((len(row) for row in rows), default=1)
    return torch.tensor([row + [-1] * (length - len(row)) for row in rows or [[0]]], dtype=torch.int64)


class _Grower:
    """Node list under construction; with `merge`, a (parent, token) pair exists once, where first proposed, with its
    better score."""

    def __init__(self, nodes: Sequence[Node], merge: bool, block: int) -> None:
        self.nodes = list(nodes)
        self.block = block
        self.known = {(node.parent, node.token): index for index, node in enumerate(nodes)} if merge else None

    def add(self, node: Node) -> int:
        if self.known is not None:
            index = self.known.setdefault((node.parent, node.token), len(self.nodes))
            if index < len(self.nodes):
                known = self.nodes[index]
                self.nodes[index] = known._replace(log_prob=max(known.log_prob, node.log_prob))
                return index
        self.nodes.append(node)
        return len(self.nodes) - 1

    def add_candidate(self, parent: int, place: tuple[int, int, int], proposals: Proposals) -> int | None:
        """Adds candidate (row, slot, rank) under `parent`; None when the target has no such token."""
        row, slot, rank = place
        token = proposals.tokens[row][slot][rank]
        if token == NO_TOKEN:
            return None
        score, depth = self.score(parent, place, proposals), self.nodes[parent].depth if parent != ROOT else 0
        return self.add(Node(token, parent, score, self.block, slot, proposals.buckets[row][slot], depth + 1))

    def score(self, parent: int, place: tuple[int, int, int], proposals: Proposals) -> float:
        """Log-probability of the path through `parent` to candidate (row, slot, rank)."""
        row, slot, rank = place
        return (self.nodes[parent].log_prob if parent != ROOT else 0.0) + proposals.log_probs[row][slot][rank]

    def add_chain(self, parent: int, row: int, proposals: Proposals) -> list[int]:
        """Adds the row's greedy tokens below one another, up to the first one the target does not have."""
        chain: list[int] = []
        for slot in range(len(proposals.tokens[row])):
            node = self.add_candidate(chain[-1] if chain else parent, (row, slot, 0), proposals)
            if node is None:
                break
            chain.append(node)
        return chain

    def add_siblings(self, parent: int, place: tuple[int, int], width: int, proposals: Proposals) -> list[int]:
        """Adds candidates 2..width of (row, slot) under `parent`."""
        available = min(width, len(proposals.tokens[place[0]][place[1]]))
        nodes = (self.add_candidate(parent, (*place, rank), proposals) for rank in range(1, available))
        return [node for node in nodes if node is not None]


def _grow_product(grower: _Grower, starts: Sequence[Start], proposals: Proposals, max_nodes: int) -> tuple[Start, ...]:
    """Adds the `max_nodes` best paths among all combinations of the rows' candidates; each new node is a start.

    Neither a path's best continuation nor its next sibling is likelier than the path, so a heap that holds these two
    for every path taken has the best one left on top.
    """
    heap: list[tuple[float, int, tuple[int, int, int]]] = []
    offered: dict[int, Start] = {}

    def push(parent: int, row: int, slot: int, rank: int) -> None:
        if slot < len(proposals.tokens[row]) and rank < len(proposals.tokens[row][slot]):
            place = (row, slot, rank)
            heapq.heappush(heap, (-grower.score(parent, place, proposals), parent, place))

    for row, start in enumerate(starts):
        push(start.node, row, 0, 0)
    enough = len(grower.nodes) + max_nodes
    while heap and len(grower.nodes) < enough:
        _, parent, (row, slot, rank) = heapq.heappop(heap)
        push(parent, row, slot, rank + 1)
        node = grower.add_candidate(parent, (row, slot, rank), proposals)
        if node is not None and node not in offered:
            offered[node] = Start(node, row, slot)
            push(node, row, slot + 1, 0)
    return tuple(offered.values())


class _Starts:
    """Starts a block offers, in the release's order: chain nodes that branch, siblings, then the hitchhiking tails."""

    def __init__(self) -> None:
        self.chain: list[Start] = []
        self.siblings: list[Start] = []
        self.tails: list[Start] = []

    def add_chain(self, row: int, chain: Sequence[int], widths: Sequence[int], hitchhike: bool) -> None:
        self.chain += [Start(node, row, slot) for slot, node in enumerate(chain) if widths[slot] > 1]
        last = len(widths) - 1
        if hitchhike and len(chain) == len(widths) and widths[last] == 1:
            self.tails.append(Start(chain[last], row, last))

    def ordered(self, unique: bool) -> tuple[Start, ...]:
        starts = self.chain + self.siblings + self.tails
        if not unique:
            return tuple(starts)
        first_of_node: dict[int, Start] = {}
        for start in starts:
            first_of_node.setdefault(start.node, start)
        return tuple(first_of_node.values())


def _hitchhikes(buckets: Sequence[int], settings: TreeSettings, first: bool) -> bool:
    """Whether a chain tail that does not branch is a start all the same."""
    if first:
        return next((bucket for bucket in buckets if bucket != 0), 0) != GIVE_UP_BUCKET
    return not (settings.branching[GIVE_UP_BUCKET] == 0 and GIVE_UP_BUCKET in buckets)


def _full(chains: Sequence[Sequence[int]]) -> list[tuple[int, Sequence[int]]]:
    return [(row, chain) for row, chain in enumerate(chains) if chain]


def _capped(width: int, greedy_prob: float, rules: WidthRules, in_force: bool) -> int:
    if not in_force:
        return width
    return next((min(width, cap) for threshold, cap in rules if greedy_prob >= threshold), width)


def _best(nodes: Sequence[Node], count: int) -> list[int]:
    return sorted(range(len(nodes)), key=lambda index: -nodes[index].log_prob)[:count]
