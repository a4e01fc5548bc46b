"""Fixtures over :mod:`support.cuda`; a conftest imports them to have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cuda import CudaWorld, build_stubs
from support.nvml import STATE_VARIABLE


@pytest.fixture(scope="session")
def cuda_stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with our ``libcuda.so.1`` and ``libnvidia-ml.so.1``, compiled once."""
    return build_stubs(tmp_path_factory.mktemp("cuda-stubs"))


@pytest.fixture
def cuda_world(cuda_stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CudaWorld:
    """An empty world."""
    state = tmp_path / "gpus.state"
    monkeypatch.setenv(STATE_VARIABLE, str(state))
    return CudaWorld(cuda_stubs, state)
