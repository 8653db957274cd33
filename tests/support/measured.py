"""Prompt records, results and a zoo entry with known numbers."""

import shutil
from pathlib import Path

from specblock_zoo.bench.records import PromptRecord, Provenance, Results, write_results
from specblock_zoo.bench.report import DRAFTED, PLAIN, PLAIN_MASKED, summarize_run
from specblock_zoo.hub.entry import (
    ENTRY_VERSION,
    DataSource,
    DraftVocabulary,
    TargetReference,
    Training,
    ZooEntry,
    hash_files,
    write_entry,
)

NAME = "specblock-tiny.k4m2-v1"


def record(task: str = "chat", number: int = 0, speedup: float = 1.5, looping: bool = False) -> PromptRecord:
    """20 tokens in 10 rounds; plain takes 2 s, plain with a mask 1.6 s, drafted `1.6 / speedup` s."""
    return PromptRecord(
        task=task,
        id=f"{task}/{number}",
        category=task,
        prompt_tokens=7,
        new_tokens=20,
        equal=True,
        looping=looping,
        rounds=5 if looping else 10,
        committed=19,
        offered={"0.0": 10, "0.1": 4},
        hit={"0.0": 4, "0.1": 1},
        draft_ms=100.0,
        verify_ms=280.0,
        other_ms=20.0,
        seconds={PLAIN: 2.0, PLAIN_MASKED: 1.6, DRAFTED: 1.6 / speedup},
        tokens={PLAIN: 20, PLAIN_MASKED: 20, DRAFTED: 20},
    )


def results() -> Results:
    """Two tasks of two prompts."""
    chat, code = [record(), record(number=1, looping=True)], [record("code"), record("code", 1, speedup=1.7)]
    overall, tasks = summarize_run([chat, code])
    provenance = Provenance(
        commit="0" * 40,
        command="python scripts/measure_zoo.py",
        device="a processor",
        cpu_capability="AVX512, native bfloat16",
        threads=2,
        packed=True,
        dtype="float32",
        seed=0,
        max_new_tokens=20,
        versions={"torch": "2.13.0"},
    )
    return Results(drafter=NAME, target="tiny", provenance=provenance, overall=overall, tasks=tasks)


def entry(folder: Path | None = None, name: str = NAME) -> ZooEntry:
    """A trained entry; with a folder, its `config.json` and `model.safetensors` are hashed."""
    files = hash_files(folder, ("config.json", "model.safetensors")) if folder else {"model.safetensors": "0" * 64}
    training = Training(
        tokens_seen=1000,
        hours=0.5,
        device="a processor, 2 threads",
        command="specblock fit -c configs/train/tiny.yaml",
        commit="0" * 40,
        versions={"torch": "2.13.0"},
        seed=0,
        data=(
            DataSource(name="mawps", licence="MIT", tokens=900),
            DataSource(name="mbpp", licence="CC-BY-4.0", tokens=100),
        ),
    )
    return ZooEntry(
        entry_version=ENTRY_VERSION,
        name=name,
        status="trained",
        summary="A drafter with known numbers.",
        target=TargetReference(
            name="tiny", repository="someone/tiny", revision="1", family="llama", licence="Apache-2.0"
        ),
        block_width=4,
        num_blocks=2,
        tap_layers=(1, 2, 3),
        draft_vocabulary=DraftVocabulary(size=47, coverage=0.96),
        licence="Apache-2.0",
        training=training,
        files=files,
    )


def publishable(folder: Path, drafter: Path) -> Path:
    """A copy of a tiny drafter with a sealed entry and results: everything a publication needs."""
    shutil.copytree(drafter, folder)
    write_entry(entry(folder), folder)
    write_results(results(), folder)
    return folder
