"""One decode as typed data, and as one HTML page that steps through its rounds; ours.

The page needs no network: data, style and script are in it, and its content policy allows these two and nothing else.
"""

import base64
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import Field

from specblock_zoo.bench.records import Count, Milliseconds, PositiveCount, Record, Share
from specblock_zoo.functional.tree import LOOKUP_BLOCK, ROOT
from specblock_zoo.inference.stats import DecodeStats
from specblock_zoo.structures import DraftTree, Round, Verdict

PAGE = Path(__file__).with_name("trace_page")
TEMPLATE, STYLE, SCRIPT = "page.html.jinja", "page.css", "page.js"
UNFINISHED = "\ufffd"
"""What a tokenizer decodes the first bytes of a character to, before the others have come."""

Decode = Callable[[Sequence[int]], str]
Fate = Literal["accepted", "duplicate", "rejected", "unreached"]
"""The target's verdict on a node: kept; an equal twin of a kept one; another token was the target's; never looked at,
because its parent was not kept."""


class TracedToken(Record):
    """A token of the text: its id, and what it adds to the text before it (nothing while a character is unfinished)."""

    id: Count
    text: str


class TracedNode(Record):
    """A drafted token.

    Attributes:
        id, text: the token, alone.
        parent: index of the parent node, -1 for children of the root.
        depth: distance from the root, >= 1.
        block, slot: which drafter forward proposed it, and where in it; block -1: copied from the text so far alone.
        bucket: predicted rank of the target's token there: 0 = 1, 1 = 2-4, 2 = 5-10, 3 = beyond.
        prob: draft probability given the parent.
        path_prob: product of these along the path.
        fate: the target's verdict.
    """

    id: Count
    text: str
    parent: Annotated[int, Field(ge=ROOT)]
    depth: PositiveCount
    block: Annotated[int, Field(ge=LOOKUP_BLOCK)]
    slot: Count
    bucket: Annotated[int, Field(ge=0, le=3)]
    prob: Share
    path_prob: Share
    fate: Fate


class Totals(Record):
    """Sums over the rounds so far; the prefill counts in `tokens` only.

    Attributes:
        tokens: new tokens of the answer.
        committed, accepted, nodes: tokens committed in rounds, drafted ones among them, drafted nodes.
        tau: committed / rounds.
        draft_ms, verify_ms, other_ms: where the time went.
        tokens_per_s: committed tokens per second of these rounds.
    """

    tokens: PositiveCount
    committed: PositiveCount
    accepted: Count
    nodes: Count
    tau: float
    draft_ms: Milliseconds
    verify_ms: Milliseconds
    other_ms: Milliseconds
    tokens_per_s: float | None


class TracedRound(Record):
    """One draft -> verify -> commit cycle.

    Attributes:
        number: from 1.
        root: text of the last token committed before.
        nodes: the tree, parents first.
        accepted: indices of the accepted path, shallow to deep.
        committed: tokens added to the text, the bonus last where there is one.
        bonus: text of the target's own token; none where the answer ended or was full before it.
        drafter_calls: drafter forwards, refresh included.
        totals: sums up to this round.
    """

    number: PositiveCount
    root: str
    nodes: tuple[TracedNode, ...]
    accepted: tuple[Count, ...]
    committed: Annotated[tuple[TracedToken, ...], Field(min_length=1)]
    bonus: str | None
    draft_ms: Milliseconds
    verify_ms: Milliseconds
    other_ms: Milliseconds
    drafter_calls: Count
    totals: Totals


class TraceHeader(Record):
    """What was decoded, by whom and how.

    Attributes:
        branching: candidates per rank bucket.
        temperature: 0 is greedy.
    """

    prompt: str
    prompt_tokens: PositiveCount
    target: str
    drafter: str
    device: str
    dtype: str
    threads: PositiveCount
    mode: Literal["tree", "chain"]
    num_blocks: PositiveCount
    block_width: PositiveCount
    max_nodes: PositiveCount
    branching: tuple[Count, ...]
    temperature: float
    seed: int


class Trace(Record):
    """A whole decode, the content of the page and of `specblock trace --json`; `first` is the prefill's token."""

    format: Literal[1] = 1
    header: TraceHeader
    prefill_ms: Milliseconds
    first: TracedToken
    rounds: tuple[TracedRound, ...]


@dataclass(frozen=True)
class Words:
    """How tokens become text.

    Attributes:
        decode: token ids -> text, special tokens kept.
        spell: one token id -> its name in the vocabulary, for tokens that are part of a character.
    """

    decode: Decode
    spell: Callable[[int], str]

    def word(self, token: int) -> str:
        """One token alone."""
        text = self.decode([token])
        return self.spell(token) if UNFINISHED in text or not text else text


def trace_decode(stats: DecodeStats, first_token: int, header: TraceHeader, words: Words) -> Trace:
    """The typed record of a decode.

    Args:
        stats: of one row, as `drafter.last_stats` holds it.
        first_token: id that reading the prompt gave, the root of the first round.
        header: what it is about.
        words: token ids to text.
    """
    committed = [round_.verdict.committed_tokens for round_ in stats.history]
    ids = [first_token, *(token for tokens in committed for token in tokens)]
    texts = [TracedToken(id=token, text=text) for token, text in zip(ids, pieces(ids, words.decode), strict=True)]
    rounds, read = [], 1
    for number, round_ in enumerate(stats.history, start=1):
        added = tuple(texts[read : read + len(committed[number - 1])])
        totals = _totals(DecodeStats(stats.history[:number], stats.prefill_ms))
        rounds.append(_traced(number, round_, (words.word(ids[read - 1]), added, totals), words))
        read += len(added)
    return Trace(header=header, prefill_ms=_ms(stats.prefill_ms), first=texts[0], rounds=tuple(rounds))


def pieces(ids: Sequence[int], decode: Decode) -> list[str]:
    """What each token adds to the text, so that they join to the whole of it.

    A character spread over several tokens appears with the last of them. Each piece is decoded behind the one before
    it, since many tokenizers drop the space of a token that stands alone.
    """
    found: list[str] = []
    start = shown = 0
    for end in range(1, len(ids) + 1):
        before, now = decode(ids[start:shown]), decode(ids[start:end])
        if now.endswith(UNFINISHED) and end < len(ids):
            found.append("")
            continue
        found.append(now[len(before) :])
        start, shown = shown, end
    return found


def fates(tree: DraftTree, verdict: Verdict) -> list[Fate]:
    """The target's verdict on every node, in the tree's order."""
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    found: list[Fate] = ["unreached"] * len(tree)
    reached = [ROOT]
    for token in verdict.committed_tokens:
        children = [node for node, parent in enumerate(parents) if parent in reached]
        reached = [node for node in children if tokens[node] == token]
        for node in children:
            found[node] = "duplicate" if node in reached else "rejected"
    for node in verdict.accepted_nodes:
        found[node] = "accepted"
    return found


def render(trace: Trace) -> str:
    """The self-contained HTML page; the same trace gives the same page, byte for byte."""
    environment = Environment(loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined)
    style, script = ((PAGE / name).read_text(encoding="utf-8") for name in (STYLE, SCRIPT))
    return environment.get_template(TEMPLATE).render(
        header=trace.header,
        data=Markup(for_script(trace.model_dump_json())),
        style=Markup(style),
        script=Markup(script),
        style_hash=source_hash(style),
        script_hash=source_hash(script),
    )


def for_script(json: str) -> str:
    """JSON that may stand inside a script element: generated text can neither close the element nor open a comment."""
    for character in "<>&\u2028\u2029":
        json = json.replace(character, f"\\u{ord(character):04x}")
    return json


def source_hash(source: str) -> str:
    """How a content security policy names an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def _traced(number: int, round_: Round, text: tuple[str, tuple[TracedToken, ...], Totals], words: Words) -> TracedRound:
    root, committed, totals = text
    verdict = round_.verdict
    owns = len(committed) > len(verdict.accepted_nodes)
    return TracedRound(
        number=number,
        root=root,
        nodes=_nodes(round_, words),
        accepted=verdict.accepted_nodes,
        committed=committed,
        bonus=words.word(verdict.committed_tokens[-1]) if owns else None,
        draft_ms=_ms(round_.draft_ms),
        verify_ms=_ms(round_.verify_ms),
        other_ms=_ms(round_.other_ms),
        drafter_calls=round_.drafter_calls,
        totals=totals,
    )


def _nodes(round_: Round, words: Words) -> tuple[TracedNode, ...]:
    tree = round_.tree
    log_probs, parents = tree.log_probs.tolist(), tree.parents.tolist()
    columns = zip(
        tree.tokens.tolist(),
        parents,
        tree.depths.tolist(),
        tree.blocks.tolist(),
        tree.slots.tolist(),
        tree.buckets.tolist(),
        log_probs,
        fates(tree, round_.verdict),
        strict=True,
    )
    return tuple(
        TracedNode(
            id=token,
            text=words.word(token),
            parent=parent,
            depth=depth,
            block=block,
            slot=slot,
            bucket=bucket,
            prob=_prob(log_prob - (log_probs[parent] if parent != ROOT else 0.0)),
            path_prob=_prob(log_prob),
            fate=fate,
        )
        for token, parent, depth, block, slot, bucket, log_prob, fate in columns
    )


def _totals(stats: DecodeStats) -> Totals:
    """Sums over all rounds of `stats`."""
    milliseconds = stats.draft_ms + stats.verify_ms + stats.other_ms
    return Totals(
        tokens=stats.committed + 1,
        committed=stats.committed,
        accepted=sum(stats.accepted_per_round),
        nodes=stats.nodes,
        tau=round(stats.committed / stats.rounds, 4),
        draft_ms=_ms(stats.draft_ms),
        verify_ms=_ms(stats.verify_ms),
        other_ms=_ms(stats.other_ms),
        tokens_per_s=round(1000.0 * stats.committed / milliseconds, 2) if milliseconds else None,
    )


def _ms(value: float) -> float:
    return round(value, 3)


def _prob(log_prob: float) -> float:
    # By rounding, a child's float32 sum may come out above its parent's.
    return round(math.exp(min(0.0, log_prob)), 6)
