"""Every module has its own test file, found where the module's path says."""

import pytest

from tests.architecture.tree import PACKAGE, ROOT, SCRIPTS, source_files

pytestmark = pytest.mark.architecture


def test_every_module_has_its_test_file() -> None:
    modules = [path.relative_to(PACKAGE) for path in source_files()]
    assert modules, "no module found: the package moved"
    scripts = [path.relative_to(ROOT) for path in sorted(SCRIPTS.glob("*.py"))]
    wanted = [ROOT / "tests" / module.parent / f"test_{module.name}" for module in (*modules, *scripts)]
    assert [str(path.relative_to(ROOT)) for path in wanted if not path.is_file()] == []


def test_mirrored_test_files_contain_tests() -> None:
    files = [*(ROOT / "tests").rglob("test_*.py")]
    assert [str(path.relative_to(ROOT)) for path in files if "def test_" not in path.read_text()] == []
