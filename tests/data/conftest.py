"""A tiny target with records and a cache, shared by the tests of this folder."""

from tests.support.tiny import tiny_run

__all__ = ["tiny_run"]
