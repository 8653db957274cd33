"""Imports go down the layers, and transformers' generation internals are known to one file."""

import ast

import pytest
from importlinter.cli import lint_imports

from tests.architecture.tree import ROOT, source_files

pytestmark = pytest.mark.architecture


def test_import_contracts_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    # It would switch off every logger that exists, for all tests that follow in this process.
    monkeypatch.setattr("importlinter.cli._configure_logging", lambda verbose: None)
    assert lint_imports(config_filename="pyproject.toml", cache_dir=None) == 0


def test_only_hf_generate_touches_generation_internals() -> None:
    users = {
        path.name
        for path in source_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and node.id == "GenerationMixin"
    }
    assert users <= {"hf_generate.py"}


def test_the_package_root_holds_names_only() -> None:
    tree = ast.parse((ROOT / "src/specblock_zoo/__init__.py").read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.If | ast.Try)]
