"""Targets and drafters may be shared, copied and pickled; what they write does not depend on who else uses them."""

import copy
import io
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, GenerationMixin, PreTrainedModel, StaticCache

from specblock_zoo.inference import hf_generate
from specblock_zoo.inference.capture import optimize_for_gpu
from specblock_zoo.inference.versions import CACHE_NAME
from tests.support.decoding import (
    RECORDS_WINDOWS,
    STATIC_TAKES_BACK,
    generate,
    prompt_ids,
    random_drafter,
    scripted_drafter,
    target_of,
)

pytestmark = pytest.mark.contract

LENGTH, NEW = 11, 14


@cache
def target(family: str) -> PreTrainedModel:
    """Nobody changes it."""
    return target_of(family)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("shared", [True, False])
def test_threads_share_a_target(family: str, shared: bool) -> None:
    prompts = [prompt_ids(LENGTH + seed, seed) for seed in range(6)]
    expected = [generate(target(family), ids, NEW) for ids in prompts]
    common = random_drafter(target(family))

    def answer(ids: Tensor) -> Tensor:
        drafter = common if shared else random_drafter(target(family))
        return generate(target(family), ids, NEW, assistant_model=drafter)

    with ThreadPoolExecutor(max_workers=4) as threads:
        found = list(threads.map(answer, prompts))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
def test_copies_decode_on_their_own(way: object) -> None:
    model = target_of("llama")
    text = generate(model, prompt_ids(LENGTH), NEW)
    drafter = scripted_drafter(model, text)
    generate(model, prompt_ids(LENGTH), NEW, assistant_model=drafter)
    drafter.place = _right
    other_model, other_drafter = way(model), way(drafter)
    assert not other_drafter.is_attached, "the copy does not carry the first target's embeddings along"
    for parameter in (*model.parameters(), *drafter.parameters()):
        parameter.data.zero_()
    assert torch.equal(generate(other_model, prompt_ids(LENGTH), NEW, assistant_model=other_drafter), text)
    assert other_drafter.embedding.data_ptr() == other_model.get_input_embeddings().weight.data_ptr()


def _right(_: int) -> int:
    return 0


UNPICKLE = """
import pickle, sys
drafter = pickle.load(sys.stdin.buffer)
from transformers import GenerationMixin
print(type(drafter).__name__, hasattr(GenerationMixin._assisted_decoding, "_specblock_original"))
"""


def test_unpickling_a_drafter_is_enough_to_install() -> None:
    """In a process that imported nothing of ours."""
    kept = io.BytesIO()
    pickle.dump(random_drafter(target("llama")), kept)
    done = subprocess.run([sys.executable, "-c", UNPICKLE], input=kept.getvalue(), capture_output=True, check=True)
    assert done.stdout.decode().split() == ["SpecBlockDrafter", "True"]


def test_other_assistants_write_what_they_wrote_before() -> None:
    helper = target_of("llama", num_hidden_layers=2)
    hf_generate.uninstall()
    before = generate(target("llama"), prompt_ids(LENGTH), NEW, assistant_model=helper)
    lookup = generate(target("llama"), prompt_ids(LENGTH), NEW, prompt_lookup_num_tokens=3, eos_token_id=2)
    hf_generate.install()
    assert torch.equal(generate(target("llama"), prompt_ids(LENGTH), NEW, assistant_model=helper), before)
    assert torch.equal(
        generate(target("llama"), prompt_ids(LENGTH), NEW, prompt_lookup_num_tokens=3, eos_token_id=2), lookup
    )


def test_without_us_a_drafter_is_no_assistant() -> None:
    hf_generate.uninstall()
    try:
        assert not hasattr(GenerationMixin._validate_generation_mode, "_specblock_original")
        with pytest.raises((AttributeError, TypeError, ValueError, NotImplementedError)):
            generate(target("llama"), prompt_ids(LENGTH), NEW, assistant_model=random_drafter(target("llama")))
    finally:
        hf_generate.install()


@pytest.mark.skipif(not RECORDS_WINDOWS, reason="this transformers cannot crop layers with a window")
def test_a_cache_goes_back_to_plain_decoding() -> None:
    """Layers with a window are left as they were found, so the next plain turn forgets as it should."""

    def talk(**first: object) -> tuple[Tensor, DynamicCache]:
        kept = DynamicCache(config=target("qwen2").config)
        text = generate(target("qwen2"), prompt_ids(LENGTH), 6, **{CACHE_NAME: kept}, **first)
        text = torch.cat((text, prompt_ids(3, 1)), dim=1)
        return generate(target("qwen2"), text, NEW, **{CACHE_NAME: kept}), kept

    (found, assisted), (expected, alone) = talk(assistant_model=random_drafter(target("qwen2"))), talk()
    assert torch.equal(found, expected)
    assert [layer.keys.shape for layer in assisted.layers] == [layer.keys.shape for layer in alone.layers]


@pytest.mark.slow
def test_compiled_forwards() -> None:
    model = target_of("llama")
    text = generate(model, prompt_ids(LENGTH), NEW)
    drafter = scripted_drafter(model, text, lambda index: index % 2)
    model.forward = torch.compile(model.forward, backend="eager", dynamic=True)
    assert torch.equal(generate(model, prompt_ids(LENGTH), NEW, assistant_model=drafter), text)
    assert torch.equal(
        generate(torch.compile(model, backend="eager"), prompt_ids(LENGTH), NEW, assistant_model=drafter), text
    )


@pytest.mark.skipif(not STATIC_TAKES_BACK, reason="this transformers cannot crop static caches")
def test_threads_share_a_captured_drafter() -> None:
    model = target("llama")
    drafter, prompts = (
        optimize_for_gpu(random_drafter(model), {"disable": True}),
        [prompt_ids(11 + n, n) for n in range(8)],
    )
    expected = [generate(model, ids, NEW) for ids in prompts]

    def answer(ids: Tensor) -> Tensor:
        kept = StaticCache(config=model.config, max_cache_len=64)
        return generate(model, ids, NEW, assistant_model=drafter, **{CACHE_NAME: kept})

    with ThreadPoolExecutor(max_workers=4) as threads:
        found = list(threads.map(answer, prompts))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
