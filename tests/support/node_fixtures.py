"""A node manager of a module's tests, or of one test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .node import RunningNode


def running_node(scope: Any = "module", **options: Any) -> Any:
    """The fixture; ``options`` are those of `RunningNode`."""

    @pytest.fixture(scope=scope)
    def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
        with RunningNode(tmp_path_factory.mktemp("node"), **options) as running:
            yield running

    return node
