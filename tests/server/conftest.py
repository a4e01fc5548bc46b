"""Fixtures of the server's tests: Jupyter's own ones, and ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_jupyter.jupyter_server import *  # noqa: F403 - fixtures are found by name
from support.jupyter import Home
from support.nvml_fixtures import nvml_stub, nvml_world  # noqa: F401 - found by name


@pytest.fixture
def home() -> Iterator[Home]:
    """A person's home with their own Jupyter directories; what ran there is ended."""
    with Home.make() as made:
        yield made
