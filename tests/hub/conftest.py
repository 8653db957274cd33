"""Fixtures of the zoo tests."""

from tests.support.hub_server import hub
from tests.support.tiny_pair import tiny_folders

__all__ = ["hub", "tiny_folders"]
