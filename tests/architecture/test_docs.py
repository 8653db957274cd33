"""Documents are true: their code runs, their links and commands exist, and no file speaks of one particular machine."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import specblock_zoo
from specblock_zoo.cli.commands import COMMANDS
from tests.architecture.tree import PACKAGE, ROOT, project_texts, source_files

pytestmark = pytest.mark.architecture

MACHINE_PATH = re.compile(r"(?<![\w.~<{$-])/(?:home|root|Users|mnt|opt|work|tmp/w)/")
OUTSIDE_PATH = re.compile(
    r"\.\./" r"shared\b|\b(?:design|specblock|platform|machine|transformers|peers|contract)\.m" r"d\b"
)
PACKAGE_HOST = re.compile(r"py" r"pi\.org|python" r"hosted\.org|download\.py" r"torch\.org")
RIVAL_WORDS = re.compile(r"\b(?:base|big|draft) model\b", re.IGNORECASE)
SILENCERS = re.compile(r"# " r"noqa|# type: " r"ignore(?:\[[\w, -]+\])?\s*$", re.MULTILINE)
MARKDOWN_LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")
LIGHTNING_COMMANDS = {"fit", "validate", "test", "predict"}


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def matches(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    texts = project_texts()
    return [f"{path.relative_to(ROOT)}: {found}" for path in paths for found in pattern.findall(texts[path])]


@pytest.mark.parametrize("pattern", [MACHINE_PATH, OUTSIDE_PATH, PACKAGE_HOST], ids=["machine", "outside", "host"])
def test_no_file_speaks_of_one_machine(pattern: re.Pattern[str]) -> None:
    assert matches(pattern, list(project_texts())) == []


def test_source_uses_the_glossary() -> None:
    assert matches(RIVAL_WORDS, [path for path in project_texts() if path.is_relative_to(PACKAGE)]) == []


def test_checkers_are_not_silenced_without_a_reason() -> None:
    assert matches(SILENCERS, [path for path in project_texts() if path.suffix == ".py"]) == []


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_resolve(document: Path) -> None:
    links = MARKDOWN_LINK.findall(document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_architecture_names_every_module() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    modules = {path.relative_to(PACKAGE).as_posix() for path in source_files()}
    assert modules <= named
    assert {name for name in named if name not in modules} == set()


def test_documented_commands_exist() -> None:
    named = {name for path in documents() for name in re.findall(r"^specblock (\w+)", path.read_text(), re.MULTILINE)}
    assert named, "the README shows no command"
    assert named <= LIGHTNING_COMMANDS | set(COMMANDS)


def test_version_is_told_once() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == specblock_zoo.__version__
    assert f"## {specblock_zoo.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_constraints_pin_every_direct_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = [requirement for group in groups for requirement in group]
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert {re.match(r"[\w.-]+", requirement)[0] for requirement in wanted} <= pinned
