"""`specblock generate`, as a user types it."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from specblock_zoo.cli.drawing import ACCEPTED, BONUS
from specblock_zoo.cli.generate import Answer, Drafting, Sampling, answered, coloured, comparison
from specblock_zoo.cli.main import USER_ERROR, main
from specblock_zoo.targets.local import load_target
from tests.support.tiny_pair import POSITIONS, TinyFolders, tiny_drafter


def run(arguments: list[str]) -> int:
    """Exit code of a command line, whether it returns or leaves through `SystemExit`."""
    try:
        return main(arguments)
    except SystemExit as exit_:
        return int(exit_.code or 0)


def command(folders: TinyFolders, prompt: str, *flags: str, drafter: bool = True) -> list[str]:
    drafting = ["--drafter", str(folders.drafter)] if drafter else []
    return ["generate", prompt, "--target", str(folders.target), *drafting, "--max_new_tokens=12", *flags]


@pytest.mark.parametrize("flags", [(), ("--sampling.temperature=1.0", "--sampling.seed=3"), ("--dtype=float32",)])
def test_a_drafter_leaves_the_streamed_text_as_it_is(
    tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    assert run(command(tiny_folders, "What is it?", *flags, drafter=False)) == 0
    plain = capsys.readouterr()
    assert run(command(tiny_folders, "What is it?", *flags)) == 0
    drafted = capsys.readouterr()
    assert drafted.out == plain.out
    assert len(plain.out.strip()) > 0
    assert "tau" in drafted.err
    assert "tau" not in plain.err


def test_an_answer_that_ends_at_once_has_no_tau(tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command(tiny_folders, "hi", "--max_new_tokens=1")) == 0
    assert "tau" not in capsys.readouterr().err


def test_the_seed_decides_the_sampled_text(tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in (1, 1, 2):
        run(command(tiny_folders, "hi", "--sampling.temperature=1.0", f"--sampling.seed={seed}", drafter=False))
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--drafter", "specblock-nobody"), "No drafter is called 'specblock-nobody'"),
        (("--max_new_tokens=9999",), f"the target has {POSITIONS} positions"),
        (("--drafter", ""), "has no config.json"),
    ],
)
def test_mistakes_cost_one_paragraph_and_exit_code_2(
    tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], problem: str
) -> None:
    assert run(command(tiny_folders, "hi", *flags, drafter=False)) == USER_ERROR
    captured = capsys.readouterr()
    assert captured.out == ""
    assert problem in captured.err
    assert len(captured.err.strip().splitlines()) == 1


def test_another_tokenizer_is_refused(
    tiny_folders: TinyFolders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafter = tiny_drafter()
    drafter.config.tokenizer_hash = "0" * 64
    drafter.save_pretrained(tmp_path)
    assert run(command(tiny_folders, "hi", "--drafter", str(tmp_path), drafter=False)) == USER_ERROR
    assert "the drafter was trained with 000000000000" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag", ["--max_new_tokens=0", "--sampling.temperature=-1", "--dtype=float8", "--sampling.seed=-1"]
)
def test_values_out_of_range_are_usage_errors(tiny_folders: TinyFolders, flag: str) -> None:
    assert run(command(tiny_folders, "hi", flag)) == USER_ERROR


def test_a_prompt_that_is_no_text_is_refused(tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command(tiny_folders, "caf\udce9")) == USER_ERROR
    assert r"not UTF-8: '\udce9' at character 3" in capsys.readouterr().err


def test_temperature_zero_is_greedy() -> None:
    assert Sampling().arguments == {"do_sample": False}
    assert Sampling(0.7).arguments == {"do_sample": True, "temperature": 0.7}


def test_comparing_says_that_the_text_is_the_same(
    tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(tiny_folders, "hi", "--compare", "--dtype=float32")) == 0
    captured = capsys.readouterr()
    assert re.search(r"plain \d+\.\d\d s, drafted \d+\.\d\d s, .*; the same \d+ tokens", captured.err)


def test_texts_that_part_are_told_where() -> None:
    first, second = Answer(torch.tensor([1, 2, 3]), 1.0), Answer(torch.tensor([1, 2, 4]), 2.0)
    found = comparison(first, second, torch.bfloat16)
    assert "2.00x; the first 2 tokens are the same; bfloat16 rounds" in found


@pytest.mark.parametrize(
    ("flags", "given", "found"),
    [
        (("--num_blocks=1",), {"num_blocks": 1}, {"num_blocks": 1, "chain": False}),
        (("--max-nodes=3",), {"max_nodes": 3}, {"max_nodes": 3, "chain": False}),
        (("--mode=chain",), {"mode": "chain"}, {"chain": True}),
    ],
)
def test_trees_follow_the_flags(
    tiny_folders: TinyFolders, flags: tuple[str, ...], given: dict[str, Any], found: dict[str, Any]
) -> None:
    drafter = Drafting(str(tiny_folders.drafter), **given).load(torch.float32)
    settings = vars(drafter.config.tree_settings)
    assert found.items() <= settings.items()
    untouched = vars(Drafting(str(tiny_folders.drafter)).load(torch.float32).config.tree_settings)
    assert {name for name in settings if settings[name] != untouched[name]} <= set(found)
    assert run(command(tiny_folders, "hi", *flags)) == 0


def test_the_tree_and_the_coloured_answer_are_shown(
    tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(tiny_folders, "hi", "--show_tree")) == 0
    assert "root" in capsys.readouterr().out


def test_every_token_is_coloured_once(tiny_folders: TinyFolders) -> None:
    target, tokenizer = load_target(str(tiny_folders.target), dtype=torch.float32)
    drafter = Drafting(str(tiny_folders.drafter)).load(torch.float32)
    answer = answered(target, torch.tensor([[5, 6, 7]]), assistant_model=drafter, max_new_tokens=9, do_sample=False)
    shown = coloured(drafter.last_stats, answer, tokenizer)
    assert shown.plain == "".join(tokenizer.decode([token]) for token in answer.ids.tolist())
    counts = Counter(str(span.style) for span in shown.spans)
    assert set(counts) <= {ACCEPTED, BONUS}
    assert counts[ACCEPTED] <= sum(drafter.last_stats.accepted_per_round)
    assert len(answer.ids) - counts.total() <= sum(not tokenizer.decode([token]) for token in answer.ids.tolist())


def test_what_is_done_once_per_process_is_in_neither_time(
    tiny_folders: TinyFolders, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[dict[str, Any]] = []

    def noting(*places: Any, **options: Any) -> Answer:
        calls.append(options)
        return answered(*places, **options)

    monkeypatch.setattr("specblock_zoo.cli.generate.answered", noting)
    assert run(command(tiny_folders, "hi", "--compare", "--dtype=float32")) == 0
    capsys.readouterr()
    warm_up, drafted, plain = calls
    assert warm_up["assistant_model"] is drafted["assistant_model"] is not None
    assert warm_up["max_new_tokens"] < drafted["max_new_tokens"] == plain["max_new_tokens"]
    assert "streamer" in drafted
    assert "streamer" not in warm_up


@pytest.mark.parametrize("flag", ["--compare", "--show_tree", "--mode=chain", "--max_nodes=4"])
def test_options_of_a_drafter_need_one(
    tiny_folders: TinyFolders, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    assert run(command(tiny_folders, "hi", flag, drafter=False)) == USER_ERROR
    assert "Add --drafter NAME" in capsys.readouterr().err
