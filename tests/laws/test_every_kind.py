"""The laws of drafting for every kind of drafter there is: a new row of the table is tested without a new test."""

import math
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from specblock_zoo.inference import prepack
from specblock_zoo.inference.prepack import can_prepack, optimize_for_cpu
from specblock_zoo.models import registry
from specblock_zoo.models.configuration import drafter_fields
from specblock_zoo.models.registry import DRAFTERS
from tests.support.decoding import generate, prompt_ids, random_drafter, scripted_drafter, target_of
from tests.support.sampled import log_prob_of_target, log_prob_through_the_loop

NEW, PROMPT = 20, 6
PLACES = {"best": lambda _: 0, "mixed": lambda index: (0, 0, 1, 0, -1, 2)[index % 6], "never": lambda _: -1}
TREES: dict[str, dict[str, Any]] = {"tree": {}, "chain": {"chain": True}, "small": {"max_nodes": 3}}
kinds = pytest.mark.parametrize("kind", DRAFTERS)


@cache
def target(family: str) -> PreTrainedModel:
    return target_of(family)


@cache
def plain(family: str, new_tokens: int = NEW) -> Tensor:
    return generate(target(family), prompt_ids(PROMPT), new_tokens)


@kinds
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_greedy_text_is_plain_generates(kind: str, family: str, place: str, tree: str) -> None:
    script = plain(family, NEW + 9)
    drafter = scripted_drafter(target(family), script, PLACES[place], kind=kind, **TREES[tree])
    assert torch.equal(generate(target(family), prompt_ids(PROMPT), NEW, assistant_model=drafter), plain(family))
    accepted = sum(drafter.last_stats.accepted_per_round)
    assert accepted == 0 if place == "never" else accepted > 0


@kinds
def test_random_weights_change_nothing_but_speed(kind: str) -> None:
    for seed in range(3):
        drafter = random_drafter(target("llama"), seed, kind)
        assert torch.equal(generate(target("llama"), prompt_ids(PROMPT), NEW, assistant_model=drafter), plain("llama"))


@pytest.mark.skipif(not can_prepack(), reason="this torch build has no oneDNN operators")
@kinds
@pytest.mark.parametrize("large", [1, 1 << 17])
@pytest.mark.parametrize("extra", [{}, {"residual_layers": 0}])
def test_packed_and_rounded_weights_change_nothing_but_speed(
    kind: str, extra: dict[str, int], large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepack, "LARGE_WEIGHT", large)
    if not set(extra) <= set(drafter_fields(DRAFTERS[kind].config)):
        pytest.skip("an option of another kind")
    drafter = optimize_for_cpu(random_drafter(target("llama"), kind=kind, **extra).eval())
    assert torch.equal(generate(target("llama"), prompt_ids(PROMPT), NEW, assistant_model=drafter), plain("llama"))
    assert drafter.last_stats.nodes > 0


@kinds
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_hostile_weights_change_nothing_but_speed(kind: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = random_drafter(target("qwen3"), kind=kind)
    for parameter in drafter.parameters():
        parameter.data.fill_(value)
    drafter.d2t[::2] = 10_000
    assert torch.equal(generate(target("qwen3"), prompt_ids(PROMPT), NEW, assistant_model=drafter), plain("qwen3"))
    if can_prepack():
        monkeypatch.setattr(prepack, "LARGE_WEIGHT", 1)
        optimize_for_cpu(drafter.eval())
        assert torch.equal(generate(target("qwen3"), prompt_ids(PROMPT), NEW, assistant_model=drafter), plain("qwen3"))


@kinds
def test_rows_of_a_batch_are_what_each_would_be_alone(kind: str) -> None:
    ids = torch.cat([prompt_ids(PROMPT), prompt_ids(PROMPT, seed=1)])
    expected = generate(target("llama"), ids, NEW)
    drafter = scripted_drafter(target("llama"), plain("llama", NEW + 9), PLACES["mixed"], kind=kind)
    assert torch.equal(generate(target("llama"), ids, NEW, assistant_model=drafter), expected)


@kinds
def test_the_same_seed_gives_the_same_sampled_text(kind: str) -> None:
    torch.manual_seed(0)
    expected = generate(target("llama"), prompt_ids(PROMPT), NEW, do_sample=True, temperature=0.8)
    drafter = scripted_drafter(target("llama"), expected, lambda index: index % 3, kind=kind)
    torch.manual_seed(0)
    options = {"do_sample": True, "temperature": 0.8, "assistant_model": drafter}
    assert torch.equal(generate(target("llama"), prompt_ids(PROMPT), NEW, **options), expected)
    assert sum(drafter.last_stats.accepted_per_round) > 0


@kinds
def test_every_text_of_a_three_token_vocabulary_has_the_targets_probability(kind: str) -> None:
    small, ids = target_of("llama", vocab_size=3, bos_token_id=0, pad_token_id=0), prompt_ids(3, vocab=3)
    for drafter in (random_drafter(small, kind=kind), scripted_drafter(small, generate(small, ids, 9), kind=kind)):
        total = 0.0
        for draws in product(range(3), repeat=3):
            found = log_prob_through_the_loop(small, drafter, ids, draws)
            assert found == pytest.approx(log_prob_of_target(small, ids, draws), abs=1e-4)
            total += math.exp(found)
        assert total == pytest.approx(1.0, abs=1e-4)


@kinds
def test_saved_and_loaded_by_any_door_it_drafts_the_same(kind: str, tmp_path: Path) -> None:
    drafter = random_drafter(target("llama"), kind=kind)
    drafter.save_pretrained(tmp_path)
    assert registry.kind_of_folder(tmp_path) is DRAFTERS[kind]
    for stored in (registry.load(tmp_path), AutoModel.from_pretrained(tmp_path)):
        assert type(stored) is DRAFTERS[kind].model
        assert stored.state_dict().keys() == drafter.state_dict().keys()
        assert all(torch.equal(tensor, stored.state_dict()[name]) for name, tensor in drafter.state_dict().items())
        generate(target("llama"), prompt_ids(PROMPT), NEW, assistant_model=stored)
        generate(target("llama"), prompt_ids(PROMPT), NEW, assistant_model=drafter)
        trees = [[each.tree.tokens.tolist() for each in one.last_stats.history] for one in (stored, drafter)]
        assert trees[0] == trees[1]
