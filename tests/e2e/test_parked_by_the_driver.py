"""Kernels with memory on their GPU are checkpointed for others, and come back whole.

Real kernels, a real node manager that reads NVML, the real cuda-bindings; the driver and
NVML are our own doubles (tests/cuda_stub, tests/nvml_stub), which share one world.
"""

from __future__ import annotations

import pytest
from support.cuda import GIB, Call, Cuda
from support.driverstage import FILL, READ, Stage, cuda_stubs, fill, lasting_stage, shared_stage
from support.kernel import Kernel, Shown, runs_long, shows
from support.node import until

from jupyter_gpushare.protocol.messages import Method

__all__ = ["cuda_stubs", "lasting_stage", "shared_stage"]


@pytest.fixture
def stage(shared_stage: Stage) -> Stage:
    return shared_stage


def bob_wants(stage: Stage, kernel: Kernel) -> Shown:
    """Only what is measured of alice's is known to be there when she is asked for it."""
    stage.until_measured("alice", 4 * GIB)
    return kernel.start("%gpushare request")


def test_a_kernel_with_memory_on_the_gpu_gives_all_of_it_back_and_goes_on(stage: Stage) -> None:
    with stage.kernel("alice") as alice, stage.kernel("bob") as bob:
        fill(alice)
        wants = bob_wants(stage, bob)
        parked = stage.until_state("alice", "parked")
        bob.finish(wants)
        assert stage.world.state_of(alice.pid) == 2, "checkpointed"
        assert parked["rung"] == "driver"
        assert parked["parked_memory"] >= 4 * GIB
        assert stage.root.call(Method.STATUS)["node"]["parked_memory"] == parked["parked_memory"]
        stage.until_state("bob", "active", "idle")
        bob.ok(FILL.replace("4 * 2**30", "8 * 2**30"))  # it is really there
        cell = alice.start(READ)
        stage.until_state("bob", "parked")  # idle, and alice waits: her turn
        shows(alice, cell, "Restored")
        alice.finish(cell)
        assert cell.stream().strip() == "read: b'alice was here'"
        until(lambda: stage.lease("alice")["rung"] is None, "the node manager knows")
        stage.until_measured("alice", 4 * GIB)
        other = bob.start(READ)
        assert bob.finish(other).stream().strip() == "read: b'alice was here'"


def test_leaving_the_queue_keeps_what_is_parked_and_bars_the_cell(stage: Stage) -> None:
    with stage.kernel("alice") as alice, stage.kernel("bob") as bob:
        fill(alice)
        bob.finish(bob_wants(stage, bob))
        parked = stage.until_state("alice", "parked")
        busy = runs_long(bob)
        stage.until_state("bob", "active")
        asks = alice.start("%gpushare request")
        shows(alice, asks, "Waiting for GPUs: number 1 in line")
        alice.interrupt()
        assert "stays parked" in "".join(alice.finish(asks).error()["traceback"])
        other = alice.run("%gpushare request --memory 1GiB")
        assert "in host memory" in other.error()["evalue"]
        cell = alice.start("ran = True")
        until(lambda: stage.root.call(Method.STATUS)["queue"], "alice waits")
        alice.interrupt()
        assert "You left the queue" in alice.finish(cell).error()["evalue"]
        assert stage.until_state("alice", "parked")["id"] == parked["id"]
        assert "parked" in alice.ok("%gpushare status").plain(), "our own words always work"
        bob.interrupt()
        bob.finish(busy)
        again = alice.start("%gpushare request")
        shows(alice, again, "Restored")
        assert "now holds" in alice.finish(again).plain()
        assert alice.ok(READ).stream().strip() == "read: b'alice was here'"
        assert alice.ok("print('ran' in globals())").stream().strip() == "False"


def test_who_cannot_give_keeps_its_gpu_and_says_why(stage: Stage) -> None:
    with stage.kernel("alice") as alice, stage.kernel("bob") as bob:
        fill(alice)
        stage.world.fault(Call.CHECKPOINT, Cuda.UNKNOWN)
        wants = bob_wants(stage, bob)

        def keeps() -> bool:
            # It is asked again and again, and tries each time.
            lease = stage.lease("alice")
            return bool(lease["kept"]) and lease["state"] == "idle"

        until(keeps, "a reason")
        assert stage.lease("bob")["state"] == "queued"
        assert alice.ok(READ).stream().strip() == "read: b'alice was here'"
        bob.interrupt()
        bob.finish(wants)
        stage.world.heal()
        stage.world.fault(Call.LOCK, Cuda.NOT_PERMITTED)
        assert alice.run("%gpushare park").error()["ename"] == "CannotGive"
        assert alice.ok(READ).stream().strip() == "read: b'alice was here'"


def test_stopping_a_cell_while_it_is_parked_stops_only_the_cell(stage: Stage) -> None:
    with stage.kernel("alice") as alice, stage.kernel("bob") as bob:
        fill(alice)
        stage.world.hang(Call.CHECKPOINT)
        wants = bob_wants(stage, bob)
        stage.until_state("alice", "parking")
        cell = alice.start("ran = True")
        shows(alice, cell, "Parking GPU memory")  # it waits, and hears interrupts
        alice.interrupt()
        stage.world.heal()
        alice.finish(cell)
        assert "was not run" in cell.error()["evalue"]
        bob.finish(wants)
        assert alice.ok(READ).stream().strip() == "read: b'alice was here'"


def test_after_a_release_cuda_keeps_some_memory_and_others_get_the_rest(stage: Stage) -> None:
    with stage.kernel("alice") as alice, stage.node.client("bob") as bob:
        fill(alice)
        stage.until_measured("alice", 4 * GIB)
        alice.ok("must(driver.cuMemFree(block))")
        alice.run("%gpushare release")
        granted = bob.request(memory=8 * GIB)
        left = stage.lease("alice")
        assert left["state"] == "draining"
        assert 0 < left["gpus"][0]["memory"] < GIB
        assert "reserve" not in left
        bob.call(Method.RELEASE, lease=granted["lease"])

        def gpu() -> dict[str, int]:
            found: dict[str, int] = stage.root.call(Method.STATUS)["gpus"][0]
            return found

        until(lambda: not gpu()["tasks"], "nobody's task is there")
        assert 0 < gpu()["reserved"] < GIB, "sweeps and elastic jobs may have the rest"
