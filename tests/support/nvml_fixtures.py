"""Fixtures over :mod:`support.nvml`; a conftest imports them to have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.node import GIB, RunningNode
from support.nvml import STATE_VARIABLE, NvmlWorld, build_stub


@pytest.fixture(scope="session")
def nvml_stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with our ``libnvidia-ml.so.1``, compiled once."""
    return build_stub(tmp_path_factory.mktemp("nvml-stub"))


@pytest.fixture
def nvml_world(nvml_stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlWorld:
    """An empty world; ``nvml_world.load()`` shows it to this very process too."""
    state = tmp_path / "nvml.state"
    monkeypatch.setenv(STATE_VARIABLE, str(state))
    return NvmlWorld(nvml_stub, state)


@contextmanager
def node_on(
    world: NvmlWorld, directory: Path, config: str, *people: str, gpus: int = 1, gib: int = 24
) -> Iterator[tuple[RunningNode, list[str]]]:
    """A node manager on so many GPUs of ``gib`` GiB of this world, and their UUIDs."""
    uuids = [world.add_gpu(memory=gib * GIB, reserved=0) for _ in range(gpus)]
    environ = world.environ()
    with RunningNode(directory, simulate="", config=config, environ=environ, people=people) as node:
        yield node, uuids
