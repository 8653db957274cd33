"""`specblock trace`, as a user types it."""

from pathlib import Path

import pytest
import torch

from specblock_zoo.bench.trace import Trace, render
from specblock_zoo.cli.main import USER_ERROR, main
from specblock_zoo.targets.local import load_target
from tests.support.tiny_pair import TinyFolders


def run(arguments: list[str]) -> int:
    """Exit code of a command line, whether it returns or leaves through `SystemExit`."""
    try:
        return main(arguments)
    except SystemExit as exit_:
        return int(exit_.code or 0)


def command(folders: TinyFolders, out: str | Path, *flags: str, prompt: str = "What </script> is it?") -> list[str]:
    pair = ["--target", str(folders.target), "--drafter", str(folders.drafter), "--dtype=float32"]
    return ["trace", prompt, *pair, "--max_new_tokens=12", f"--out={out}", *flags]


def without_times(trace: Trace) -> Trace:
    nothing = {"draft_ms": 0.0, "verify_ms": 0.0, "other_ms": 0.0}
    rounds = tuple(
        each.model_copy(update={**nothing, "totals": each.totals.model_copy(update={**nothing, "tokens_per_s": None})})
        for each in trace.rounds
    )
    return trace.model_copy(update={"rounds": rounds, "prefill_ms": 0.0})


def read(path: Path) -> Trace:
    return Trace.model_validate_json(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("flags", [(), ("--sampling.temperature=1.0", "--sampling.seed=3")])
def test_the_traced_text_is_the_targets_own(tiny_folders: TinyFolders, tmp_path: Path, flags: tuple[str, ...]) -> None:
    out = tmp_path / "trace.json"
    assert run(command(tiny_folders, out, "--json", *flags)) == 0
    trace = read(out)
    model, tokenizer = load_target(str(tiny_folders.target), dtype=torch.float32)
    message = [{"role": "user", "content": trace.header.prompt}]
    ids = torch.tensor([tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)])
    torch.manual_seed(3)
    sampling = {"do_sample": True, "temperature": 1.0} if flags else {"do_sample": False}
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, **sampling}
    plain = model.generate(input_ids=ids, **options)[0, ids.shape[1] :].tolist()
    assert [trace.first.id, *(token.id for each in trace.rounds for token in each.committed)] == plain
    assert trace.header.temperature == (1.0 if flags else 0.0)


def test_the_page_and_the_data_are_one_trace(
    tiny_folders: TinyFolders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert run(command(tiny_folders, out)) == 0
    assert f"{out}: 12 tokens in" in capsys.readouterr().out
    page = out.read_text(encoding="utf-8")
    assert run(command(tiny_folders, "-", "--json")) == 0
    printed = Trace.model_validate_json(capsys.readouterr().out)
    data = page.split('<script type="application/json" id="trace">')[1].split("</script>")[0]
    assert without_times(Trace.model_validate_json(data)) == without_times(printed)
    assert render(Trace.model_validate_json(data)) == page
    assert list(tmp_path.iterdir()) == [out]


def test_a_chain_is_traced_as_one(tiny_folders: TinyFolders, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    assert run(command(tiny_folders, out, "--json", "--mode=chain", "--max_nodes=3")) == 0
    trace = read(out)
    assert (trace.header.mode, trace.header.max_nodes) == ("chain", 3)
    assert all([node.parent for node in each.nodes] == list(range(-1, len(each.nodes) - 1)) for each in trace.rounds)


@pytest.mark.parametrize(
    ("out", "flags", "problem"),
    [
        (".", (), "is a folder"),
        ("missing/trace.html", (), "which is no folder"),
        ("t.html", ("--drafter=specblock-nobody",), "No drafter is called 'specblock-nobody'"),
        ("t.html", ("--max_new_tokens=9999",), "positions"),
    ],
)
def test_mistakes_cost_one_paragraph_and_no_file(
    tiny_folders: TinyFolders,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    out: str,
    flags: tuple[str, ...],
    problem: str,
) -> None:
    assert run(command(tiny_folders, tmp_path / out, *flags)) == USER_ERROR
    captured = capsys.readouterr()
    assert problem in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
