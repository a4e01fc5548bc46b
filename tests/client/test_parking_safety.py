"""No process is checkpointed where that would harm it, and what speaks against it is told.

Seen in a /proc of our own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.client.memory.safety import objections
from jupyter_gpushare.protocol.checkpoint import SeenGpu

GPU = "GPU-11111111-1111-1111-1111-111111111111"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc with one process, 100, that has a GPU open and nothing suspicious."""
    (tmp_path / "version").write_text("Linux version 6.8.0-generic (gcc) #41 SMP")
    add_process(tmp_path, 100, 1, "python", ["/dev/nvidia0", "/dev/nvidiactl"])
    return tmp_path


def add_process(proc: Path, pid: int, parent: int, name: str, files: list[str]) -> Path:
    folder = proc / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True)
    (folder / "task" / str(pid) / "comm").write_text(f"{name}\n")
    (folder / "comm").write_text(f"{name}\n")
    (folder / "maps").write_text("7f00-7f01 r-xp 0 0 0 /usr/lib/libc.so.6\n")
    (folder / "stat").write_text(f"{pid} (a ) b) S {parent} 0 0\n")
    (folder / "fd").mkdir()
    for number, file in enumerate(files):
        (folder / "fd" / str(number)).symlink_to(file)
    return folder


def look(proc: Path, environ: dict[str, str] | None = None, **more: Any) -> list[str]:
    seen = [SeenGpu(GPU, "H200", persistence=True, mig=False)]
    gpus, seen = more.get("gpus", [GPU]), more.get("seen", seen)
    places: dict[str, Any] = {"pid": 100, "proc": str(proc), "mps_socket": str(proc / "mps")}
    places["tree"] = more.get("tree", False)
    return list(objections(gpus, seen, environ or {}, **places))


def test_an_ordinary_process_has_nothing_against_it(proc: Path) -> None:
    """NCCL is loaded with torch and matters once it runs; persistence mode may be off."""
    (proc / "100" / "maps").write_text("7f00 r-xp 0 0 0 /site-packages/nccl/lib/libnccl.so.2\n")
    assert look(proc, seen=[SeenGpu(GPU, "H200", persistence=False)]) == []
    assert list(objections([], [], {}, mps_socket="")) == [], "nor has this one"


@pytest.mark.parametrize("name", ["NCCL Service  0", "pt_nccl_watchdg"])
def test_nccl_that_runs_is_one(proc: Path, name: str) -> None:
    thread = proc / "100" / "task" / "101"
    thread.mkdir()
    (thread / "comm").write_text(name + "\n")
    (said,) = look(proc)
    assert "NCCL runs in this process" in said


def test_children_and_grandchildren_with_the_gpu_open(proc: Path) -> None:
    add_process(proc, 200, 100, "sh", ["/dev/null"])
    add_process(proc, 201, 200, "loader", ["/dev/null", "/dev/nvidia-uvm"])
    add_process(proc, 300, 1, "other", ["/dev/nvidia0"])
    assert ["GPU open: loader (pid 201). End" in one for one in look(proc)] == [True]
    for pid in range(400, 404):
        add_process(proc, pid, 100, "worker", ["/dev/nvidia0"])
    assert " and 2 more. End" in look(proc)[0]


def test_a_programs_processes_are_looked_at_one_by_one_and_may_have_the_gpu(proc: Path) -> None:
    add_process(proc, 200, 100, "sh", ["/dev/null"])
    engine = add_process(proc, 201, 200, "engine", ["/dev/nvidia0"])
    assert look(proc, tree=True) == []
    (engine / "task" / "202").mkdir()
    (engine / "task" / "202" / "comm").write_text("NCCL Service  0\n")
    (said,) = look(proc, tree=True)
    assert "NCCL runs in engine (pid 201)" in said
    assert "NCCL" not in look(proc)[0]


@pytest.mark.parametrize(
    "variable", ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]
)
def test_mps_by_its_variables(proc: Path, variable: str) -> None:
    assert [f"MPS ({variable})" in one for one in look(proc, {variable: "50"})] == [True]


def test_gvisor_and_mps_by_its_socket(proc: Path) -> None:
    (proc / "version").write_text("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n")
    (proc / "mps").touch()
    mps, gvisor = look(proc)
    assert f"MPS ({proc / 'mps'})" in mps
    assert "gVisor" in gvisor


def test_mig_by_name_and_by_mode(proc: Path) -> None:
    assert [one.split(",")[0] for one in look(proc, gpus=["MIG-1"])] == ["The GPU is a MIG device"]
    assert len(look(proc, seen=[SeenGpu(GPU, "H200", mig=True)])) == 1
    other = SeenGpu("GPU-22222222-2222-2222-2222-222222222222", "H200", mig=True)
    assert look(proc, seen=[other]) == []
