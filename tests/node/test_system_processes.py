"""The host's own processes on a GPU are known by their user and file, never by their name."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path

import pytest
from support.nvml import GIB, Kind, NvmlWorld

from jupyter_gpushare.node.inventory import open_inventory
from jupyter_gpushare.node.inventory.base import InventoryError
from jupyter_gpushare.node.inventory.nvml import NvmlInventory
from jupyter_gpushare.node.inventory.system import Program, SystemProcesses

ME = os.getuid()
SOMEBODY = 61_234
XORG, SHELL, BLENDER, MONITOR = 11, 12, 13, 14


@pytest.fixture
def system(tmp_path: Path) -> SystemProcesses:
    """A host at whose screen we are logged in, with a program that we run for it."""
    proc, dev, programs = tmp_path / "proc", tmp_path / "dev", tmp_path / "bin"
    for directory in (proc, dev, programs):
        directory.mkdir()
    (dev / "tty2").touch()  # it is ours, as everything here
    for name in ("monitor", "other"):
        (programs / name).touch()
    runs = {XORG: (0, "other"), SHELL: (ME, "other"), BLENDER: (SOMEBODY, "monitor")}
    for pid, (uid, name) in {**runs, MONITOR: (SOMEBODY + 1, "monitor")}.items():
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "status").write_text(f"Name:\tmonitor\nUid:\t9\t{uid}\t9\t9\n")
        (proc / str(pid) / "exe").symlink_to(programs / name)
    program = Program(SOMEBODY + 1, str(programs / "monitor"))
    return SystemProcesses([program], proc, dev)


@pytest.mark.parametrize(
    ("pid", "draws", "is_system"),
    [
        (XORG, True, True),
        (XORG, False, False),  # root computes
        (SHELL, True, True),
        (SHELL, False, False),  # whoever sits at the screen computes like anybody else
        (BLENDER, True, False),  # somebody who is not at the screen
        (BLENDER, False, False),  # the file of the program, but not its user
        (MONITOR, False, True),
        (MONITOR, True, True),
        (15, True, False),  # it has ended
    ],
)
def test_user_and_file_decide(
    system: SystemProcesses, pid: int, draws: bool, is_system: bool
) -> None:
    assert system.has(pid, draws=draws) is is_system


def test_another_file_of_that_user_is_anybodys(system: SystemProcesses, tmp_path: Path) -> None:
    link = tmp_path / "proc" / str(MONITOR) / "exe"
    link.unlink()
    link.symlink_to(tmp_path / "bin" / "other")
    assert not system.has(MONITOR, draws=False)


def test_what_it_may_not_see_is_said_once(
    system: SystemProcesses, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(path: object) -> os.stat_result:
        raise PermissionError(path)

    monkeypatch.setattr(os, "stat", forbidden)
    with caplog.at_level(logging.WARNING):
        assert not system.has(MONITOR, draws=False)
        assert not system.has(MONITOR, draws=False)
    assert [record.message.partition(":")[2] for record in caplog.records] == [
        " it needs the capability CAP_SYS_PTRACE for that. Until then the process counts as"
        " anybody's."
    ]


def test_programs_are_read() -> None:
    assert Program.parse("root:/usr/bin/nv-hostengine") == Program(0, "/usr/bin/nv-hostengine")
    assert Program.parse("998:/opt/a:b") == Program(998, "/opt/a:b")
    for wrong in ("nv-hostengine", "root:", ":/usr/bin/x", "root:bin/x"):
        with pytest.raises(ValueError, match="is not USER:/PATH"):
            Program.parse(wrong)
    with pytest.raises(InventoryError, match=r"system_programs.*no user 'nobody-of-here'"):
        open_inventory(None, programs=["nobody-of-here:/usr/bin/x"])


def test_what_only_draws_is_the_systems(nvml_world: NvmlWorld, tmp_path: Path) -> None:
    """The driver's lists say who draws: who computes as well, however little, is no screen."""
    nvml_world.load()
    (tmp_path / "tty1").touch()
    gpu = nvml_world.add_gpu()
    sleepers = [subprocess.Popen(["sleep", "1000"]) for _ in range(3)]
    inventory = NvmlInventory("boot", SystemProcesses(dev=tmp_path))
    try:
        for sleeper in sleepers[:2]:
            nvml_world.add_process(gpu, sleeper.pid, GIB, Kind.GRAPHICS)
        for sleeper in sleepers[1:]:
            nvml_world.add_process(gpu, sleeper.pid, GIB, Kind.COMPUTE)
        nvml_world.add_process(gpu, 0, GIB, Kind.GRAPHICS, stays=True)
        (reading,) = inventory.read()
        found = {one.lineage[0].pid: one.system for one in reading.processes}
        assert found == {sleepers[0].pid: True, **{x.pid: False for x in sleepers[1:]}, 0: False}
    finally:
        inventory.close()
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
