"""No process is checkpointed where that would harm it, and what speaks against it is told.

Seen in a /proc of our own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.client.memory.safety import Child, Facts, Hazard, blocks, gather, objections
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


def hazards(facts: Facts) -> set[Hazard]:
    return {found.hazard for found in objections(facts)}


def test_an_ordinary_process_has_nothing_against_it(proc: Path) -> None:
    facts = look(proc)
    assert facts == Facts()
    assert blocks(facts) is None


def test_nccl_that_is_only_loaded_is_no_reason(proc: Path) -> None:
    (proc / "100" / "maps").write_text("7f00 r-xp 0 0 0 /site-packages/nccl/lib/libnccl.so.2\n")
    facts = look(proc)
    assert hazards(facts) == set()


@pytest.mark.parametrize("name", ["NCCL Service  0", "pt_nccl_watchdg"])
def test_nccl_that_runs_is_one(proc: Path, name: str) -> None:
    thread = proc / "100" / "task" / "101"
    thread.mkdir()
    (thread / "comm").write_text(name + "\n")
    assert hazards(look(proc)) == {Hazard.NCCL}


def test_children_and_grandchildren_with_the_gpu_open(proc: Path) -> None:
    add_process(proc, 200, 100, "sh", ["/dev/null"])
    add_process(proc, 201, 200, "loader", ["/dev/null", "/dev/nvidia-uvm"])
    add_process(proc, 300, 1, "other", ["/dev/nvidia0"])
    facts = look(proc)
    assert facts.children == (Child(201, "loader"),)
    assert hazards(facts) == {Hazard.CHILDREN}
    assert "loader (pid 201)" in (blocks(facts) or "")


@pytest.mark.parametrize(
    "variable", ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]
)
def test_mps_by_its_variables(proc: Path, variable: str) -> None:
    assert hazards(look(proc, {variable: "50"})) == {Hazard.MPS}


def test_mps_by_its_socket(proc: Path) -> None:
    (proc / "mps").touch()
    assert hazards(look(proc)) == {Hazard.MPS}


def test_gvisor(proc: Path) -> None:
    (proc / "version").write_text("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n")
    assert hazards(look(proc)) == {Hazard.GVISOR}


def test_mig_by_name_and_by_mode(proc: Path) -> None:
    assert hazards(look(proc, gpus=["MIG-1"])) == {Hazard.MIG}
    assert hazards(look(proc, seen=[SeenGpu(GPU, "H200", mig=True)])) == {Hazard.MIG}
    other = SeenGpu("GPU-22222222-2222-2222-2222-222222222222", "H200", mig=True)
    assert hazards(look(proc, seen=[other])) == set()


def test_persistence_mode_that_is_off_forbids_nothing(proc: Path) -> None:
    facts = look(proc, seen=[SeenGpu(GPU, "H200", persistence=False)])
    assert blocks(facts) is None


def test_it_can_look_at_this_very_process() -> None:
    facts = gather([], [], os.environ)
    assert not facts.nccl_used
    assert not facts.children


FACTS = st.builds(
    Facts,
    st.lists(st.just("MIG-1"), max_size=1).map(tuple),
    st.booleans(),
    st.none() | st.just("CUDA_MPS_PIPE_DIRECTORY"),
    st.booleans(),
    st.lists(st.builds(Child, st.integers(1, 99), st.just("sh")), max_size=5).map(tuple),
)


@given(FACTS)
def test_every_objection_is_a_sentence_and_the_first_is_told(facts: Facts) -> None:
    found = [each.text for each in objections(facts)]
    assert all(text[0].isupper() and text.endswith(".") for text in found)
    assert blocks(facts) == (found[0] if found else None)
