"""A trace says what the decode's records say, and nothing that a model writes can leave its place in the page."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from specblock_zoo.bench.trace import (
    PAGE,
    SCRIPT,
    STYLE,
    Trace,
    TraceHeader,
    Words,
    fates,
    for_script,
    pieces,
    render,
    source_hash,
    trace_decode,
)
from specblock_zoo.functional.tree import LOOKUP_BLOCK
from specblock_zoo.inference.stats import DecodeStats
from specblock_zoo.structures import DraftTree, Round, Verdict

VOCABULARY = {1: "Hi", 2: " there", 3: " </script>", 4: "<!--", 5: " you", 6: "!", 7: "\u2028é", 8: "\n"}


def tree(tokens: list[int], parents: list[int], probabilities: list[float]) -> DraftTree:
    """`probabilities` of the paths."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    zeros = torch.zeros(len(tokens), dtype=torch.int64)
    return DraftTree(
        tokens=torch.tensor(tokens, dtype=torch.int64),
        parents=torch.tensor(parents, dtype=torch.int64),
        log_probs=torch.tensor(probabilities).log(),
        blocks=zeros,
        slots=torch.tensor(depths, dtype=torch.int64) - 1,
        buckets=zeros + 1,
        depths=torch.tensor(depths, dtype=torch.int64),
        looked_up=zeros.bool(),
    )


ROUNDS = (
    Round(
        tree([2, 5, 3, 6, 6], [-1, -1, 0, 1, 2], [0.5, 0.25, 0.4, 0.2, 0.1]),
        Verdict((0, 2), (2, 3, 4), False),
        2,
        6,
        1,
        3,
    ),
    Round(tree([], [], []), Verdict((), (7,), False), 0, 5, 1, 0),
    Round(tree([8], [-1], [0.125]), Verdict((0,), (8,), True), 1, 5, 0.5, 1),
)
HEADER = TraceHeader(
    prompt="Say <b>hi</b> & </script><script>alert(1)</script>",
    prompt_tokens=7,
    target="a & b",
    drafter="<drafter>",
    device="cpu",
    dtype="float32",
    threads=1,
    mode="tree",
    num_blocks=2,
    block_width=4,
    max_nodes=16,
    branching=(2, 4, 10, 0),
    temperature=0.0,
    seed=0,
)
WORDS = Words(lambda ids: "".join(VOCABULARY[token] for token in ids), lambda token: f"<{token}>")


def traced(rounds: tuple[Round, ...] = ROUNDS) -> Trace:
    return trace_decode(DecodeStats(rounds, 12.5), 1, HEADER, WORDS)


def test_rounds_keep_the_decodes_order_text_and_times() -> None:
    trace = traced()
    assert [each.number for each in trace.rounds] == [1, 2, 3]
    assert [each.root for each in trace.rounds] == ["Hi", "<!--", "\u2028é"]
    assert [(each.draft_ms, each.verify_ms, each.other_ms) for each in trace.rounds] == [
        (2, 6, 1),
        (0, 5, 1),
        (1, 5, 0.5),
    ]
    text = trace.first.text + "".join(token.text for each in trace.rounds for token in each.committed)
    assert text == WORDS.decode([1, 2, 3, 4, 7, 8])


def test_a_copied_node_belongs_to_no_block() -> None:
    copied = replace(ROUNDS[2].tree, blocks=torch.tensor([LOOKUP_BLOCK]))
    trace = traced((*ROUNDS[:2], replace(ROUNDS[2], tree=copied)))
    assert [node.block for node in trace.rounds[2].nodes] == [LOOKUP_BLOCK]
    assert Trace.model_validate_json(trace.model_dump_json()) == trace


def test_only_a_token_that_nobody_drafted_is_the_bonus() -> None:
    assert [each.bonus for each in traced().rounds] == ["<!--", "\u2028é", None]


def test_totals_are_sums_up_to_the_round() -> None:
    totals = [each.totals for each in traced().rounds]
    assert [(each.tokens, each.committed, each.accepted, each.nodes) for each in totals] == [
        (4, 3, 2, 5),
        (5, 4, 2, 5),
        (6, 5, 3, 6),
    ]
    assert [each.tau for each in totals] == [3.0, 2.0, pytest.approx(5 / 3, abs=1e-4)]
    assert totals[1].tokens_per_s == pytest.approx(4 / 0.015, abs=0.01)


def test_a_nodes_probability_is_given_its_parent_and_the_path_multiplies_up() -> None:
    nodes = traced().rounds[0].nodes
    assert [node.prob for node in nodes] == pytest.approx([0.5, 0.25, 0.8, 0.8, 0.25], abs=1e-5)
    for node in nodes:
        above = nodes[node.parent].path_prob if node.parent >= 0 else 1.0
        assert node.path_prob == pytest.approx(above * node.prob, abs=1e-5)


def test_each_node_gets_the_targets_verdict() -> None:
    assert [node.fate for node in traced().rounds[0].nodes] == [
        "accepted",
        "rejected",
        "accepted",
        "unreached",
        "rejected",
    ]


def test_a_twin_of_an_accepted_token_is_told_apart() -> None:
    twins = tree([2, 2, 3], [-1, -1, 0], [0.5, 0.3, 0.2])
    assert fates(twins, Verdict((0, 2), (2, 3, 6), False)) == ["accepted", "duplicate", "accepted"]


def test_an_answer_of_one_token_has_no_round() -> None:
    trace = traced(())
    assert (trace.first.text, trace.rounds) == ("Hi", ())
    assert "No round" in render(trace)


@pytest.mark.parametrize("text", ["é", "a🎉b", "日本語", "e\u0301"])
def test_pieces_join_to_the_text_and_show_no_half_character(text: str) -> None:
    found = pieces(list(text.encode()), lambda ids: bytes(ids).decode(errors="replace"))
    assert "".join(found) == text
    assert "\ufffd" not in "".join(found)
    assert len(found) == len(text.encode())


def test_a_text_that_ends_inside_a_character_shows_that() -> None:
    assert pieces(list("é".encode())[:1], lambda ids: bytes(ids).decode(errors="replace")) == ["\ufffd"]


def test_a_token_inside_a_character_goes_by_its_name() -> None:
    words = Words(lambda ids: bytes(ids).decode(errors="replace"), lambda token: f"<0x{token:02X}>")
    assert words.word(0xC3) == "<0xC3>"
    assert words.word(0x41) == "A"


def test_the_data_survives_json_and_script() -> None:
    trace = traced()
    inside = for_script(trace.model_dump_json())
    assert not set("<>&\u2028\u2029") & set(inside)
    assert Trace.model_validate_json(inside) == trace
    assert Trace.model_validate_json(trace.model_dump_json()) == trace


class Reader(HTMLParser):
    """Elements in order, with the text of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": [], "title": []}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        last = self.tags[-1][0] if self.tags else ""
        if last in self.texts and data.strip():
            self.texts[last].append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def test_what_a_model_writes_opens_and_closes_nothing() -> None:
    with_text, without = read(render(traced())), read(render(traced(())))
    assert [tag for tag, _ in with_text.tags] == [tag for tag, _ in without.tags]
    data, code = with_text.texts["script"]
    assert Trace.model_validate_json(data) == traced()
    assert code == (PAGE / SCRIPT).read_text(encoding="utf-8")
    assert with_text.texts["title"] == ["Trace: a & b with <drafter>"]


def test_the_page_loads_nothing_and_its_policy_names_its_own_style_and_script_only() -> None:
    page = render(traced())
    reader = read(page)
    links = [value for _, attributes in reader.tags for name, value in attributes.items() if name in ("src", "href")]
    assert links == ["data:,"]
    assert re.search(r"https?:|//[a-z]|@import|url\(", page) is None
    (policy,) = [each["content"] for tag, each in reader.tags if tag == "meta" and each.get("http-equiv")]
    assert policy is not None
    style, script = (source_hash((PAGE / name).read_text(encoding="utf-8")) for name in (STYLE, SCRIPT))
    assert policy.startswith(f"default-src 'none'; img-src data:; style-src '{style}'; script-src '{script}';")


def test_the_same_decode_gives_the_same_page() -> None:
    assert render(traced()) == render(traced())


def test_the_page_travels_in_the_wheel() -> None:
    from tests.architecture.tree import PACKAGE

    assert Path(PAGE).is_relative_to(PACKAGE)
    assert json.dumps(sorted(path.name for path in PAGE.iterdir())) == json.dumps(
        ["page.css", "page.html.jinja", "page.js"]
    )
