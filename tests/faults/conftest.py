"""What the fault tests share: our C libraries, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cuda_fixtures import cuda_stubs
from support.faults.shim import build_shim

__all__ = ["cuda_stubs", "faults_shim"]


@pytest.fixture(scope="session")
def faults_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes disks fail and clocks jump."""
    return build_shim(tmp_path_factory.mktemp("faults-shim"))
