"""A node manager shares the GPUs it was given, and leaves the others alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.node import Puppet, RunningNode
from support.nvml import GIB, Nvml, NvmlWorld

from jupyter_gpushare.node.inventory.base import InventoryError
from jupyter_gpushare.node.inventory.nvml import NvmlInventory
from jupyter_gpushare.node.inventory.simulated import SimulatedInventory
from jupyter_gpushare.node.inventory.visible import VisibleInventory, choose, given_gpus
from jupyter_gpushare.policy.words.model import Bytes, Gpu, GpuUuid
from jupyter_gpushare.protocol.errors import Reason, RemoteError
from jupyter_gpushare.protocol.messages import Method

GPUS = tuple(
    Gpu(GpuUuid(uuid), index, "a GPU", Bytes(24 * GIB))
    for index, uuid in enumerate(["GPU-aa11", "GPU-aa22", "MIG-bb33"])
)

JOB = {"SLURM_JOB_ID": "7"}


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
    parts = [replace(GPUS[0], uuid=GpuUuid(f"MIG-{n}"), instance=n) for n in range(2)]
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
    ("configured", "environ", "simulated", "given"),
    [
        ("", {}, False, None),
        ("", {"CUDA_VISIBLE_DEVICES": "1"}, False, "1"),
        ("", {"CUDA_VISIBLE_DEVICES": ""}, False, ""),
        ("0,1", {"CUDA_VISIBLE_DEVICES": "1"}, False, "0,1"),
        ("all", {"CUDA_VISIBLE_DEVICES": "1"}, False, None),
        # In a lease the variable is the lease's.
        ("", {"CUDA_VISIBLE_DEVICES": "1", "JUPYTER_GPUSHARE_LEASE": "x"}, False, None),
        # A job that was submitted in a lease has the marks of that, but GPUs of its own.
        ("", {"CUDA_VISIBLE_DEVICES": "1", "JUPYTER_GPUSHARE_LEASE": "x", **JOB}, False, "1"),
        ("", {"CUDA_VISIBLE_DEVICES": "1", **JOB}, False, "1"),
        ("all", JOB, False, None),
        ("", JOB, True, None),
        # Another batch system may give GPUs by cgroups alone.
        ("", {"PBS_JOBID": "7"}, False, None),
        ("", {"CUDA_VISIBLE_DEVICES": "1"}, True, None),
        ("0", {}, True, "0"),
    ],
)
def test_who_says_which(
    configured: str, environ: dict[str, str], simulated: bool, given: str | None
) -> None:
    assert given_gpus(configured, environ, simulated=simulated) == given


@pytest.mark.parametrize("more", [{}, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}])
def test_a_job_without_gpus_does_not_share_those_of_others(more: dict[str, str]) -> None:
    with pytest.raises(InventoryError, match=r"Slurm gave this job no GPU.*--gpus=1"):
        given_gpus("", {**JOB, **more}, simulated=False)


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
        with pytest.raises(RemoteError) as refused:
            client.request(gpus=1)
        assert refused.value.reason is Reason.UNAVAILABLE
        assert "no GPU to share" in refused.value.message


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
