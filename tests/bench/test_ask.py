"""Every way of asking gives the target's own text, and counts what it did."""

from pathlib import Path
from typing import Any

import pytest
import torch

from specblock_zoo.bench.ask import Question, ask_plainly, ask_with_drafter
from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.inference import costs
from specblock_zoo.targets.local import load_target
from tests.support.tiny_pair import TinyFolders

TOKENS = 10


@pytest.fixture(scope="module")
def model(tiny_folders: TinyFolders) -> Any:
    return load_target(tiny_folders.target, dtype=torch.float32)[0]


def question(**changes: Any) -> Question:
    return Question(**{"input_ids": torch.tensor([[5, 9, 5, 9, 7, 5]]), "max_new_tokens": TOKENS, **changes})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafted_text_is_the_plain_one_greedily_and_with_the_same_seed(
    model: Any, tiny_folders: TinyFolders, temperature: float
) -> None:
    asked = question(temperature=temperature, seed=3)
    plain = ask_plainly(model, asked)
    drafted = ask_with_drafter(model, load_drafter(tiny_folders.drafter), asked)
    assert drafted.tokens == plain.tokens
    work = drafted.cost(1.0)
    assert work.committed == len(plain.tokens) - 1
    assert work.drafter_calls > 0
    assert sum(work.rank_confusion.values()) > 0


def test_an_answer_that_first_times_the_pair_has_the_same_rank_figures(
    model: Any, tiny_folders: TinyFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "DEFAULT_CACHE_DIR", tmp_path)
    monkeypatch.setattr(costs, "WORTH_MEASURING", 1)
    costs.forget()
    # The first of them times the pair; a drafter of its own for each, whose account has not learned from the other.
    first, second = (ask_with_drafter(model, load_drafter(tiny_folders.drafter), question()) for _ in range(2))
    assert first.stats.history[0].drafter_calls == second.stats.history[0].drafter_calls > 0
    assert first.cost(1.0).rank_confusion == second.cost(1.0).rank_confusion != {}
    costs.forget()


def test_sampling_draws_from_the_whole_vocabulary(model: Any) -> None:
    asked = [question(temperature=99.0, seed=seed, max_new_tokens=60) for seed in range(6)]
    drawn = {token for each in asked for token in ask_plainly(model, each).tokens}
    # Transformers' default of the 50 best tokens per place leaves out whatever is unlikely at every place.
    assert len(drawn) > 50
    assert asked[0].rules == {"do_sample": True, "temperature": 99.0, "top_k": 0, "top_p": 1.0}


def test_prompt_lookup_and_an_assistant_keep_the_greedy_text_and_count_their_rounds(model: Any) -> None:
    plain = ask_plainly(model, question())
    assert plain.cost(1.0).rounds == len(plain.tokens) - 1
    assert plain.cost(1.0).draft_ms == 0.0
    for answer in (
        ask_plainly(model, question(), prompt_lookup_num_tokens=4),
        ask_plainly(model, question(), assistant=load_copy(model)),
    ):
        work = answer.cost(10.0)
        assert answer.tokens == plain.tokens
        assert sum(work.accepted) + work.rounds == work.committed
        assert work.depth_hit.get("1", 0) <= work.depth_offered.get("1", 0) <= work.rounds
        # The prefill may commit more than one token too.
        assert work.committed <= len(plain.tokens) - 1


def test_an_assistant_that_is_the_target_itself_is_always_right(model: Any) -> None:
    work = ask_plainly(model, question(), assistant=load_copy(model)).cost(10.0)
    assert work.nodes >= sum(work.accepted) > 0
    assert work.drafter_calls > 0
    assert work.draft_ms > 0
    assert all(work.depth_hit[depth] == count for depth, count in work.depth_offered.items())


def load_copy(model: Any) -> Any:
    """The same network as another object, drafting three tokens at a time."""
    import copy

    twin = copy.deepcopy(model)
    settings = twin.generation_config
    settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = 3, "constant"
    settings.assistant_confidence_threshold = 0.0
    return twin
