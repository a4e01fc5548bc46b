"""Where the kernel limits the memory of GPUs itself (`dmem`), a wall has the kernel's limits.

The kernels here have no driver that offers such memory, so a plain folder plays the files of the
groups: what is written last to a file counts, as it is added at the end. The groups are real.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.node import until
from support.nvml import NvmlWorld
from support.nvml_fixtures import nvml_stub, nvml_world
from support.walls import FIRST, SECOND, WalledHost, needs_walls, two_gpus

__all__ = ["nvml_stub", "nvml_world"]

ANN, BOB = 60001, 60002
GIB = 2**30

pytestmark = needs_walls


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The first GPU is one whose memory the kernel limits."""
    lines = (f"{_region(0)} {24 * GIB}", f"drm/0000:09:00.0/vram0 {GIB}")
    (tmp_path / "dmem.capacity").write_text("".join(line + "\n" for line in lines))
    return tmp_path


@pytest.fixture
def host(files: Path, nvml_world: NvmlWorld) -> Iterator[WalledHost]:
    """The driver limits the memory of the second one."""
    with two_gpus(nvml_world) as host:
        host.kill()
        for uid in (ANN, BOB):
            (files / host.group(uid)).mkdir(parents=True)
            uses(host, files, uid, 0)
        host.start(nvml_world.environ(), f"--dmem={files}")
        until(lambda: host.ask(do="hello")["level"] == "memory", "both GPUs are limited")
        yield host


def _region(card: int) -> str:
    return f"nvidia/0000:0{card}:00.0/vidmem"


def uses(host: WalledHost, files: Path, uid: int, size: int) -> None:
    (files / host.group(uid) / "dmem.current").write_text(f"{_region(0)} {size}\n")


def limits(host: WalledHost, files: Path, uid: int) -> list[dict[str, str]]:
    """What is protected and the most, by region."""
    group = files / host.group(uid)
    texts = [(group / name).read_text() for name in ("dmem.min", "dmem.max")]
    return [dict(line.rsplit(" ", 1) for line in text.splitlines()) for text in texts]


def of_first(soft: int, hard: int | str) -> list[dict[str, str]]:
    return [{_region(0): str(soft)}, {_region(0): str(hard)}]


def test_the_kernels_files_are_written_and_the_driver_is_asked_for_other_gpus_only(
    host: WalledHost, files: Path, nvml_world: NvmlWorld
) -> None:
    assert host.set(ANN, FIRST, SECOND, soft=4 * GIB, hard=5 * GIB)["failed"] == {}
    assert limits(host, files, ANN) == of_first(4 * GIB, 5 * GIB)
    driver = {SECOND: (4 * GIB, 5 * GIB)}
    assert nvml_world.limits(str(host.top / host.group(ANN))) == driver
    host.set(ANN)
    assert limits(host, files, ANN) == of_first(0, 1)
    host.ask(do="off")
    assert limits(host, files, ANN) == of_first(0, "max")


def test_no_limit_is_below_what_is_used_here_or_above_what_others_of_the_person_leave(
    host: WalledHost, files: Path
) -> None:
    uses(host, files, ANN, 3 * GIB)
    whose = ["ann"]
    walls = {
        host.group(ANN): [whose, {FIRST: [0, 0]}],
        host.group(BOB): [whose, {FIRST: [4 * GIB, 5 * GIB]}],
    }
    assert host.ask(do="set", walls=walls)["failed"] == {}
    assert limits(host, files, ANN) == of_first(0, 3 * GIB)
    assert limits(host, files, BOB) == of_first(2 * GIB, 2 * GIB)
    uses(host, files, ANN, GIB)
    until(lambda: limits(host, files, BOB) == of_first(4 * GIB, 4 * GIB), "more is free")


def test_a_limit_that_the_kernel_did_not_take_is_written_again(
    host: WalledHost, files: Path
) -> None:
    """It takes none below what is used by then. Here what is written first becomes nonsense."""
    (files / host.group(ANN) / "dmem.max").write_text("nonsense ")
    host.set(ANN, FIRST, soft=4 * GIB, hard=5 * GIB)
    until(lambda: limits(host, files, ANN)[1].get(_region(0)) == str(5 * GIB), "it was taken")


def test_those_above_share_the_controller_out(host: WalledHost, files: Path) -> None:
    """Otherwise a group has no such files."""
    host.set(ANN, FIRST)
    for above in (files, files / host.slice):
        assert "+dmem" in (above / "cgroup.subtree_control").read_text().split()
    assert not (files / host.group(ANN) / "cgroup.subtree_control").exists()


def test_a_gpu_in_mig_mode_is_not_limited_as_a_whole(
    host: WalledHost, files: Path, nvml_world: NvmlWorld
) -> None:
    """An instance's memory is a part of it, which would be limited with it."""
    assert limits(host, files, ANN) == of_first(0, 1)
    instance = nvml_world.add_mig(FIRST)
    assert host.set(ANN, instance, SECOND)["failed"] == {}
    assert host.ask(do="hello")["level"] == "devices"
    assert limits(host, files, ANN) == of_first(0, "max")
