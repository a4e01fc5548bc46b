"""The samples of the GPUs that people see are bounded, in steps, and name nobody else."""

from __future__ import annotations

import json
import tracemalloc
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.policy_turns import CONFIG, TurnWorld
from support.policy_world import GIB, World, gpu, plain_config, task

from jupyter_gpushare.node.inventory.base import Sensors
from jupyter_gpushare.node.inventory.readings import Readings
from jupyter_gpushare.node.views.samples import LEVELS, MOST_ROWS, OfGpu, Part, Samples, taken
from jupyter_gpushare.node.views.viewer import Viewer
from jupyter_gpushare.policy.words.model import Gpu, GpuReading, ProcessReading, Quota, Request
from jupyter_gpushare.policy.words.turns import TurnPhase

NOW = 1_700_000_000.0
A, B = "GPU-a", "GPU-b"
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


def real(index: int) -> Gpu:
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
    world = shared(real(0))
    (one,) = taken(world.state, measured(GIB, 2 * GIB, used=4 * GIB)).values()
    assert one.parts == {ALICE: Part(GIB, 1.0), BOB: Part(2 * GIB, 0.0)}
    assert (one.rest, one.reserved, one.temperature, one.power) == (GIB, False, 40.0, None)


@pytest.mark.parametrize("simulated", [True, False])
def test_where_use_is_not_known_by_person_it_is_what_is_reserved(simulated: bool) -> None:
    world = shared(gpu(0) if simulated else real(0))
    readings = measured(used=0) if simulated else measured(GIB, None, used=4 * GIB)
    (one,) = taken(world.state, readings).values()
    assert one.reserved
    assert one.parts == {ALICE: Part(8 * GIB, 1.0), BOB: Part(8 * GIB, 0.0)}


def test_a_gpu_that_is_lost_or_unknown_tells_nothing() -> None:
    world = shared(real(0))
    lost, other = GpuReading("GPU-0", "It is lost.", None), GpuReading("GPU-9", None, 0)
    assert taken(world.state, Readings(1.0, {"GPU-0": lost, "GPU-9": other})) == {}


def test_others_are_one_figure_and_never_a_name() -> None:
    world = shared(real(0))
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
