"""What was measured is told when it changes, honest where simulated, and names nobody else.

Of the past there are so many samples, in steps.
"""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.clock import FakeClock
from support.node import NodeClient, RunningNode, until
from support.nvml import NvmlWorld
from support.nvml_fixtures import node_on
from support.policy_turns import CONFIG, TurnWorld
from support.policy_world import GIB, World, gpu, plain_config, task

from jupyter_gpushare.node.host.outcome import Outcome
from jupyter_gpushare.node.inventory.base import Sensors
from jupyter_gpushare.node.inventory.readings import Readings, figures
from jupyter_gpushare.node.inventory.simulated import SimulatedInventory
from jupyter_gpushare.node.views.samples import LEVELS, MOST_ROWS, OfGpu, Part, Samples, taken
from jupyter_gpushare.node.views.viewer import Viewer
from jupyter_gpushare.node.wire.statuses import WATCH_INTERVAL
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import (
    Activity,
    Gpu,
    GpuReading,
    ProcessId,
    ProcessReading,
    Quota,
    Request,
)
from jupyter_gpushare.policy.words.turns import TurnPhase
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
    return [event for event in events if event["kind"] != "MembersChanged"]


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
        refused = client.refused(Method.READINGS, gpu="GPU-of-another-host")
        assert "no GPU GPU-of-another-host" in refused.message


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


NOW = 1_700_000_000.0
ALICE, BOB = "alice", "bob"
STEP, KEPT = LEVELS[0]


def of(
    used: float | None = 0,
    utilisation: float | None = None,
    parts: dict[str, Part] | None = None,
    **more: float,
) -> OfGpu:
    usual = {"rest": 0.0, "temperature": None, "power": None, "reserved": False}
    return OfGpu(utilisation=utilisation, used=used, parts=parts or {}, **(usual | more))


def told(
    samples: Samples,
    *gpus: str,
    wall: float,
    since: float = KEPT,
    step: float = 0.0,
    who: Viewer = Viewer(ALICE),  # noqa: B008 - it is frozen
) -> Any:
    rows = samples.rows(wall, since, step, gpus)
    return {"times": rows.times, "step": rows.step, "gpus": [rows.of(one, who) for one in gpus]}


@cache
def filled(seconds: float, every: float = 2.0) -> tuple[Samples, float]:
    """Samples of the last ``seconds``, and the time of the last."""
    samples, count = Samples(), int(seconds / every)
    for number in range(count):
        samples.add(NOW + number * every, {A: of(used=number, utilisation=number / count)})
    return samples, NOW + (count - 1) * every


# -- what is kept, and for how long ----------------------------------------------------------------


def test_unknown_is_none_and_never_zero() -> None:
    samples = Samples()
    samples.add(NOW, {A: of(0, 0.0)})
    samples.add(NOW + STEP, {})
    samples.add(NOW + 2 * STEP, {A: of(None, None), B: of(5, 0.5)})
    gpus = told(samples, A, B, "GPU-never-seen", wall=NOW + 2 * STEP)["gpus"]
    assert [one["used"] for one in gpus] == [[0, None, None], [None, None, 5], [None] * 3]
    shares = [[0.0, None, None], [None, None, 0.5], [None] * 3]
    assert [one["utilisation"] for one in gpus] == shares
    assert gpus[0]["mine"] == gpus[0]["i_compute"] == [0, None, 0]
    assert all(len(row) == 3 for one in gpus for row in one.values() if isinstance(row, list))


@pytest.mark.parametrize(("step", "kept"), LEVELS)
def test_each_past_has_its_step_and_reaches_until_now(step: float, kept: float) -> None:
    samples, last = filled(90_000)
    answer = told(samples, A, wall=last, since=kept)
    times = answer["times"]
    assert answer["step"] == step
    assert all(late - early >= step for early, late in pairwise(times))
    assert times[0] - (last - kept) < step + 2.0, "all of the past that was asked for"
    assert last - times[-1] < step + 2.0, "and the step that is not over yet"
    assert len(times) <= kept / step + 2


def test_the_step_is_longer_if_that_is_wished_or_if_there_were_too_many_rows() -> None:
    samples, last = filled(1200)
    assert told(samples, A, wall=last, step=5.0)["step"] == 5.0
    coarse = told(samples, A, wall=last, step=60.0)
    assert {late - early for early, late in pairwise(coarse["times"])} == {60.0}
    many = [f"GPU-{number}" for number in range(1024)]
    rows = samples.rows(last, KEPT, 0.0, many)
    assert len(rows.times) * len(many) <= MOST_ROWS + len(many)
    assert Samples(60.0).rows(NOW, 300, 0.0, [A]).step == 60.0


def test_a_step_is_told_by_its_means_and_its_most_memory_and_heat() -> None:
    samples = Samples()
    alice = [Part(4 * GIB, 1.0), Part(2 * GIB, 0.0), Part(0, 0.0)]
    for number, part in enumerate(alice):
        parts = {ALICE: part} if part.memory else {}
        more = {"temperature": 50.0 + number, "power": 100.0 * number}
        samples.add(NOW + number * STEP, {A: of(number * GIB, number / 2, parts, **more)})
    (one,) = told(samples, A, wall=NOW + 2 * STEP, step=3 * STEP)["gpus"]
    assert one["used"] == [2 * GIB]
    assert one["utilisation"] == [0.5]
    assert one["mine"] == [2 * GIB]
    assert one["i_compute"] == [0.333]
    assert (one["temperature"], one["power"]) == ([52.0], [100.0])


def test_a_clock_that_was_set_back_starts_anew() -> None:
    samples = Samples()
    samples.add(NOW, {A: of(1)})
    samples.add(NOW - 7200.0, {A: of(2)})
    samples.add(NOW - 7200.0 + STEP, {A: of(3)})
    answer = told(samples, A, wall=NOW - 7200 + STEP)
    assert answer["times"] == [NOW - 7200.0, NOW - 7200.0 + STEP]
    assert answer["gpus"][0]["used"] == [2, 3]


@given(st.lists(st.floats(-400.0, 400.0), max_size=300))
def test_whatever_the_clock_does_times_grow_and_stay_few(moves: list[float]) -> None:
    samples = Samples()
    now = NOW
    for move in moves:
        now += move
        samples.add(now, {A: of()})
        for step, kept in LEVELS:
            times = samples.rows(now, kept, 0.0, [A]).times
            assert all(late - early >= step for early, late in pairwise(times))
            assert len(times) <= kept / step + 2
            assert all(now - kept <= time <= now for time in times)
            assert times[-1] > now - step, "nothing blocks the newest"


def test_a_day_of_a_busy_gpu_takes_no_more_than_is_said() -> None:
    people = [f"person-{number}" for number in range(4)]
    # Seldom until the last quarter of an hour: there are as many samples in the end.
    walls = [NOW + 15.0 * number for number in range(5760)]
    walls += [walls[-1] + 2.0 * number for number in range(1, 600)]
    tracemalloc.start()
    samples = Samples()
    for wall in walls:
        # Each figure is an object of its own, as measurements are.
        parts = {name: Part(wall + 0.5, wall % 2) for name in people}
        figures = of(wall, wall / NOW, parts, temperature=wall + 0.1, power=wall / 7)
        samples.add(wall, {A: figures})
    busy = tracemalloc.get_traced_memory()[0]
    del figures, parts
    idle = Samples()
    for wall in walls:
        idle.add(wall, {A: of(0.0, 0.0)})
    quiet = tracemalloc.get_traced_memory()[0] - busy
    tracemalloc.stop()
    assert all(len(told(samples, A, wall=walls[-1], since=kept)["times"]) for _, kept in LEVELS)
    assert busy < 1.1 * 2**20
    assert quiet < busy / 2, "what stays as it is takes no room"


# -- whose it is, and who may know ----------------------------------------------------------------


def real_gpu(index: int) -> Gpu:
    return Gpu(f"GPU-{index}", index, "A GPU", 24 * GIB)


def shared(one: Gpu) -> World:
    """Alice and bob on one GPU; bob is idle."""
    world = World(config=plain_config()).start([one], Quota(1, 8 * GIB))
    for pid, who in enumerate((ALICE, BOB), start=1):
        world.request(who, pid, Request(1, 8 * GIB))
    world.idle("L2")
    return world


def measured(*memory: int | None, used: int) -> Readings:
    processes = tuple(
        ProcessReading((task(number).process,), size) for number, size in enumerate(memory, start=1)
    )
    reading = GpuReading("GPU-0", None, used, processes, 0.5)
    return Readings(1.0, {"GPU-0": reading}, sensors={"GPU-0": Sensors(40.0, None)})


def test_memory_is_what_each_ones_tasks_use_and_the_rest_is_nobodys() -> None:
    world = shared(real_gpu(0))
    (one,) = taken(world.state, measured(GIB, 2 * GIB, used=4 * GIB)).values()
    assert one.parts == {ALICE: Part(GIB, 1.0), BOB: Part(2 * GIB, 0.0)}
    assert (one.rest, one.reserved, one.temperature, one.power) == (GIB, False, 40.0, None)


@pytest.mark.parametrize("simulated", [True, False])
def test_where_use_is_not_known_by_person_it_is_what_is_reserved(simulated: bool) -> None:
    world = shared(gpu(0) if simulated else real_gpu(0))
    readings = measured(used=0) if simulated else measured(GIB, None, used=4 * GIB)
    (one,) = taken(world.state, readings).values()
    assert one.reserved
    assert one.parts == {ALICE: Part(8 * GIB, 1.0), BOB: Part(8 * GIB, 0.0)}


def test_a_gpu_that_is_lost_or_unknown_tells_nothing() -> None:
    world = shared(real_gpu(0))
    lost, other = GpuReading("GPU-0", "It is lost.", None), GpuReading("GPU-9", None, 0)
    assert taken(world.state, Readings(1.0, {"GPU-0": lost, "GPU-9": other})) == {}


def test_others_are_one_figure_and_never_a_name() -> None:
    world = shared(real_gpu(0))
    samples = Samples()
    samples.add(NOW, taken(world.state, measured(GIB, 2 * GIB, used=3 * GIB)))

    def seen(who: Viewer) -> dict[str, Any]:
        return told(samples, "GPU-0", wall=NOW, who=who)["gpus"][0]

    mine, others = seen(Viewer(ALICE)), seen(Viewer(BOB))
    assert (mine["mine"], mine["others"]) == ([GIB], [2 * GIB])
    assert (mine["i_compute"], mine["others_compute"]) == ([1.0], [0.0])
    assert (others["mine"], others["others"]) == ([2 * GIB], [GIB])
    stranger = json.dumps(seen(Viewer("carol", all_servers=True)))
    for text in (json.dumps(mine), json.dumps(others), stranger):
        assert not any(word in text for word in ("alice", "bob", "lease", "task", "environments"))
    admin = seen(Viewer("root", admin=True))
    assert admin["others"] == [3 * GIB]
    assert admin["environments"] == [
        {"environment": "bob", "memory": [2 * GIB], "computes": [0.0]},
        {"environment": "alice", "memory": [GIB], "computes": [1.0]},
    ]
    server = Viewer("alice/lab")
    assert seen(server)["mine"] == [0], "a server with a quota of its own is somebody else"


def test_with_turns_only_the_one_who_has_it_computes() -> None:
    world = TurnWorld(CONFIG)
    world.start([gpu(0)], Quota(2, None))
    for pid, who in enumerate(("alice", "bob"), start=1):
        world.observe()
        world.comes(who, pid, Request(1, 14 * GIB), 2, 6)
    assert len(world.state.turns) == 2
    reading = GpuReading(gpu(0).uuid, None, 0)
    (one,) = taken(world.state, Readings(1.0, {str(reading.uuid): reading})).values()
    holders = {
        world.state.leases[name].environment
        for name, turn in world.state.turns.items()
        if turn.phase is TurnPhase.HOLDS
    }
    assert {name for name, part in one.parts.items() if part.computes} == holders
    kept = {name: world.state.reservations[(name, gpu(0).uuid)].memory for name in one.parts}
    shared = world.state.gpus[gpu(0).uuid].shared
    for name, part in one.parts.items():
        assert part.memory == kept[name] + (shared if name in holders else 0)
    assert sum(part.memory for part in one.parts.values()) <= gpu(0).memory
