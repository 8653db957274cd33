"""A benchmark from settings to records, really run on a tiny target."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from specblock_zoo.bench.campaign import Campaign, Loaders, Plan, describe_run, hash_config, hash_weights, load, plan
from specblock_zoo.bench.folder import Run, RunFolder, differences, read_folder
from specblock_zoo.bench.settings import BenchSettings
from specblock_zoo.bench.timing import thread_limit
from specblock_zoo.errors import BadRecordError, ConfigurationError, PromptTooLongError, UnknownNameError
from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.targets.local import load_target
from tests.support import REPOSITORY
from tests.support.tiny_pair import POSITIONS, TinyFolders, tiny_drafter

LOADERS = Loaders(load_target, lambda name, model, _: load_drafter(name, dtype=model.dtype))


def write_tasks(folder: Path, count: int = 2) -> Path:
    for name, turns in {"mt_bench": ["say {}", "again"], "humaneval": ["def {}"]}.items():
        lines = [
            {"id": f"{name}/{i}", "category": "c", "turns": [each.format(i) for each in turns]} for i in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def settings(tiny_folders: TinyFolders, tmp_path: Path) -> BenchSettings:
    described = yaml.safe_load((REPOSITORY / "configs" / "bench" / "tiny.yaml").read_text())
    for method in described["methods"].values():
        if "drafter" in method:
            method["drafter"] = str(tiny_folders.drafter)
    described |= {"target": str(tiny_folders.target), "tasks_dir": str(write_tasks(tmp_path)), "max_new_tokens": 6}
    return BenchSettings(**described)


def prepared(settings: BenchSettings, folder: Path) -> Campaign:
    planned = plan(settings)
    bench = load(planned, LOADERS)
    return Campaign(planned, bench, RunFolder.open(folder, describe_run(planned, bench, "specblock bench")))


class Killed(Exception):
    """What a kill looks like from inside."""


def test_a_run_that_is_killed_goes_on_where_it_was_and_texts_are_plain_decodings(
    settings: BenchSettings, tmp_path: Path
) -> None:
    folder, answered = tmp_path / "run", [0]
    settings = replace(settings, prompts=1)

    def killed_after_ten() -> None:
        answered[0] += 1
        if answered[0] == 10:
            raise Killed

    with thread_limit(settings.threads):
        campaign = prepared(settings, folder)
        speeds = campaign.warm_up()
        assert set(speeds) == set(settings.methods)
        assert campaign.estimate(speeds) > 0
        with pytest.raises(Killed):
            campaign.run(killed_after_ten)
        assert len(read_folder(folder)[1]) == 10
        rest: list[int] = []
        again = prepared(settings, folder)
        again.run(lambda: rest.append(1))
    run, records = read_folder(folder)
    total = len(settings.methods) * len(again.plan.items)
    assert len(records) == total == len(rest) + 10
    assert len({(record.method, record.place) for record in records}) == total
    assert [point.rows for point in run.verify_cost]
    texts: dict[Any, dict[str, Any]] = {}
    for record in records:
        texts.setdefault(record.place, {})[record.method] = record.answers
    for place, by_method in texts.items():
        plain = by_method.pop("plain")
        if place.temperature > 0:
            del by_method["prompt_lookup"]
        assert set(by_method.values()) == {plain}, place


def test_within_a_task_and_temperature_every_method_has_every_place(settings: BenchSettings, tmp_path: Path) -> None:
    count = len(settings.methods)
    write_tasks(tmp_path, count)
    orders: dict[tuple[str, float], list[list[str]]] = {}
    for item, names in prepared(replace(settings, prompts=count), tmp_path / "run").remaining():
        orders.setdefault((item.task, item.temperature), []).append(names)
    assert len(orders) == 4
    for order in orders.values():
        assert all(sorted(place) == sorted(settings.methods) for place in zip(*order, strict=True))
    assert len({tuple(map(tuple, order)) for order in orders.values()}) == 4, "each has an order of its own"


def test_a_prompts_number_comes_before_the_task_so_that_a_part_has_the_same_of_each(settings: BenchSettings) -> None:
    half = plan(settings).items[:4]
    assert {(item.task, item.temperature) for item in half} == {
        (task, temperature) for task in settings.tasks for temperature in settings.temperatures
    }


def test_another_configuration_in_the_same_folder_is_refused(settings: BenchSettings, tmp_path: Path) -> None:
    prepared(settings, tmp_path / "run")
    other = replace(settings, max_new_tokens=7)
    with pytest.raises(ConfigurationError, match="max_new_tokens is 6 there and 7 here"):
        prepared(other, tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"tasks": ["mtbench"]}, UnknownNameError, "mtbench"),
        ({"prompts": 3}, ConfigurationError, "has 2 prompts; 3 are asked for"),
        ({"methods": {"plane": {}}, "reference": None}, UnknownNameError, "plane"),
    ],
)
def test_bad_input_is_found_before_a_model_is_loaded(
    settings: BenchSettings, changes: dict[str, Any], error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        plan(replace(settings, **changes))


def test_weights_that_cannot_be_packed_are_refused_before_a_model_is_loaded(
    settings: BenchSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specblock_zoo.inference.prepack.takes_bfloat16", lambda: False)
    with pytest.raises(ConfigurationError, match="bfloat16 weights cannot be prepacked"):
        plan(replace(settings, dtype="bfloat16", packed=True))
    assert plan(replace(settings, dtype="bfloat16", packed=False)).settings.dtype == "bfloat16"


def test_a_broken_line_is_found_before_a_model_is_loaded(settings: BenchSettings) -> None:
    path = Path(str(settings.tasks_dir)) / "humaneval.jsonl"
    path.write_text(path.read_text() + '{"id": "x"}\n')
    with pytest.raises(BadRecordError, match=r"humaneval\.jsonl:3"):
        plan(settings)


def test_a_prompt_that_leaves_no_room_is_found_before_anything_is_timed(settings: BenchSettings) -> None:
    planned = plan(replace(settings, max_new_tokens=POSITIONS))
    with pytest.raises(PromptTooLongError, match="positions"):
        load(planned, LOADERS)


def test_a_run_knows_its_drafters_by_their_weights(settings: BenchSettings, tiny_folders: TinyFolders) -> None:
    planned: Plan = plan(settings)
    described = describe_run(planned, load(planned, LOADERS), "x")
    assert described.drafters == dict.fromkeys(("tree", "chain", "uniform"), str(tiny_folders.drafter))
    network = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    before = hash_weights(network)
    with torch.no_grad():
        network.weight += 1
    assert hash_weights(network) != before


def test_a_run_knows_its_assistants_by_their_weights(settings: BenchSettings, tiny_folders: TinyFolders) -> None:
    methods: dict[str, Any] = {"plain": None, "helped": {"kind": "assistant", "model": "helper"}}
    planned = plan(replace(settings, methods=methods, reference=None))

    def described(change: float) -> Run:
        def load_either(name: str, dtype: torch.dtype) -> Any:
            model, tokenizer = load_target(tiny_folders.target, dtype=dtype)
            if name == "helper":
                model.lm_head.weight.data += change
            return model, tokenizer

        return describe_run(planned, load(planned, Loaders(load_either, LOADERS.drafter)), "x")

    first, same, other = described(0.0), described(0.0), described(0.5)
    assert first.sha256 == same.sha256
    assert [fact.split(" is ")[0] for fact in differences(first.identity, other.identity)] == ["assistant helper"]


def test_a_drafter_that_drafts_otherwise_makes_another_run() -> None:
    drafter = tiny_drafter()
    before = hash_config(drafter.config)
    drafter.config.max_nodes += 1
    assert hash_config(drafter.config) != before
