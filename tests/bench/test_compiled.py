"""Compiled plain decoding gives the uncompiled text."""

import shutil
from typing import Any

import pytest

from specblock_zoo.bench.ask import Question, ask_plainly
from specblock_zoo.bench.compiled import ask_compiled, check_compiler
from specblock_zoo.errors import MissingPackageError
from specblock_zoo.targets.llama import LLAMA
from tests.support.decoding import prompt_ids


def test_a_missing_compiler_is_named_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"C\+\+ compiler"):
        check_compiler()


def test_prompts_are_read_uncompiled_and_every_later_token_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    model: Any = LLAMA.tiny_model()
    expected = ask_plainly(model, Question(prompt_ids(5), 6))
    seen: list[int] = []

    def compile_(forward: Any, **_: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            seen.append(kwargs["input_ids"].shape[1])
            return forward(*args, **kwargs)

        return counted

    monkeypatch.setattr(torch, "compile", compile_)
    ask = ask_compiled(model, longest=16)
    for _ in range(2):
        # The static cache is used again.
        assert ask(Question(prompt_ids(5), 6)).tokens == expected.tokens
    assert seen == [1] * (2 * (len(expected.tokens) - 1))


@pytest.mark.slow
def test_the_compiled_text_is_the_uncompiled_one() -> None:
    model: Any = LLAMA.tiny_model()
    expected = ask_plainly(model, Question(prompt_ids(5), 6))
    answer = ask_compiled(model, longest=16)(Question(prompt_ids(5), 6))
    assert answer.tokens == expected.tokens
    assert answer.cost(1.0).rounds == 5
