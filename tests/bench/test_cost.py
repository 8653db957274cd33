"""The cost curve is measured on the target that decodes, and leaves it as it was."""

from typing import Any

from specblock_zoo.bench.ask import Question, ask_plainly
from specblock_zoo.bench.cost import star, verify_cost
from specblock_zoo.targets.llama import LLAMA
from tests.support.decoding import prompt_ids


def test_every_size_that_fits_is_measured_with_its_spread() -> None:
    model: Any = LLAMA.tiny_model(max_position_embeddings=40)
    before = ask_plainly(model, Question(prompt_ids(5), 4)).tokens
    points = verify_cost(model, rows=(1, 4, 16, 32), context=100, repeats=3)
    assert [point.rows for point in points] == [1, 4, 16]
    assert all(0 < point.low <= point.ms <= point.high for point in points)
    assert ask_plainly(model, Question(prompt_ids(5), 4)).tokens == before


def test_a_star_has_that_many_children_of_the_root() -> None:
    assert star(3).parents.tolist() == [-1, -1, -1]
    assert len(star(0)) == 0
