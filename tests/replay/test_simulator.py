"""Each policy does on a trace what a person can follow, and all that is asked adds up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from support.replayed import GIB, Checked, Grant, session

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.words.model import ParkWhen
from jupyter_gpushare.replay.behaviour import (
    FREE,
    TOGETHER,
    Options,
    ParkingCost,
    PolicyName,
    behaviour,
)
from jupyter_gpushare.replay.generate import DAY, Population
from jupyter_gpushare.replay.node import VirtualNode
from jupyter_gpushare.replay.run import (
    Cluster,
    Scan,
    TraceFile,
    Variant,
    assign,
    following,
    replay,
    search,
    works_out,
)
from jupyter_gpushare.replay.tally import Tally, Window
from jupyter_gpushare.replay.trace import Session, write_trace

HOUR = Window(0.0, 1000.0)
FAR = Window(0.0, 5000.0)
QUICK = Options(start_up=0.0, idle_timeout=1.0, cost=FREE)
REAL = [name for name in PolicyName if name is not PolicyName.CLAIRVOYANT]


ALICE = session("alice", 0, 300, (0, 100), (200, 50))
BOB = session("bob", 10, 100, (20, 30))


def play(
    name: PolicyName,
    sessions: Sequence[Session],
    options: Options = QUICK,
    gpus: int = 1,
    window: Window = HOUR,
    *,
    every_tick: bool = False,
) -> tuple[Tally, list[Grant]]:
    node = Checked(gpus, behaviour(name, options), window, every_tick=every_tick)
    return node.play(sessions), node.grants


def delays(tally: Tally) -> tuple[float | None, float | None]:
    """The smallest and the largest."""
    return tally.delay.at(0.0), tally.delay.at(1.0)


@pytest.mark.parametrize(
    ("name", "bound", "worst"),
    [
        # Bob waits for Alice's kernel to end; then it is his, to his own session's end.
        (PolicyName.SESSION, 380, 280),
        (PolicyName.HELD, 380, 280),
        # He waits for her first cell only.
        (PolicyName.BATCH, 180, 80),
        # … and for her to be idle a second; she resumes when he has left.
        (PolicyName.PARK, 281, 81),
        # Her first cell stops at its gate and goes on when his is done.
        (PolicyName.TURNS, 330.4, 30.4),
    ],
)
def test_two_people_and_one_gpu(name: PolicyName, bound: float, worst: float) -> None:
    tally, grants = play(name, [ALICE, BOB])
    assert tally.cells == 3
    assert tally.unreached == 0
    assert tally.bound == pytest.approx(bound)
    assert tally.busy == pytest.approx(180)
    assert tally.asked == pytest.approx(180)
    assert delays(tally) == (0.0, pytest.approx(worst, rel=0.02))
    assert grants[0].session == "alice"
    assert tally.moves == 0


def test_what_parking_costs() -> None:
    cost = ParkingCost(park=2.0, resume=3.0, fixed=1.0)
    options = Options(idle_timeout=1.0, cost=cost)
    alice = session("alice", 0, 300, (0, 100), (200, 50), resident=4 * GIB)
    tally, _grants = play(PolicyName.PARK, [alice, BOB], options)
    # Asked at 101, moved out in 1 + 4 * 2 seconds; moved in again in 1 + 4 * 3.
    assert tally.delay.at(1.0) == pytest.approx(90, rel=0.02)
    assert tally.delay.at(0.5) == pytest.approx(13, rel=0.02)
    assert tally.parks == 1
    assert tally.parked_peak == 4 * GIB
    # From 110 to 213.
    assert tally.parked_mean == pytest.approx(4 * GIB * 103 / 1000)


def test_a_cell_that_comes_while_its_kernel_is_being_parked_runs_after_it() -> None:
    cost = ParkingCost(park=0.0, resume=0.0, fixed=20.0)
    early = session("alice", 0, 300, (0, 100), (110, 50))
    tally, grants = play(PolicyName.PARK, [early, BOB], Options(idle_timeout=1.0, cost=cost))
    # Parked from 101 to 121, then Bob computes to 151, is idle for a second and parked to 172.
    assert [grant.session for grant in grants] == ["alice", "bob", "alice"]
    assert tally.delay.at(1.0) == pytest.approx(101, rel=0.02)
    # Alice: sent at 110, has the GPU at 172, resumed at 192.
    assert tally.delay.at(0.5) == pytest.approx(82, rel=0.02)


def test_who_leaves_while_its_kernel_is_being_parked_is_gone_at_once() -> None:
    cost = ParkingCost(park=0.0, resume=0.0, fixed=20.0)
    alice = session("alice", 0, 105, (0, 100))
    tally, grants = play(PolicyName.PARK, [alice, BOB], Options(idle_timeout=1.0, cost=cost))
    assert [grant.at for grant in grants] == [0.0, pytest.approx(105)]
    assert tally.parks == 0


def test_parking_always_leaves_an_idle_gpu_to_nobody() -> None:
    always = Options(idle_timeout=10.0, cost=FREE, park_when=ParkWhen.ALWAYS)
    tally, _grants = play(PolicyName.PARK, [ALICE], always)
    assert tally.bound == pytest.approx(100 + 10 + 50 + 10)
    assert tally.parks == 2


def test_a_start_up_binds_a_gpu_and_delays_the_cell() -> None:
    tally, _grants = play(PolicyName.BATCH, [ALICE], Options(start_up=7.0))
    assert delays(tally) == (pytest.approx(7, rel=0.02), pytest.approx(7, rel=0.02))
    assert tally.bound == pytest.approx(164)
    assert tally.busy == pytest.approx(150)


def test_the_cells_that_nobody_got_to_count_as_never() -> None:
    """Else one session that starves would be one delayed cell of very many prompt ones."""
    starved = session("carol", 0, 900, *((float(at), 10.0) for at in range(0, 900, 20)))
    tally, _grants = play(
        PolicyName.SESSION, [session("alice", 0, 2000, (0, 10)), starved], window=HOUR
    )
    assert tally.cells == 1 + 45
    # The first of them was sent, and waits; the others were not even sent.
    assert tally.unreached == 44
    assert tally.delay.at(0.95) == float("inf")
    assert tally.served == pytest.approx(10 / 460)
    assert not works_out(tally)


def test_a_backlog_of_the_warm_up_is_not_served_in_the_window() -> None:
    """Else a host that works off what came before would serve more than all."""
    crowd = [session("alice", 0, 200, (0, 100)), session("bob", 0, 200, (0, 100), (150, 50))]
    tally, _grants = play(PolicyName.HELD, crowd, window=Window(100.0, 600.0))
    # Of Bob's first cell nothing was due in the window. Its compute there is busy, not served.
    assert tally.busy == pytest.approx(150)
    assert tally.asked == tally.computed == pytest.approx(50)
    late, _grants = play(PolicyName.HELD, crowd, window=Window(50.0, 260.0))
    # Half of each first cell was due, and more of Bob's was computed: half of it counts.
    assert late.asked == pytest.approx(150)
    assert late.computed == pytest.approx(100)


def test_who_comes_to_a_gpu_or_leaves_it_changes_the_speed_of_the_others() -> None:
    """Alone for 10 s, beside another until that one's 20 s are computed, and alone again."""
    part = 30 * GIB
    crowd = [
        session("long", 0, 500, (0, 100), memory=part),
        session("short", 10, 500, (10, 20), memory=part),
    ]
    tally, _grants = play(PolicyName.HELD, crowd)
    beside = 2 * 20 / TOGETHER
    assert tally.busy == pytest.approx(10 + beside + (100 - 10 - 20))
    assert tally.computed == pytest.approx(120)
    assert tally.computed <= tally.busy


def test_only_what_is_in_the_window_counts() -> None:
    tally, _grants = play(PolicyName.HELD, [ALICE], window=Window(50.0, 220.0))
    # Its first cell was sent before, its second goes on after.
    assert tally.cells == 1
    assert tally.busy == pytest.approx(50 + 20)
    assert tally.bound == pytest.approx(170)
    assert tally.capacity == pytest.approx(170)


def test_what_can_never_be_is_refused_and_said() -> None:
    tally, _grants = play(PolicyName.PARK, [session("a", 0, 10, (0, 5), gpus=2)])
    assert tally.refused == 1
    assert tally.unreached == 0
    assert not works_out(tally)


LONG = session("long", 0, 5000, (0, 2000))


def test_a_cell_of_minutes_moves_to_the_gpu_that_idles() -> None:
    """The short cell that took its turn goes on where it is."""
    crowd = [LONG, session("brief", 0, 900, (5, 50)), session("short", 10, 900, (20, 400))]
    cost = ParkingCost(park=1.0, resume=2.0)
    tally, grants = play(PolicyName.TURNS, crowd, replace(QUICK, cost=cost), gpus=2, window=FAR)
    # At 20 the least served task of GPU 0 had most. GPU 1 is free at 55.
    assert [(grant.session, grant.gpus) for grant in grants] == [
        ("long", (0,)),
        ("brief", (1,)),
        ("short", (0,)),
        ("long", (1,)),
    ]
    assert tally.moves == 1
    # Stopped at the gate 0.25 s after 20, out from 55 on, and in again.
    assert tally.delay.at(1.0) == pytest.approx(55 - 20.25 + 1 + 2, rel=0.02)
    assert tally.delay.at(0.5) == pytest.approx(0.45, rel=0.02)


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        # The cell of 400 s has to end, or to have twice what the long one had.
        ({"moves": False}, 40.4),
        ({"movable": 0.0}, 40.4),
    ],
)
def test_who_cannot_be_moved_waits_for_a_turn(options: dict[str, object], waits: float) -> None:
    crowd = [LONG, session("brief", 0, 900, (5, 50)), session("short", 10, 900, (20, 40))]
    tally, _grants = play(PolicyName.TURNS, crowd, replace(QUICK, **options), gpus=2, window=FAR)
    assert tally.moves == 0
    assert tally.delay.at(1.0) == pytest.approx(waits, rel=0.02)


def test_who_waits_at_a_gate_does_not_end_meanwhile() -> None:
    """When his turn comes she has 5 s left, and he computes for longer."""
    alice, bob = session("alice", 0, 300, (0, 25)), session("bob", 10, 300, (20, 100))
    tally, _grants = play(PolicyName.TURNS, [alice, bob])
    assert tally.busy == pytest.approx(125)


FIRST = (("a", 0), ("b", 10))


def test_one_transfer_at_a_time_goes_over_a_link() -> None:
    """Two kernels that made room for a large one come back to the GPU at the same time."""
    crowd = [session(n, at, 900, (at, 2), (500, 2), resident=30 * GIB) for n, at in FIRST]
    crowd.append(session("large", 100, 300, (100, 50), resident=70 * GIB))
    cost = ParkingCost(park=0.0, resume=0.1)
    tally, _grants = play(PolicyName.TURNS, crowd, replace(QUICK, cost=cost))
    assert tally.parks == 2
    # Each takes three seconds, and then the second one takes the turn over.
    assert tally.delay.at(1.0) == pytest.approx(6.2, rel=0.02)


# -- what always holds -----------------------------------------------------------------------


@st.composite
def crowds(draw: st.DrawFn) -> list[Session]:
    sessions = []
    for number in range(draw(st.integers(1, 6))):
        at = start = draw(st.integers(0, 200))
        cells = []
        for _ in range(draw(st.integers(0, 4))):
            at += draw(st.integers(0, 60))
            length = draw(st.integers(1, 120))
            cells.append((float(at), float(length)))
            at += draw(st.integers(0, length))
        sessions.append(
            session(
                f"s{number}",
                float(start),
                float(at + draw(st.integers(0, 50))),
                *cells,
                gpus=draw(st.integers(1, 2)),
                memory=draw(st.sampled_from([None, 30 * GIB])),
                resident=draw(st.sampled_from([1, 30, 60])) * GIB,
            )
        )
    return sorted(sessions, key=lambda one: one.start)


costs = st.sampled_from([FREE, ParkingCost(1.0, 2.0, 0.5), ParkingCost(0.0, 0.0, 15.0)])


@settings(max_examples=60)
@given(
    crowds(),
    st.sampled_from(REAL),
    costs,
    st.sampled_from(list(ParkWhen)),
    st.sampled_from([1.0, 30.0]),
)
def test_everything_is_served_and_adds_up(
    crowd: list[Session],
    name: PolicyName,
    cost: ParkingCost,
    when: ParkWhen,
    idle_timeout: float,
) -> None:
    options = Options(3.0, idle_timeout, when, cost)
    window = Window(0.0, 1e6)
    tally, grants = play(name, crowd, options, gpus=2, window=window)
    again, same = play(name, crowd, options, gpus=2, window=window)
    assert (tally, grants) == (again, same), "not deterministic"
    assert tally.cells == sum(len(one.submits) for one in crowd)
    assert tally.unreached == 0
    assert tally.delay.infinite == 0, "somebody never ran though there was all the time"
    assert tally.busy <= tally.bound + 1e-6
    assert tally.bound <= tally.capacity
    assert tally.computed == pytest.approx(tally.asked)
    if all(one.memory is None for one in crowd):
        assert tally.busy == pytest.approx(tally.asked)


@settings(max_examples=40)
@given(crowds(), st.sampled_from([PolicyName.HELD, PolicyName.PARK]), costs)
def test_ticks_that_are_left_out_change_no_grant(
    crowd: list[Session], name: PolicyName, cost: ParkingCost
) -> None:
    """The simulator sends far fewer ticks than the product; it grants the same."""
    options = Options(idle_timeout=7.0, cost=cost)
    window = Window(0.0, 3000.0)
    fewer = play(name, crowd, options, gpus=2, window=window)[1]
    every = play(name, crowd, options, gpus=2, window=window, every_tick=True)[1]
    assert [(g.session, g.gpus) for g in fewer] == [(g.session, g.gpus) for g in every]
    for one, other in zip(fewer, every, strict=True):
        assert one.at == pytest.approx(other.at, abs=1.01)


@settings(max_examples=40)
@given(crowds())
def test_the_clairvoyant_computes_everything_and_sooner(crowd: list[Session]) -> None:
    from jupyter_gpushare.replay.ideal import Ideal

    window = Window(0.0, 1e6)
    ideal = Ideal(2, window)
    for one in crowd:
        ideal.run_until(one.start)
        ideal.add(one)
    best = ideal.finish()
    assert best.cells == sum(len(one.submits) for one in crowd)
    assert best.delay.infinite == 0
    assert best.busy == pytest.approx(best.asked) == pytest.approx(best.computed)
    if sum(one.gpus for one in crowd) <= 2:
        assert best.prompt == best.cells


def test_a_month_of_a_crowded_host_leaves_nothing_behind() -> None:
    population = Population(14, days=20, seed=2)
    window = Window(0.0, population.seconds)
    node = VirtualNode(8, behaviour(PolicyName.PARK, QUICK), window)
    sizes = []
    for one in population.sessions():
        if one.start < window.end:
            node.run_until(one.start)
            node.add(one)
            sizes.append((len(node._open), len(node._heap), len(node.state.leases)))
    tally = node.finish()
    core.check(node.state)
    assert tally.cells > 1000
    assert max(size for row in sizes for size in row) < 200


def test_processes_share_the_hosts_and_find_the_same(tmp_path: Path) -> None:
    population = Population(12, days=1.5, seed=4)
    path = tmp_path / "trace.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        write_trace(population.sessions(), file)
    cluster, window = Cluster(11, node_gpus=4), Window(0.0, 1.5 * DAY)
    assert cluster.nodes == (4, 4, 3)
    variants = [Variant(name.value, name, QUICK) for name in PolicyName]
    alone = replay(population, cluster, window, variants)
    shared = replay(TraceFile(path), cluster, window, variants, workers=2)
    for one, other in zip(alone, shared, strict=True):
        assert one.cells == other.cells
        assert one.delay.bins == other.delay.bins
        assert one.bound == pytest.approx(other.bound)
        assert one.gpus == other.gpus == 11


def test_sessions_are_spread_and_stay() -> None:
    crowd = [session(f"s{n}", 0, 10 + n) for n in range(6)]
    crowd.append(session("big", 11, 20, gpus=4))
    crowd.append(session("late", 12, 20))
    placed = {one.name: node for node, one in assign(crowd, (4, 4))}
    assert [placed[f"s{n}"] for n in range(6)] == [0, 1, 0, 1, 0, 1]
    # At 11 the two on the first have ended that end first.
    assert placed["big"] == 0
    assert placed["late"] == 1


def test_a_scan_counts_what_is_asked() -> None:
    scan = Scan.of([ALICE, session("b", 10, 50, gpus=3)])
    assert (scan.sessions, scan.cells, scan.end) == (2, 2, 300.0)
    assert Scan.of([ALICE, BOB], until=150).cells == 2
    assert scan.open_seconds == 340
    assert scan.open_gpu_seconds == 420


@given(st.integers(1, 50), st.integers(0, 60), st.integers(-5, 70))
def test_the_search_finds_the_most(low: int, width: int, truth: int) -> None:
    high = low + width
    works: dict[int, bool] = {}
    while (count := following(works, low, high)) is not None:
        assert low <= count <= high
        assert count not in works
        works[count] = count <= truth
        assert len(works) < 24
    best = max((count for count, well in works.items() if well), default=None)
    assert best == (min(truth, high) if truth >= low else None)


def test_people_who_fare_better_where_fewer_fared_worse_are_found() -> None:
    fails = {14, 16, 17}
    works: dict[int, bool] = {}
    while (count := following(works, 8, 40)) is not None:
        works[count] = count not in fails and count < 20
    # The bisection alone ends between 15 and 16.
    assert {13, 14, 15, 16} <= works.keys()
    assert not works[14]
    assert works[15]


def test_session_binding_serves_one_person_for_each_gpu() -> None:
    """The measure itself: with one session too many people wait for ever, and it is seen."""
    found = search(
        Variant("session", PolicyName.SESSION), Population(0, days=6), Cluster(8), 1, 6, 12
    )
    assert {people for people, tally in found.items() if works_out(tally)} <= {6, 7, 8}
    assert works_out(found[8])
    assert not works_out(found[9])
