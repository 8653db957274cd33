"""What `generate` honours with a drafter, for every target family: the text is plain `generate`'s.

Prompts are longer than the tiny windows, so that layers with a sliding window have forgotten tokens. Two families run
in every test run, the others with `pytest -m contract`.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StaticCache,
    StoppingCriteria,
    StoppingCriteriaList,
    pipeline,
)
from transformers.generation.streamers import BaseStreamer

from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.inference.versions import CACHE_NAME
from specblock_zoo.targets.registry import FAMILIES
from tests.support.decoding import (
    RECORDS_WINDOWS,
    STATIC_TAKES_BACK,
    VOCAB,
    WIDTH,
    ScriptedDrafter,
    generate,
    prompt_ids,
    random_drafter,
    scripted_drafter,
    target_of,
    word_tokenizer,
)

pytestmark = pytest.mark.contract

LENGTH, NEW, BLOCKS = 11, 14, 2
ALWAYS = ("llama", "qwen2")
EVERY_FAMILY = [pytest.param(name, marks=[] if name in ALWAYS else [pytest.mark.slow]) for name in FAMILIES]


@cache
def target(family: str) -> PreTrainedModel:
    """One target per family; nobody changes it."""
    return target_of(family)


@cache
def plain(family: str) -> Tensor:
    """Its plain greedy text, longer than any test asks for."""
    return generate(target(family), prompt_ids(LENGTH), NEW + WIDTH * BLOCKS + 2)


def often_right(index: int) -> int:
    """Rank of the right token: best, a sibling, or absent."""
    return (0, 0, 1, 0, 0, -1)[index % 6]


def drafter_for(family: str, script: Tensor | None = None, **changes: Any) -> ScriptedDrafter:
    text = plain(family) if script is None else script
    return scripted_drafter(target(family), text, often_right, num_blocks=BLOCKS, **changes)


def oracle(family: str) -> ScriptedDrafter:
    return scripted_drafter(target(family), plain(family), num_blocks=BLOCKS)


@pytest.fixture(params=EVERY_FAMILY)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def test_lengths(family: str) -> None:
    for new in (1, 2, 3, 5, WIDTH * BLOCKS + 1, NEW):
        found = generate(target(family), prompt_ids(LENGTH), new, assistant_model=drafter_for(family))
        assert torch.equal(found, plain(family)[:, : LENGTH + new])


def test_an_end_token_at_every_offset_of_a_round(family: str) -> None:
    for offset in range(1, WIDTH * BLOCKS + 2):
        end = int(plain(family)[0, LENGTH + offset])
        for ends in (end, [VOCAB - 1, end]):
            options = {"eos_token_id": ends, "pad_token_id": 0}
            found = generate(target(family), prompt_ids(LENGTH), NEW, assistant_model=oracle(family), **options)
            assert torch.equal(found, generate(target(family), prompt_ids(LENGTH), NEW, **options))


OPTIONS: dict[str, dict[str, Any]] = {
    "max_length": {"max_new_tokens": None, "max_length": LENGTH + NEW},
    "generation_config": {
        "max_new_tokens": None,
        "do_sample": None,
        "pad_token_id": None,
        "generation_config": GenerationConfig(max_new_tokens=NEW, repetition_penalty=1.4, pad_token_id=0),
    },
    "min_new_tokens": {"min_new_tokens": 9, "eos_token_id": list(range(VOCAB // 2)), "pad_token_id": 0},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[5], [7, 8]]},
    "suppress_tokens": {"suppress_tokens": [1, 2, 3, 4]},
    "sequence_bias": {"sequence_bias": [[[9], 3.0], [[3, 4], -5.0]]},
    "forced_eos_token_id": {"forced_eos_token_id": 9, "eos_token_id": 9},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (3, 1.3), "eos_token_id": 9},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": lambda _, ids: [int(ids[-1]) // 2, 7, 30, 41]},
    "prefill_chunk_size": {"prefill_chunk_size": 4},
    "guidance_scale": {"guidance_scale": 1.5},
    "num_assistant_tokens": {"num_assistant_tokens": 1},
    "sequences only": {"return_dict_in_generate": False},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(family: str, name: str) -> None:
    given = {key: value for key, value in OPTIONS[name].items() if value is not None}
    dropped = [key for key, value in OPTIONS[name].items() if value is None]

    def call(**more: Any) -> Tensor:
        settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
        settings = {key: value for key, value in settings.items() if key not in dropped}
        ids = prompt_ids(LENGTH)
        return target(family).generate(ids, attention_mask=torch.ones_like(ids), **{**settings, **given, **more})

    expected = call()
    drafter = drafter_for(family, expected)
    assert torch.equal(call(assistant_model=drafter), expected)
    assert drafter.last_stats.tau > 1.0


class Grammar(LogitsProcessor):
    """A processor with a state: token parity alternates, and every call is counted."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.seen.append(input_ids[0].tolist())
        scores = scores.clone()
        scores[:, len(self.seen) % 2 :: 2] = -torch.inf
        return scores


def test_a_grammar_sees_the_calls_of_plain_decoding(family: str) -> None:
    alone, assisted = Grammar(), Grammar()
    expected = generate(target(family), prompt_ids(LENGTH), NEW, logits_processor=LogitsProcessorList([alone]))
    found = generate(
        target(family),
        prompt_ids(LENGTH),
        NEW,
        logits_processor=LogitsProcessorList([assisted]),
        assistant_model=drafter_for(family, expected),
    )
    assert torch.equal(found, expected)
    assert assisted.seen == alone.seen


class EndsAt(StoppingCriteria):
    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= self.length)


def test_criteria_and_stop_strings_inside_a_round(family: str) -> None:
    tokenizer = word_tokenizer()
    for offset in range(1, WIDTH * BLOCKS + 1):
        criteria = StoppingCriteriaList([EndsAt(LENGTH + 1 + offset)])
        found = generate(
            target(family), prompt_ids(LENGTH), NEW, assistant_model=oracle(family), stopping_criteria=criteria
        )
        assert torch.equal(found, plain(family)[:, : LENGTH + 1 + offset])
        word = tokenizer.convert_ids_to_tokens(int(plain(family)[0, LENGTH + offset]))
        options = {"stop_strings": [word], "tokenizer": tokenizer}
        found = generate(target(family), prompt_ids(LENGTH), NEW, assistant_model=oracle(family), **options)
        assert torch.equal(found, generate(target(family), prompt_ids(LENGTH), NEW, **options))


class Recorder(BaseStreamer):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def put(self, value: Tensor) -> None:
        self.calls.append(value.tolist())

    def end(self) -> None:
        self.calls.append("end")


def test_streamers_and_records(family: str) -> None:
    options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    alone, assisted = Recorder(), Recorder()
    expected = generate(target(family), prompt_ids(LENGTH), NEW, streamer=alone, **options)
    drafter = drafter_for(family)
    found = generate(target(family), prompt_ids(LENGTH), NEW, streamer=assisted, assistant_model=drafter, **options)
    assert torch.equal(found.sequences, expected.sequences)
    assert assisted.calls == alone.calls
    for name in ("scores", "logits"):
        torch.testing.assert_close(torch.cat(found[name]), torch.cat(expected[name]), atol=1e-4, rtol=1e-4)
    assert found[CACHE_NAME].get_seq_length() == expected[CACHE_NAME].get_seq_length() == LENGTH + NEW - 1


def caches(family: str) -> Iterator[DynamicCache]:
    """With layers as the target's configuration has them, and with layers that keep everything."""
    if RECORDS_WINDOWS:
        yield DynamicCache(config=target(family).config)
    yield DynamicCache()


def test_three_turns_with_one_cache(family: str) -> None:
    def talk(kept: DynamicCache, **options: Any) -> Tensor:
        text = torch.zeros(1, 0, dtype=torch.int64)
        for turn in range(3):
            text = torch.cat((text, prompt_ids(LENGTH - 4, turn)), 1)
            text = generate(target(family), text, 6, **{CACHE_NAME: kept}, **options)
        assert kept.get_seq_length() == text.shape[1] - 1
        return text

    for alone, assisted in zip(caches(family), caches(family), strict=True):
        assert torch.equal(talk(assisted, assistant_model=random_drafter(target(family))), talk(alone))


@pytest.mark.skipif(not STATIC_TAKES_BACK, reason="this transformers cannot crop static caches")
@pytest.mark.parametrize("head_room", [0, 3, 60])
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe"])
def test_static_caches(family: str, head_room: int) -> None:
    """With `generate`'s own length, where the trees shrink towards the end, and with room to spare."""
    config = target(family).config
    kept = StaticCache(config=config, max_cache_len=LENGTH + NEW - 1 + head_room)
    expected = generate(target(family), prompt_ids(LENGTH), NEW, cache_implementation="static")
    own = generate(
        target(family), prompt_ids(LENGTH), NEW, cache_implementation="static", assistant_model=drafter_for(family)
    )
    given = generate(target(family), prompt_ids(LENGTH), NEW, assistant_model=oracle(family), **{CACHE_NAME: kept})
    assert torch.equal(own, expected)
    assert torch.equal(given, expected)
    assert int(kept.get_seq_length()) == LENGTH + NEW - 1


@pytest.mark.skipif(not RECORDS_WINDOWS, reason="this transformers has no static caches in assisted decoding")
def test_static_windows_are_refused() -> None:
    with pytest.raises(UnsupportedOptionError, match="StaticCache"):
        generate(
            target("qwen2"),
            prompt_ids(LENGTH),
            NEW,
            cache_implementation="static",
            assistant_model=random_drafter(target("qwen2")),
        )


def test_left_padding(family: str) -> None:
    for padding in (1, 9):
        ids = torch.nn.functional.pad(prompt_ids(LENGTH), (padding, 0))
        mask = torch.nn.functional.pad(torch.ones(1, LENGTH, dtype=torch.int64), (padding, 0))
        found = generate(target(family), ids, NEW, assistant_model=drafter_for(family), attention_mask=mask)
        assert torch.equal(found, generate(target(family), ids, NEW, attention_mask=mask))


SAMPLERS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.7, "temperature": 1.3},
    "min_p": {"min_p": 0.05, "top_k": 0},
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_seeds(family: str, name: str) -> None:
    options = {"do_sample": True, **SAMPLERS[name]}
    torch.manual_seed(1)
    expected = generate(target(family), prompt_ids(LENGTH), NEW, **options)
    drafter = drafter_for(family, expected)
    torch.manual_seed(1)
    assert torch.equal(generate(target(family), prompt_ids(LENGTH), NEW, assistant_model=drafter, **options), expected)
    assert drafter.last_stats.tau > 1.0


def test_pipelines(family: str) -> None:
    tokenizer = word_tokenizer()
    prompt = " ".join(tokenizer.convert_ids_to_tokens(prompt_ids(LENGTH)[0].tolist()))
    settings = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    facts = {name: getattr(target(family).config, name) for name in ("eos_token_id", "bos_token_id", "pad_token_id")}
    alone, assisted = (
        pipeline("text-generation", model=target(family), tokenizer=tokenizer, **{"device": "cpu", **more})
        for more in ({}, {"assistant_model": random_drafter(target(family), **facts)})
    )
    assert assisted(prompt, **settings) == alone(prompt, **settings)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", ["qwen2", "qwen3", "qwen3_moe"])
def test_windows_wider_than_the_probe(name: str, rows: int) -> None:
    model = target_of(name, use_sliding_window=True, sliding_window=24, max_window_layers=2)
    ids = torch.cat([prompt_ids(20, seed) for seed in range(rows)])
    expected = generate(model, ids, 30)
    drafter = scripted_drafter(model, expected[:1], often_right, num_blocks=BLOCKS)
    assert torch.equal(generate(model, ids, 30, assistant_model=drafter), expected)
