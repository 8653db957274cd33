"""The trace's page in a real browser: keys, clicks, colours and what a screen reader is told."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specblock_zoo.bench.trace import render
from specblock_zoo.functional.tree import LOOKUP_BLOCK
from tests.bench.test_trace import ROUNDS, traced
from tests.support.browser import CHROMIUM, Browser, chromium

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="Chromium is not installed")
ROUND = "Number(document.getElementById('number').textContent)"
ANSWER = "[...document.querySelectorAll('#answer span:not([hidden])')].map(span => span.textContent).join('')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(autouse=True)
def laptop(browser: Browser) -> None:
    """Each test starts from the same window, whatever the one before looked at."""
    browser.look()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.html"
    path.write_text(render(traced()), encoding="utf-8")
    return path


def fates_of(browser: Browser) -> list[str]:
    return list(browser.run("[...document.querySelectorAll('.node')].map(n => n.className.split(' ')[1]).sort()"))


def test_keys_step_through_the_rounds(browser: Browser, page: Path) -> None:
    browser.open(page)
    seen = [browser.run(ROUND)]
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "Home", "End"):
        browser.press(key)
        seen.append(browser.run(ROUND))
    assert seen == [1, 2, 3, 3, 2, 1, 3]
    assert browser.run("location.hash") == "#round=3"


def test_the_tree_shows_every_node_the_root_and_the_bonus(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert fates_of(browser) == ["accepted", "accepted", "bonus", "rejected", "rejected", "root", "unreached"]
    browser.press("ArrowRight")
    assert fates_of(browser) == ["bonus", "root"]
    browser.press("ArrowRight")
    assert fates_of(browser) == ["accepted", "root"]


def test_copies_are_drawn_apart(browser: Browser, tmp_path: Path) -> None:
    copied = replace(ROUNDS[0].tree, blocks=torch.tensor([0, LOOKUP_BLOCK, 0, LOOKUP_BLOCK, 0]))
    path = tmp_path / "trace.html"
    path.write_text(render(traced((replace(ROUNDS[0], tree=copied), *ROUNDS[1:]))), encoding="utf-8")
    browser.open(path)
    assert browser.run("document.querySelectorAll('.node.copied').length") == 2
    browser.run("document.querySelector('.node.copied').click()")
    assert browser.run("document.getElementById('node').textContent.includes('block, slotcopied')")


def test_the_text_grows_with_the_rounds(browser: Browser, page: Path) -> None:
    browser.open(page)
    texts = [browser.run(ANSWER)]
    for _ in range(2):
        browser.press("ArrowRight")
        texts.append(browser.run(ANSWER))
    assert texts == ["Hi there </script><!--", "Hi there </script><!--\u2028é", "Hi there </script><!--\u2028é\n"]


def test_the_address_and_a_click_choose_a_round(browser: Browser, page: Path) -> None:
    browser.open(page, "#round=2")
    assert browser.run(ROUND) == 2
    browser.click(".round:nth-child(3)")
    assert browser.run(ROUND) == 3
    browser.click("[data-go=previous]")
    assert browser.run(ROUND) == 2
    browser.click("#answer span:nth-child(2)")
    assert browser.run(ROUND) == 1


@pytest.mark.parametrize("address", ["#round=0", "#round=99", "#round=x", "#other"])
def test_an_address_without_such_a_round_shows_one_all_the_same(browser: Browser, page: Path, address: str) -> None:
    browser.open(page, address)
    assert browser.run(ROUND) in (1, 3)
    assert browser.complaints == []


def test_space_plays_to_the_end_and_pauses(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.press(" ")
    assert browser.run("document.getElementById('play').ariaLabel") == "Pause"
    browser.press(" ")
    assert browser.run("document.getElementById('play').ariaLabel") == "Play"
    browser.press(" ")
    played = f"new Promise(done => {{ const look = () => {ROUND} === 3 ? done(3) : setTimeout(look, 20); look(); }})"
    assert browser.run(played) == 3
    assert browser.run("document.getElementById('play').ariaLabel") == "Play"


def test_up_and_down_walk_the_nodes_and_tell_of_them(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.press("Tab", *["ArrowUp"] * 9, "ArrowDown", "ArrowDown")
    label = browser.run("document.activeElement.ariaLabel")
    assert label == '" </script>", depth 2, probability 80 %, bucket 1, accepted'
    assert browser.run("document.querySelectorAll('.node[tabindex=\"0\"]').length") == 1
    told = browser.run("document.getElementById('node').innerText")
    assert "Accepted: the target writes this token here." in told
    assert "2 to 4 (bucket 1)" in told
    # Space on a node plays, as everywhere.
    browser.press(" ")
    assert browser.run("document.body.classList.contains('playing')")


def test_a_rejected_node_says_what_the_target_wrote(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.click(".node.rejected[data-key='1']")
    assert "Rejected: the target writes “·there” here." in browser.run("document.getElementById('node').innerText")


def test_screen_readers_hear_each_round(browser: Browser, page: Path) -> None:
    browser.open(page)
    slider = "document.getElementById('timeline')"
    assert browser.run(f"[{slider}.role, {slider}.ariaValueNow, {slider}.ariaValueMax]") == ["slider", "1", "3"]
    browser.press("ArrowRight")
    heard = browser.run("document.querySelector('[role=status]').textContent")
    assert heard.startswith("Round 2 of 3: 0 of 0 accepted; committed ")
    unnamed = "[...document.querySelectorAll('button')].filter(b => !b.ariaLabel && !b.textContent.trim()).length"
    assert browser.run(unnamed) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accepted_is_green_bonus_red_and_all_of_it_readable(browser: Browser, page: Path, scheme: str) -> None:
    browser.look(scheme=scheme)
    browser.open(page)
    red, green, blue = rgb(browser, ".node.accepted", "color")
    assert green > red
    assert green > blue
    red, green, blue = rgb(browser, ".node.bonus", "color")
    assert red > green
    assert red > blue
    ground = rgb(browser, ".stage", "background-color")
    assert (sum(ground) > 3 * 128) == (scheme == "light")
    for selector in (".node.accepted", ".node.bonus", ".node.rejected", ".node.unreached", ".facts", ".prompt"):
        assert contrast(rgb(browser, selector, "color"), ground) >= 4.5, selector


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1920, 1080), (400, 800)])
def test_the_page_never_scrolls_sideways(browser: Browser, page: Path, width: int, height: int) -> None:
    browser.look(width, height)
    browser.open(page)
    assert browser.run("document.documentElement.scrollWidth - innerWidth") <= 0


def test_nothing_is_fetched_and_nothing_complains(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.press("ArrowRight", "End", "Home")
    browser.click("#as-table summary")
    # The element tells of its opening a moment later.
    rows = "document.querySelectorAll('#rows tr').length"
    opened = f"new Promise(done => {{ const look = () => {rows} ? done({rows}) : setTimeout(look, 20); look(); }})"
    assert browser.run(opened) == 5
    assert [address for address in browser.requested if not address.startswith("data:")] == []
    assert browser.complaints == []


def test_an_answer_without_a_round_says_so(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "one.html"
    path.write_text(render(traced(())), encoding="utf-8")
    browser.open(path)
    assert "No round" in browser.run("document.getElementById('canvas').textContent")
    assert browser.run(ANSWER) == "Hi"
    browser.press("ArrowRight", " ")
    assert browser.complaints == []


def rgb(browser: Browser, selector: str, field: str) -> list[float]:
    value = browser.run(f"getComputedStyle(document.querySelector({selector!r})).getPropertyValue({field!r})")
    return [float(part) for part in value.split("(")[1].rstrip(")").split(",")[:3]]


def contrast(ink: list[float], ground: list[float]) -> float:
    """Ratio of relative luminances, as WCAG defines it."""
    lighter, darker = sorted((luminance(ink), luminance(ground)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: list[float]) -> float:
    parts = [part / 255 for part in colour]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
