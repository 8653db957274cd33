"""Real tau, measured by decoding while the drafter trains."""

import json
from pathlib import Path

import pytest
import torch

from specblock_zoo.bench.probe import TauProbe, read_prompts
from specblock_zoo.errors import BadRecordError, ConfigurationError, PromptTooLongError
from specblock_zoo.targets.local import load_target
from specblock_zoo.training.module import DrafterModule
from tests.support.decoding import random_drafter
from tests.support.fit import QUIET, fit
from tests.support.tiny import TinyRun
from tests.support.tiny_pair import character_tokenizer

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]


def task_file(path: Path, count: int = 4) -> Path:
    lines = [json.dumps({"id": f"p{i}", "category": "chat", "turns": [f"say {i}"]}) for i in range(count)]
    path.write_text("\n".join(lines))
    return path


def test_task_files_and_answer_records_are_both_prompts(tiny_run: TinyRun, tmp_path: Path) -> None:
    tokenizer = character_tokenizer()
    asked = list(read_prompts(task_file(tmp_path / "task.jsonl"), tokenizer, 2))
    assert [tokenizer.decode(ids[0]) for ids in asked]
    assert len(asked) == 2
    answered = list(read_prompts(tiny_run.records, tokenizer, 3))
    first = json.loads(tiny_run.records.read_text().splitlines()[0])
    assert answered[0].tolist() == [first["prompt_ids"]]
    assert len(answered) == 3


def test_records_of_messages_and_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_text(json.dumps({"id": "a", "messages": [{"role": "user", "content": "x"}]}))
    with pytest.raises(ConfigurationError, match="messages"):
        list(read_prompts(file, character_tokenizer(), 1))
    file.write_text("not json")
    with pytest.raises(BadRecordError, match=r"messages\.jsonl:1"):
        list(read_prompts(file, character_tokenizer(), 1))
    with pytest.raises(ConfigurationError, match="nowhere"):
        list(read_prompts(tmp_path / "nowhere", character_tokenizer(), 1))


def test_training_logs_the_tau_that_decoding_gives(tiny_run: TinyRun, tmp_path: Path) -> None:
    probe = [
        "--trainer.callbacks+=specblock_zoo.bench.probe.TauProbe",
        f"--trainer.callbacks.prompts={tiny_run.records}",
        "--trainer.callbacks.num_prompts=2",
        "--trainer.callbacks.max_new_tokens=12",
        "--trainer.callbacks+=specblock_zoo.training.callbacks.ExportDrafter",
        f"--trainer.callbacks.folder={tmp_path / 'drafter'}",
    ]
    assert fit(tiny_run, tmp_path, "--trainer.max_epochs=1", *probe) == 0
    header, *lines = (tmp_path / "run" / "version_0" / "metrics.csv").read_text().splitlines()
    column = header.split(",").index("tau")
    (logged,) = [float(line.split(",")[column]) for line in lines if line.split(",")[column]]
    assert logged >= 1.0
    assert logged == pytest.approx(decoded_tau(tiny_run, tmp_path / "drafter"))


def test_no_cost_curve_sizes_the_trees_and_the_drafter_stays_as_it_is(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("specblock_zoo.inference.hf_generate.costs_for", lambda *args, **_: asked.append(args))
    probe = TauProbe(str(tiny_run.records), max_new_tokens=8)
    probe.target, tokenizer = load_target(tiny_run.target, torch.float32)
    probe.input_ids = tuple(read_prompts(tiny_run.records, tokenizer, 2))
    module = DrafterModule(tiny_run.target)
    module.drafter = random_drafter(probe.target)
    assert module.drafter.config.tree_settings.cost_curve == "measured"
    assert probe.measure(module) >= 1.0
    assert asked == []
    assert module.drafter.config.tree_settings.cost_curve == "measured"
    assert module.drafter.last_stats is None


def decoded_tau(run: TinyRun, folder: Path) -> float:
    """Committed tokens over rounds, counted by hand from the generated texts."""
    from specblock_zoo import SpecBlockDrafter

    target, _ = load_target(run.target, torch.float32)
    drafter = SpecBlockDrafter.from_pretrained(folder)
    committed = rounds = 0
    for ids in read_prompts(run.records, character_tokenizer(), 2):
        text = target.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            assistant_model=drafter,
            max_new_tokens=12,
            do_sample=False,
        )
        # The prefill gives the first token; only the others are committed in rounds.
        committed += text.shape[1] - ids.shape[1] - 1
        rounds += drafter.last_stats.rounds
    return committed / rounds


def test_a_prompt_that_does_not_fit_is_refused_before_training(
    tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--trainer.callbacks+=specblock_zoo.bench.probe.TauProbe",
        f"--trainer.callbacks.prompts={tiny_run.records}",
    ]
    assert fit(tiny_run, tmp_path, "--trainer.max_steps=1", *flags, "--trainer.callbacks.max_new_tokens=600") == 2
    assert "512 positions" in capsys.readouterr().err
    assert issubclass(PromptTooLongError, ValueError)
    assert TauProbe(str(tiny_run.records)).num_prompts == 8
