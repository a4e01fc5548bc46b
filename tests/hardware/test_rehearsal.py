"""The hardware script is rehearsed without a GPU, so that it runs when there is one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hardware.run import HERE, run_section
from hardware.sections import SECTIONS
from support.cuda import MIB, Call, Cuda, CudaWorld
from support.cuda_fixtures import cuda_stubs, cuda_world
from support.walls import WHY_NOT

__all__ = ["cuda_stubs", "cuda_world"]

pytestmark = pytest.mark.story

#: What only a framework on a real GPU can do.
NOT_HERE = {"quota", "two_compute"}


def rehearse(report: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, str(HERE / "run.py"), "--rehearse", "--report", str(report)]
    done = subprocess.run(
        [*command, "--sizes", "1,2", "--repeats", "2", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stderr
    return done.returncode, json.loads(report.read_text())


#: Quick, and what the others rest on.
IN_CI = ("walls", "notebooks", "storage", "driver", "locks")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [name if name in IN_CI else pytest.param(name, marks=pytest.mark.long) for name in SECTIONS],
)
def test_a_section(name: str, tmp_path: Path) -> None:
    code, report = rehearse(tmp_path / "report.json", "--only", name)
    section = report["sections"][name]
    not_here = name in NOT_HERE or (name == "walls" and WHY_NOT)
    assert section["result"] == ("skipped" if not_here else "ok"), section
    assert code == 0
    assert report["rehearsal"] is True
    if name == "driver":
        rounds = section["notes"]["rounds"]
        assert [(one["gib"], one["repeat"]) for one in rounds] == [(1, 0), (1, 1), (2, 0), (2, 1)]
        for one in rounds:
            assert (one["left_on_gpu"], one["listed_while_parked"]) == (0, 0)
            assert {"lock", "checkpoint"} <= set(one["park"]["phases"])
            assert {"restore", "unlock"} <= set(one["resume"]["phases"])


def test_without_time_nothing_is_begun(tmp_path: Path) -> None:
    code, report = rehearse(tmp_path / "report.json", "--only", "driver", "--budget", "1")
    assert report["sections"]["driver"]["result"] == "no time"
    assert code == 1


def orders(tmp_path: Path) -> dict[str, Any]:
    return {
        "rehearse": True,
        "unit": MIB,
        "sizes": [1],
        "repeats": 1,
        "until": time.monotonic() + 60,
        "result": str(tmp_path / "result.json"),
    }


def test_a_section_that_hangs_ends_in_time_and_keeps_what_it_had(
    cuda_world: CudaWorld, tmp_path: Path
) -> None:
    cuda_world.add_gpu()
    cuda_world.hang(Call.INIT)
    environ = cuda_world.environ()
    result = run_section("versions", orders(tmp_path), environ, 4)
    assert result["result"] == "timed out"
    assert result["notes"]["gpu"]["name"] == "Stub GPU"  # NVML had answered


def test_what_must_not_be_is_told(cuda_world: CudaWorld, tmp_path: Path) -> None:
    cuda_world.add_gpu()
    cuda_world.fault(Call.CHECKPOINT, Cuda.UNKNOWN)
    result = run_section("driver", orders(tmp_path), cuda_world.environ(), 60)
    assert result["result"] == "failed"
    assert "CUDA_ERROR_UNKNOWN" in result["notes"]["failed"]
    assert "Wrong" in result["output"]
