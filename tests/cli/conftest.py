"""One node manager for the tests that only read or give back what they took; a quick doctor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.cuda_fixtures import cuda_stubs, cuda_world
from support.livenode import LiveNode, until
from support.nvml_fixtures import nvml_stub, nvml_world

from jupyter_gpushare.cli import checks, modelcaches

__all__ = ["cuda_stubs", "cuda_world", "node", "nvml_stub", "nvml_world", "shared_node"]


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with LiveNode(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture
def node(shared_node: LiveNode) -> Iterator[LiveNode]:
    """Two simulated GPUs of 24 GiB. Fails a test that leaves a lease behind."""
    yield shared_node
    # What was given back may drain for an instant.
    until(lambda: shared_node.json("leases") == {"leases": []}, "the test leaves no lease behind")


@pytest.fixture
def without_slow_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, the doctor leaves out the checks that cost seconds.

    They start Pythons of their own, or read about all that is installed. Tests that start a whole
    doctor, or call one of these checks, look at them.
    """
    left_out = checks.ok("left out", "not looked at")
    for name in ("panel", "hook_in_child"):
        monkeypatch.setattr(checks, name, lambda *_: left_out)
    monkeypatch.setattr(checks, "frameworks", lambda: iter([left_out]))
    monkeypatch.setattr(modelcaches, "model_caches", lambda: left_out)
