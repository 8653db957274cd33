"""Copies from the text so far change nothing but speed, for every kind of drafter."""

import math
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StoppingCriteriaList
from transformers.generation.stopping_criteria import MaxLengthCriteria

from specblock_zoo.inference import hf_generate
from specblock_zoo.inference.decode import MOST_WAITING, Session, decode, prefill
from specblock_zoo.inference.text import Rules, Text
from specblock_zoo.inference.verify import Form, Prompt, Verifier
from specblock_zoo.inference.versions import CACHE_NAME
from specblock_zoo.models.registry import DRAFTERS
from specblock_zoo.targets.capture import capture
from tests.support.decoding import generate, prompt_ids, random_drafter, scripted_drafter, target_of
from tests.support.sampled import log_prob_of_target, log_prob_through_the_loop

pytestmark = pytest.mark.contract

NEW, PROMPT = 30, 6
LOOKUP: dict[str, Any] = {"lookup_tokens": 5, "lookup_alone": 0.4}
TREES: dict[str, dict[str, Any]] = {
    "alone or not": {},
    "never alone": {"lookup_alone": 1.0},
    "chain": {"chain": True},
    "small": {"max_nodes": 3},
    "likely": {"min_path_prob": 0.2},
    "likelier than alone": {"min_path_prob": 0.7},
}
kinds = pytest.mark.parametrize("kind", DRAFTERS)


@cache
def looping() -> PreTrainedModel:
    """A target whose greedy text repeats itself."""
    return target_of("llama", initializer_range=0.05)


@cache
def plain(new_tokens: int = NEW, rows: int = 1) -> Tensor:
    return generate(looping(), ids_of(rows), new_tokens)


def ids_of(rows: int) -> Tensor:
    return torch.cat([prompt_ids(PROMPT, seed=seed) for seed in range(rows)])


@kinds
@pytest.mark.parametrize("tree", TREES)
def test_greedy_text_is_plain_generates(kind: str, tree: str) -> None:
    drafter = random_drafter(looping(), kind=kind, **{**LOOKUP, **TREES[tree]})
    assert torch.equal(generate(looping(), ids_of(1), NEW, assistant_model=drafter), plain())
    stats = drafter.last_stats
    assert stats.lookup_accepted > 0
    assert 0 < stats.lookup_nodes <= stats.nodes
    assert (stats.undrafted_rounds > 0) == (tree != "never alone")
    # All but the last token's round were drafted or copied for.
    assert all(each.drafter_calls or len(each.tree) for each in stats.history[:-1])
    assert max(len(each.tree) for each in stats.history) <= drafter.config.max_nodes


@kinds
def test_rows_of_a_batch_copy_from_their_own_text(kind: str) -> None:
    drafter = random_drafter(looping(), kind=kind, **LOOKUP)
    assert torch.equal(generate(looping(), ids_of(3), NEW, assistant_model=drafter), plain(rows=3))
    assert drafter.last_stats.lookup_accepted > 0


@kinds
def test_every_text_of_a_three_token_vocabulary_has_the_targets_probability(kind: str) -> None:
    small, ids = target_of("llama", vocab_size=3, bos_token_id=0, pad_token_id=0), prompt_ids(5, vocab=3)
    drafter, total = random_drafter(small, kind=kind, **{**LOOKUP, "lookup_alone": 0.5}), 0.0
    for draws in product(range(3), repeat=3):
        found = log_prob_through_the_loop(small, drafter, ids, draws)
        assert found == pytest.approx(log_prob_of_target(small, ids, draws), abs=1e-4)
        total += math.exp(found)
    assert total == pytest.approx(1.0, abs=1e-4)


def test_the_same_seed_gives_the_same_sampled_text() -> None:
    texts = []
    for assistant in (None, random_drafter(looping(), **LOOKUP)):
        torch.manual_seed(3)
        options = {"do_sample": True, "temperature": 0.3, "assistant_model": assistant}
        texts.append(generate(looping(), ids_of(1), NEW, **options))
    assert torch.equal(*texts)


def test_where_only_chains_can_be_judged_one_of_two_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_generate, "form_of", lambda *_: Form.CAUSAL)
    drafter = random_drafter(looping(), **LOOKUP)
    assert torch.equal(generate(looping(), ids_of(1), NEW, assistant_model=drafter), plain())
    assert drafter.last_stats.lookup_accepted > 0
    for each in drafter.last_stats.history:
        assert each.tree.parents.tolist() == list(range(-1, len(each.tree) - 1))


def test_a_cache_of_an_earlier_turn_is_no_obstacle_to_copying_from_it() -> None:
    first, cache = plain(), DynamicCache()
    looping()(first[:, :-1], **{CACHE_NAME: cache})
    drafter = random_drafter(looping(), **LOOKUP)
    expected = generate(looping(), first, NEW)
    found = generate(looping(), first, NEW, assistant_model=drafter, **{CACHE_NAME: cache})
    assert torch.equal(found, expected)
    assert len(drafter.last_stats.history) < NEW / 2


@torch.no_grad()
@pytest.mark.parametrize("new_tokens", [NEW, 2 * MOST_WAITING + 60])
def test_what_waited_for_the_drafter_is_read_as_if_it_had_not(new_tokens: int) -> None:
    """After rounds without the drafter its context is that of a fresh prefill; and it is not left out for ever."""
    target, ids = looping(), ids_of(1)
    text = plain(new_tokens)
    drafter = scripted_drafter(target, text, lambda _: -1, **LOOKUP, num_blocks=1)
    drafter.attach(target.get_input_embeddings().weight)
    taps = drafter.tap_layers(target.config.num_hidden_layers)
    rules = Rules(stopping_criteria=StoppingCriteriaList([MaxLengthCriteria(PROMPT + new_tokens)]))
    session = Session(drafter, Verifier(target, taps, DynamicCache()), drafter.config.tree_settings)
    rows = prefill(session, Prompt(ids, None, torch.arange(PROMPT)[None]), [Text(ids, rules)])
    features = capture(target, taps, text, torch.ones_like(text, dtype=torch.bool)).features
    positions = torch.arange(PROMPT + new_tokens)[None]
    known, waited, longest, seen = PROMPT, 0, 0, set()
    for each in decode(session, rows):
        if each.drafter_calls:
            fresh = drafter.extend(features[:, :known], text[:, 1 : known + 1], positions[:, :known])
            for kept, expected in zip(rows[0].drafter_cache.view(), fresh.context, strict=True):
                torch.testing.assert_close(kept.keys, expected.keys, atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(kept.values, expected.values, atol=1e-4, rtol=1e-4)
            seen.add(waited)
            waited = 0
        waited += len(each.verdict.committed_tokens)
        longest = max(longest, waited)
        known += len(each.verdict.committed_tokens)
    assert longest <= MOST_WAITING + 2 * LOOKUP["lookup_tokens"] + 2
    assert new_tokens == NEW or max(seen) >= MOST_WAITING
