"""Stored curves are read strictly, keyed by what decides speed, and looked up once."""

import json
from pathlib import Path

import pytest
import torch

from specblock_zoo.errors import BadRecordError
from specblock_zoo.functional.costs import Curve, RoundCosts
from specblock_zoo.inference import costs as stored
from specblock_zoo.inference.prepack import can_prepack, optimize_for_cpu
from specblock_zoo.inference.verify import Form
from tests.support.decoding import generate, prompt_ids, random_drafter, target_of

COSTS = RoundCosts(Curve((1, 8, 64), (20.0, 25.5, 80.0)), 2.5, Curve((1, 8), (2.0, 3.0)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stored, "DEFAULT_CACHE_DIR", tmp_path)
    stored.forget()
    yield tmp_path / "costs"
    stored.forget()


def test_a_curve_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    target = target_of("llama")
    key = stored.key_of(target, random_drafter(target))
    assert stored.read(key, tmp_path) is None
    file = stored.store(key, COSTS, tmp_path / "new")
    assert stored.read(key, tmp_path / "new") == COSTS
    assert list(file.parent.iterdir()) == [file], "nothing half-written is left"
    (tmp_path / "plain").touch()
    assert file.stat().st_mode == (tmp_path / "plain").stat().st_mode, "other users may read it as any other file"
    file.write_text(json.dumps({**json.loads(file.read_text()), "version": 0}))
    assert stored.read(key, file.parent) is None


def test_the_key_tells_apart_what_decides_speed_and_nothing_else() -> None:
    target = target_of("llama")
    drafter = random_drafter(target)
    key = stored.key_of(target, drafter)
    assert stored.key_of(target, random_drafter(target, seed=1, max_nodes=3)) == key, "weights and bounds do not count"
    others = [
        stored.key_of(target_of("llama", hidden_size=64), drafter),
        stored.key_of(target, random_drafter(target, intermediate_size=32)),
        stored.key_of(target, random_drafter(target, num_blocks=1)),
        stored.key_of(target, random_drafter(target).to(torch.bfloat16)),
    ]
    if can_prepack():
        others.append(stored.key_of(optimize_for_cpu(target_of("llama")), drafter))
    digests = {each.digest for each in (key, *others)}
    assert len(digests) == 1 + len(others)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 3}',
        json.dumps({"version": 3, "costs": {"verify": {}, "branch": {}, "first_block": 1}}),
        json.dumps(
            {
                "version": 3,
                "costs": {
                    "verify": {"sizes": [1, 1], "ms": [1, 2]},
                    "branch": {"sizes": [1], "ms": [1]},
                    "first_block": 1,
                },
            }
        ),
        json.dumps(
            {
                "version": 3,
                "costs": {
                    "verify": {"sizes": [1], "ms": [-1]},
                    "branch": {"sizes": [1], "ms": [1]},
                    "first_block": "x",
                },
            }
        ),
    ],
)
def test_a_broken_file_is_refused_by_name_and_does_not_stop_an_answer(folder: Path, text: str) -> None:
    target = target_of("llama")
    drafter = random_drafter(target)
    file = stored.store(stored.key_of(target, drafter), COSTS, folder)
    file.write_text(text)
    with pytest.raises(BadRecordError, match=file.stem):
        stored.read(stored.key_of(target, drafter), folder)
    with pytest.warns(UserWarning, match=file.stem):
        assert stored.costs_for(target, drafter, Form.ADDITIVE, measure=True) is None
    assert stored.costs_for(target, drafter, Form.ADDITIVE, measure=True) is None, "and is reported once"


def test_a_stored_curve_is_found_and_a_tiny_target_is_not_measured(folder: Path) -> None:
    target = target_of("llama")
    drafter = random_drafter(target)
    assert stored.costs_for(target, drafter, Form.ADDITIVE, measure=True) is None
    stored.store(stored.key_of(target, drafter), COSTS, folder)
    stored.forget()
    assert stored.costs_for(target, drafter, Form.ADDITIVE, measure=False) == COSTS


def test_an_older_torch_that_cannot_name_the_processor_has_curves_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    target = target_of("llama")
    assert stored.cpu_name() == ""
    assert torch.backends.cpu.get_cpu_capability() in stored.key_of(target, random_drafter(target)).device


def test_a_stored_curve_serves_the_process_that_stored_it(folder: Path) -> None:
    target = target_of("llama")
    drafter = random_drafter(target)
    assert stored.costs_for(target, drafter, Form.ADDITIVE, measure=True) is None
    stored.store(stored.key_of(target, drafter), COSTS, folder)
    assert stored.costs_for(target, drafter, Form.ADDITIVE, measure=True) == COSTS


def test_a_measurement_that_fails_costs_the_curve_and_not_the_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter that proposes no token of the target leaves no node to measure a later block from."""
    target = target_of("llama")
    drafter = random_drafter(target, num_blocks=2)
    monkeypatch.setattr(stored, "WORTH_MEASURING", 1)
    monkeypatch.setattr(drafter, "target_tokens", lambda ids: torch.full_like(ids, -1))
    ids = prompt_ids(6)
    with pytest.warns(UserWarning, match="IndexError while measuring"):
        drafted = generate(target, ids, 6, assistant_model=drafter)
    assert torch.equal(drafted, generate(target, ids, 6))


def test_a_target_of_some_size_is_measured_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of("llama")
    drafter = random_drafter(target)
    drafter.attach(target.get_input_embeddings().weight)
    monkeypatch.setattr(stored, "WORTH_MEASURING", 1)
    assert stored.costs_for(target, drafter, Form.ADDITIVE, measure=False) is None
    found = stored.costs_for(target, drafter, Form.ADDITIVE, measure=True)
    assert found.verify.at(1) > 0.0
    assert stored.costs_for(target, drafter, Form.ADDITIVE, measure=True) is found
    assert not folder.exists(), "a coarse curve is not stored"
