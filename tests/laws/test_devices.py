"""The laws of decoding hold on every device, in float32: the CPU's in each run, an accelerator's with -m gpu."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specblock_zoo.inference.capture import can_capture, optimize_for_gpu
from tests.support.decoding import (
    STATIC_TAKES_BACK,
    WIDTH,
    generate,
    prompt_ids,
    random_drafter,
    scripted_drafter,
    target_of,
)

NEW, LENGTH = 24, 6
PLACES = {"always": lambda _: 0, "mixed": lambda index: (0, 0, 1, 0, -1, 2)[index % 6], "never": lambda _: -1}
TREES: dict[str, dict[str, Any]] = {
    "tree": {"num_blocks": 2},
    "deep tree": {"num_blocks": 3, "max_nodes": 40},
    "chain": {"num_blocks": 3, "chain": True},
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no accelerator")
    return str(request.param)


@cache
def target(family: str, device: str) -> PreTrainedModel:
    return target_of(family).to(device)


def ids(device: str, seed: int = 0) -> Tensor:
    return prompt_ids(LENGTH, seed).to(device)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_greedy_text_is_plain_text(device: str, family: str, place: str, tree: str) -> None:
    model = target(family, device)
    script = generate(model, ids(device), NEW + 3 * WIDTH)
    drafter = scripted_drafter(model, script, PLACES[place], **TREES[tree]).to(device)
    drafted = generate(model, ids(device), NEW, assistant_model=drafter)
    assert drafted.device.type == device
    assert torch.equal(drafted, script[:, : LENGTH + NEW])


@pytest.mark.parametrize("seed", range(3))
def test_a_sampled_text_keeps_its_seed(device: str, seed: int) -> None:
    model = target("llama", device)
    drafter = random_drafter(model, num_blocks=2).to(device)
    texts = []
    for assistant in (None, drafter):
        torch.manual_seed(seed)
        options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "assistant_model": assistant}
        texts.append(generate(model, ids(device, seed), NEW, **options))
    assert torch.equal(*texts)


def test_rows_of_a_batch_are_decoded_as_alone(device: str) -> None:
    model = target("llama", device)
    drafter = random_drafter(model, num_blocks=2).to(device)
    both = torch.cat((ids(device, 0), ids(device, 1)))
    together = generate(model, both, NEW, assistant_model=drafter)
    assert torch.equal(together, generate(model, both, NEW))


@pytest.mark.skipif(not STATIC_TAKES_BACK, reason="this transformers cannot crop static caches")
@pytest.mark.parametrize("sampled", [False, True])
def test_captured_text_is_plain_text(device: str, sampled: bool) -> None:
    """Graphs where the device can capture them; elsewhere the shapes they would have."""
    model = target("llama", device)
    drafter = random_drafter(model, num_blocks=2, beam_width=3).to(device)
    optimize_for_gpu(drafter, None if can_capture(torch.device(device)) else {"disable": True})
    options: dict[str, Any] = {"do_sample": sampled, **({"temperature": 1.0, "top_k": 0} if sampled else {})}
    static = {"cache_implementation": "static", "max_cache_len": LENGTH + NEW + 64}
    texts = []
    for drafted in ({}, {"assistant_model": drafter, **static}):
        torch.manual_seed(0)
        texts.append(generate(model, ids(device), NEW, **options, **drafted))
    assert torch.equal(*texts)
