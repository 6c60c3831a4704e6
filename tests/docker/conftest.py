"""The in-process application of tests/api, for tests that ask its routes."""

from tests.api.conftest import client, engine

__all__ = ["client", "engine"]
