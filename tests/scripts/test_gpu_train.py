"""Prompts become a drafter in files of bounded size; each stage takes up what is there, also from one cut short."""

import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from specblock_zoo.cli.main import main
from specblock_zoo.data.answers import AnswerSettings
from specblock_zoo.data.records import read_records
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.hub.zoo import load_drafter
from tests.support import REPOSITORY
from tests.support.scripts import load_script
from tests.support.tiny import TinyRun
from tests.support.tiny_pair import TinyFolders, tiny_drafter

script = load_script("gpu_train")
EVERY = 4


@pytest.fixture
def training(tmp_path: Path, tiny_folders: TinyFolders) -> Any:
    prompts = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"id": f"p{n}", "prompt": f"say {n}", "source": "s", "license": "MIT"}) for n in range(12)]
    prompts.write_text("\n".join(lines) + "\n")
    config = yaml.safe_load(Path(script.Training("", Path()).config).read_text())
    # The shipped one, on a smaller scale: a tiny run has no hundreds of updates.
    config["trainer"] |= {"val_check_interval": EVERY, "max_steps": 3 * EVERY, "precision": "32-true"}
    config["trainer"]["callbacks"][0]["init_args"]["every_n_train_steps"] = EVERY
    config["trainer"]["callbacks"][-1]["init_args"]["multiple_of"] = EVERY
    config["data"] |= {"batch_tokens": 100, "val_fraction": 0.1}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    return script.Training(
        prompts=str(prompts),
        out=tmp_path / "out",
        target=str(tiny_folders.target),
        config=str(tmp_path / "config.yaml"),
        answers=["--batch_size=4", "--max_new_tokens=24"],
        cache=["--shard_size=4", "--draft_vocab_size=48"],
        fit=["--model.drafter.num_hidden_layers=1"],
    )


def given(command: list[str] | None) -> dict[str, str]:
    assert command is not None
    return dict(flag.removeprefix("--").partition("=")[::2] for flag in command[1:])


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHON": sys.executable}


def words_of(training: Any) -> list[str]:
    lists = {name: getattr(training, name) for name in ("answers", "cache", "fit")}
    plain = {name: value for name, value in vars(training).items() if name not in lists and value is not None}
    return [f"--{name}={value}" for name, value in plain.items()] + [
        f"--{name}={json.dumps(value)}" for name, value in lists.items()
    ]


def test_the_command_line_says_what_to_do(training: Any) -> None:
    assert script.parse(words_of(training)) == training
    assert training.folder == training.out.parent / "work"
    assert replace(training, work=training.out / "w").records == training.out / "w" / "answers.jsonl"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
def test_prompts_become_a_drafter_and_a_second_call_goes_on(training: Any) -> None:
    # Time enough for a busy machine: each stage ends when its work is done.
    command = [str(REPOSITORY / "scripts" / "gpu_train.sh"), *words_of(replace(training, seconds=4000))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((training.out / "train.json").read_text())
    assert {stage: each["status"] for stage, each in found["stages"].items()} == dict.fromkeys(script.STAGES, "done")
    assert found["answers"]["records"] == found["cache"]["records"] == 12
    assert found["cache"]["complete"]
    assert found["fit"]["step"] + 1 == 3 * EVERY
    assert [row["step"] + 1 for row in found["fit"]["curve"]] == [EVERY, 2 * EVERY, 3 * EVERY]
    assert 0 <= found["fit"]["val_alpha_b0_s0"] <= 1
    assert found["fit"]["seen_tokens"] > 0
    assert set(found["files"]) >= {"answers-1.jsonl.gz", "drafter/config.json"}
    drafter = load_drafter(training.out / "drafter", dtype=torch.bfloat16)
    assert (drafter.config.num_hidden_layers, drafter.config.draft_vocab_size) == (1, 48)
    assert script.answers_command(training, 10.0) is None
    assert script.cache_command(training, 10.0) is None
    assert main(script.fit_command(training, 100.0)) == 0
    assert script.outcome_of(training)["fit"] == found["fit"], "no update more: the run had come to its end"


@pytest.mark.filterwarnings("ignore")
def test_what_a_cut_cache_lacks_is_computed_while_training(training: Any, tiny_run: TinyRun) -> None:
    training = replace(training, target=str(tiny_run.target), cache=["--shard_size=5", "--draft_vocab_size=48"])
    training.folder.mkdir()
    training.records.write_bytes(tiny_run.records.read_bytes() + b'{"id": "half of a li')
    command = script.cache_command(training, 10.0)
    assert given(command)["records"] == str(training.records)
    assert training.records.read_bytes() == tiny_run.records.read_bytes(), "the half line is cut off"
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 0
    assert "data.source.kind" not in given(script.fit_command(training, 10.0))
    assert script.answers_command(training, 10.0) is None, "the cache's records stay as they are"
    manifest = json.loads((training.cache_dir / "manifest.json").read_text())
    manifest["shards"] = manifest["shards"][:1]
    (training.cache_dir / "manifest.json").write_text(json.dumps(manifest))
    (training.cache_dir / "shard-00002.arrow").unlink()
    command = script.fit_command(training, 100.0)
    assert given(command)["data.source.kind"] == "hybrid"
    assert main(command) == 0
    assert script.read_manifest(training.cache_dir).complete
    drafter = script.newest_drafter(training.folder / "runs")
    assert drafter is not None
    assert load_drafter(drafter).config.draft_vocab_size == 48


def test_a_stage_out_of_time_takes_its_workers_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that lived on would hold the cache against the next stage."""
    held, stage = tmp_path / "held", tmp_path / "stage"
    os.mkfifo(held)
    stage.write_text(f"#!/bin/sh\nsleep 100 > {held} &\nwait\n")
    stage.chmod(0o755)
    monkeypatch.setattr(script.sys, "executable", str(stage))
    reading = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    assert script.run_stage([], 1.0, tmp_path / "log") == "stopped when its time was over"
    os.set_blocking(reading, True)
    assert os.read(reading, 1) == b"", "nobody holds the other end"
    os.close(reading)


def test_the_answers_command_is_one_the_command_line_takes(training: Any) -> None:
    command = given(script.answers_command(training, 12.5))
    assert command["max_seconds"] == "12.5"
    assert command["batch_size"] == "4", "own flags come last"
    assert set(command) <= set(AnswerSettings.__dataclass_fields__)


def test_stages_share_the_time_and_a_failed_one_ends_it(training: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, float]] = []

    def run(arguments: list[str], seconds: float, log: Path) -> str:
        calls.append((arguments[0], seconds))
        return "failed with 2: error: no space" if arguments[0] == "cache" else "done"

    monkeypatch.setattr(script, "run_stage", run)
    training.folder.mkdir()
    noted: dict[str, dict[str, Any]] = {}
    script.run_stages(replace(training, seconds=100), noted.__setitem__)
    assert [name for name, _ in calls] == ["answers", "cache"], "nothing is trained on"
    assert calls[0][1] == pytest.approx(35.0)
    assert calls[1][1] == pytest.approx(50.0, abs=1.0), "its own share and what the answers left"
    assert list(noted) == ["answers", "cache"]
    assert noted["cache"]["status"].startswith("failed with 2")


def test_a_stage_is_stopped_in_time_and_says_why_it_failed(tmp_path: Path) -> None:
    log = tmp_path / "stage.log"
    assert script.run_stage(["zoo", "list"], 0.01, log) == "stopped when its time was over"
    said = script.run_stage(
        ["answers", "--prompts", "missing", "--target=/nowhere", f"--out={tmp_path}/a.jsonl"], 100, log
    )
    assert said.startswith("failed with 2: error:")


def test_answers_are_packed_in_parts_below_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = tmp_path / "answers.jsonl"
    noise = os.urandom(3 << 20).hex()
    lines = [
        json.dumps({"id": str(n), "prompt_ids": [1], "answer_ids": [2], "text": noise[n << 19 : (n + 1) << 19]})
        for n in range(12)
    ]
    records.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(script, "LARGEST", 2 << 20)
    script.pack(records, tmp_path)
    parts = sorted(tmp_path.glob("answers-*.jsonl.gz"))
    assert len(parts) > 1
    assert max(part.stat().st_size for part in parts) <= 2 << 20
    assert b"".join(gzip.decompress(part.read_bytes()) for part in parts) == records.read_bytes()
    assert [record.id for record in read_records(parts)] == [str(n) for n in range(12)]


def test_files_above_the_limit_are_named_with_the_remedy(tmp_path: Path) -> None:
    script.check_sizes({tmp_path / "model.safetensors": script.LARGEST})
    with pytest.raises(ConfigurationError, match=r"model\.safetensors has 16,777,217 bytes.*draft_vocab_size"):
        script.check_sizes({tmp_path / "model.safetensors": script.LARGEST + 1})


def test_a_split_drafter_is_read_as_it_is_and_saved_again_in_one_file(tmp_path: Path) -> None:
    whole = tiny_drafter().to(torch.bfloat16)
    whole.save_pretrained(tmp_path / "split", max_shard_size="8KB")
    assert len(list((tmp_path / "split").glob("model-*.safetensors"))) > 1
    load_drafter(tmp_path / "split", dtype=torch.bfloat16).save_pretrained(tmp_path / "joined")
    assert [file.name for file in (tmp_path / "joined").glob("*.safetensors*")] == ["model.safetensors"]
    joined = load_drafter(tmp_path / "joined", dtype=torch.bfloat16).state_dict()
    assert all(torch.equal(tensor, joined[name]) for name, tensor in whole.state_dict().items())


def test_files_that_are_missing_are_named_before_anything_is_made(training: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        script.train(replace(training, prompts=str(tmp_path / "nowhere")))
    assert not training.out.exists()
