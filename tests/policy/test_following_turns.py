"""On GPUs by turns a reservation follows what is measured, down as well as up."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support.policy_turns import Actor, FollowingTurns, TurnWorld
from support.policy_world import GIB, gpu, is_asked_back

from jupyter_gpushare.policy.books import shares
from jupyter_gpushare.policy.turns import order
from jupyter_gpushare.policy.words.config import MIB
from jupyter_gpushare.policy.words.model import (
    Estimate,
    LeasePhase,
    Quota,
    Request,
    Reserve,
)
from jupyter_gpushare.policy.words.turns import TurnPhase

UUID = gpu(0).uuid


def world(**more: Any) -> TurnWorld:
    """One GPU of 24 GiB by turns; head-room is a quarter, 1 GiB at least."""
    parts = {"reserve": Reserve.ESTIMATE, "idle_timeout": 0.0, "min_idle": 0.0, **more}
    config = dataclasses.replace(
        FollowingTurns.config,
        reserve_headroom=0.25,
        reserve_headroom_least=GIB,
        reserve_doubt=0.0,
        measure_granularity=MIB,
        turn_offset=0,
        **parts,
    )
    made = TurnWorld(config)
    made.start([gpu(0)], Quota(2, None))
    return made


def comes(
    at: TurnWorld,
    who: str,
    pid: int,
    expected: float | None,
    kept: float,
    step: float,
    **named: Any,
) -> Actor:
    """Somebody asks, by earlier runs; sizes in GiB."""
    known = None if expected is None else Estimate(int(expected * GIB), 3)
    memory = int(named["memory"] * GIB) if named else None
    request = Request(1, memory, live=True, estimate=known)
    return at.comes(who, pid, request, kept, step, wait=True, steps=0)


def phase(at: TurnWorld, actor: Actor) -> LeasePhase:
    return at.state.leases[actor.lease].phase


def trains(at: TurnWorld, seconds: int) -> None:
    for second in range(seconds):
        at.everybody()
        if second % 2:
            at.observe()


def squeezed(kept: int = 8, step: int = 4, memory: float = 10) -> tuple[TurnWorld, Actor, Actor]:
    """Alice needs 8 + 4 GiB, Bob named 10: they fit only as one computes at a time."""
    at = world()
    alice = comes(at, "alice", 1, None, kept=kept, step=step)
    trains(at, 6)
    assert at.books("alice")[0] == 15
    bob = comes(at, "bob", 2, None, kept=3, step=5, memory=memory)
    trains(at, 30)
    assert phase(at, bob) is LeasePhase.HELD, "it fits by turns when the lift is back"
    assert alice.lease in at.state.gpus[UUID].shares
    return at, alice, bob


def test_what_a_task_keeps_follows_down_when_it_was_measured_at_its_gate() -> None:
    at, alice, bob = squeezed()
    before = at.state.gpus[UUID].reserved
    alice.persistent = 4 * GIB
    lowered = [0]
    for _ in range(120):
        trains(at, 2)
        lowered.append(shares.current(at.state, UUID)[0].persistent if at.state.regions else 0)
        turn = at.state.turns.get(alice.lease)
        if lowered[-1] == 5 * GIB and lowered[-2] == 10 * GIB:
            assert turn.phase is TurnPhase.WAITS, "it is told with its next turn"
    assert 5 * GIB in lowered or not at.state.gpus[UUID].shares
    assert at.state.gpus[UUID].reserved != before
    assert phase(at, bob) is LeasePhase.HELD


def test_it_is_not_lowered_while_it_computes() -> None:
    """It may use all that it was told, whatever it says and was measured to have."""
    at, alice, _bob = squeezed()
    while at.state.turns[alice.lease].phase is not TurnPhase.HOLDS:
        trains(at, 1)
    alice.persistent = 4 * GIB
    at.train(alice, 1)
    at.begin_step(alice)
    at.look(1.0)
    assert at.state.turns[alice.lease].phase is TurnPhase.HOLDS
    assert share(at, alice) == 10
    at.end_step(alice)
    trains(at, 60)
    assert share(at, alice) == 5


def share(at: TurnWorld, actor: Actor) -> float:
    return at.state.gpus[UUID].shares[actor.lease].persistent / GIB


def test_what_it_keeps_follows_up_with_head_room_where_there_is_room_for_that() -> None:
    """Alice keeps 4 and needs 8 for a step, Bob named 10: 5 + 8 + 10 of 24 GiB."""
    at, alice, _bob = squeezed(kept=4, step=8)
    assert share(at, alice) == 5
    alice.persistent = int(4.8 * GIB)
    trains(at, 6)
    assert share(at, alice) == pytest.approx(6, abs=0.02), "24 in all"
    alice.persistent = int(5.9 * GIB)
    trains(at, 6)
    assert share(at, alice) == pytest.approx(6, abs=0.02), "within its head-room"


def test_without_room_for_head_room_it_has_what_whole_would_have_given() -> None:
    at, alice, _bob = squeezed(kept=4, step=8)
    alice.persistent = int(5.9 * GIB)
    trains(at, 6)
    assert share(at, alice) == pytest.approx(5.9, abs=0.02)


def test_what_it_has_without_turns_bounds_nobody_who_stays_within_the_quota() -> None:
    at, alice, _bob = squeezed(kept=4, step=8)
    carol = comes(at, "carol", 3, None, kept=1, step=1, memory=6)
    trains(at, 30)
    assert phase(at, carol) is LeasePhase.HELD, "now Bob is counted by turns, too: 5 + 3 + 8 + 6"
    alice.persistent, alice.temporary = int(5.5 * GIB), int(8.2 * GIB)
    trains(at, 30)
    held = at.state.reservations[("alice", UUID)]
    assert held.full is not None
    assert held.full > 15 * GIB
    assert share(at, alice) >= 5.5
    assert at.state.gpus[UUID].shares[alice.lease].temporary >= 8.2 * GIB - 1


def test_a_region_takes_no_newcomer_by_its_estimate_alone() -> None:
    """Its limit could not be lifted there, and its first steps may need more than was expected."""
    at, _alice, _bob = squeezed(kept=4, step=8, memory=9.5)
    assert at.state.gpus[UUID].free == 1.5 * GIB
    carol = comes(at, "carol", 3, 0.3, kept=0.2, step=0.1)
    assert phase(at, carol) is LeasePhase.QUEUED


def test_who_needs_more_waits_at_its_gate_while_an_idle_neighbour_gives() -> None:
    at = world(idle_timeout=1800.0, min_idle=5.0, notify_before=10.0)
    alice = comes(at, "alice", 1, 4, kept=3, step=1)
    trains(at, 4)
    bob = comes(at, "bob", 2, 4, kept=3, step=1)
    trains(at, 8)
    carol = comes(at, "carol", 3, None, kept=1, step=1, memory=14)
    trains(at, 8)
    assert phase(at, carol) is LeasePhase.HELD
    at.cell_ends(carol)
    alice.persistent = 4 * GIB
    waited = 0
    for _ in range(40):
        trains(at, 2)
        if at.state.is_short:
            turn = at.state.turns.get(alice.lease)
            shared = order.sharers(at.state, at.config)
            gpus = order.gpus_of(shared, alice.lease)
            waits = turn is not None and turn.phase is TurnPhase.WAITS
            waited += waits and not order.has_memory(at.state, alice.lease, gpus)
    assert [e.lease for e in at.history if is_asked_back(e)][:1] == [carol.lease]
    assert waited, "it waits at its gate"
    del at.actors[carol.lease]
    at.die(3)
    trains(at, 8)
    assert not at.state.is_short
    assert phase(at, bob) is LeasePhase.HELD
