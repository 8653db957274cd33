"""Fixtures of the zoo tests."""

from tests.support.tiny_pair import tiny_folders

__all__ = ["tiny_folders"]
