"""Frozen records that cross layers. Tensors are 1-D or carry the axis names given beside them."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from specblock_zoo.errors import ConfigurationError, check_values

FEWEST_LAYERS = 7
FINAL_NORM = -1
"""As a tap: not the output of a layer, but the state after the target's final norm, which its head reads."""


@dataclass(frozen=True)
class TargetFeatures:
    """What a frozen target tells the drafter about a batch of sequences.

    Attributes:
        features: outputs of the tap layers side by side, `[batch, seq, taps * target_hidden]`.
        last_hidden: state after the target's final norm (its head maps it to logits), `[batch, seq, target_hidden]`.
    """

    features: Tensor
    last_hidden: Tensor | None = None


@dataclass(frozen=True)
class DraftBlock:
    """Output of one drafter forward: K dependent slots for each row (a row is one drafting position or start node).

    Attributes:
        hidden: last-layer states before the final norm, `[rows, slots, hidden]`; the condition of a following block.
        logits: scores over the draft vocabulary, `[rows, slots, draft_vocab]`.
        rank_logits: scores of the four rank buckets, `[rows, slots, 4]`.
        best: the highest of the logits, descending, where the drafter had to sort them anyway.
    """

    hidden: Tensor
    logits: Tensor
    rank_logits: Tensor
    best: "BestLogits | None" = None


class BestLogits(NamedTuple):
    """Highest entries of the last axis, descending, and their indices, each `[rows, slots, any number]`."""

    values: Tensor
    indices: Tensor


def default_tap_layers(num_layers: int) -> tuple[int, int, int]:
    """The three layers the method reads: 1, L/2 - 1 and L - 4, 0-based (as in the published drafters).

    Raises:
        ConfigurationError: fewer than 7 layers, where the three would not be in rising order.
    """
    if num_layers < FEWEST_LAYERS:
        raise ConfigurationError(
            f"The target has {num_layers} layers; the default tap layers need at least {FEWEST_LAYERS}.",
            "Name the tap layers explicitly.",
        )
    return 1, num_layers // 2 - 1, num_layers - 4


class KeyValues(NamedTuple):
    """Rotated keys and values of one drafter layer, each `[rows, kv_heads, length, head_dim]`."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class BranchMemory:
    """What start nodes may look at, beside their own block.

    Attributes:
        context: per layer, rows of the positions before the drafting position, `[1, kv_heads, length, head_dim]`.
        path: per layer, slots of the earlier blocks on each start's path, `[rows, kv_heads, path, head_dim]`.
        path_mask: which of them the start may see, bool `[rows, path]`.
        context_mask: bool `[1, 1, length]`, False hides a row of the context; None = all visible.
    """

    context: tuple[KeyValues, ...]
    path: tuple[KeyValues, ...]
    path_mask: Tensor
    context_mask: Tensor | None = None


@dataclass(frozen=True)
class ContextOutput:
    """What `extend` returns: the first block at the drafting position and the keys/values it leaves behind.

    Attributes:
        block: first block at the last position, rows = batch.
        context: one `KeyValues` per layer for all new positions, length = new positions x context_slots.
        path: one `KeyValues` per layer for the K slots of the drafting position, length = K.
    """

    block: DraftBlock
    context: tuple[KeyValues, ...]
    path: tuple[KeyValues, ...]


@dataclass(frozen=True)
class BranchOutput:
    """What `branch` returns: one block per start node and the keys/values of its own K slots per layer."""

    block: DraftBlock
    path: tuple[KeyValues, ...]


def _counts(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


COST_CURVES = ("measured", "stored", "off")
MOST_COPIED = 64


@dataclass(frozen=True)
class TreeSettings:
    """How a draft tree is grown. `functional.tree` reads it; `DrafterConfig` stores the defaults.

    Raises:
        ConfigurationError: a value is out of range.

    Attributes:
        num_blocks: drafter forwards per round (the paper's M), >= 1.
        max_nodes: upper bound on drafted nodes, root not counted, >= 1.
        beam_width: width of slot 0 of the first block, and bound on the starts of blocks after the second.
        branching: candidates (greedy one included) per rank bucket 0..3; 0 in the last place means "give up".
        confident_root: cap the first slot's width when the greedy probability is high (release: ADAPTIVE_SLOT0).
        confident_slots: cap every other slot's width likewise (release: ADAPTIVE_ALL).
        merge_duplicates: merge siblings that carry the same token (ours; the release keeps both).
        chain: draft the greedy path only: one start per block, no siblings.
        bound_all_starts: cut the starts of every later block to the `beam_width` best that can still survive the node
            budget (ours). False is the release's rule: block 1 grows from all starts, block m from
            min(beam_width, max(1, (max_nodes - nodes) // slots)).
        min_path_prob: drop nodes whose path probability is below this, 0..1; a block with no start left is not run.
            Not read where a cost curve decides.
        cost_curve: what decides how much of `num_blocks` and `max_nodes`, then mere bounds, is used. `measured`: the
            curve that `specblock tune` stored for this machine, else a coarse one measured at first use; `stored`: that
            one, else the settings alone; `off`: the settings alone.
        independent_slots: slot k's candidates continue every node of slot k-1, not the greedy one alone, best paths
            first; buckets are not read. For drafters whose slots do not depend on each other's tokens.
        max_slots: so many slots of each block are drafted from, the first ones, >= 1; None takes all. Tells what a
            narrower block is worth, without training one.
        lookup_tokens: tokens per round that are copied where the end of the text occurred before, from what followed
            it then, and judged beside the drafted ones; 0..64, 0 copies none.
        lookup_alone: chance of the first copied token, 0..1, from which on a round is judged without drafting; 1 always
            drafts.
    """

    num_blocks: int = 2
    max_nodes: int = 60
    beam_width: int = 10
    branching: tuple[int, int, int, int] = (2, 4, 10, 0)
    confident_root: bool = False
    confident_slots: bool = False
    merge_duplicates: bool = True
    chain: bool = False
    bound_all_starts: bool = True
    min_path_prob: float = 0.0
    independent_slots: bool = False
    cost_curve: str = "measured"
    max_slots: int | None = None
    lookup_tokens: int = 0
    lookup_alone: float = 0.5

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("num_blocks", "max_nodes", "beam_width")}
        rules = {name: (_counts(value, 1), "an integer from 1") for name, value in counts.items()}
        buckets = len(TreeSettings.branching)
        widths = len(self.branching) == buckets and all(_counts(width, 0) for width in self.branching)
        rules["branching"] = (widths, f"{buckets} integers from 0, one per rank bucket")
        for name in ("min_path_prob", "lookup_alone"):
            chance = getattr(self, name)
            rules[name] = (type(chance) in (int, float) and 0.0 <= chance <= 1.0, "a probability, 0..1")
        rules["max_slots"] = (self.max_slots is None or _counts(self.max_slots, 1), "an integer from 1, or None")
        copied = _counts(self.lookup_tokens, 0) and self.lookup_tokens <= MOST_COPIED
        rules["lookup_tokens"] = (copied, f"an integer, 0..{MOST_COPIED}")
        rules["cost_curve"] = (self.cost_curve in COST_CURVES, f"one of {', '.join(COST_CURVES)}")
        check_values(self, rules, "Correct the drafter's configuration, or the option of this call.")


@dataclass(frozen=True)
class DraftTree:
    """Drafted nodes in topological order (a parent comes before its children); the root is not a node.

    Attributes (each `[nodes]`; on the host, since the walk reads them one by one):
        tokens: target-vocabulary ids, int64.
        parents: index of the parent node, -1 for children of the root, int64.
        log_probs: sum of draft log-probabilities along the path, float32, never above the parent's; of nodes that were
            looked up, the chance of that is part of it (`functional.graft`).
        blocks, slots, buckets: where the node came from, int64; block -1 for what only the text so far proposed.
            Buckets are 0 under settings that read none (`functional.buckets.reads_buckets`).
        depths: distance from the root, >= 1, int64.
        looked_up: whether the text so far proposed it, alone or beside the drafter, bool.
    """

    tokens: Tensor
    parents: Tensor
    log_probs: Tensor
    blocks: Tensor
    slots: Tensor
    buckets: Tensor
    depths: Tensor
    looked_up: Tensor

    def __len__(self) -> int:
        return int(self.tokens.shape[0])


@dataclass(frozen=True)
class Verdict:
    """What the target said about a tree.

    Attributes:
        accepted_nodes: node indices of the accepted path, root excluded, shallow to deep.
        committed_tokens: tokens added to the text this round: accepted ones, then the target's own (bonus) token
            unless the text ended before it.
        finished: a stopping criterion fired on the last committed token.
    """

    accepted_nodes: tuple[int, ...]
    committed_tokens: tuple[int, ...]
    finished: bool


@dataclass(frozen=True)
class Round:
    """One draft -> verify -> commit cycle, for counting and drawing. Times in milliseconds, device-synchronised.

    `draft_ms` includes the drafter's refresh; `other_ms` is everything outside both models' forwards, of which
    `commit_ms` went into keeping the accepted rows. `drafter_calls` counts drafter forwards, refresh included.
    """

    tree: DraftTree
    verdict: Verdict
    draft_ms: float
    verify_ms: float
    other_ms: float
    drafter_calls: int = 0
    commit_ms: float = 0.0
