import warnings

import numpy as np
import pytest

from specblock_zoo.data.examples import Counts, Example
from specblock_zoo.data.preview import CONTEXT, SUPERVISED, check_share, draw_example
from tests.support.tiny_pair import character_tokenizer


def make_example(text, mask):
    ids = character_tokenizer()(text, add_special_tokens=False)["input_ids"]
    return Example("a", np.array(ids, dtype=np.int32), np.array([mark == "x" for mark in mask]))


def spans(text):
    return [(text.plain[span.start : span.end], span.style) for span in text.spans]


def test_supervised_tokens_are_green_and_the_rest_is_dim():
    drawn = draw_example(make_example("abcdef", "..xx.x"), character_tokenizer())
    styles = [SUPERVISED if style == SUPERVISED else CONTEXT for _, style in spans(drawn)]
    assert [piece.replace(" ", "") for piece, _ in spans(drawn)] == ["ab", "cd", "e", "f"]
    assert styles == [CONTEXT, SUPERVISED, CONTEXT, SUPERVISED]


def test_a_long_sequence_is_shown_around_its_first_answer():
    drawn = draw_example(
        make_example("a" * 60 + "bc" + "d" * 60, "." * 60 + "xx" + "." * 60), character_tokenizer(), 20
    )
    assert drawn.plain.startswith("... ")
    assert drawn.plain.endswith(" ...")
    assert "b" in drawn.plain
    assert drawn.plain.count("a") < 20


@pytest.mark.parametrize(("supervised", "warned"), [(0, True), (49, True), (50, False), (1000, False)])
def test_under_five_percent_is_warned_of(supervised, warned):
    counts = Counts(tokens=1000, supervised_tokens=supervised)
    if warned:
        with pytest.warns(UserWarning, match="of 1,000 tokens are supervised"):
            check_share(counts)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_share(counts)
