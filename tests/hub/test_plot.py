"""The picture of a card is well-formed and its bars are as long as the numbers say."""

from xml.etree import ElementTree

import pytest

from specblock_zoo.hub.plot import PANEL, Bar, panel, results_svg
from tests.support.measured import results

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_in_proportion_to_the_numbers() -> None:
    measured = results()
    bars = [
        float(found.attrib["width"])
        for found in ElementTree.fromstring(results_svg(measured)).iter(f"{SVG}rect")
        if found.attrib["width"] != "100%"
    ]
    tasks = (*measured.tasks, measured.overall)
    taus, speedups = [task.tau or 0 for task in tasks], [task.speedup.median for task in tasks]
    scales = (max(taus), max(task.speedup.high for task in tasks))
    expected = [PANEL * tau / scales[0] for tau in taus] + [PANEL * speedup / scales[1] for speedup in speedups]
    assert bars == pytest.approx(expected, abs=0.2)


def test_every_task_and_number_is_written() -> None:
    texts = [found.text for found in ElementTree.fromstring(results_svg(results())).iter(f"{SVG}text")]
    for expected in ("chat", "code", "2.53", "1.60"):
        assert expected in texts


def test_a_task_without_a_number_is_an_empty_row() -> None:
    measured = results()
    empty = measured.model_copy(update={"tasks": (measured.tasks[0].model_copy(update={"tau": None}),)})
    drawn = ElementTree.fromstring(results_svg(empty))
    assert len(list(drawn.iter(f"{SVG}rect"))) == 1 + 1 + 2


def test_one_is_always_in_sight() -> None:
    narrow = panel("x", 10, (Bar("a", 0.5), Bar("b", None)))
    assert (narrow.x(0), narrow.x(1)) == (10, 10 + PANEL)
