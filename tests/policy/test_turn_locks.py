"""A task without a gate, which the driver locks while it waits, is not locked for long."""

from __future__ import annotations

import dataclasses

import pytest
from support.policy_locks import MOST, UUID, Locker, Room
from support.policy_turns import CONFIG
from support.policy_world import gpu, replayed

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.turns import levels
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.turns import TurnPhase


def trains(
    *, seconds: int = 60, beats_every: int = 1, slow: int = 0
) -> tuple[Room, Locker, Locker]:
    """Alice's program, which has no gate, has computed for so long; Bob's kernel is idle."""
    room = Room(beats_every=beats_every)
    bob = room.come("bob", 2, gated=True)
    room.cell_ends(bob)
    alice = room.come("alice", 1, gated=False, slow=slow)
    room.steps(seconds)
    return room, alice, bob


def test_after_a_lock_it_computes_for_as_long_as_it_was_locked() -> None:
    room, alice, bob = trains()
    for _ in range(3):
        room.cell_begins(bob)
        room.steps(5)
        assert alice.is_locked
        room.cell_ends(bob)
        room.steps(1)
        kept = room.turn(alice).kept
        assert kept is not None
        assert 4 <= kept - room.at <= 6
        room.cell_begins(bob)
        room.steps(2)
        assert not alice.is_locked, "others wait meanwhile"
        room.cell_ends(bob)
        room.steps(8)


def test_one_that_is_locked_owes_no_sign_of_life() -> None:
    """Even where it must give one every two seconds."""
    room = Room()
    room.config = dataclasses.replace(room.config, heartbeat_timeout=2.0)
    room.come("bob", 2, gated=True)
    alice = room.come("alice", 1, gated=False)
    room.steps(120)
    assert len(room.locked[alice.lease]) > 20
    assert not any(isinstance(event, ev.HeartbeatLost) for event in room.history)
    assert not any(isinstance(event, ev.TurnOverran) for event in room.history)


def test_one_that_is_never_heard_of_again_is_stalled_after_its_lock() -> None:
    room = Room()
    room.come("bob", 2, gated=True)
    alice = room.come("alice", 1, gated=False)
    for _ in range(60):
        room.step()
        if alice.is_locked:
            break
    for _ in range(int(MOST + room.config.heartbeat_timeout) + 1):
        room.at += 1
        room.run(cmd.Tick(room.at, room.at))
    assert room.state.leases[alice.lease].stalled


def test_its_memory_is_never_counted_by_turns() -> None:
    """It may be locked in the midst of a step."""
    room = Room()
    room.come("bob", 2, gated=True)
    alice = room.come("alice", 1, gated=False)
    room.report(dataclasses.replace(alice, steps=3))
    room.steps(30)
    assert alice.lease not in room.state.gpus[UUID].shares
    assert room.state.taker(alice.lease).by_lock


def test_one_that_names_a_gate_after_all_has_it() -> None:
    room = Room()
    room.come("bob", 2, gated=True)
    alice = room.come("alice", 1, gated=False)
    room.acts(alice, cmd.ReportMemory, (), 0, True)
    assert not room.state.taker(alice.lease).by_lock
    assert room.state.is_gated(alice.lease)
    decision = room.acts(alice, cmd.LockTurn)
    assert decision == core.Done(alice.lease, 0)
    # And it does not go back: the client looks for a gate first.
    room.acts(alice, cmd.ReportMemory, (), 0, True, by_lock=True)
    assert not room.state.taker(alice.lease).by_lock


def test_where_it_is_not_allowed_nobody_is_locked() -> None:
    room = Room()
    room.config = CONFIG
    alice = room.come("alice", 1, gated=False)
    assert alice.lease not in room.state.takers


def test_one_that_is_alone_or_has_its_turn_is_not_locked() -> None:
    room = Room()
    alice = room.come("alice", 1, gated=False)
    assert room.acts(alice, cmd.LockTurn) == core.Done(alice.lease, 0)
    bob = room.come("bob", 2, gated=True)
    room.cell_ends(bob)
    room.steps(2)
    assert room.turn_of(alice) is TurnPhase.HOLDS
    assert room.acts(alice, cmd.LockTurn) == core.Done(alice.lease, 0)


def test_a_lock_that_did_not_come_about_is_tried_again() -> None:
    """GPU work did not end in time: it has its turn, and is asked for it, as before."""
    room, alice, bob = trains(slow=1000)
    room.cell_begins(bob)
    room.steps(2)
    assert room.turn(alice).lock is not None
    assert room.turn_of(alice) is TurnPhase.HOLDS
    assert room.acts(alice, cmd.LockTurn) == core.Done(alice.lease, 0)
    room.run(cmd.EndLock(room.at, alice.lease))
    assert room.turn(alice).lock is None
    assert room.acts(alice, cmd.LockTurn) == core.Done(alice.lease, 1)


def test_where_locks_are_slow_only_long_cells_are_locked() -> None:
    room = Room()
    bob, alice = room.come("bob", 2, gated=True), room.come("alice", 1, gated=False, slow=3)
    room.cell_ends(bob)
    room.cell_ends(alice)
    room.cell_begins(alice)
    room.steps(30)
    room.cell_begins(bob)
    room.steps(10)
    assert room.state.lock_took == pytest.approx(3.0, abs=1.1)
    # From now on that is known.
    room.cell_ends(bob)
    room.cell_ends(alice)
    room.cell_begins(alice)
    room.steps(30)
    room.locked.clear()
    room.cell_begins(bob)
    room.steps(5)
    assert not room.locked, "she has computed for less than a minute"
    room.cell_ends(bob)
    room.steps(int(levels.LONG))
    room.cell_begins(bob)
    room.steps(8)
    assert room.locked, "now she has"


def test_after_a_restart_of_the_node_manager_nobody_is_called_locked() -> None:
    room, alice, bob = trains(slow=1000)
    room.cell_begins(bob)
    room.steps(2)
    assert room.turn(alice).lock is not None
    start = cmd.Start(room.at, room.state.boot.boot_id, (gpu(0, 80),))
    state = core.step(replayed(room.state), start, room.config).state
    assert state.turns[alice.lease].lock is None
