"""Forwards are counted while they are watched and left as they were, and a run ends with one JSON line."""

import json
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tests.support.decoding import generate, prompt_ids, random_drafter, target_of
from tests.support.scripts import load_script
from tests.support.tiny_pair import TinyFolders


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load_script("decode_overhead", "benchmarks")


def test_every_forward_of_both_models_is_seen_and_the_models_stay_as_they_were(benchmark: ModuleType) -> None:
    model = target_of("llama")
    drafter = random_drafter(model)
    expected, before = (
        generate(model, prompt_ids(6), 8, assistant_model=drafter),
        (dict(vars(model)), dict(vars(drafter))),
    )
    with benchmark.timed({"target": model, "drafter": drafter}) as seconds:
        assert torch.equal(generate(model, prompt_ids(6), 8, assistant_model=drafter), expected)
    stats = drafter.last_stats
    # The prompt's forward, then one per round; the drafter's calls come on top.
    assert len(seconds) > 1 + stats.rounds
    assert all(each > 0 for each in seconds)
    for network, attributes in zip((model, drafter), before, strict=True):
        assert "forward" not in vars(network)
        assert vars(network).keys() == attributes.keys()


def test_the_share_is_what_rounds_spend_outside_forwards_and_the_prompt_is_left_out(benchmark: ModuleType) -> None:
    stats = SimpleNamespace(draft_ms=100.0, verify_ms=250.0, other_ms=50.0)
    assert benchmark.other_share(stats, [9.0, 0.1, 0.2]) == pytest.approx(0.25)


def test_a_run_ends_with_one_json_line(
    benchmark: ModuleType, tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch.no_grad():
        benchmark.main(
            str(tiny_folders.drafter), str(tiny_folders.target), max_new_tokens=6, dtype="float32", threads=1
        )
    *questions, last = capsys.readouterr().out.splitlines()
    figures = json.loads(last)
    assert len(questions) == 3
    assert figures["tau"] >= 1.0
    assert figures["other_share"] < 1.0
