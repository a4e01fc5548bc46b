"""A node manager shares the GPUs it was given; others' and the host's processes are left alone."""

from __future__ import annotations

import logging
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support.node import Puppet, RunningNode
from support.nvml import GIB, Kind, Nvml, NvmlWorld

from jupyter_gpushare.node.inventory import open_inventory
from jupyter_gpushare.node.inventory.base import InventoryError
from jupyter_gpushare.node.inventory.nvml import NvmlInventory
from jupyter_gpushare.node.inventory.simulated import SimulatedInventory
from jupyter_gpushare.node.inventory.system import Program, SystemProcesses
from jupyter_gpushare.node.inventory.visible import VisibleInventory, choose, given_gpus
from jupyter_gpushare.policy.words.model import Gpu
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method

GPUS = tuple(
    Gpu(uuid, index, "a GPU", 24 * GIB)
    for index, uuid in enumerate(["GPU-aa11", "GPU-aa22", "MIG-bb33"])
)

JOB = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "gpu1"}


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [
        ("0", [0]),
        ("2,0", [0, 2]),
        ("GPU-aa22", [1]),
        ("gpu-AA2", [1]),
        ("MIG-bb", [2]),
        ("1,GPU-aa22", [1]),
        (" 0 , 1 ,", [0, 1]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_what_is_named(wanted: str, indices: list[int]) -> None:
    assert [gpu.index for gpu in choose(GPUS, wanted)] == indices


def test_a_part_of_a_gpu_is_named_by_two_numbers() -> None:
    parts = [replace(GPUS[0], uuid=f"MIG-{n}", instance=n) for n in range(2)]
    assert choose((*parts, GPUS[1]), "0:1,1") == (parts[1], GPUS[1])
    with pytest.raises(InventoryError, match="more than one"):
        choose((*parts, GPUS[1]), "0")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [("3", "no GPU"), ("0,-1", "no GPU"), ("GPU-aa", "more than one"), ("0,nonsense", "no GPU")],
)
def test_what_names_no_gpu_is_no_quiet_loss(wanted: str, said: str) -> None:
    with pytest.raises(InventoryError, match=f"{said}.*GPU-aa11.*CUDA_VISIBLE_DEVICES"):
        choose(GPUS, wanted)


@pytest.mark.parametrize(
    ("configured", "environ", "given"),
    [
        ("", {}, None),
        ("", {"CUDA_VISIBLE_DEVICES": "1"}, "1"),
        ("", {"CUDA_VISIBLE_DEVICES": ""}, ""),
        ("0,1", {"CUDA_VISIBLE_DEVICES": "1"}, "0,1"),
        ("all", {"CUDA_VISIBLE_DEVICES": "1"}, None),
        # In a lease the variable is the lease's.
        ("", {"CUDA_VISIBLE_DEVICES": "1", "JUPYTER_GPUSHARE_LEASE": "x"}, None),
        # A job that was submitted in a lease has the marks of that, but GPUs of its own.
        ("", {"CUDA_VISIBLE_DEVICES": "1", "JUPYTER_GPUSHARE_LEASE": "x", **JOB}, "1"),
        ("", {"CUDA_VISIBLE_DEVICES": "1", **JOB}, "1"),
        ("all", JOB, None),
        # Another batch system may give GPUs by cgroups alone.
        ("", {"PBS_JOBID": "7"}, None),
    ],
)
def test_who_says_which(configured: str, environ: dict[str, str], given: str | None) -> None:
    assert given_gpus(configured, environ) == given


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, r"Slurm gave this job no GPU.*--gpus=1"),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, r"Slurm gave this job no GPU.*--gpus=1"),
        ({"SLURM_JOB_GPUS": "0,1", "SLURM_STEP_ID": "2"}, r"this step of job 7.*--gres=none"),
        ({"SLURMD_NODENAME": ""}, r"salloc's.*srun --jobid=7 --overlap --pty bash"),
    ],
)
def test_a_job_without_gpus_does_not_share_those_of_others(more: dict[str, str], said: str) -> None:
    with pytest.raises(InventoryError, match=said):
        given_gpus("", {**JOB, **more})


def test_the_others_are_neither_listed_nor_measured() -> None:
    whole = SimulatedInventory("3x8GiB")
    inventory = VisibleInventory(whole, "1")
    (gpu,) = inventory.discover()
    assert gpu.index == 1
    (reading,) = inventory.read()
    assert reading.uuid == gpu.uuid
    assert inventory.simulated
    inventory.close()


def test_a_job_shares_what_its_batch_system_gave_it(tmp_path: Path, nvml_world: NvmlWorld) -> None:
    first = nvml_world.add_gpu(memory=24 * GIB)
    nvml_world.add_gpu(memory=80 * GIB)
    with Puppet() as stranger:
        # Another job's process on the GPU that is not ours is no squatter of ours.
        nvml_world.add_process(first, pid=stranger.pid, memory=4 * GIB)
        environ = {**nvml_world.environ(), "CUDA_VISIBLE_DEVICES": "1"}
        with RunningNode(tmp_path, simulate="", environ=environ) as node:
            (gpu,) = node.status()["gpus"]
            assert gpu["index"] == 1
            assert not gpu["squatters"]


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_are_told_as_left_out_and_not_as_a_quota(
    tmp_path: Path, nvml_world: NvmlWorld, hidden: str
) -> None:
    """As in a server that was started where a shell hides the GPUs from something else."""
    nvml_world.add_gpu(memory=24 * GIB)
    environ = {**nvml_world.environ(), "CUDA_VISIBLE_DEVICES": hidden}
    with RunningNode(tmp_path, simulate="", environ=environ) as node, node.client() as client:
        status = client.call(Method.STATUS)
        assert status["gpus"] == []
        (text,) = status["left_out"]
        was = repr(hidden) if hidden else "empty"
        assert text.startswith(f"GPU 0 is left out: CUDA_VISIBLE_DEVICES was {was} where")
        refused = client.turned_away(gpus=1)
        assert refused.reason is Reason.UNAVAILABLE
        assert "no GPU to share" in refused.message


def test_a_gpu_of_a_job_that_is_lost_at_the_start_is_told(nvml_world: NvmlWorld) -> None:
    first, second = nvml_world.add_gpu(), nvml_world.add_gpu()
    nvml_world.load()
    nvml_world.fail(second, "nvmlDeviceGetHandleByIndex_v2", Nvml.GPU_IS_LOST)
    inventory = VisibleInventory(NvmlInventory("boot"), "0,1")
    assert [gpu.uuid for gpu in inventory.discover()] == [first]
    (left_out,) = inventory.left_out()
    assert left_out.text.startswith("GPU 1 is left out: The GPU has fallen off the bus")
    inventory.close()


def test_a_gpu_that_is_not_there_stops_the_start_with_a_sentence(tmp_path: Path) -> None:
    config = "c.NodeManagerApp.gpus = '4'\n"
    said = RunningNode(tmp_path, simulate="1x8GiB", config=config).refuses()
    assert "'4' names no GPU of this host" in said
    assert "Traceback" not in said


# -- the host's own processes ----------------------------------------------------------------------

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
