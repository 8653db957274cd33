"""A file, a function and a call stay small enough to be read in one go."""

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.tree import ROOT, python_files

pytestmark = pytest.mark.architecture

MAX_FILE_LINES = 400
MAX_BODY_LINES = 40
MAX_PARAMETERS = 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function]]:
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def body_lines(function: Function) -> int:
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def parameters(function: Function) -> int:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def test_files_fit() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files()}
    assert {name: count for name, count in lengths.items() if count > MAX_FILE_LINES} == {}


def test_function_bodies_fit() -> None:
    assert {name: count for name, node in functions() if (count := body_lines(node)) > MAX_BODY_LINES} == {}


def test_parameter_lists_fit() -> None:
    assert {name: count for name, node in functions() if (count := parameters(node)) > MAX_PARAMETERS} == {}


def test_body_lines_leave_the_docstring_out() -> None:
    function = ast.parse('def f(self, a):\n    """One.\n\n    Two.\n    """\n    b = a\n    return b\n').body[0]
    assert isinstance(function, ast.FunctionDef)
    assert (body_lines(function), parameters(function)) == (2, 1)
