"""The name of the target's cache is the one this transformers knows."""

import inspect

from specblock_zoo.inference.versions import CACHE_NAME
from specblock_zoo.targets.registry import FAMILIES


def test_every_family_takes_the_cache_by_that_name() -> None:
    for family in FAMILIES.values():
        assert CACHE_NAME in inspect.signature(family.model_class.forward).parameters
