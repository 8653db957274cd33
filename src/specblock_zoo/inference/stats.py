"""What one generate call cost and gained."""

from collections.abc import Sequence
from dataclasses import dataclass

from specblock_zoo.functional.acceptance import AcceptanceCounts, count_rounds
from specblock_zoo.functional.tree import LOOKUP_BLOCK
from specblock_zoo.structures import Round


@dataclass(frozen=True)
class DecodeStats:
    """Record of one generate call; the prefill and the token it yields are kept apart from the decode rounds.

    Attributes:
        history: every round, with its tree and verdict.
        prefill_ms: reading the prompt and choosing its first token, device-synchronised milliseconds.
    """

    history: tuple[Round, ...]
    prefill_ms: float

    @property
    def counts(self) -> AcceptanceCounts:
        """Sums over the rounds."""
        return count_rounds((round_.tree, round_.verdict) for round_ in self.history)

    @property
    def rounds(self) -> int:
        """Decode rounds, i.e. target forwards after the prefill."""
        return len(self.history)

    @property
    def committed(self) -> int:
        """Tokens committed in the decode rounds; the prefill's one is not among them."""
        return sum(len(round_.verdict.committed_tokens) for round_ in self.history)

    @property
    def accepted_per_round(self) -> tuple[int, ...]:
        """Drafted tokens kept in each round."""
        return tuple(len(round_.verdict.accepted_nodes) for round_ in self.history)

    @property
    def tau(self) -> float:
        """Committed tokens per decode round, >= 1; NaN without a round."""
        return self.counts.tau

    @property
    def alpha(self) -> dict[tuple[int, int], float]:
        """Conditional acceptance per (block, slot), see `AcceptanceCounts`."""
        return self.counts.alpha

    @property
    def alpha_by_depth(self) -> dict[int, float]:
        """Conditional acceptance per depth, see `AcceptanceCounts`."""
        return self.counts.alpha_by_depth

    @property
    def nodes(self) -> int:
        """Drafted nodes, roots not counted."""
        return sum(len(round_.tree) for round_ in self.history)

    @property
    def drafter_calls(self) -> int:
        """Drafter forwards, refreshes included."""
        return sum(round_.drafter_calls for round_ in self.history)

    @property
    def lookup_nodes(self) -> int:
        """Nodes that only the text so far proposed, see `TreeSettings.lookup_tokens`."""
        return sum(int((round_.tree.blocks == LOOKUP_BLOCK).sum()) for round_ in self.history)

    @property
    def lookup_accepted(self) -> int:
        """Accepted tokens among these: what the drafter alone would not have gained."""
        trees = ((round_.tree.blocks.tolist(), round_.verdict.accepted_nodes) for round_ in self.history)
        return sum(blocks[node] == LOOKUP_BLOCK for blocks, accepted in trees for node in accepted)

    @property
    def drafter_tau(self) -> float:
        """Tokens per round that the drafter was run for, copies left out; NaN without such a round."""
        drafted = DecodeStats(tuple(round_ for round_ in self.history if not _undrafted(round_)), self.prefill_ms)
        return (drafted.committed - drafted.lookup_accepted) / drafted.rounds if drafted.rounds else float("nan")

    @property
    def undrafted_rounds(self) -> int:
        """Rounds with a tree that no drafter forward was spent on."""
        return sum(map(_undrafted, self.history))

    @property
    def draft_ms(self) -> float:
        """Drafter time of all rounds, milliseconds."""
        return sum(round_.draft_ms for round_ in self.history)

    @property
    def verify_ms(self) -> float:
        """Target time of all rounds, milliseconds."""
        return sum(round_.verify_ms for round_ in self.history)

    @property
    def other_ms(self) -> float:
        """Time of all rounds outside both models' forwards, milliseconds."""
        return sum(round_.other_ms for round_ in self.history)

    @property
    def draft_share(self) -> float:
        """Drafter time / round time, 0..1; NaN without a round."""
        total = self.draft_ms + self.verify_ms + self.other_ms
        return self.draft_ms / total if total else float("nan")


def _undrafted(round_: Round) -> bool:
    return round_.drafter_calls == 0 and len(round_.tree) > 0


def tau_of(stats: Sequence[DecodeStats]) -> float:
    """Accepted length over several calls: all committed tokens / all rounds."""
    return sum((each.counts for each in stats), AcceptanceCounts()).tau
