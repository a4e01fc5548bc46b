"""Fixtures over :mod:`support.nvml`; a conftest imports them to have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.nvml import STATE_VARIABLE, NvmlWorld, build_stub

__all__ = ["nvml_stub", "nvml_world"]


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
