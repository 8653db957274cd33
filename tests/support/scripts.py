"""Scripts and benchmarks of the checkout as modules."""

import importlib.util
from types import ModuleType

from tests.support import REPOSITORY


def load_script(name: str, folder: str = "scripts") -> ModuleType:
    """The file `<folder>/<name>.py` of the checkout, imported without running its command line."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
