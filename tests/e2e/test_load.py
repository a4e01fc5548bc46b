"""A small class that begins at once loses nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.story("benchmarks/")

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "hub_load.py"


def test_a_small_class_loses_nothing() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
    run = subprocess.run(
        [sys.executable, str(BENCHMARK), "--small"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=280,  # a busy machine; pytest ends a test at 300 s
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "| kill -9 with 20 leases: lost | 0" in run.stdout
