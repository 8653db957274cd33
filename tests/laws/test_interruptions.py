"""What raises in the middle of a round leaves the caller's cache as plain decoding would: a beginning of the text."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Cache, DynamicCache, LogitsProcessor, LogitsProcessorList, PreTrainedConfig, StaticCache
from transformers.generation.streamers import BaseStreamer

from specblock_zoo.inference.versions import CACHE_NAME
from tests.support.decoding import RECORDS_WINDOWS, STATIC_TAKES_BACK, generate, prompt_ids, scripted_drafter, target_of

pytestmark = pytest.mark.contract

LENGTH, NEW = 11, 14


class ClientLeft(Exception):
    pass


class LeavingProcessor(LogitsProcessor):
    """Raises at its sixth token."""

    def __init__(self) -> None:
        self.left = 5

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise ClientLeft
        return scores


class LeavingStreamer(BaseStreamer):
    """Raises at its sixth token; the first thing it gets is the prompt."""

    def __init__(self) -> None:
        self.left = 6

    def put(self, value: Tensor) -> None:
        self.left -= 1
        if self.left < 0:
            raise ClientLeft

    def end(self) -> None:
        pass


def grown(config: PreTrainedConfig) -> Cache:
    return DynamicCache(config=config)


def static(config: PreTrainedConfig) -> Cache:
    return StaticCache(config=config, max_cache_len=64)


@pytest.mark.parametrize(
    ("family", "cache"),
    [
        ("llama", grown),
        pytest.param(
            "qwen2",
            grown,
            marks=pytest.mark.skipif(not RECORDS_WINDOWS, reason="this transformers cannot crop windows"),
        ),
        pytest.param(
            "llama",
            static,
            marks=pytest.mark.skipif(not STATIC_TAKES_BACK, reason="this transformers cannot crop these"),
        ),
    ],
)
@pytest.mark.parametrize("way", ["processor", "streamer"])
def test_an_interrupted_text_goes_on_from_its_cache(
    family: str, cache: Callable[[PreTrainedConfig], Cache], way: str
) -> None:
    model, ids = target_of(family), prompt_ids(LENGTH)
    text, kept = generate(model, ids, NEW), cache(model.config)
    drafter = scripted_drafter(model, text, lambda index: (0, 0, 1, 0, 0, -1)[index % 6], num_blocks=2)
    options: dict[str, Any] = (
        {"streamer": LeavingStreamer()}
        if way == "streamer"
        else {"logits_processor": LogitsProcessorList([LeavingProcessor()])}
    )
    with pytest.raises(ClientLeft):
        generate(model, ids, NEW, assistant_model=drafter, **{CACHE_NAME: kept}, **options)
    held = int(kept.get_seq_length())
    assert LENGTH <= held < LENGTH + 6
    going_on = generate(model, text[:, : held + 1], LENGTH + NEW - held - 1, **{CACHE_NAME: kept})
    assert torch.equal(going_on, text)
