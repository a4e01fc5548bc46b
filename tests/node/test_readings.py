"""What was measured: kept for a while, told when it changes, and honest where it is simulated."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import FakeClock
from support.node import GIB, NodeClient, RunningNode, until
from support.nvml import NvmlWorld
from support.policy_world import World, gpu, task

from jupyter_gpushare.node.host.outcome import Outcome
from jupyter_gpushare.node.inventory.readings import KEPT, STEP, Readings, Samples, figures
from jupyter_gpushare.node.inventory.simulated import BusyGpus, SimulatedInventory
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import (
    Activity,
    Bytes,
    EnvironmentName,
    GpuReading,
    GpuUuid,
    LeaseId,
    ProcessId,
    ProcessReading,
    Quota,
    Request,
)
from jupyter_gpushare.protocol.messages import Method, Notice

NOW = 1_700_000_000.0
A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")


def reading(
    gpu: GpuUuid = A, used: int | None = 0, utilisation: float | None = None, **more: Any
) -> GpuReading:
    known = None if used is None else Bytes(used)
    return GpuReading(gpu, more.pop("problem", None), known, utilisation=utilisation, **more)


# -- the samples that are kept -----------------------------------------------------------------


def test_samples_are_a_step_apart() -> None:
    samples = Samples()
    for number in range(11):
        samples.add(NOW + number * STEP / 4, [reading(used=number)])
    told = samples.document(0.0, [A])
    assert told["step"] == STEP
    assert told["times"] == [NOW, NOW + STEP, NOW + 2 * STEP]
    assert told["gpus"] == [{"uuid": A, "utilisation": [None] * 3, "used": [0, 4, 8]}]


def test_unknown_is_none_and_never_zero() -> None:
    samples = Samples()
    samples.add(NOW, [reading(A, used=0, utilisation=0.0)])
    samples.add(NOW + STEP, [reading(A, used=None, utilisation=None, problem="It is lost.")])
    samples.add(NOW + 2 * STEP, [reading(B, used=5, utilisation=0.5)])
    assert samples.document(0.0, [A, B, "GPU-never-seen"])["gpus"] == [
        {"uuid": A, "utilisation": [0.0, None, None], "used": [0, None, None]},
        {"uuid": B, "utilisation": [None, None, 0.5], "used": [None, None, 5]},
        {"uuid": "GPU-never-seen", "utilisation": [None] * 3, "used": [None] * 3},
    ]


def test_only_the_asked_past_is_told() -> None:
    samples = Samples()
    for number in range(4):
        samples.add(NOW + number * STEP, [reading(used=number)])
    assert samples.document(NOW + 2 * STEP, [A])["gpus"][0]["used"] == [2, 3]
    assert samples.document(NOW + 4 * STEP, [A]) == {
        "step": STEP,
        "times": [],
        "gpus": [{"uuid": A, "utilisation": [], "used": []}],
    }


def test_a_quarter_of_an_hour_is_kept_and_no_more() -> None:
    samples = Samples()
    count = int(KEPT / STEP) * 3
    for number in range(count):
        samples.add(NOW + number * STEP, [reading(used=number)])
    times = samples.document(0.0, [A])["times"]
    assert times[-1] == NOW + (count - 1) * STEP
    assert times[-1] - times[0] == KEPT


def test_where_it_is_measured_seldom_that_is_the_step() -> None:
    samples = Samples(60.0)
    for number in range(60):
        samples.add(NOW + number * 30.0, [reading(used=number)])
    told = samples.document(0.0, [A])
    assert told["step"] == 60.0
    assert {late - early for early, late in pairwise(told["times"])} == {60.0}
    assert told["times"][-1] - told["times"][0] == KEPT
    assert Samples(0.05).document(0.0, [A])["step"] == STEP


def test_a_clock_that_was_set_back_starts_anew() -> None:
    samples = Samples()
    samples.add(NOW, [reading(used=1)])
    samples.add(NOW - 7200.0, [reading(used=2)])
    samples.add(NOW - 7200.0 + STEP, [reading(used=3)])
    told = samples.document(0.0, [A])
    assert told["times"] == [NOW - 7200.0, NOW - 7200.0 + STEP]
    assert told["gpus"][0]["used"] == [2, 3]


@given(st.lists(st.floats(-400.0, 400.0), max_size=400))
def test_whatever_the_clock_does_times_grow_and_stay_few(moves: list[float]) -> None:
    samples = Samples()
    now = NOW
    for move in moves:
        now += move
        samples.add(now, [reading()])
        times = samples.document(-math.inf, [A])["times"]
        assert all(late - early >= STEP for early, late in pairwise(times))
        assert len(times) <= KEPT / STEP + 1
        assert now - STEP < times[-1] <= now, "nothing blocks the newest"


# -- what a person would see as a difference ---------------------------------------------------


def one(reading: GpuReading) -> Readings:
    return Readings(1.0, {str(reading.uuid): reading})


PROCESS = ProcessReading((ProcessId("boot-1", 7, 70), ProcessId("boot-1", 1, 1)), Bytes(GIB))
BASE = reading(used=GIB, utilisation=0.501, processes=(PROCESS,))


@pytest.mark.parametrize(
    "other",
    [
        replace(BASE, utilisation=0.5049),
        replace(BASE, processes=(replace(PROCESS, lineage=PROCESS.lineage[:1]),)),
    ],
    ids=["less than a percent", "another parent"],
)
def test_what_nobody_sees_is_equal(other: GpuReading) -> None:
    assert figures(one(BASE)) == figures(replace(one(other), at=99.0))


@pytest.mark.parametrize(
    "other",
    [
        replace(BASE, used=Bytes(GIB + 1)),
        replace(BASE, used=None),
        replace(BASE, utilisation=0.52),
        replace(BASE, utilisation=None),
        replace(BASE, problem="It is lost."),
        replace(BASE, processes=()),
        replace(BASE, processes=(replace(PROCESS, memory=None),)),
        replace(BASE, processes=(replace(PROCESS, memory=Bytes(2 * GIB)),)),
        replace(BASE, uuid=B),
    ],
)
def test_what_a_person_sees_is_not_equal(other: GpuReading) -> None:
    assert figures(one(BASE)) != figures(one(other))
    assert figures(one(BASE)) != figures(replace(one(BASE), problem="No driver."))


def test_zero_is_not_unknown() -> None:
    assert figures(one(reading(used=0))) != figures(one(reading(used=None)))
    nothing, unknown = reading(utilisation=0.0), reading(utilisation=None)
    assert figures(one(nothing)) != figures(one(unknown))


# -- a real node manager over the C stub of NVML -----------------------------------------------

FAST = "c.NodeManagerApp.measure_interval = 0.05\n"


def real_node(tmp_path: Path, world: NvmlWorld) -> RunningNode:
    return RunningNode(tmp_path, simulate="", config=FAST, environ=world.environ())


def changed(client: NodeClient, where: Callable[[Any], bool]) -> dict[str, Any]:
    """The next status told without being asked of which ``where`` holds."""
    told = client.wait_notice(Notice.CHANGED, where=lambda params: where(params["status"]))
    status: dict[str, Any] = told["status"]
    return status


def test_memory_and_utilisation_are_told_though_nothing_happens(
    tmp_path: Path, nvml_world: NvmlWorld
) -> None:
    board = nvml_world.add_gpu(memory=24 * GIB)
    nvml_world.set_utilisation(board, 0)
    with real_node(tmp_path, nvml_world) as node, node.client() as watcher:
        lease = watcher.request()["lease"]
        nvml_world.add_process(board, os.getpid(), GIB)
        watcher.call(Method.WATCH)
        first = changed(watcher, lambda status: status["gpus"][0]["used"] == GIB)
        assert first["leases"][0]["gpus"][0]["measured"] == GIB
        events = history(node)
        # It takes more, and computes: no event of the lease's life, yet a person wants to see it.
        nvml_world.set_memory(board, os.getpid(), 3 * GIB)
        second = changed(watcher, lambda status: status["gpus"][0]["used"] == 3 * GIB)
        assert second["leases"][0]["gpus"][0]["measured"] == 3 * GIB
        nvml_world.set_utilisation(board, 37)
        third = changed(watcher, lambda status: status["gpus"][0]["utilisation"] == 0.37)
        assert [row["id"] for row in third["leases"]] == [lease]
        assert history(node) == events, "nothing happened"
        # And now nothing changes, whatever is measured: the newest status has been told.
        quiet(watcher, node)
        nvml_world.set_memory(board, os.getpid(), 2 * GIB)
        changed(watcher, lambda status: status["gpus"][0]["used"] == 2 * GIB)


def history(node: RunningNode) -> list[dict[str, Any]]:
    with node.client() as client:
        events: list[dict[str, Any]] = client.call(Method.HISTORY, limit=100)["events"]
    return [event for event in events if event["kind"] != "MemberJoined"]


def quiet(watcher: NodeClient, node: RunningNode) -> None:
    """At least twenty measurements long nothing is told."""

    def pause(seconds: float) -> None:
        begin = now(watcher)
        until(lambda: now(watcher) > begin + seconds, "some time passes")

    pause(0.5)  # what is under way comes
    watcher.notices.clear()
    pause(1.0)
    assert [notice.method for notice in watcher.notices] == []


def now(client: NodeClient) -> float:
    """The node manager's time."""
    time: float = client.call(Method.STATUS)["node"]["time"]
    return time


def test_the_ring_of_readings_is_told(tmp_path: Path, nvml_world: NvmlWorld) -> None:
    board = nvml_world.add_gpu(memory=24 * GIB)
    lost = nvml_world.add_gpu(memory=8 * GIB)
    nvml_world.set_utilisation(board, 25)
    with real_node(tmp_path, nvml_world) as node, node.client() as client:
        told = client.call(Method.READINGS)
        assert told["step"] == STEP
        assert len(told["times"]) == 1
        assert [row["uuid"] for row in told["gpus"]] == [board, lost]
        assert told["gpus"][0]["utilisation"] == [0.25]
        assert told["gpus"][0]["used"] == [0]
        assert told["gpus"][1]["utilisation"] == [0.0]
        nvml_world.add_process(board, os.getpid(), GIB)
        nvml_world.lose(lost)
        until(lambda: len(client.call(Method.READINGS)["times"]) >= 2, "a step has passed")
        told = client.call(Method.READINGS)
        assert told["times"][1] - told["times"][0] >= STEP
        assert abs(told["times"][1] - now(client)) < STEP
        assert told["gpus"][0]["used"] == [0, GIB]
        # Of a lost GPU nothing is known.
        assert told["gpus"][1] == {"uuid": lost, "utilisation": [0.0, None], "used": [0, None]}
        recent = client.call(Method.READINGS, since=STEP - 1)
        assert recent["times"] in ([], told["times"][1:])
        assert len(recent["gpus"][0]["used"]) == len(recent["times"])


# -- simulated GPUs ---------------------------------------------------------------------------


def utilisation(inventory: SimulatedInventory) -> list[float | None]:
    found = inventory.read()
    assert [reading.used for reading in found] == [0] * len(found), "nothing is ever held"
    return [reading.utilisation for reading in found]


def test_simulated_utilisation_is_the_busy_share_since_the_last_look() -> None:
    clock = FakeClock()
    inventory = SimulatedInventory("2x24GiB", clock.boot)
    first, second = (gpu.uuid for gpu in inventory.discover())
    assert utilisation(inventory) == [None, None], "no period has passed yet"
    clock.advance(2)
    assert utilisation(inventory) == [0.0, 0.0]
    clock.advance(3)
    inventory.set_busy(first, True)
    clock.advance(1)
    assert utilisation(inventory) == [0.25, 0.0]
    assert utilisation(inventory) == [0.25, 0.0], "no time passed: there is nothing new to tell"
    clock.advance(2)
    inventory.set_busy(second, True)
    inventory.set_busy(first, True)  # told twice, counted once
    assert utilisation(inventory) == [1.0, 0.0]
    clock.advance(1)
    inventory.set_busy(first, False)
    inventory.set_busy(first, False)
    clock.advance(1)
    assert utilisation(inventory) == [0.5, 1.0]
    inventory.set_busy(second, False)
    clock.advance(5)
    assert utilisation(inventory) == [0.0, 0.0]


def test_without_a_clock_simulated_utilisation_is_unknown() -> None:
    inventory = SimulatedInventory("1x24GiB")
    inventory.set_busy(inventory.discover()[0].uuid, True)
    assert utilisation(inventory) == [None]


@given(st.lists(st.tuples(st.sampled_from(["busy", "idle", "read"]), st.floats(0, 100))))
def test_every_busy_second_is_told_once(steps: list[tuple[str, float]]) -> None:
    clock = FakeClock(boot=0.0)
    inventory = SimulatedInventory("1x24GiB", clock.boot)
    gpu = inventory.discover()[0].uuid
    utilisation(inventory)
    computed = told = last = 0.0
    is_busy = False
    for what, seconds in [*steps, ("read", 1.0)]:
        clock.advance(seconds)
        computed += seconds if is_busy else 0.0
        if what == "read":
            share = utilisation(inventory)[0]
            if clock.boot() > last:
                assert share is not None
                assert 0.0 <= share <= 1.0
                told += share * (clock.boot() - last)
                last = clock.boot()
        else:
            is_busy = what == "busy"
            inventory.set_busy(gpu, is_busy)
    assert told == pytest.approx(computed, abs=1e-6)


def test_it_may_be_told_and_read_at_once_from_two_threads() -> None:
    clock = FakeClock(boot=0.0)
    inventory = SimulatedInventory("1x24GiB", clock.boot)
    board = inventory.discover()[0].uuid
    begun, done = threading.Event(), threading.Event()

    def tell() -> None:
        while not done.is_set():
            inventory.set_busy(board, True)
            inventory.set_busy(board, False)
            begun.set()

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        assert begun.wait(10)
        for _ in range(2000):
            clock.advance(1.0)
            share = utilisation(inventory)[0]
            assert share is None or 0.0 <= share <= 1.0
    finally:
        done.set()
        thread.join()


class Told:
    """Which GPUs are busy, as the listener told it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.busy: set[GpuUuid] = set()
        self.listener = BusyGpus(self.tell)

    def tell(self, gpu: GpuUuid, busy: bool) -> None:
        assert (gpu in self.busy) != busy, "told twice"
        (self.busy.add if busy else self.busy.discard)(gpu)

    def run(self, command: cmd.Command) -> set[int]:
        """Carry ``command`` out; the indices of the GPUs that are busy then."""
        events = core.step(self.world.state, command, self.world.config).events
        decision = self.world.run(command)
        self.listener.heard(Outcome(command, decision, events, ()), self.world.state)
        return {self.world.state.gpus[gpu].gpu.index for gpu in self.busy}


def request(world: World, number: int, gpus: int = 1) -> cmd.RequestLease:
    return cmd.RequestLease(
        world.at,
        LeaseId(f"lease-{number}"),
        EnvironmentName("alice"),
        task(number),
        Request(gpus, Bytes(4 * GIB)),
    )


def active(world: World, number: int, activity: Activity) -> cmd.SetActivity:
    who = EnvironmentName("alice")
    process = task(number).process
    return cmd.SetActivity(world.at, LeaseId(f"lease-{number}"), who, process, activity)


def test_a_gpu_is_busy_while_any_lease_on_it_is() -> None:
    world = World().start([gpu(0), gpu(1)], Quota(2, None))
    told = Told(world)
    assert told.run(request(world, 1, gpus=2)) == {0, 1}
    assert told.run(active(world, 1, Activity.IDLE)) == set()
    (own,) = told.run(request(world, 2))
    assert told.run(active(world, 1, Activity.BUSY)) == {0, 1}
    assert told.run(cmd.Release(world.at, LeaseId("lease-1"), EnvironmentName("alice"))) == {own}
    assert told.run(active(world, 2, Activity.BUSY)) == {own}
    assert told.run(cmd.ProcessGone(world.at, task(2).process)) == set()


def test_leases_from_before_a_restart_are_busy_too() -> None:
    world = World().start([gpu(0), gpu(1)], Quota(1, None))
    world.run(request(world, 1))
    assert Told(world).run(cmd.Tick(world.at, world.at)) == {0}


def test_a_simulated_node_tells_its_utilisation(tmp_path: Path) -> None:
    with RunningNode(tmp_path, simulate="2x24GiB", config=FAST) as node, node.client() as client:
        client.call(Method.WATCH)
        changed(client, lambda status: [g["utilisation"] for g in status["gpus"]] == [0.0, 0.0])
        lease = client.request()["lease"]
        changed(client, lambda status: [g["utilisation"] for g in status["gpus"]] == [1.0, 0.0])
        client.call(Method.ACTIVITY, lease=lease, state="idle")
        idle = changed(client, lambda status: status["gpus"][0]["utilisation"] == 0.0)
        assert idle["leases"][0]["state"] == "idle"
        assert idle["gpus"][0]["used"] == 0
        quiet(client, node)
        client.call(Method.ACTIVITY, lease=lease, state="busy")
        changed(client, lambda status: status["gpus"][0]["utilisation"] == 1.0)
        quiet(client, node)
        # The lease outlives the node manager, and so does what is told of it.
        node.restart()
        with node.client() as again:
            again.call(Method.WATCH)
            after = changed(again, lambda status: status["gpus"][0]["utilisation"] == 1.0)
            assert [row["id"] for row in after["leases"]] == [lease]
            used = again.call(Method.READINGS)["gpus"][0]["used"]
            assert set(used) == {0}
