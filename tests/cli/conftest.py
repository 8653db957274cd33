"""Fixtures of the command-line tests."""

from tests.support.hub_server import hub
from tests.support.tiny import tiny_run
from tests.support.tiny_pair import tiny_folders

__all__ = ["hub", "tiny_folders", "tiny_run"]
