"""Stories of turns with a known end that random histories meet too seldom."""

from __future__ import annotations

import dataclasses

from jupyter_gpushare.policy import commands as cmd
from jupyter_gpushare.policy import core, memory
from jupyter_gpushare.policy import events as ev
from jupyter_gpushare.policy.config import PolicyConfig
from jupyter_gpushare.policy.model import Activity, Bytes, EnvironmentName, Quota, Request
from jupyter_gpushare.policy.sharing import TurnPhase
from support.policy_turns import CONFIG, Actor, TurnWorld
from support.policy_world import GIB, gpu, process

UUID = gpu(0).uuid


def world(gpus: int = 1, config: PolicyConfig = CONFIG) -> TurnWorld:
    made = TurnWorld(config)
    made.start([gpu(index) for index in range(gpus)], Quota(2, None))
    return made


def come(
    at: TurnWorld, who: str, pid: int, kept: int = 2, step: int = 8, gib: int = 14, gpus: int = 1
) -> Actor:
    """Somebody is granted ``gib`` on each of ``gpus`` GPUs. Sizes in GiB."""
    decision = at.request(who, pid, Request(gpus, Bytes(gib * GIB)), wait=False)
    assert isinstance(decision, core.Grant), decision
    actor = Actor(pid, who, decision.lease, kept * GIB, step * GIB, gated=True)
    at.actors[decision.lease] = actor
    return actor


def phase(at: TurnWorld, actor: Actor) -> str | None:
    turn = at.state.turns.get(actor.lease)
    return None if turn is None else turn.phase.value


def two_by_turns(config: PolicyConfig = CONFIG) -> tuple[TurnWorld, Actor, Actor]:
    """Two tasks on one GPU of 24 GiB whose reservations are 28 GiB; alice has the turn."""
    at = world(config=config)
    alice = come(at, "alice", 1)
    at.train(alice, 3)
    assert phase(at, alice) is None
    bob = come(at, "bob", 2, step=6, gib=12)
    at.train(bob, 3)
    for _ in range(40):
        for actor in (alice, bob):
            at.train(actor, 1)
        at.second()
    while phase(at, alice) != "holds":
        at.train(alice, 1)
        at.train(bob, 1)
        at.second()
    return at, alice, bob


def a_third_fits_when_two_take_turns() -> None:
    """2 + 2 kept, 8 for a step and the offset: 14 GiB of 24; the plain sum leaves nothing."""
    at, _alice, _bob = two_by_turns()
    books = at.state.gpus[UUID]
    assert books.gpu.memory < 14 * GIB + 12 * GIB
    too_much = at.request("dave", 4, Request(1, Bytes(12 * GIB)), wait=False)
    assert isinstance(too_much, core.Refuse), "2 + 2 + 8 + the offset leave less than 12"
    carol = come(at, "carol", 3, gib=8)
    books = at.state.gpus[UUID]
    assert books.reserved + books.shared <= books.gpu.memory
    assert books.shared == 8 * GIB + CONFIG.turn_offset
    assert books.reserved == (2 + 2 + 8) * GIB
    # And when she has gone, what fits plainly is plain again.
    at.release(carol.lease, "carol")
    at.die(3)
    del at.actors[carol.lease]
    at.observe()
    at.release(_bob.lease, "bob")
    at.die(2)
    at.observe()
    assert at.state.gpus[UUID].shared == 0
    assert at.state.gpus[UUID].reserved == 14 * GIB
    assert phase(at, _alice) is None, "alone again"


def who_cannot_be_gated_is_placed_plainly() -> None:
    at = world()
    alice = come(at, "alice", 1)
    alice.gated = False
    at.train(alice, 3)
    refused = at.request("bob", 2, Request(1, Bytes(12 * GIB)), wait=False)
    assert isinstance(refused, core.Refuse)


def a_newcomer_is_unknown_and_placed_plainly() -> None:
    at = world()
    alice = come(at, "alice", 1)
    at.train(alice, 1)  # the first step makes the optimizer's state
    refused = at.request("bob", 2, Request(1, Bytes(12 * GIB)), wait=False)
    assert isinstance(refused, core.Refuse)
    at.train(alice, 1)
    come(at, "bob", 2, gib=12)


def a_stopped_holder_loses_the_turn_but_not_its_memory() -> None:
    """The other computes only when a measurement says that there is room."""
    at, alice, bob = two_by_turns(dataclasses.replace(CONFIG, heartbeat_timeout=15.0))
    come(at, "carol", 3, gib=8)
    at.train(alice, 1)
    at.begin_step(alice)
    assert at.memory[(1, UUID)] == 10 * GIB
    alice.stopped = True
    for _ in range(40):
        at.train(bob, 1)
        at.second()
    assert phase(at, alice) == "rest"
    assert at.state.leases[alice.lease].stalled
    assert phase(at, bob) == "waits", "8 GiB of the common region may still be alice's"
    at.observe()
    at.second()
    assert phase(at, bob) == "waits", "and they are"
    at.memory[(1, UUID)] = 2 * GIB
    at.observe()
    assert phase(at, bob) == "holds"


def a_holder_that_dies_gives_all_back_at_once() -> None:
    at, alice, bob = two_by_turns()
    come(at, "carol", 3, gib=8)
    at.train(bob, 1)
    at.begin_step(alice)
    del at.actors[alice.lease]
    at.die(1)
    at.observe()
    assert phase(at, bob) in (None, "holds")


def who_overruns_is_told_of_and_bars_nobody() -> None:
    at, alice, bob = two_by_turns()
    at.begin_step(alice)
    for _ in range(int(CONFIG.quantum + CONFIG.turn_bound) + 3):
        at.train(bob, 1)
        at.second()
    assert any(isinstance(event, ev.TurnOverran) for event in at.history)
    assert at.state.takers[alice.lease] is True
    at.observe()
    assert phase(at, bob) != "waits"
    at.end_step(alice)
    assert at.state.takers[alice.lease] is True, "for the future, too"


def patience_ends_with_a_lower_limit() -> None:
    """Who has waited long enough computes with what is left, and is told how much."""
    config = dataclasses.replace(CONFIG, turn_patience=10.0, heartbeat_timeout=15.0)
    at, alice, bob = two_by_turns(config)
    come(at, "carol", 3, gib=8)
    at.train(alice, 1)
    at.begin_step(alice)
    alice.stopped = True
    for _ in range(40):
        at.train(bob, 1)
        at.second()
    assert phase(at, bob) == "holds"
    limit = dict(memory.limits(at.state, bob.lease))[UUID]
    assert limit < bob.persistent + bob.temporary
    used = sum(size for (_pid, uuid), size in at.memory.items() if uuid == UUID)
    assert used <= 24 * GIB


def who_tells_too_little_frees_nothing_that_it_uses() -> None:
    at = world()
    alice = come(at, "alice", 1, kept=0, step=0)
    at.train(alice, 3)
    at.memory[(1, UUID)] = 13 * GIB
    at.observe()
    refused = at.request("bob", 2, Request(1, Bytes(12 * GIB)), wait=False)
    assert isinstance(refused, core.Refuse), "13 GiB are in use, whatever she says"


def an_idle_task_has_no_turn_until_it_asks() -> None:
    at, alice, bob = two_by_turns()
    who = (alice.lease, EnvironmentName("alice"), process(1))
    at.train(bob, 1)
    alice.idle = True
    at.run(cmd.SetActivity(at.at, *who, Activity.IDLE))
    assert phase(at, alice) == "rest"
    assert phase(at, bob) == "holds"
    for _ in range(60):
        at.train(bob, 1)
        at.second()
    assert phase(at, bob) == "holds", "nobody asks, so nobody is asked"
    alice.in_step = False
    at.begin_step(alice)
    assert phase(at, alice) == "waits"


def two_gpus_are_had_at_once_or_not_at_all() -> None:
    """Three tasks, each on two of three GPUs: the classical circle."""
    at = world(gpus=3, config=dataclasses.replace(CONFIG, max_tasks_per_gpu=2))
    ring = []
    for pid in (1, 2, 3):
        ring.append(come(at, "abc"[pid - 1], pid, kept=1, step=2, gib=10, gpus=2))
    turns_had = {actor.lease: 0 for actor in ring}
    for _ in range(200):
        for actor in ring:
            at.train(actor, 1)
        at.second()
        computing = [n for n, t in at.state.turns.items() if t.phase is TurnPhase.HOLDS]
        for name in computing:
            turns_had[name] += 1
        for one in computing:
            for other in computing:
                if one != other:
                    mine = {part.gpu for part in at.state.leases[one].allocations}
                    assert not mine & {part.gpu for part in at.state.leases[other].allocations}
    assert all(count > 10 for count in turns_had.values()), "everybody had turns"


STORIES = (
    a_third_fits_when_two_take_turns,
    who_cannot_be_gated_is_placed_plainly,
    a_newcomer_is_unknown_and_placed_plainly,
    a_stopped_holder_loses_the_turn_but_not_its_memory,
    a_holder_that_dies_gives_all_back_at_once,
    who_overruns_is_told_of_and_bars_nobody,
    patience_ends_with_a_lower_limit,
    who_tells_too_little_frees_nothing_that_it_uses,
    an_idle_task_has_no_turn_until_it_asks,
    two_gpus_are_had_at_once_or_not_at_all,
)
