"""Fixtures of these tests."""

from tests.support.tiny import tiny_run

__all__ = ["tiny_run"]
