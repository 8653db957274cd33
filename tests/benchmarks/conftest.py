"""Fixtures of the benchmark scripts' tests."""

from tests.support.tiny_pair import tiny_folders

__all__ = ["tiny_folders"]
