"""Fixtures of the script tests."""

from tests.support.tiny import tiny_run
from tests.support.tiny_pair import tiny_folders

__all__ = ["tiny_folders", "tiny_run"]
