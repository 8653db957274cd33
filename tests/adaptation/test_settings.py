"""The stated bounds are bounds."""

import pytest
import torch

from specblock_zoo.adaptation.buffers import HeadBuffer, HeadRows, TextBuffer, TextRows, top_rows
from specblock_zoo.adaptation.feedback import CaptureSettings
from specblock_zoo.adaptation.settings import AdaptationConfig, memory_bound
from specblock_zoo.errors import ConfigurationError
from tests.support.drafters import DRAFT_VOCAB, HIDDEN, tiny_config


def test_full_buffers_hold_what_is_stated() -> None:
    settings = AdaptationConfig(head_capacity=10, text_capacity=12, capture=CaptureSettings(top=4, max_length=12))
    bound = memory_bound(settings, tiny_config())
    target = top_rows(torch.randn(12, DRAFT_VOCAB), 4)
    flags = torch.ones(12, dtype=torch.bool)
    head, text = HeadBuffer(10, 1), TextBuffer(12, 1)
    head.add(HeadRows(torch.zeros(12, HIDDEN).half(), target, flags, flags))
    text.add(TextRows(flags.int(), torch.zeros(12, 3 * HIDDEN).bfloat16(), flags, target, 1))
    assert {"head_buffer": head.nbytes, "text_buffer": text.nbytes} == bound


@pytest.mark.parametrize(
    "changes",
    [{"head_capacity": 0}, {"text_needed": 0}, {"alert_needed": 0}, {"alert_steps": -1}, {"text_capacity": 100}],
    ids=["head", "needed", "alert", "steps", "length"],
)
def test_buffers_that_could_never_work(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        AdaptationConfig(**changes)


@pytest.mark.parametrize(("name", "value"), [("deployment", "Worker"), ("clock", "minutes")])
def test_words_that_mean_nothing_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"AdaptationConfig\.{name} is '{value}'; expected \w+ or \w+"):
        AdaptationConfig(**{name: value})
