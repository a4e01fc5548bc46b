"""What the fault tests share: our C libraries, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.faults.shim import build_shim
from support.nvml_fixtures import nvml_stub

__all__ = ["faults_shim", "nvml_stub"]


@pytest.fixture(scope="session")
def faults_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes disks fail and clocks jump."""
    return build_shim(tmp_path_factory.mktemp("faults-shim"))
