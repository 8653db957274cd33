"""From raw prompts to a verified cache, through the command line."""

import csv
import json
from pathlib import Path

import pytest

from specblock_zoo.cli.main import main
from tests.support.fit import QUIET, fit, run_options
from tests.support.tiny import TinyRun, build_tiny_cache

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]


def test_prompts_become_answers_become_a_sound_cache_become_a_drafter(
    tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, records, cache = tmp_path / "p.jsonl", tmp_path / "answers.jsonl", tmp_path / "cache"
    prompts.write_text("".join(json.dumps({"id": str(i), "prompt": "abc"[: 1 + i % 3]}) + "\n" for i in range(6)))
    target = ["--target", str(tiny_run.target)]

    def ran(*flags: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(flags))
        assert ended.value.code == 0
        return capsys.readouterr().out

    sampling = ["--max_new_tokens=8", "--temperatures=[0.0, 1.0]", "--dtype=float32"]
    assert "6 new answers" in ran("answers", "--prompts", str(prompts), *target, "--out", str(records), *sampling)
    options = ["--records", str(records), *target, "--out", str(cache), "--dtype=float32", "--teacher=topk"]
    assert ran("cache", *options, "--dry_run=true") == ""
    assert not cache.exists()
    assert "ready for `specblock fit`" in ran("cache", *options)
    assert "sound; 3 sequences recomputed" in ran("cache_verify", str(cache), "--samples=3")
    run = TinyRun(tiny_run.target, cache, records)
    keep = "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint"
    export = "--trainer.callbacks+=specblock_zoo.training.callbacks.ExportDrafter"
    assert fit(run, tmp_path, "--trainer.max_epochs=1", keep, "--trainer.callbacks.filename=only", export) == 0
    made = tmp_path / "run" / "version_0" / "checkpoints"
    assert (made / "drafter" / "model.safetensors").is_file()
    assert main(["validate", *run_options(run, tmp_path / "validation"), f"--ckpt_path={made / 'only.ckpt'}"]) == 0


def test_a_mistake_in_the_flags_ends_with_exit_code_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache_verify", "/nowhere"]) == 2
    assert "/nowhere is not a feature cache" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["topk", "tokens", "online", "hybrid"])
def test_every_teacher_and_every_source_trains(tiny_run: TinyRun, tmp_path: Path, source: str) -> None:
    extraction = {"records": [str(tiny_run.records)], "target": str(tiny_run.target), "draft_vocab_size": 48}
    flags = ["--trainer.max_steps=2", "--data.batch_tokens=100"]
    if source in ("topk", "tokens"):
        cache = build_tiny_cache(tmp_path / "cache", tiny_run.target, tiny_run.records, teacher=source)
        flags += [f"--data.cache_dir={cache}"]
    else:
        folder = "null" if source == "online" else str(tmp_path / "cache")
        settings = json.dumps({"kind": source, "extraction": {**extraction, "dtype": "float32", "shard_size": 5}})
        flags += [f"--data.cache_dir={folder}", f"--data.source={settings}"]
    assert fit(tiny_run, tmp_path, *flags) == 0
    with (tmp_path / "run" / "version_0" / "metrics.csv").open() as lines:
        losses = [float(row["train_loss_nats"]) for row in csv.DictReader(lines) if row.get("train_loss_nats")]
    assert len(losses) == 2
    assert all(0 < loss < 100 for loss in losses)
