"""A waiting request is told what it can expect, and nothing where nobody can tell."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.policy_moves import budgets, held_by, lazy
from support.policy_world import GIB, World, gpu, is_asked

from jupyter_gpushare.policy.recall import outlook
from jupyter_gpushare.policy.recall.outlook import (
    Basis,
    Estimate,
    Outlook,
    Start,
    Stop,
    by_waits,
    of_newcomer,
)
from jupyter_gpushare.policy.words.model import (
    PriorityClass,
    Quota,
    Request,
)

RECENT = {PriorityClass.INTERACTIVE: (100.0, 200.0, 300.0, 400.0, 500.0)}


def of(world: World, lease: str, recent: outlook.Recent | None = None) -> Outlook:
    found = outlook.outlooks(world.state, world.config, world.at, recent or {})
    return found[lease]


def test_an_idle_kernel_is_what_who_waits_waits_for() -> None:
    world = held_by("alice", "bob")
    world.request("carol", 3)
    assert of(world, "L3") == Outlook(None, None, 60.0), "nobody is idle, and nothing is known"
    world.at += 10
    world.idle("L2")
    world.at += 12
    told = of(world, "L3")
    assert told.estimate == Estimate(48.0, 48.0, Basis.IDLE)
    assert told.idle is not None
    assert (told.idle.lease, told.idle.idle, told.idle.after, told.idle.left) == (
        "L2",
        12.0,
        60.0,
        48.0,
    )
    # It comes true, if bob stays away.
    world.tick(48)
    assert is_asked(world.state, "L2")


def test_a_batch_program_that_makes_way_is_told_with_the_time() -> None:
    stops = Request(priority_class=PriorityClass.BATCH, stops=True)
    world = lazy(2, stop_after=300.0)
    world.request("bob", 1, stops)
    world.at += 100
    world.request("dan", 2, Request(priority_class=PriorityClass.BATCH))
    world.request("alice", 3)
    world.request("carol", 4)
    world.request("eve", 5, stops)
    assert of(world, "L3").stop == Stop("L1", 200.0), "dan's cannot save its state"
    assert of(world, "L4").stop is None, "one program makes way for one"
    assert of(world, "L5").stop is None, "and for nobody who is batch"
    world.tick(200)
    assert of(world, "L3").stop == Stop("L1", 0.0), "it is asked"


def test_each_who_waits_gets_another_kernels_gpu() -> None:
    world = held_by("alice", "bob")
    world.idle("L1")
    world.at += 20
    world.idle("L2")
    for number in (3, 4, 5):
        world.request(f"waiting-{number}", number)
    found = [of(world, f"L{number}").idle for number in (3, 4, 5)]
    assert [one and (one.lease, one.left) for one in found] == [("L1", 40.0), ("L2", 60.0), None]


def test_its_people_are_told_first_and_what_they_keep_is_waited_for() -> None:
    world = lazy(1, notify_before=30.0)
    world.request("alice", 1)
    world.idle("L1")
    world.request("bob", 2)
    told = of(world, "L2").idle
    assert told.left == 60.0, "it is warned after 30 s and asked after 60"
    world.pin("L1", 600.0)
    pinned = of(world, "L2").idle
    assert pinned.left == 600.0


def test_recent_waits_tell_where_nobody_is_idle_and_shorten_what_is_told_of_who_is() -> None:
    world = lazy(1)
    world.request("alice", 1)
    world.request("bob", 2)
    assert of(world, "L2", RECENT).estimate == Estimate(200.0, 400.0, Basis.WAITS)
    world.at += 150
    assert of(world, "L2", RECENT).estimate == Estimate(150.0, 250.0, Basis.WAITS), "4 waited more"
    world.idle("L1")
    short = {PriorityClass.INTERACTIVE: (150.5, 155.0, 160.0, 170.0)}
    assert of(world, "L2", short).estimate == Estimate(5.0, 60.0, Basis.IDLE)
    batch = {PriorityClass.BATCH: RECENT[PriorityClass.INTERACTIVE]}
    assert of(world, "L2", batch).estimate == Estimate(60.0, 60.0, Basis.IDLE), "another class"


def test_a_spent_budget_is_waited_for_and_no_kernel() -> None:
    world = budgets(1.0)
    world.request("bob", 1)
    world.spends("alice", 1.5)
    world.request("alice", 2)
    told = of(world, "L2", RECENT)
    assert told.idle is None
    assert told.estimate is None or told.estimate.basis is Basis.BUDGET


@given(
    st.lists(st.floats(0, 1e6), max_size=30),
    st.floats(0, 1e6),
)
def test_an_estimate_is_a_range_of_what_really_happened(waited: list[float], so_far: float) -> None:
    estimate = by_waits(sorted(waited), so_far)
    longer = [seconds - so_far for seconds in waited if seconds > so_far]
    if estimate is None:
        assert len(longer) < outlook.FEWEST_WAITS
    else:
        assert min(longer) <= estimate.low <= estimate.high <= max(longer)


def test_an_outlook_costs_nothing_while_nobody_is_idle_and_a_bounded_work_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = 0
    real = outlook.plan.fits_without

    def counted(*arguments: Any) -> bool:
        nonlocal calls
        calls += 1
        return real(*arguments)

    monkeypatch.setattr(outlook.plan, "fits_without", counted)
    world = lazy(40)
    for number in range(40):
        world.request(f"holder-{number}", number + 1)
    for number in range(30):
        world.request(f"waiting-{number}", 100 + number)
    of(world, "L41")
    assert calls == 0
    for number in range(40):
        world.idle(f"L{number + 1}")
    of(world, "L41")
    assert 0 < calls <= 2 * outlook.plan.HELPED * outlook.MOST_IDLE


# -- a request that nobody has made yet --------------------------------------------------------


def newcomer(
    world: World, gib: int, who: str = "zoe", recent: outlook.Recent | None = None, gpus: int = 2
) -> tuple[Start, Estimate | None]:
    some = frozenset(gpu(number).uuid for number in range(gpus))
    name, memory = who, gib * GIB
    return of_newcomer(
        world.state,
        world.config,
        world.at,
        recent or {},
        name,
        memory,
        some & set(world.state.gpus),
    )


def test_a_newcomer_starts_now_where_a_real_one_would() -> None:
    world = lazy(2)
    assert newcomer(world, 8) == (Start.NOW, None)
    assert newcomer(world, 25) == (Start.TOO_LARGE, None)
    world.request("alice", 1)
    assert newcomer(world, 24) == (Start.NOW, None)
    assert newcomer(world, 24, gpus=1) == (Start.WAITS, None), "that one is alice's"
    world.request("bob", 2)
    assert newcomer(world, 1) == (Start.WAITS, None), "and nobody can tell how long"
    assert newcomer(world, 1, recent=RECENT) == (
        Start.WAITS,
        Estimate(200.0, 400.0, Basis.WAITS),
    )
    assert newcomer(world, 8, "alice", gpus=1) == (Start.NOW, None), "she holds it already"
    assert newcomer(world, 8, "alice") == (Start.NOW, None)
    world.idle("L1")
    world.at += 10
    assert newcomer(world, 1) == (Start.WAITS, Estimate(50.0, 50.0, Basis.IDLE))


def test_a_newcomer_hears_of_its_quota_its_budget_and_who_is_urgent() -> None:
    small = World().start([gpu(0)], Quota(1, 8 * GIB), none=Quota(0, None))
    assert newcomer(small, 9) == (Start.OVER_QUOTA, None)
    assert newcomer(small, 1, "none") == (Start.OVER_QUOTA, None)
    poor = budgets(1.0)
    poor.request("zoe", 1)
    poor.spends("zoe", 1.5)
    starts, wait = newcomer(poor, 1)
    assert starts is Start.WAITS
    assert wait is None or wait.basis is Basis.BUDGET
