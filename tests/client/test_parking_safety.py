"""No process is checkpointed where that would harm it, and what speaks against it is told.

Seen in a /proc of our own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_gpushare.client.memory.safety import Facts, blocks, gather, objections
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


def look(proc: Path, environ: dict[str, str] | None = None, **more: object) -> Facts:
    seen = [SeenGpu(GPU, "H200", persistence=True, mig=False)]
    return gather(
        more.get("gpus", [GPU]),  # type: ignore[arg-type]
        more.get("seen", seen),  # type: ignore[arg-type]
        environ or {},
        pid=100,
        proc=str(proc),
        mps_socket=str(proc / "mps"),
    )


def test_an_ordinary_process_has_nothing_against_it(proc: Path) -> None:
    """NCCL is loaded with torch and matters once it runs; persistence mode may be off."""
    (proc / "100" / "maps").write_text("7f00 r-xp 0 0 0 /site-packages/nccl/lib/libnccl.so.2\n")
    facts = look(proc, seen=[SeenGpu(GPU, "H200", persistence=False)])
    assert facts == Facts()
    assert blocks(facts) is None


@pytest.mark.parametrize("name", ["NCCL Service  0", "pt_nccl_watchdg"])
def test_nccl_that_runs_is_one(proc: Path, name: str) -> None:
    thread = proc / "100" / "task" / "101"
    thread.mkdir()
    (thread / "comm").write_text(name + "\n")
    assert look(proc) == Facts(nccl_used=True)


def test_children_and_grandchildren_with_the_gpu_open(proc: Path) -> None:
    add_process(proc, 200, 100, "sh", ["/dev/null"])
    add_process(proc, 201, 200, "loader", ["/dev/null", "/dev/nvidia-uvm"])
    add_process(proc, 300, 1, "other", ["/dev/nvidia0"])
    facts = look(proc)
    assert facts == Facts(children=("loader (pid 201)",))
    assert "loader (pid 201)" in (blocks(facts) or "")


@pytest.mark.parametrize(
    "variable", ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]
)
def test_mps_by_its_variables(proc: Path, variable: str) -> None:
    assert look(proc, {variable: "50"}) == Facts(mps=variable)


def test_mps_by_its_socket(proc: Path) -> None:
    (proc / "mps").touch()
    assert look(proc) == Facts(mps=str(proc / "mps"))


def test_gvisor(proc: Path) -> None:
    (proc / "version").write_text("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n")
    assert look(proc) == Facts(gvisor=True)


def test_mig_by_name_and_by_mode(proc: Path) -> None:
    assert look(proc, gpus=["MIG-1"]).mig == ("MIG-1",)
    assert look(proc, seen=[SeenGpu(GPU, "H200", mig=True)]).mig == (GPU,)
    other = SeenGpu("GPU-22222222-2222-2222-2222-222222222222", "H200", mig=True)
    assert look(proc, seen=[other]) == Facts()


def test_it_can_look_at_this_very_process() -> None:
    facts = gather([], [], os.environ)
    assert not facts.nccl_used
    assert not facts.children


def test_every_objection_is_a_sentence_and_the_first_is_told() -> None:
    facts = Facts(("MIG-1",), True, "CUDA_MPS_PIPE_DIRECTORY", True, tuple("abcde"))
    found = list(objections(facts))
    assert all(text[0].isupper() and text.endswith(".") for text in found)
    words = ("MIG", "NCCL", "MPS", "gVisor", "a, b, c and 2 more")
    assert all(word in text for word, text in zip(words, found, strict=True))
    assert blocks(facts) == found[0]
