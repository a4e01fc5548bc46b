"""Each GPU is told as NVML has it, nothing unknown as zero, and no trouble of the driver stops us.

NVML's through the real pynvml over our own library, and the simulated one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from hypothesis import given, strategies as st
from support.node import until
from support.nvml import GIB, Kind, Nvml, NvmlWorld

from jupyter_gpushare.node.host.processes import lineage
from jupyter_gpushare.node.inventory import open_inventory
from jupyter_gpushare.node.inventory.base import Build, InventoryError
from jupyter_gpushare.node.inventory.nvml import NvmlInventory
from jupyter_gpushare.node.inventory.simulated import SimulatedInventory, parse_spec
from jupyter_gpushare.node.inventory.visible import VisibleInventory
from jupyter_gpushare.policy.words.model import Gpu, GpuReading, ProcessId

BOOT = "the-boot"
MEMORY = "nvmlDeviceGetMemoryInfo_v2"
RESERVED = 512 * 2**20
NOBODY = 2**22 + 5  # no kernel gives this pid


class Host(NvmlWorld):
    """A world that this process sees, and the inventory of it."""

    def __init__(self, library: Path, state: Path) -> None:
        super().__init__(library, state)
        self.inventory = NvmlInventory(BOOT)

    def discover(self) -> tuple[Gpu, ...]:
        return self.inventory.discover()

    def read(self) -> tuple[GpuReading, ...]:
        return self.inventory.read()

    def begin(self) -> None:
        self.discover()
        self.read()

    def only(self) -> GpuReading:
        (reading,) = self.read()
        return reading

    def problems(self) -> list[str]:
        """Of each GPU; empty where there is none."""
        return [reading.problem or "" for reading in self.read()]

    def work(self) -> dict[int, float | None]:
        """Utilisation by pid."""
        return {each.lineage[0].pid: each.utilisation for each in self.only().processes}


@pytest.fixture
def world(nvml_world: NvmlWorld) -> Iterator[Host]:
    """In the end NVML must have been shut down."""
    host = Host(nvml_world.library, nvml_world.state)
    library = host.load()
    yield host
    host.inventory.close()
    assert library.nvml_stub_initialised() == 0


# Listing


def test_full_gpus_are_listed_by_uuid_without_the_drivers_reserve(world: Host) -> None:
    first = world.add_gpu(memory=24 * GIB, reserved=RESERVED, name="NVIDIA Some Thing 24GB")
    second = world.add_gpu(memory=80 * GIB, reserved=2 * RESERVED)
    one, two = world.discover()
    assert (one.uuid, one.index, one.name) == (first, 0, "NVIDIA Some Thing 24GB")
    assert (two.uuid, two.index) == (second, 1)
    assert one.memory == 24 * GIB - RESERVED
    assert two.memory == 80 * GIB - 2 * RESERVED
    assert not one.simulated
    assert not world.inventory.simulated
    assert world.discover() == (one, two)


def test_a_gpu_says_how_it_is_built(world: Host) -> None:
    first, second = world.add_gpu(), world.add_gpu()
    assert world.inventory.builds() == {}
    world.set_build(first, 8.6, 10496)
    world.discover()
    assert world.inventory.builds() == {first: Build(8.6, 10496), second: Build(None, None)}
    chosen = VisibleInventory(world.inventory, "0")
    assert chosen.builds()[first] == Build(8.6, 10496)


def test_an_old_driver_without_the_reserve(world: Host) -> None:
    world.add_gpu(memory=24 * GIB, reserved=RESERVED)
    world.lack(MEMORY)
    (gpu,) = world.discover()
    assert gpu.memory == 24 * GIB
    assert world.only().used == RESERVED, "what cannot be told apart counts as used"


def test_mig_devices_stand_in_for_their_gpu(world: Host) -> None:
    whole = world.add_gpu()
    parent = world.add_gpu(memory=40 * GIB)
    small = world.add_mig(parent, memory=5 * GIB, reserved=0, name="MIG 1g.5gb")
    large = world.add_mig(parent, memory=20 * GIB, reserved=GIB, name="MIG 3g.20gb")
    last = world.add_gpu()
    gpus = world.discover()
    assert [gpu.uuid for gpu in gpus] == [whole, small, large, last]
    told = [(gpu.index, gpu.instance) for gpu in gpus]
    assert told == [(0, None), (1, 0), (1, 1), (2, None)], "the numbers that nvidia-smi shows"
    assert [gpu.memory for gpu in gpus[1:3]] == [5 * GIB, 19 * GIB]
    assert gpus[1].name == "MIG 1g.5gb"
    world.add_process(large, os.getpid(), 2 * GIB)
    readings = {reading.uuid: reading for reading in world.read()}
    assert readings[large].used == 2 * GIB  # type: ignore[index]
    assert readings[small].used == 0  # type: ignore[index]
    assert readings[large].processes[0].memory == 2 * GIB  # type: ignore[index]
    assert readings[large].utilisation is None, "a MIG device has no figure"  # type: ignore[index]


def test_mig_mode_without_instances_offers_nothing(world: Host) -> None:
    gpu = world.add_gpu()
    assert len(world.discover()) == 1
    world.set_mig_mode(gpu, True)
    assert "MIG mode" in world.problems()[0]
    assert world.discover() == ()
    (left_out,) = world.inventory.left_out()
    assert (left_out.index, left_out.uuid) == (0, gpu)
    assert "has no instance" in left_out.text
    world.set_mig_mode(gpu, False)
    assert len(world.discover()) == 1
    assert world.only().problem is None


def test_mig_devices_of_one_instance_never_offer_its_memory_twice(world: Host) -> None:
    parent = world.add_gpu()
    one = world.add_mig(parent, memory=20 * GIB, reserved=0, instance=3, compute_instance=0)
    two = world.add_mig(parent, memory=20 * GIB, reserved=0, instance=3, compute_instance=1)
    assert sum(gpu.memory for gpu in world.discover()) == 20 * GIB
    world.set_unlisted(one, GIB)
    world.add_process(two, os.getpid(), None)
    first, second = world.read()
    assert first.used == 0, "the processes' figures, since the device's is that of both"
    assert second.used is None


def test_a_new_gpu_is_found_by_the_next_discover(world: Host) -> None:
    gpus = [world.add_gpu()]
    world.begin()
    gpus.append(world.add_gpu())
    for found in (gpus[:1], gpus):
        assert [reading.uuid for reading in world.read()] == found
        assert [gpu.uuid for gpu in world.discover()] == gpus


def test_a_forbidden_gpu_is_left_out(world: Host) -> None:
    forbidden = world.add_gpu()
    allowed = world.add_gpu()
    world.fail(forbidden, "nvmlDeviceGetHandleByIndex_v2", Nvml.NO_PERMISSION)
    (gpu,) = world.discover()
    assert (gpu.uuid, gpu.index) == (allowed, 1), "its number is still the one nvidia-smi shows"
    (left_out,) = world.inventory.left_out()
    assert left_out.text.startswith("GPU 0 is left out: The node manager may not use the GPU")


def test_the_compute_mode_is_read(world: Host) -> None:
    free, alone, nobodys = (world.add_gpu() for _ in range(3))
    world.add_mig(world.add_gpu())
    world.set_compute_mode(alone, 3)
    world.set_compute_mode(nobodys, 2)
    gpus = {gpu.uuid: gpu for gpu in world.discover()}
    assert [gpu.exclusive for gpu in gpus.values()] == [False, True, False, False]
    problems = {reading.uuid: reading.problem for reading in world.read()}
    assert problems.pop(nobodys) == (
        "The GPU's compute mode is prohibited: no program may compute there. "
        "`nvidia-smi -i 2 -c DEFAULT` ends that."
    )
    assert set(problems.values()) == {None}
    del free


def test_a_mig_instance_that_cannot_be_read_leaves_its_board(world: Host) -> None:
    parent = world.add_gpu()
    one, sick, other = (world.add_mig(parent) for _ in range(3))
    world.fail(sick, "nvmlDeviceGetName", Nvml.UNKNOWN)
    assert [gpu.uuid for gpu in world.discover()] == [one, other]
    (left_out,) = world.inventory.left_out()
    assert left_out.text.startswith("GPU 0 is left out: Its MIG instance 1: The driver cannot")
    # Which one it is cannot always be told: none that was listed is forgotten.
    world.fail(one, "nvmlDeviceGetUUID", Nvml.UNKNOWN)
    assert {gpu.uuid for gpu in world.discover()} == {one, other}


def test_a_gpu_without_memory_of_its_own_has_the_hosts(world: Host) -> None:
    """So it is in DGX Spark (GB10): the driver answers "not supported"."""
    gpu = world.add_gpu()
    for ask in (MEMORY, "nvmlDeviceGetMemoryInfo"):
        world.fail(gpu, ask, Nvml.NOT_SUPPORTED)
    (found,) = world.discover()
    host = psutil.virtual_memory()
    assert found.memory == host.total
    reading = world.only()
    assert reading.problem is None
    assert 0 < (reading.used or 0) < host.total, "what is not available any more"
    (rest,) = reading.processes
    assert rest.system, "what no process on the GPU has is the host's own"


# Measuring


def test_processes_are_measured_with_their_lineage(world: Host) -> None:
    gpu = world.add_gpu()
    world.set_utilisation(gpu, 37)
    child = subprocess.Popen(["sleep", "1000"])
    try:
        world.add_process(gpu, child.pid, 3 * GIB)
        reading = world.only()
        (process,) = reading.processes
        assert process.memory == 3 * GIB
        assert process.lineage == lineage(child.pid, BOOT)
        assert [each.pid for each in process.lineage[:2]] == [child.pid, os.getpid()]
        assert reading.used == 3 * GIB
        assert reading.utilisation == pytest.approx(0.37)
        assert reading.problem is None
    finally:
        child.kill()
        child.wait()
    assert world.only().processes == ()
    assert world.only().used == 0


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({Kind.COMPUTE: 5, Kind.GRAPHICS: 5}, 5),
        ({Kind.COMPUTE: 5, Kind.GRAPHICS: None}, 5),
        ({Kind.COMPUTE: None, Kind.MPS: 7}, 7),
        ({Kind.COMPUTE: 3, Kind.GRAPHICS: 9, Kind.MPS: None}, 9),
        ({Kind.GRAPHICS: 0, Kind.MPS: None}, 0),
        ({Kind.GRAPHICS: None, Kind.MPS: None}, None),
        ({Kind.MPS: 4}, 4),
    ],
)
def test_one_process_on_several_lists_is_one(
    world: Host, figures: dict[Kind, int | None], expected: int | None
) -> None:
    gpu = world.add_gpu()
    for kind, memory in figures.items():
        world.add_process(gpu, os.getpid(), memory, kind)
    (process,) = world.only().processes
    assert process.memory == expected


def test_a_process_we_cannot_see_still_counts(world: Host) -> None:
    gpu = world.add_gpu()
    world.add_process(gpu, NOBODY, GIB, stays=True)
    # Several processes of other pid namespaces are all called 0.
    world.add_process(gpu, 0, 2 * GIB, stays=True)
    world.add_process(gpu, 0, 3 * GIB, stays=True)
    reading = world.only()
    assert [(process.lineage, process.memory) for process in reading.processes] == [
        ((ProcessId(BOOT, 0, 0),), 5 * GIB),
        ((ProcessId(BOOT, NOBODY, 0),), GIB),
    ]
    assert reading.used == 6 * GIB


def test_older_process_lists_and_missing_ones(world: Host) -> None:
    gpu = world.add_gpu()
    world.add_process(gpu, os.getpid(), GIB)
    world.lack(
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    )
    assert [process.memory for process in world.only().processes] == [GIB]


def test_what_is_not_told_is_neither_nothing_nor_a_problem(world: Host) -> None:
    gpu = world.add_gpu()
    world.set_unlisted(gpu, 7 * GIB)
    world.fail(gpu, "nvmlDeviceGetUtilizationRates", Nvml.NOT_SUPPORTED)
    reading = world.only()
    assert (reading.used, reading.utilisation, reading.problem) == (7 * GIB, None, None)


# Who works


def test_work_is_told_apart_by_process(world: Host) -> None:
    gpu = world.add_gpu()
    world.add_process(gpu, os.getpid(), GIB)
    world.add_process(gpu, NOBODY, GIB, stays=True)
    world.set_utilisation(gpu, 90)
    world.add_sample(gpu, NOBODY, 80, stamp=1_000)
    assert world.work() == {os.getpid(): None, NOBODY: None}, "before the first reading"
    assert world.work() == {os.getpid(): 0.0, NOBODY: 0.0}, "nobody worked since"
    world.add_sample(gpu, os.getpid(), 30, stamp=2_000)
    world.add_sample(gpu, os.getpid(), 50, stamp=3_000)
    world.add_sample(gpu, NOBODY + 1, 90, stamp=3_000)  # it is there no more
    assert world.work() == {os.getpid(): pytest.approx(0.4), NOBODY: 0.0}
    assert world.work() == {os.getpid(): 0.0, NOBODY: 0.0}, "each sample counts once"


def test_samples_that_cannot_be_are_left_out(world: Host) -> None:
    """As some drivers give them: a share of more than all, and no process at all. All can be."""
    gpu = world.add_gpu()
    world.add_process(gpu, os.getpid(), GIB)
    world.add_process(gpu, 0, GIB, stays=True)
    world.begin()
    world.add_sample(gpu, os.getpid(), 100, stamp=1_000)
    world.add_sample(gpu, os.getpid(), 4_000_000_000, stamp=2_000)
    world.add_sample(gpu, 0, 70, stamp=2_000)
    assert world.work() == {os.getpid(): 1.0, 0: None}


@pytest.mark.parametrize("way", ["lacks", "cannot"])
def test_where_work_is_not_told_the_device_tells_of_who_is_alone(world: Host, way: str) -> None:
    gpu = world.add_gpu()
    function = "nvmlDeviceGetProcessUtilization"
    if way == "lacks":
        world.lack(function)
    else:
        world.fail(gpu, function, Nvml.NOT_SUPPORTED)
    world.set_utilisation(gpu, 40)
    world.add_process(gpu, os.getpid(), GIB)
    assert world.work() == {os.getpid(): 0.4}
    world.add_process(gpu, NOBODY, GIB, Kind.GRAPHICS, stays=True)
    assert world.work() == {os.getpid(): None, NOBODY: None}
    world.remove_process(gpu, NOBODY)
    world.fail(gpu, "nvmlDeviceGetUtilizationRates", Nvml.NOT_SUPPORTED)
    assert world.work() == {os.getpid(): None}


def test_work_on_mig_devices_is_unknown(world: Host) -> None:
    mig = world.add_mig(world.add_gpu())
    world.add_process(mig, os.getpid(), GIB)
    world.begin()
    assert world.work() == {os.getpid(): None}


# Mishaps of one GPU


@pytest.mark.parametrize(
    ("mishap", "words"),
    [
        (lambda world, gpu: world.lose(gpu), "fallen off the bus"),
        (lambda world, gpu: world.lose(gpu, Nvml.RESET_REQUIRED), "needs a reset"),
        (lambda world, gpu: world.lose(gpu, Nvml.UNKNOWN), "cannot read the GPU"),
        # While it is measured.
        (lambda world, gpu: world.fail(gpu, MEMORY, Nvml.GPU_IS_LOST), "fallen off the bus"),
    ],
)
def test_a_lost_gpu_says_so_and_comes_back(
    world: Host, mishap: Callable[[Host, str], None], words: str
) -> None:
    well, ill = world.add_gpu(), world.add_gpu()
    world.add_process(ill, os.getpid(), GIB)
    gpus = world.discover()
    mishap(world, ill)
    for _ in range(20):  # also across the restarts of the library
        first, second = world.read()
        assert (first.uuid, first.problem, first.used) == (well, None, 0)
        assert words in str(second.problem)
        assert (second.used, second.processes, second.utilisation) == (None, (), None)
    assert world.discover() == gpus, "a lost GPU is still listed"
    world.restore(ill)
    second = world.read()[1]
    assert (second.problem, second.used, len(second.processes)) == (None, GIB, 1)


def test_a_gpu_that_only_a_new_start_of_the_library_sees_again(world: Host) -> None:
    world.set_sticky(True)
    ill, well = world.add_gpu(), world.add_gpu()
    world.begin()
    world.lose(ill)
    world.read()
    world.restore(ill)
    assert world.read()[0].problem is not None, "or this test shows nothing"
    for _ in range(20):
        first, second = world.read()
        assert second.problem is None
        if first.problem is None:
            break
    assert first.problem is None
    world.report_xid(well, 79)
    assert "XID 79" in str(world.read()[1].problem), "the new start listens too"


def test_a_gpu_lost_before_it_had_a_name_is_found_when_it_is_back(world: Host) -> None:
    well, ill = world.add_gpu(), world.add_gpu()
    world.lose(ill)
    assert [gpu.uuid for gpu in world.discover()] == [well]
    world.restore(ill)
    assert [gpu.uuid for gpu in world.discover()] == [well, ill]


def test_a_gpu_that_was_pulled_out_is_listed_still_and_a_mig_device_is_not(world: Host) -> None:
    gpu, parent = world.add_gpu(), world.add_gpu()
    stays, goes = world.add_mig(parent), world.add_mig(parent)
    listed = world.discover()
    world.remove(gpu)
    world.remove(goes)
    pulled, well, removed = world.problems()
    assert well == ""
    assert "not there any more" in pulled
    assert "not there any more" in removed
    assert {one.uuid for one in world.discover()} == {gpu, stays}
    world.add_gpu(gpu=gpu)
    assert world.problems() == ["", ""]
    # The loss of a board is that of its MIG devices.
    world.add_mig(parent)
    assert len(world.discover()) == len(listed) == 3
    world.lose(parent)
    assert [("fallen off" in problem) for problem in world.problems()].count(True) == 2
    assert len(world.discover()) == 3
    world.restore(parent)
    assert world.problems() == ["", "", ""]


def test_a_hardware_error_stays_until_the_gpu_was_away(world: Host) -> None:
    ill, well = world.add_gpu(), world.add_gpu()
    world.begin()
    world.report_xid(ill, 79)
    for _ in range(3):
        first, second = world.read()
        assert "XID 79" in str(first.problem)
        assert ill in str(first.problem), "the advice names the GPU"
        assert first.used == 0, "it still answers"
        assert (second.uuid, second.problem) == (well, None)
    world.lose(ill, Nvml.RESET_REQUIRED)
    assert "needs a reset" in world.problems()[0]
    world.restore(ill)
    assert world.problems() == ["", ""]


def test_a_hardware_error_the_driver_recovered_from(world: Host) -> None:
    gpu = world.add_gpu()
    world.set_recovery(gpu, 0)
    world.begin()
    world.report_xid(gpu, 48)
    for action, said in ((0, ""), (1, "needs a reset"), (2, "reboot of this host"), (0, "")):
        world.set_recovery(gpu, action)
        (problem,) = world.problems()
        assert said in problem
        assert bool(problem) is bool(said)


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 94])
def test_a_programs_own_fault_does_not_take_the_gpu_away(world: Host, xid: int) -> None:
    gpu = world.add_gpu()
    world.begin()
    world.report_xid(gpu, xid)
    assert world.problems() == [""]
    world.report_xid(gpu, 62)
    assert "XID 62" in world.problems()[0]


def test_a_hardware_error_in_one_mig_instance(world: Host) -> None:
    parent = world.add_gpu()
    world.add_mig(parent, instance=1)
    world.add_mig(parent, instance=2)
    world.begin()
    world.report_xid(parent, 48, instance=2)
    first, second = world.problems()
    assert first == ""
    assert "XID 48" in second
    world.report_xid(parent, 79)
    assert all("XID 79" in problem for problem in world.problems())


def test_a_driver_without_events_is_no_problem(world: Host) -> None:
    gpu = world.add_gpu()
    world.fail(gpu, "nvmlDeviceRegisterEvents", Nvml.NOT_SUPPORTED)
    world.begin()
    world.report_xid(gpu, 79)
    assert world.only().problem is None


# Mishaps of the whole library


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (Nvml.DRIVER_NOT_LOADED, "modprobe nvidia"),
        (Nvml.NO_PERMISSION, "/dev/nvidia"),
        (Nvml.VERSION_MISMATCH, "updated while it ran"),
        (Nvml.UNKNOWN, "nvidia-smi"),
    ],
)
def test_a_library_that_does_not_start_says_what_to_do(world: Host, code: Nvml, words: str) -> None:
    world.add_gpu()
    world.refuse_start(code)
    for method in (world.discover, world.read):
        with pytest.raises(InventoryError, match=words):
            method()
    world.refuse_start(None)
    assert len(world.discover()) == 1


def test_a_driver_updated_under_way(world: Host) -> None:
    gpu = world.add_gpu()
    world.begin()
    world.refuse_everything(Nvml.VERSION_MISMATCH)
    for method in (world.discover, world.read):
        with pytest.raises(InventoryError, match="Reboot"):
            method()
    world.refuse_everything(None)
    assert world.problems() == [""]
    world.report_xid(gpu, 79)
    assert "XID 79" in world.problems()[0], "it listens again after a new start"


def test_a_foreign_shutdown_is_survived(world: Host) -> None:
    world.add_gpu()
    world.begin()
    assert world.load().nvmlShutdown() == 0
    with pytest.raises(InventoryError, match="does not answer"):
        world.read()
    assert world.only().problem is None


def test_close_neither_waits_for_a_slow_call_nor_pulls_the_library_from_under_it(
    world: Host,
) -> None:
    world.add_gpu()
    world.begin()
    world.set_slow(60_000)
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(world.only)
        until(world.inventory._lock.locked, "a call")
        before = time.monotonic()
        world.inventory.close()
        world.inventory.close()
        assert time.monotonic() - before < 30.0, "half of what a call takes"
        assert world.load().nvml_stub_initialised() == 1
        world.set_slow(0)
        assert reading.result(60).problem is None
    assert world.load().nvml_stub_initialised() == 0
    for method in (world.discover, world.read):
        with pytest.raises(InventoryError, match="closed"):
            method()


def test_a_missing_library_is_looked_for_late_and_says_what_to_do(tmp_path: Path) -> None:
    # A file that is no library hides a real one, should this machine have it.
    (tmp_path / "libnvidia-ml.so.1").write_text("no library\n")
    code = (
        "import pynvml\n"
        "from jupyter_gpushare.node.inventory import base, nvml, open_inventory\n"
        "inventory = open_inventory(None)\n"
        "assert pynvml.nvmlLib is None\n"
        "try: inventory.discover()\n"
        "except base.InventoryError as error: print(error)"
    )
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert "install the NVIDIA driver" in said.stdout, said.stderr
    assert "--simulate" in said.stdout


# Simulated


def test_a_spec_gives_simulated_gpus_that_say_so_and_keep_their_uuids() -> None:
    inventory = open_inventory("2xA100-80GB, rtx 4090 ,1x24GiB,h200")
    assert isinstance(inventory, SimulatedInventory)
    assert inventory.simulated
    gpus = inventory.discover()
    assert [(gpu.index, gpu.name, gpu.memory // GIB, gpu.simulated) for gpu in gpus] == [
        (0, "Simulated A100 80GB (80 GiB)", 80, True),
        (1, "Simulated A100 80GB (80 GiB)", 80, True),
        (2, "Simulated RTX 4090 (24 GiB)", 24, True),
        (3, "Simulated GPU (24 GiB)", 24, True),
        (4, "Simulated H200 (141 GiB)", 141, True),
    ]
    assert [reading.uuid for reading in inventory.read()] == [gpu.uuid for gpu in gpus]
    assert all(reading.problem is None and reading.used == 0 for reading in inventory.read())
    for gpu in gpus:
        assert f"GPU-{uuid.UUID(gpu.uuid.removeprefix('GPU-'))}" == gpu.uuid
    assert parse_spec("2x24GiB") == parse_spec(" 2 x 24 GiB ")
    others = parse_spec("1x24GiB") + parse_spec("RTX4090") + parse_spec("1x25GiB")
    assert len({gpu.uuid for gpu in others}) == 3
    with pytest.raises(InventoryError, match=r"no kind 'Abacus'; known are .*T4"):
        parse_spec("2xAbacus")


@pytest.mark.parametrize(
    "spec",
    ["", ",", "2x", "x24GiB", "0x24GiB", "2x0GiB", "-1x24GiB", "2x24", "1.5x24GiB", "2x24GiB,",
     "9999999x1GiB", "1000x1GiB,1000x1GiB", "2x24parsecs", "2x..GiB", "1x99999999999999999999GiB"],
)  # fmt: skip
def test_an_unreadable_spec_says_how_to_write_one(spec: str) -> None:
    with pytest.raises(InventoryError, match="2x24GiB"):
        open_inventory(spec)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 500)), min_size=1, max_size=8))
def test_every_good_spec_is_read(parts: list[tuple[int, int]]) -> None:
    gpus = parse_spec(",".join(f"{count}x{size}GiB" for count, size in parts))
    assert [gpu.memory for gpu in gpus] == [
        size * GIB for count, size in parts for _ in range(count)
    ]
    assert len({gpu.uuid for gpu in gpus}) == len(gpus)


@given(st.text(max_size=40))
def test_any_text_is_a_spec_or_a_typed_error(text: str) -> None:
    try:
        good = bool(parse_spec(text))
    except InventoryError as error:
        good = "Write for example" in str(error)
    assert good
