"""Greedy text with a drafter is plain `generate`'s text, whatever the drafter, tree, budget and stopping rule."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from tests.support.decoding import (
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

FAMILIES = ("llama", "qwen3")
NEW = 24
# Index -> rank of the right token: always best; often best, sometimes a sibling, sometimes absent; never best.
PLACES = {"oracle": lambda _: 0, "mixed": lambda index: (0, 0, 1, 0, -1, 2)[index % 6], "siblings": lambda _: 1}
TREES: dict[str, dict[str, Any]] = {
    "one block": {"num_blocks": 1},
    "two blocks": {"num_blocks": 2},
    "three blocks": {"num_blocks": 3, "max_nodes": 40},
    "chain": {"num_blocks": 3, "chain": True},
    "unmerged": {"num_blocks": 2, "merge_duplicates": False, "max_nodes": 40},
    "release starts": {"num_blocks": 3, "merge_duplicates": False, "bound_all_starts": False, "max_nodes": 40},
    "confident": {"num_blocks": 2, "confident_root": True, "confident_slots": True},
    "likely only": {"num_blocks": 2, "min_path_prob": 0.1},
    "whole context": {"num_blocks": 2, "context_slots": WIDTH},
    "narrow blocks": {"num_blocks": 3, "max_slots": 2},
    "copies": {"num_blocks": 2, "lookup_tokens": 6, "lookup_alone": 0.0},
    "budget 1": {"num_blocks": 2, "max_nodes": 1},
    "budget 2": {"num_blocks": 2, "max_nodes": 2},
    "budget 5": {"num_blocks": 2, "max_nodes": 5},
}


@cache
def target(family: str) -> PreTrainedModel:
    """One target per family for the whole file; nobody changes it."""
    return target_of(family)


@cache
def plain(family: str, length: int, seed: int, new_tokens: int = NEW) -> Tensor:
    """Plain greedy text."""
    return generate(target(family), prompt_ids(length, seed), new_tokens)


def oracle(family: str, length: int = 6, **changes: Any) -> ScriptedDrafter:
    """A drafter that is always right, two blocks deep."""
    return scripted_drafter(target(family), plain(family, length, 0, NEW + 2 * WIDTH), num_blocks=2, **changes)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("family", FAMILIES)
def test_any_tree(family: str, place: str, tree: str) -> None:
    text = plain(family, 6, 0)
    drafter = scripted_drafter(target(family), plain(family, 6, 0, NEW + 9), PLACES[place], **TREES[tree])
    assert torch.equal(generate(target(family), prompt_ids(6, 0), NEW, assistant_model=drafter), text)
    assert drafter.last_stats.committed == NEW - 1


@pytest.mark.parametrize("family", FAMILIES)
def test_many_prompts(family: str) -> None:
    drafter = random_drafter(target(family), num_blocks=2)
    for seed in range(4):
        length = 1 + 5 * seed
        assert torch.equal(
            generate(target(family), prompt_ids(length, seed), NEW, assistant_model=drafter),
            plain(family, length, seed),
        )


@pytest.mark.parametrize("new_tokens", range(1, 2 * WIDTH + 3))
def test_exact_lengths(new_tokens: int) -> None:
    text = generate(target("llama"), prompt_ids(6), new_tokens, assistant_model=oracle("llama"))
    assert torch.equal(text, plain("llama", 6, 0)[:, : 6 + new_tokens])


@pytest.mark.parametrize("offset", range(1, 2 * WIDTH + 2))
@pytest.mark.parametrize("as_list", [False, True])
def test_end_token_at_every_offset_of_a_round(offset: int, as_list: bool) -> None:
    end = int(plain("qwen3", 6, 0)[0, 6 + offset])
    ends = [end, 0] if as_list else end
    options = {"eos_token_id": ends, "pad_token_id": 0}
    expected = generate(target("qwen3"), prompt_ids(6), NEW, **options)
    found = generate(target("qwen3"), prompt_ids(6), NEW, assistant_model=oracle("qwen3"), **options)
    assert torch.equal(found, expected)


class CountsCalls(LogitsProcessor):
    """A processor with a memory: forbids its last choice, and would notice a call for a rejected token."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.lengths.append(input_ids.shape[1])
        scores = scores.clone()
        scores[:, len(self.lengths) % scores.shape[1]] = -torch.inf
        return scores


OPTIONS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.7},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"min_new_tokens": 10, "eos_token_id": 3, "pad_token_id": 0},
    "bad_words_ids": {"bad_words_ids": [[5], [7, 8]]},
    "suppress_tokens": {"suppress_tokens": [1, 2, 3, 4]},
    "forced_eos_token_id": {"forced_eos_token_id": 9, "eos_token_id": 9},
    "prefill_chunk_size": {"prefill_chunk_size": 2},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("place", ["oracle", "mixed"])
def test_generation_options(name: str, place: str) -> None:
    expected = generate(target("llama"), prompt_ids(6), NEW, **OPTIONS[name])
    drafter = scripted_drafter(target("llama"), expected, PLACES[place], num_blocks=2)
    assert torch.equal(
        generate(target("llama"), prompt_ids(6), NEW, assistant_model=drafter, **OPTIONS[name]), expected
    )


def test_processors_with_a_memory_see_the_calls_of_plain_decoding() -> None:
    alone, assisted = CountsCalls(), CountsCalls()
    expected = generate(target("llama"), prompt_ids(6), NEW, logits_processor=LogitsProcessorList([alone]))
    drafter = scripted_drafter(target("llama"), expected, PLACES["mixed"], num_blocks=2)
    processors = LogitsProcessorList([assisted])
    found = generate(target("llama"), prompt_ids(6), NEW, assistant_model=drafter, logits_processor=processors)
    assert torch.equal(found, expected)
    assert alone.lengths == assisted.lengths


class StopsAt(StoppingCriteria):
    """Ends the text at a length, as a criterion this package knows nothing of."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= self.length)


@pytest.mark.parametrize("offset", range(1, 2 * WIDTH + 2))
def test_custom_criterion_at_every_offset_of_a_round(offset: int) -> None:
    criteria = StoppingCriteriaList([StopsAt(6 + 1 + offset)])
    found = generate(target("llama"), prompt_ids(6), NEW, assistant_model=oracle("llama"), stopping_criteria=criteria)
    assert torch.equal(found, plain("llama", 6, 0)[:, : 7 + offset])


@pytest.mark.parametrize("offset", range(1, 2 * WIDTH + 1))
def test_stop_string_at_every_offset_of_a_round(offset: int) -> None:
    tokenizer = word_tokenizer()
    word = tokenizer.convert_ids_to_tokens(int(plain("llama", 6, 0)[0, 6 + offset]))
    options = {"stop_strings": [word], "tokenizer": tokenizer}
    expected = generate(target("llama"), prompt_ids(6), NEW, **options)
    found = generate(target("llama"), prompt_ids(6), NEW, assistant_model=oracle("llama"), **options)
    assert torch.equal(found, expected)


class Recorder(BaseStreamer):
    """Remembers the calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def put(self, value: Tensor) -> None:
        self.calls.append(value.tolist())

    def end(self) -> None:
        self.calls.append("end")


@pytest.mark.parametrize("new_tokens", [1, 2, NEW])
def test_streamers_get_the_same_calls(new_tokens: int) -> None:
    alone, assisted = Recorder(), Recorder()
    generate(target("llama"), prompt_ids(6), new_tokens, streamer=alone)
    generate(target("llama"), prompt_ids(6), new_tokens, streamer=assisted, assistant_model=oracle("llama"))
    assert assisted.calls == alone.calls
