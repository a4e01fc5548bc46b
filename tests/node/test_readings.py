"""What was measured is kept for a while, told when it changes, and honest where simulated."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.clock import FakeClock
from support.node import GIB, NodeClient, RunningNode, until
from support.nvml import NvmlWorld
from support.nvml_fixtures import node_on
from support.policy_world import World, gpu

from jupyter_gpushare.node.host.outcome import Outcome
from jupyter_gpushare.node.inventory.readings import Readings, figures
from jupyter_gpushare.node.inventory.simulated import SimulatedInventory
from jupyter_gpushare.node.wire.statuses import WATCH_INTERVAL
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import (
    Activity,
    GpuReading,
    ProcessId,
    ProcessReading,
    Quota,
    Request,
)
from jupyter_gpushare.protocol.errors import RemoteError
from jupyter_gpushare.protocol.messages import Method, Notice

A, B = "GPU-a", "GPU-b"


def reading(gpu: str = A, used: int | None = 0, **more: Any) -> GpuReading:
    return GpuReading(gpu, None, used, **more)


# -- what a person would see as a difference ---------------------------------------------------


def one(reading: GpuReading) -> Readings:
    return Readings(1.0, {str(reading.uuid): reading})


PROCESS = ProcessReading((ProcessId("boot-1", 7, 70), ProcessId("boot-1", 1, 1)), GIB)
BASE = reading(used=GIB, utilisation=0.501, processes=(PROCESS,))


@pytest.mark.parametrize(
    ("other", "is_seen"),
    [
        (replace(BASE, utilisation=0.5049), False),  # less than a percent
        (replace(BASE, processes=(replace(PROCESS, lineage=PROCESS.lineage[:1]),)), False),
        (replace(BASE, used=GIB + 1), True),
        (replace(BASE, used=None), True),
        (replace(BASE, utilisation=0.52), True),
        (replace(BASE, utilisation=None), True),
        (replace(BASE, problem="It is lost."), True),
        (replace(BASE, processes=()), True),
        (replace(BASE, processes=(replace(PROCESS, memory=None),)), True),
        (replace(BASE, processes=(replace(PROCESS, memory=2 * GIB),)), True),
        (replace(BASE, uuid=B), True),
    ],
)
def test_what_a_person_sees_is_another_figure(other: GpuReading, is_seen: bool) -> None:
    assert (figures(one(BASE)) != figures(replace(one(other), at=99.0))) is is_seen
    assert figures(one(BASE)) != figures(replace(one(BASE), problem="No driver."))


def test_zero_is_not_unknown() -> None:
    assert figures(one(reading(used=0))) != figures(one(reading(used=None)))
    nothing, unknown = reading(utilisation=0.0), reading(utilisation=None)
    assert figures(one(nothing)) != figures(one(unknown))


# -- a real node manager over the C stub of NVML -----------------------------------------------

FAST = "c.NodeManagerApp.measure_interval = 0.05\n"


def changed(client: NodeClient, where: Callable[[Any], bool]) -> dict[str, Any]:
    """The next status told without being asked of which ``where`` holds."""
    told = client.wait_notice(Notice.CHANGED, where=lambda params: where(params["status"]))
    return told["status"]


def test_memory_and_utilisation_are_told_though_nothing_happens(
    tmp_path: Path, nvml_world: NvmlWorld
) -> None:
    with node_on(nvml_world, tmp_path, FAST) as (node, (board,)), node.client() as watcher:
        nvml_world.set_utilisation(board, 0)
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
        events = client.call(Method.HISTORY, limit=100)["events"]
    return [event for event in events if event["kind"] != "MemberJoined"]


def quiet(watcher: NodeClient, node: RunningNode) -> None:
    """Some ten measurements long nothing is told, by the node manager's own clock."""

    def pause(seconds: float) -> None:
        begin = now(watcher)
        until(lambda: now(watcher) > begin + seconds, "some time passes")

    pause(1.5 * WATCH_INTERVAL)  # what is under way comes
    watcher.notices.clear()
    pause(0.5 + WATCH_INTERVAL)
    assert [notice.method for notice in watcher.notices] == []


def now(client: NodeClient) -> float:
    """The node manager's time."""
    return client.call(Method.STATUS)["node"]["time"]


def test_what_was_measured_is_told_with_whose_it_was(tmp_path: Path, nvml_world: NvmlWorld) -> None:
    with (
        node_on(nvml_world, tmp_path, FAST, gpus=2) as (node, (board, lost)),
        node.client() as client,
    ):
        nvml_world.set_utilisation(board, 25)

        def told(**params: Any) -> dict[str, Any]:
            return client.call(Method.READINGS, step=0.0, **params)

        assert client.call(Method.READINGS)["step"] == 5.0
        until(lambda: 0.25 in told()["gpus"][0]["utilisation"], "a sample is kept")
        assert [row["uuid"] for row in told()["gpus"]] == [board, lost]
        first = told(gpu=board)["gpus"]
        assert [row["uuid"] for row in first] == [board]
        assert first[0]["mine"][0] == first[0]["used"][0] == 0
        assert first[0]["temperature"][0] is first[0]["power"][0] is None
        lease = client.request()["lease"]
        with nvml_world.together():
            nvml_world.add_process(board, os.getpid(), GIB)
            nvml_world.set_unlisted(board, 3 * GIB)
            nvml_world.set_sensors(board, 61, 285_400)
            nvml_world.lose(lost)
        until(lambda: told()["gpus"][1]["used"][-1] is None, "a lost GPU tells nothing")
        now = told(since=600)["gpus"]
        last = {name: row[-1] for name, row in now[0].items() if isinstance(row, list)}
        assert (last["mine"], last["others"], last["rest"]) == (GIB, 0, 3 * GIB)
        assert (last["temperature"], last["power"]) == (61.0, 285.4)
        assert last["i_compute"] == 1.0
        assert now[0]["reserved"] is False
        # Whoever runs a node manager for themselves is its administrator.
        assert [one["memory"][-1] for one in now[0]["environments"]] == [GIB]
        times = told()["times"]
        assert all(late - early >= 2.0 for early, late in pairwise(times))
        client.call(Method.RELEASE, lease=lease)
        with pytest.raises(RemoteError, match="no GPU GPU-of-another-host"):
            client.call(Method.READINGS, gpu="GPU-of-another-host")


# -- simulated GPUs ---------------------------------------------------------------------------


class Told:
    """Simulated GPUs that hear of a world's leases, by a clock that the test turns."""

    def __init__(self, world: World) -> None:
        self.world, self.clock = world, FakeClock(boot=0.0)
        self.inventory = SimulatedInventory("2x24GiB", self.clock.boot)
        self.inventory._gpus = (gpu(0), gpu(1))
        assert self.shares() == [None, None], "of no time nothing is known"

    def shares(self) -> list[float | None]:
        found = self.inventory.read()
        assert [reading.used for reading in found] == [0, 0], "nothing is ever held"
        return [reading.utilisation for reading in found]

    def hears(self, act: Callable[..., core.Decision], *what: Any) -> None:
        before = len(self.world.history)
        decision = act(*what)
        outcome = Outcome(cmd.Tick(0.0, 0.0), decision, tuple(self.world.history[before:]), ())
        self.inventory.heard(outcome, self.world.state)

    def run(self, act: Callable[..., core.Decision], *what: Any) -> set[int]:
        """Let ``act`` happen; the indices of the GPUs that are busy after that."""
        self.hears(act, *what)
        self.shares()
        self.clock.advance(1.0)
        return {index for index, share in enumerate(self.shares()) if share}


@given(st.lists(st.tuples(st.sampled_from(["busy", "idle", "read"]), st.floats(0, 100))))
def test_every_busy_second_is_told_once(steps: list[tuple[str, float]]) -> None:
    told = Told(World().start([gpu(0), gpu(1)], Quota(1, None)))
    told.hears(told.world.request, "alice", 1)
    computed = seconds_told = last = 0.0
    is_busy = True
    for what, seconds in [*steps, ("read", 1.0)]:
        told.clock.advance(seconds)
        computed += seconds if is_busy else 0.0
        if what != "read":
            is_busy = what == "busy"
            told.hears(told.world.says, "L1", cmd.SetActivity, Activity(what))
            continue
        share = told.shares()[0]
        if told.clock.boot() > last:
            assert share is not None
            assert 0.0 <= share <= 1.0
            seconds_told += share * (told.clock.boot() - last)
            last = told.clock.boot()
    assert seconds_told == pytest.approx(computed, abs=1e-6)


def test_a_gpu_is_busy_while_any_lease_on_it_is() -> None:
    world = World().start([gpu(0), gpu(1)], Quota(2, None))
    told = Told(world)
    wish, busy = Request(1, 4 * GIB), (cmd.SetActivity, Activity.BUSY)
    assert told.run(world.request, "alice", 1, replace(wish, gpus=2)) == {0, 1}
    assert told.run(world.idle, "L1") == set()
    (own,) = told.run(world.request, "alice", 2, wish)
    assert told.run(world.says, "L1", *busy) == {0, 1}
    assert told.run(world.release, "L1", "alice") == {own}
    assert told.run(world.says, "L2", *busy) == {own}
    assert told.run(world.die, 2) == set()


def test_leases_from_before_a_restart_are_busy_too() -> None:
    world = World().start([gpu(0), gpu(1)], Quota(1, None))
    world.request("alice", 1)
    assert Told(world).run(world.tick, 0.0) == {0}


def test_a_simulated_node_tells_its_utilisation_over_a_restart(tmp_path: Path) -> None:
    """The lease outlives the node manager, and so does what is told of it."""
    with RunningNode(tmp_path, simulate="2x24GiB", config=FAST) as node:
        with node.client() as client:
            lease = client.request()["lease"]

        def computes() -> bool:
            return [one["utilisation"] for one in node.status()["gpus"]] == [1.0, 0.0]

        until(computes, "it computes")
        node.restart()
        until(computes, "it computes still")
        assert [row["id"] for row in node.status()["leases"]] == [lease]
        with node.client() as client:
            told = client.call(Method.READINGS, step=0.0)["gpus"][0]
        assert set(told["used"]) == {0}
        assert told["reserved"]
        assert set(told["mine"]) == {24 * GIB}
