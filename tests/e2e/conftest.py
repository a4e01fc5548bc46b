"""Fixtures of the whole product."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.jupyter import Home


@pytest.fixture
def home() -> Iterator[Home]:
    """A home for the servers of one test."""
    with Home.make() as made:
        yield made
