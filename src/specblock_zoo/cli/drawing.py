"""Drawing in the terminal: a progress bar, and one round of decoding as a tree."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress
from rich.text import Text
from rich.tree import Tree

from specblock_zoo.functional.tree import LOOKUP_BLOCK
from specblock_zoo.structures import Round

ACCEPTED, BONUS, REJECTED, ROOT_STYLE = "bold green", "bold red", "dim", "bold"
ROOT = -1


def draw_round(drawn: Round, root_token: int, decode: Callable[[int], str]) -> Tree:
    """The draft tree of a round.

    Args:
        drawn: the round; each node shows its draft probability given its parent, and whether only the text so far
            proposed it.
        root_token: last committed token before the round.
        decode: token id -> text.
    Returns:
        a rich tree; children in the order they were drafted, the bonus token under the last accepted node.
    """
    tree, verdict = drawn.tree, drawn.verdict
    log_probs = tree.log_probs.tolist()
    tokens, parents, blocks = tree.tokens.tolist(), tree.parents.tolist(), tree.blocks.tolist()
    branches = {ROOT: Tree(_label(decode(root_token), ROOT_STYLE, "root"))}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        probability = math.exp(log_probs[node] - (log_probs[parent] if parent != ROOT else 0.0))
        style = ACCEPTED if node in verdict.accepted_nodes else REJECTED
        note = f"{probability:.2f}" + (", copied" if blocks[node] == LOOKUP_BLOCK else "")
        branches[node] = branches[parent].add(_label(decode(token), style, note))
    if len(verdict.committed_tokens) > len(verdict.accepted_nodes):
        last = verdict.accepted_nodes[-1] if verdict.accepted_nodes else ROOT
        branches[last].add(_label(decode(verdict.committed_tokens[-1]), BONUS, "bonus: the target's own"))
    return branches[ROOT]


def _label(token: str, style: str, note: str) -> Text:
    return Text.assemble((repr(token), style), " ", (note, "italic dim"))


@contextmanager
def progress(what: str, total: int, console: Console) -> Iterator[Callable[[], None]]:
    """A progress bar that vanishes when done; yields the function that moves it by one."""
    with Progress(console=console, transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda: bars.advance(task)
