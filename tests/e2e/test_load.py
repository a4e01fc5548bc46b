"""A small class that begins at once loses nothing, and the benchmark measures only what lives."""

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


_BEAT = """
import asyncio, sys, tempfile
import run
with tempfile.TemporaryDirectory() as folder:
    with run.serving([*run.node(folder), *sys.argv[2:]]) as process:
        print(asyncio.run(run.beat(f"{folder}/node.sock", int(sys.argv[1]), 3.0, process.pid)))
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], None),
        # The first have ended when the last come, and when it is measured.
        (["--Policy.heartbeat_timeout=0.6", "--Policy.restart_grace=0.2"], "Broken: "),
        (["--Connections.most=10"], "Error: "),
    ],
)
def test_live_leases_are_measured_alive_or_not_at_all(options: list[str], said: str | None) -> None:
    """`make bench` measured 10,000 of which 6,551 had ended."""
    run = subprocess.run(
        [sys.executable, "-c", _BEAT, "150", *options],
        env={**os.environ, "PYTHONPATH": str(BENCHMARK.parent), "JUPYTER_GPUSHARE": "off"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    if said is None:
        assert run.returncode == 0, run.stderr
        assert 0 < float(run.stdout) < 10
    else:
        assert run.returncode == 1
        assert said in run.stderr
        assert not run.stdout, "no figure"
