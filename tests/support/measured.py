"""Records, results and a zoo entry with known numbers."""

import shutil
from pathlib import Path
from typing import Any

from specblock_zoo.bench.folder import RUN_VERSION, Run, hash_identity
from specblock_zoo.bench.records import AnswerRecord, Provenance, Results, write_results
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


SECONDS = {PLAIN: 2.0, PLAIN_MASKED: 1.6, DRAFTED: 1.6}
KINDS = {PLAIN: "plain", PLAIN_MASKED: "plain_masked", DRAFTED: "drafter"}
DISTINCT = tuple(range(3, 23))
LOOPING = (7,) * 24


def record(method: str = DRAFTED, task: str = "chat", number: int = 0, **changes: Any) -> AnswerRecord:
    """20 tokens: plain takes 2 s, plain with a mask 1.6 s, drafted 1.6 s in 10 rounds; `changes` replace fields."""
    plain = method != DRAFTED
    fields = {
        "method": method,
        "kind": KINDS.get(method, "drafter"),
        "task": task,
        "id": f"{task}/{number}",
        "category": task,
        "temperature": 0.0,
        "seed": 0,
        "prompt_tokens": 7,
        "answers": (DISTINCT,),
        "seconds": SECONDS.get(method, 1.6),
        "rounds": 19 if plain else 10,
        "committed": 19,
        "accepted": (0,) * 19 if plain else (0, 1, 1, 1, 1, 1, 1, 1, 1, 1),
        "offered": {} if plain else {"0.0": 10, "0.1": 4},
        "hit": {} if plain else {"0.0": 4, "0.1": 1},
        "depth_offered": {} if plain else {"1": 10, "2": 4},
        "depth_hit": {} if plain else {"1": 4, "2": 1},
        "rank_confusion": {} if plain else {"0.0": 3, "0.3": 1, "3.0": 2},
        "prefill_ms": 50.0,
        "draft_ms": 0.0 if plain else 100.0,
        "verify_ms": 280.0,
        "commit_ms": 0.0 if plain else 5.0,
        "other_ms": 20.0 if plain else 15.0,
        "drafter_calls": 0 if plain else 10,
        "nodes": 0 if plain else 80,
        "dtype": "float32",
        "threads": 2,
        "packed": True,
        "commit": "0" * 40,
        "versions": {"torch": "2.13.0"},
    }
    return AnswerRecord.model_validate({**fields, **changes})


def prompt(task: str = "chat", number: int = 0, speedup: float = 1.5, looping: bool = False) -> list[AnswerRecord]:
    """One prompt answered plainly, plainly with a mask, and drafted `speedup` times as fast as the latter."""
    answers = {"answers": (LOOPING if looping else DISTINCT,)}
    drafted = {"seconds": 1.6 / speedup, "rounds": 5 if looping else 10}
    plain = [record(method, task, number, **answers) for method in (PLAIN, PLAIN_MASKED)]
    return [*plain, record(DRAFTED, task, number, **answers, **drafted)]


def provenance() -> Provenance:
    """Where the known numbers were measured."""
    return Provenance(
        commit="0" * 40,
        command="specblock bench --config configs/bench/smollm2-135m.yaml",
        device="a processor",
        cpu_capability="AVX512, native bfloat16",
        threads=2,
        packed=True,
        dtype="float32",
        seed=0,
        max_new_tokens=20,
        versions={"torch": "2.13.0"},
    )


def run(**identity: Any) -> Run:
    """A run of `prompt` records: two plain methods and one drafter, one prompt of two tasks, greedy."""
    facts = {"max_new_tokens": 20, "prompts": 1, "temperatures": [0.0], "seeds": [0], "task chat": "", "task code": ""}
    facts |= identity
    return Run(
        version=RUN_VERSION,
        sha256=hash_identity(facts),
        identity=facts,
        target="tiny",
        methods=dict(KINDS),
        drafters={DRAFTED: NAME},
        reference=None,
        provenance=provenance(),
    )


def results() -> Results:
    """Two tasks of two prompts."""
    chat, code = [*prompt(), *prompt(number=1, looping=True)], [*prompt("code"), *prompt("code", 1, speedup=1.7)]
    overall, tasks = summarize_run([*chat, *code])
    return Results(drafter=NAME, target="tiny", provenance=provenance(), overall=overall, tasks=tasks, version=2)


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
