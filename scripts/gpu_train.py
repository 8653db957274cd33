"""Prompts to a trained drafter within one stretch of time on one GPU: answers, feature cache, training, export.

Usage: scripts/gpu_train.sh --prompts FILE --out FOLDER [--seconds 540]

Each stage is the command of that name, in a process of its own with a share of the time; what one leaves, the next may
use. Answers stop before a batch that would be late, training sizes its schedule to the time, and what a stage cut short
has finished is used: missing features are computed in the training loop, the newest checkpoint's drafter is exported.
Called again with the same `--work`, it goes on where it was.

`--out` receives the drafter (bfloat16, `from_pretrained` reads it as it is), `train.json` and the answers, in files of
at most 16 MiB.
"""

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import count
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser
from jsonargparse.typing import PositiveInt

from specblock_zoo.bench.host import device_name, public_command, source_commit, versions
from specblock_zoo.bench.records import write_atomically
from specblock_zoo.data.answers import answered_ids
from specblock_zoo.data.manifest import MANIFEST_FILE, read_manifest
from specblock_zoo.data.records import read_objects
from specblock_zoo.data.settings import Extraction
from specblock_zoo.errors import ConfigurationError, SpecBlockError
from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.training.callbacks import save_folder

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
LARGEST = 16 * MIB
SHARES = {"answers": 0.35, "cache": 0.15, "fit": 0.45}
"""Of the time; the rest is for the export."""
LOADING_S, LOADING_SHARE = 25.0, 0.4
"""What a stage may need before it works (imports, models) and after: so many seconds, but no more than this share."""


@dataclass(frozen=True)
class Training:
    """A drafter from prompts, in a given time.

    Attributes:
        prompts: file of prompts as `specblock answers` reads them.
        out: folder for the results; made when it does not exist.
        work: folder for answers, cache and checkpoints, taken up where it was; default: `work` beside the results.
        seconds: for everything together.
        target: name of an embedded target, a model folder, or a Hub repository.
        config: training configuration; its last callback must be `FitToTime`.
        answers, cache, fit: further flags of these commands, e.g. `--fit='["--model.adamw.learning_rate=0.002"]'`.
    """

    prompts: str
    out: Path
    work: Path | None = None
    seconds: PositiveInt = 540
    target: str = "smollm2-135m"
    config: str = str(ROOT / "configs" / "train" / "smollm2-135m-gpu.yaml")
    answers: list[str] = field(default_factory=list)
    cache: list[str] = field(default_factory=list)
    fit: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Where the stages work."""
        return self.work or self.out.absolute().parent / "work"

    @property
    def records(self) -> Path:
        """The answers."""
        return self.folder / "answers.jsonl"

    @property
    def cache_dir(self) -> Path:
        """The feature cache."""
        return self.folder / "cache"


Command = Callable[[Training, float], list[str] | None]
"""(what to do, seconds that it may work) -> arguments of `specblock`; nothing where there is nothing left to do."""

EXTRACTION = {"max_length": 640, "shard_size": 512, "batch_tokens": 32768}


def device() -> str:
    """The GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def answers_command(training: Training, seconds: float) -> list[str] | None:
    """Answers as many prompts as the time allows; once there is a cache its records stay as they are."""
    if (training.cache_dir / MANIFEST_FILE).is_file():
        return None
    bounds = {"batch_size": 1024, "max_new_tokens": 384, "max_prompt_tokens": 256, "max_prompts": 24_000}
    named = {"prompts": training.prompts, "target": training.target, "out": training.records, "device": device()}
    return ["answers", *flags({**named, **bounds, "max_seconds": seconds}), *training.answers]


def cache_command(training: Training, seconds: float) -> list[str] | None:
    """Stores the features of all answers; what a killed stage left of the last line is cut off first."""
    if is_cached(training):
        return None
    answered_ids(training.records)
    named = {"records": training.records, "target": training.target, "out": training.cache_dir, "device": device()}
    return ["cache", *flags({**named, **EXTRACTION}), *training.cache]


def fit_command(training: Training, seconds: float) -> list[str] | None:
    """Trains on the cache, and computes what it lacks."""
    source = {} if is_cached(training) else hybrid(training)
    named = {
        "config": training.config,
        "model.target": training.target,
        "data.cache_dir": training.cache_dir,
        "trainer.accelerator": "gpu" if device() == "cuda" else "cpu",
        "trainer.logger.init_args.save_dir": training.folder / "runs",
        "trainer.callbacks.seconds": seconds,
        "ckpt_path": "last",
    }
    return ["fit", *flags({**named, **source}), *training.fit]


def is_cached(training: Training) -> bool:
    """Whether the cache has every answer's features."""
    return (training.cache_dir / MANIFEST_FILE).is_file() and read_manifest(training.cache_dir).complete


def hybrid(training: Training) -> dict[str, Any]:
    """Options of a source that fills the rest of the cache: the cache command's own."""
    given = dict(flag.removeprefix("--").partition("=")[::2] for flag in training.cache)
    extraction = {"target": training.target, "device": device(), **EXTRACTION, **given}
    extraction["records"] = json.dumps([str(training.records)])
    known = {each.name for each in fields(Extraction)}
    options = {f"data.source.extraction.{name}": value for name, value in extraction.items() if name in known}
    return {"data.source.kind": "hybrid", **options}


STAGES: dict[str, Command] = {"answers": answers_command, "cache": cache_command, "fit": fit_command}


def flags(options: dict[str, Any]) -> list[str]:
    """`--name=value` of each option."""
    return [f"--{name}={value}" for name, value in options.items()]


def run_stages(training: Training, note: Callable[[str, dict[str, Any]], None]) -> None:
    """Runs each stage within its share and what earlier ones left, and hands its outcome to `note` at once."""
    ends, spare = time.monotonic() + training.seconds * sum(SHARES.values()), 0.0
    for stage, command in STAGES.items():
        before = time.monotonic()
        allowed = min(SHARES[stage] * training.seconds + spare, ends - before)
        loading = min(LOADING_S, LOADING_SHARE * allowed)
        status = "no time left"
        if allowed > 0:
            arguments = command(training, round(allowed - loading, 1))
            status = run_stage(arguments, allowed, training.folder / f"{stage}.log") if arguments else "nothing to do"
        used = time.monotonic() - before
        spare = max(0.0, allowed - used)
        note(stage, {"status": status, "seconds": round(used, 1), "allowed_seconds": round(allowed, 1)})
        if status.startswith("failed"):
            return


def run_stage(arguments: list[str], seconds: float, log: Path) -> str:
    """Runs `specblock ARGUMENTS`, its words into `log`; says how it ended."""
    with log.open("a", encoding="utf-8") as stream:
        command = [sys.executable, "-m", "specblock_zoo.cli.main", *arguments]
        stream.write(f"{' '.join(command)}\n")
        stream.flush()
        # A group of its own, so that its workers end with it: they hold the device, and locks the next stage needs.
        stage = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = stage.wait(seconds)
        except subprocess.TimeoutExpired:
            return "stopped when its time was over"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(stage.pid, signal.SIGKILL)
            stage.wait()
    last = (log.read_text(encoding="utf-8").splitlines() or [""])[-1]
    return "done" if status == 0 else f"failed with {status}: {last.strip()}"


def train(training: Training) -> int:
    """Runs everything; 1 when there is no drafter in the end.

    Raises:
        ConfigurationError: there is no such file of prompts, or a file for the results would be too large.
    """
    for file in (training.prompts, training.config):
        if not Path(file).is_file():
            raise ConfigurationError(f"There is no file {file}.", "Correct the path.")
    training.out.mkdir(parents=True, exist_ok=True)
    training.folder.mkdir(parents=True, exist_ok=True)
    stages: dict[str, Any] = {}
    found: dict[str, Any] = {"provenance": provenance(training), "stages": stages}

    def save() -> None:
        write_atomically(training.out / "train.json", json.dumps(found, indent=2) + "\n")

    def note(stage: str, outcome: dict[str, Any]) -> None:
        stages[stage] = outcome
        save()
        print(f"{stage}: {outcome['status']} in {outcome['seconds']} s", flush=True)

    run_stages(training, note)
    found |= outcome_of(training)
    drafter = newest_drafter(training.folder / "runs")
    if drafter is not None:
        # A shard is so large in tensors; a file has a header too.
        parts = {"max_shard_size": LARGEST - MIB}
        save_folder(load_drafter(drafter, dtype=torch.bfloat16), training.out / "drafter", **parts)
    pack(training.records, training.out)
    files = {file: file.stat().st_size for file in sorted(training.out.rglob("*")) if file.is_file()}
    found["files"] = {str(file.relative_to(training.out)): size for file, size in files.items()}
    save()
    check_sizes(files)
    return int(drafter is None)


def provenance(training: Training) -> dict[str, Any]:
    """Where, when and how."""
    return {
        "commit": source_commit(),
        "command": public_command(sys.argv),
        "target": training.target,
        "device": device_name(torch.device(device())),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions(),
    }


def outcome_of(training: Training) -> dict[str, Any]:
    """What the stages left: tokens answered and cached, and the run's validations."""
    found: dict[str, Any] = {}
    if training.records.is_file():
        lengths = [len(fields["answer_ids"]) for _, fields in read_objects([training.records])]
        found["answers"] = {"records": len(lengths), "tokens": sum(lengths)}
    if (training.cache_dir / MANIFEST_FILE).is_file():
        manifest = read_manifest(training.cache_dir)
        found["cache"] = {**manifest.counts, "vocab_coverage": manifest.vocab_coverage, "complete": manifest.complete}
    curve = list(validations(training.folder / "runs"))
    if curve:
        found["fit"] = {**curve[-1], "curve": curve}
    return found


def validations(runs: Path) -> Iterator[dict[str, float]]:
    """Each validation's update and figures, of all versions of a run, oldest first."""
    for file in sorted(runs.rglob("metrics.csv"), key=lambda file: file.stat().st_mtime_ns):
        with file.open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                if row.get("val_alpha_b0_s0"):
                    chosen = {"step", "seen_tokens", "val_tau_teacher_forced", "val_loss_nats"}
                    names = [name for name in row if name in chosen or (name or "").startswith("val_alpha")]
                    yield {name: float(row[name]) for name in names if row[name]}


def newest_drafter(runs: Path) -> Path | None:
    """The folder that the last checkpoint's drafter was exported to; None before the first checkpoint."""
    found = [file.parent for file in runs.rglob("drafter/config.json")]
    return max(found, key=lambda folder: folder.stat().st_mtime_ns, default=None)


def pack(records: Path, out: Path) -> None:
    """Writes the answers as `answers-N.jsonl.gz`, which `specblock cache` reads side by side, each below the limit."""
    if not records.is_file():
        return
    with records.open("rb") as lines:
        for part in count(1):
            line = next(lines, None)
            if line is None:
                return
            with gzip.open(out / f"answers-{part}.jsonl.gz", "wb") as stream:
                # The compressor holds back less than a MiB.
                while line is not None:
                    stream.write(line)
                    line = next(lines, None) if stream.fileobj.tell() < LARGEST - MIB else None


def check_sizes(files: dict[Path, int]) -> None:
    """Raises `ConfigurationError` naming files above the limit: one tensor of such a size is not split."""
    large = {file.name: size for file, size in files.items() if size > LARGEST}
    if large:
        raise ConfigurationError(
            f"{', '.join(f'{name} has {size:,} bytes' for name, size in large.items())}; the limit is {LARGEST:,}.",
            "A tensor cannot be split: take a smaller draft vocabulary (--cache='[\"--draft_vocab_size=8192\"]').",
        )


def parse(argv: list[str] | None = None) -> Training:
    """The command line as what to do."""
    parser = ArgumentParser(description=__doc__)
    parser.add_class_arguments(Training, as_positional=False)
    training: Training = Training(**vars(parser.instantiate(parser.parse_args(argv))))
    return training


if __name__ == "__main__":
    try:
        raise SystemExit(train(parse()))
    except SpecBlockError as error:
        sys.exit(f"error: {error}")
