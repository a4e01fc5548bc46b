"""A reservation follows estimate and measurement, and grows or shrinks for who needs it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.policy_world import GIB, World, gpu, plain_config

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.placement import GpuRoom, Granted, NoRoom, place
from jupyter_gpushare.policy.recall import growing
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.config import MIB
from jupyter_gpushare.policy.words.model import (
    Activity,
    Allocation,
    Estimate,
    Quota,
    Request,
    Reserve,
    Rung,
)
from jupyter_gpushare.policy.words.recalls import RecallPhase, Why
from jupyter_gpushare.policy.words.turns import Figures

ZERO = gpu(0).uuid
LIVE = Request(live=True)


def expects(gib: float, runs: int = 2) -> Request:
    """A request of code that needed ``gib`` GiB so far."""
    return Request(live=True, estimate=Estimate(int(gib * GIB), runs))


def world(reserve: Reserve = Reserve.ESTIMATE, quota: int | None = None, **more: Any) -> World:
    """One GPU of 24 GiB; head-room is a quarter, 1 GiB at least, however little is known."""
    head = {"reserve_headroom": 0.25, "reserve_headroom_least": GIB, "reserve_doubt": 0.0}
    parts: dict[str, Any] = {**head, "measure_granularity": MIB, "heartbeat_timeout": 1e6, **more}
    config = plain_config(reserve=reserve, **parts)
    most = None if quota is None else quota * GIB
    return World(config).start([gpu(0)], Quota(1, most))


def uses(world: World, pid: int, gib: float) -> None:
    world.memory[(pid, ZERO)] = int(gib * GIB)
    world.look()


def measured(
    gib: float, reserve: Reserve = Reserve.QUOTA, asks: Request = LIVE, **more: Any
) -> World:
    """Alice's kernel was measured to use so much in its first cell, which has ended."""
    one = world(reserve, **more)
    one.request("alice", 1, asks)
    uses(one, 1, gib)
    one.idle("L1")
    one.look()
    return one


def told(world: World) -> list[ev.LimitMoved]:
    return [event for event in world.of(ev.LimitMoved) if event.live is None]


@pytest.mark.parametrize(
    ("reserve", "asks", "gib", "books"),
    [
        (Reserve.WHOLE, expects(4), 2, (24, 24)),  # the default: an estimate changes nothing
        (Reserve.ESTIMATE, replace(expects(4), memory=20 * GIB), 2, (20, 20)),
        (Reserve.QUOTA, Request(), 8, (24, 24)),  # nothing says that its limit can be lowered
        (Reserve.ESTIMATE, replace(expects(4), live=False), 2, (24, 24)),
        (Reserve.QUOTA, LIVE, 1, (2, 24)),  # the least head-room
    ],
)
def test_what_is_reserved_once_a_first_cell_was_measured(
    reserve: Reserve, asks: Request, gib: int, books: tuple[int, int]
) -> None:
    one = measured(gib, reserve, asks)
    assert one.books() == books
    assert not told(one)
    assert asks.memory is None or one.state.leases["L1"].request.reserve is None


def test_a_framework_whose_limit_turns_out_to_be_fixed_keeps_a_plain_reservation() -> None:
    one = world()
    one.request("alice", 1, replace(expects(4), live=None))
    assert one.books()[0] == 5
    one.says("L1", cmd.ConfirmLimit, (), False)
    uses(one, 1, 2)
    one.idle("L1")
    one.look()
    assert one.books() == (24, 24)


def test_nothing_is_lowered_before_the_first_cell_ends_and_nobody_is_told_then() -> None:
    for reserve in (Reserve.QUOTA, Reserve.ESTIMATE):
        one = world(reserve)
        one.request("alice", 1, LIVE)
        uses(one, 1, 8)
        assert one.books() == (24, 24), "its first cell may need more yet"
        one.idle("L1")
        one.look()
        assert one.books() == (10, 24), "a peak of 8 and a quarter of it"
        assert one.may_use() == 24
        assert not told(one)
        uses(one, 1, 3)
        assert one.books() == (10, 24), "the peak counts"
        uses(one, 1, 12)
        assert one.books() == (15, 24), "it grows within what is reserved"
        assert not told(one)


def alone_on_it() -> World:
    """Alice's quota is a whole GPU, of which she was measured to use 8 GiB; others' is a half."""
    one = world(Reserve.QUOTA, quota=12, burst_headroom=0.0)
    one.set_quota("alice", Quota(1))
    one.request("alice", 1, LIVE)
    uses(one, 1, 8)
    one.idle("L1")
    one.look()
    return one


def test_who_waits_gets_what_is_lifted_told_answered_measured() -> None:
    """Never below what is used and head-room; and the other's part of the rest is shared."""
    one = alone_on_it()
    assert isinstance(one.request("bob", 2, LIVE), core.Wait)
    assert one.may_use() == 12, "told at once"
    one.look()
    assert one.books() == (10, 24), "and nothing is taken before it answered"
    one.answers("L1")
    one.look()
    assert (one.phase("L2"), one.books()) == ("held", (10, 12))
    assert isinstance(one.request("carol", 3, LIVE), core.Wait)
    one.answers("L1") if one.may_use() < 12 else None
    for _ in range(30):
        one.look()
    assert one.books()[0] == 10, "what it uses and head-room are never asked"
    assert one.may_use() >= 10


def test_no_limit_is_below_what_a_task_is_entitled_to_also_on_a_gpu_out_of_service() -> None:
    one = alone_on_it()
    one.request("bob", 2, LIVE)
    assert one.may_use() == 12
    one.drain()
    uses(one, 1, 12)
    assert (one.books()[0], one.may_use()) == (15, 15)


def moves_out(world: World, gib: int) -> None:
    """Alice's kernel is parked by the driver."""
    world.plan("L1", gib * GIB)
    world.gives("L1", Rung.DRIVER, gib * GIB)
    world.memory.clear()
    world.look()


def cell(world: World, seconds: float = 10.0) -> None:
    """Alice's kernel computes for so long with what it has."""
    world.says("L1", cmd.SetActivity, Activity.BUSY)
    world.look(seconds)
    world.idle("L1")
    world.look()


def test_while_little_is_known_more_head_room_is_kept() -> None:
    """Three times the peak after a first cell, half of that after two; at last a quarter."""
    one = measured(4, reserve_doubt=3.0)
    assert one.books() == (16, 24)
    for _ in range(3):
        cell(one, 1.0)
    assert one.books()[0] == 16, "cells that were not measured tell nothing"
    wanted = [10, 8, 7, 6.4, 6]
    for after in wanted:
        cell(one)
        assert one.books()[0] == pytest.approx(after, abs=0.01)
    for _ in range(20):
        cell(one)
    assert one.books()[0] == 5


def test_steps_tell_as_much_as_cells_and_a_parked_task_comes_back_with_its_doubt() -> None:
    one = world(Reserve.QUOTA, reserve_doubt=3.0, idle_timeout=5.0)
    one.request("alice", 1, LIVE)
    uses(one, 1, 4)
    figures = (Figures(ZERO, 2 * GIB, 2 * GIB, 0),)
    for steps, entitled in ((1, 24), (2, 16), (3, 16), (4, 8), (50, 5)):
        one.says("L1", cmd.ReportMemory, figures, steps)
        one.look()
        assert one.books()[0] == entitled
    other = measured(4, reserve_doubt=3.0, idle_timeout=5.0)
    moves_out(other, 4)
    other.request("bob", 2, Request(memory=9 * GIB))
    other.resume("L1")
    assert other.phase("L1") == "parked", "16 GiB would be too much beside 9: it waits"
    other.die(2)
    other.look()
    assert (other.phase("L1"), other.books()[0]) == ("held", 16)


def test_the_more_runs_there_were_the_less_doubt_there_is() -> None:
    sizes = []
    for runs in (2, 6, 20):
        one = world(reserve_doubt=3.0)
        one.request("alice", 1, expects(4, runs))
        sizes.append(one.books()[0])
    assert sizes == [10, 6, 5]


def test_an_estimate_is_granted_with_head_room_and_lifted_at_once() -> None:
    one = world()
    one.request("alice", 1, expects(8))
    assert one.books()[0] == 10
    assert one.may_use() == pytest.approx(24 - 2.4, abs=0.3), "all but the head-room of lifts"
    assert isinstance(one.request("bob", 2, expects(4)), core.Wait)
    one.answers("L1")
    one.look()
    assert one.phase("L2") == "held"
    assert one.books("bob")[0] == 5
    assert one.books()[0] == 10, "an estimate is not lowered by a measurement"
    uses(one, 1, 2)
    one.idle("L1")
    one.look()
    assert one.books()[0] == 10


def test_one_that_grows_beyond_its_estimate_grows_where_there_is_room() -> None:
    one = world(quota=20, burst_headroom=1.0)
    one.request("alice", 1, expects(4))
    assert (one.books(), one.may_use()) == ((5, 5), 5), "the head-room is the whole GPU: no lifts"
    uses(one, 1, 5)
    assert (one.books(), one.may_use()) == ((6.25, 6.25), 6.25)
    one.request("bob", 2, replace(LIVE, memory=16 * GIB))
    uses(one, 1, 6.25)
    assert (one.books(), one.may_use()) == ((7.8125, 7.8125), 7.8125)
    uses(one, 1, 7.75)
    assert (one.books(), one.may_use()) == ((8, 8), 8), "as far as there is room"


def test_the_sum_of_an_environments_tasks_is_covered() -> None:
    """Estimates add up to the quota at most, and what is named beside them has its own."""
    one = world(quota=16, burst_headroom=1.0)
    one.request("alice", 1, expects(4))
    one.request("alice", 2, expects(4))
    assert one.books() == (10, 10)
    assert (one.may_use("L1"), one.may_use("L2")) == (10, 10), "they share it, as tasks always do"
    one.request("alice", 3, Request(memory=4 * GIB))
    assert one.books() == (14, 14)
    one.request("alice", 4, expects(8))
    assert one.books() == (16, 16), "the quota bounds them together"
    one.die(4)
    one.look()
    assert one.books()[0] == 14
    one.die(3)
    one.look()
    assert one.books()[0] == 10


def test_a_second_task_without_estimate_has_what_the_quota_gives() -> None:
    one = measured(4, Reserve.ESTIMATE, quota=16)
    assert one.books() == (5, 16)
    one.request("alice", 2, LIVE)
    assert one.books() == (16, 16)
    assert (one.may_use("L1"), one.may_use("L2")) == (16, 16)


def beside(most: int = 2, **more: Any) -> World:
    """Alice computes with 5 of 24 GiB, and the others' kernels are idle; nothing is lifted."""
    one = world(**{"idle_timeout": 1800.0, "burst_headroom": 1.0, **more})
    one.request("alice", 1, expects(4))
    sizes = {"bob": 19} if most == 1 else {"bob": 10, "carol": 9}
    for pid, (who, gib) in enumerate(sizes.items(), 2):
        one.request(who, pid, Request(memory=gib * GIB))
        one.idle(f"L{pid}")
        one.at += 1.0
    one.look(0.5)
    return one


def waits(world: World, seconds: int) -> None:
    for _ in range(seconds):
        world.tick(1.0)
        world.observe()


def test_who_needs_more_than_is_left_has_the_longest_idle_neighbours_memory() -> None:
    """10 + 9 GiB are its neighbours'; the first one that became idle is enough."""
    one = beside()
    uses(one, 1, 5)
    assert one.books() == (5, 5), "no room"
    assert one.state.reservations[("alice", ZERO)].short == int(1.25 * GIB)
    waits(one, 55)
    assert not one.asked_back(), "not before it was idle for a minute"
    waits(one, 4)
    assert one.asked_back() == ["L2"], "and no more than is needed"
    recall = one.state.memory_recall("L2")
    assert recall.why is Why.GROWS
    assert recall.keep[0].memory == int(8.75 * GIB), "what is not needed may stay"
    waits(one, 5)
    assert one.asked_back() == ["L2"], "its memory is on its way"
    one.gives("L2", Rung.DRIVER, 0)
    one.look()
    assert one.books() == (6.25, 6.25)
    assert one.may_use() == 6.25, "and it is told"
    assert not one.state.is_short
    waits(one, 200)
    assert one.asked_back() == ["L2"]


def test_nobody_is_asked_where_that_would_not_be_enough() -> None:
    one = world(idle_timeout=1800.0, burst_headroom=1.0)
    one.request("alice", 1, expects(4))
    one.request("bob", 2, Request(memory=GIB))
    one.idle("L2")
    one.request("carol", 3, Request(memory=18 * GIB))
    uses(one, 1, 5)
    assert one.books() == (5, 5), "6.25 GiB are needed, and Carol computes"
    waits(one, 200)
    assert one.state.is_short
    assert not one.asked_back()
    assert not [*growing.neighbours(one.state, one.config)], "and nobody looks again for that"


def test_nobody_is_asked_where_nobody_computes_or_who_may_be_idle_for_ever() -> None:
    one, other = beside(), beside(1, idle_timeout=0.0)
    uses(one, 1, 5)
    one.idle("L1")
    waits(one, 100)
    assert not one.asked_back(), "who needed more is idle now"
    uses(other, 1, 5)
    waits(other, 200)
    assert not other.asked_back()


def test_its_people_are_warned_and_may_keep_it() -> None:
    one = beside(1, notify_before=30.0)
    uses(one, 1, 5)
    waits(one, 40)
    assert one.asked_back(RecallPhase.WARNED) == ["L2"]
    assert not one.asked_back()
    one.run(cmd.Pin(one.at, "L2", "bob", None))
    waits(one, 100)
    assert not one.asked_back(), "Keep holds"
    assert one.books() == (5, 5), "and Alice has what she had"
    waits(one, 900)
    assert one.asked_back()[:1] == ["L2"], "when the time is over that they kept it for"


def test_what_is_lifted_comes_back_before_anybody_is_parked() -> None:
    one = world(burst_headroom=0.0, idle_timeout=1800.0, burst_memory=1.0)
    one.request("bob", 1, Request(memory=4 * GIB))
    one.look()
    one.answers("L1")
    one.request("alice", 2, expects(4))
    one.answers("L1")
    one.look()
    one.idle("L1")
    waits(one, 40)
    had = one.may_use("L1")
    assert (had, one.may_use("L2")) == (11.5, 12.5), "it is lifted, too, and idle"
    uses(one, 2, one.may_use("L2"))
    for _ in range(10):
        uses(one, 2, one.may_use("L2"))
        if one.state.claims[("L1", ZERO)].limit.began is not None:
            one.answers("L1")
    assert one.may_use("L1") < had
    assert one.books("alice")[1] + one.may_use("L1") == 24, "what one gave the other has"
    assert not one.asked_back()
    for _ in range(60):
        uses(one, 2, one.may_use("L2"))
        one.tick(0.0)
        if one.state.claims[("L1", ZERO)].limit.began is not None:
            one.answers("L1")
    assert one.may_use("L1") == 4, "all that was lifted"
    assert one.books("alice")[0] == 20
    assert one.asked_back()[:1] == ["L1"]


def test_the_request_goes_before_the_quota_and_that_before_the_node() -> None:
    one = world(Reserve.WHOLE)
    one.set_quota("alice", Quota(1, reserve=Reserve.ESTIMATE))
    one.request("alice", 1, expects(4))
    assert one.books()[0] == 5
    one.die(1)
    one.look()
    one.request("alice", 2, replace(expects(4), reserve=Reserve.WHOLE))
    assert one.books() == (24, 24)


def test_placement_wants_the_smaller_of_quota_and_estimate() -> None:
    room = GpuRoom(ZERO, 0, 24 * GIB, 8 * GIB, 1, expected=6 * GIB)
    granted = place([room], Quota(1, 10 * GIB), 1, None, 4)
    assert granted == Granted((Allocation(ZERO, 6 * GIB),))
    assert isinstance(place([room._replace(expected=None)], Quota(1, None), 1, None, 4), NoRoom)
    named = place([room], Quota(1, None), 1, 9 * GIB, 4)
    assert isinstance(named, NoRoom), "what is named is what is wanted"


# -- predictions -----------------------------------------------------------------------------------


def steps(world: World, count: int) -> None:
    world.says("L1", cmd.ReportProgress, count, None, 1.0)


def test_a_prediction_is_reserved_as_it_is_until_the_second_step() -> None:
    for measured in (3, 16):
        one = world()
        one.request("alice", 1, expects(8, runs=0))
        assert one.books()[0] == 8, "it has head-room in itself"
        uses(one, 1, 3)
        one.idle("L1")
        one.look()
        assert one.books()[0] == 8, "a cell that made the model is no reason to think less"
        uses(one, 1, measured)
        steps(one, 1)
        one.look()
        assert one.books()[0] == max(8, 1.25 * measured), "more than predicted counts at once"
        steps(one, 2)
        one.look()
        assert one.books()[0] == max(4, 1.25 * measured), "with the head-room of a measurement"


def test_a_prediction_is_nothing_where_the_whole_is_reserved() -> None:
    for reserve in (Reserve.WHOLE, Reserve.QUOTA):
        one = world(reserve)
        one.request("alice", 1, expects(8, runs=0))
        assert one.books() == (24, 24)
