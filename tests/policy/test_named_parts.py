"""Parts that a request names are placed as the source S2 says, to the letter."""

from __future__ import annotations

import dataclasses
from typing import Any

from support.policy_turns import CONFIG, Actor, TurnWorld, turn_world
from support.policy_world import GIB, gpu, process, why_refused

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import shares
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import (
    GpuReading,
    Parts,
    ProcessReading,
    Quota,
    RefusalReason,
    Request,
)

UUID = gpu(0).uuid


def refused(at: TurnWorld, pid: int, gib: int) -> core.Refuse:
    decision = at.request("zoe", pid, Request(1, gib * GIB), wait=False)
    assert isinstance(decision, core.Refuse)
    return decision


# -- named parts ---------------------------------------------------------------------------


def test_a_task_that_names_its_parts_is_placed_by_them_at_once() -> None:
    """What CUDA takes is added, and no quota is exceeded by it."""
    config = dataclasses.replace(CONFIG, turn_context=GIB)
    at = turn_world(config, bob=Quota(1, 12 * GIB))
    at.joins("alice", 1, 4, 4, None, persistent=4, temporary=4)
    assert at.state.gpus[UUID].reserved == 9 * GIB
    at.joins("bob", 2, 4, 8, None, persistent=4, temporary=8)
    assert at.state.gpus[UUID].reserved == (9 + 12) * GIB


def test_it_is_counted_by_the_rule_after_its_first_gate_not_before() -> None:
    """Its client has said that it stops there; until then the parts are promised as a sum."""
    at = turn_world()
    alice = at.joins("alice", 1, 2, 8, None, persistent=2, temporary=8)
    bob = at.joins("bob", 2, 2, 6, 12, persistent=2, temporary=6)
    at.begin_step(alice)
    at.observe()
    refused(at, 3, 8)
    at.end_step(alice)
    at.train(bob, 1)
    assert at.state.leases[bob.lease].steps == 1
    refused(at, 4, 8)  # their word is not enough
    at.observe()
    at.joins("carol", 5, 1, 1, 8)
    share = at.state.gpus[UUID].shares[alice.lease]
    assert (share.persistent, share.temporary) == (2 * GIB, 8 * GIB)
    # He named 8 GiB of his 12, and no second step has shown that he needs no more.
    share = at.state.gpus[UUID].shares[bob.lease]
    assert (share.persistent, share.temporary) == (2 * GIB, 10 * GIB)


def test_parts_of_earlier_runs_are_known_at_once_and_shrink_nothing() -> None:
    """Who names nothing has all that the quota gives, and is counted by the rule a step earlier."""
    for learned in (None, Parts(3 * GIB, 4 * GIB)):
        half = Quota(1, 12 * GIB)
        at = turn_world(alice=half, bob=half)
        for pid, who in enumerate(("alice", "bob"), 1):
            at.observe()
            actor = at.comes(who, pid, Request(1, learned=learned), 2, 5, steps=0)
            at.train(actor, 1)
        assert at.state.gpus[UUID].reserved == 24 * GIB
        at.observe()
        if learned is None:
            refused(at, 3, 8)
    told = at.state.claims[(actor.lease, UUID)].figures
    assert (told.persistent, told.temporary) == (3 * GIB, 5 * GIB), "never less before two steps"
    at.joins("carol", 3, 1, 1, 8)
    share = at.state.gpus[UUID].shares[actor.lease]
    assert (share.persistent, share.temporary) == (3 * GIB, 9 * GIB), "no second step yet"


def test_later_figures_correct_what_was_named_in_both_directions() -> None:
    at = turn_world()
    alice = at.joins("alice", 1, 3, 5, 14, persistent=6, temporary=2)
    at.train(alice, 1)
    told = at.state.claims[(alice.lease, UUID)].figures
    assert (told.persistent, told.temporary) == (6 * GIB, 5 * GIB), "never less before two steps"
    at.train(alice, 1)
    told = at.state.claims[(alice.lease, UUID)].figures
    assert (told.persistent, told.temporary) == (3 * GIB, 5 * GIB)


def test_who_names_too_little_frees_nothing_that_it_uses() -> None:
    at = turn_world()
    alice = at.joins("alice", 1, 9, 4, 14, persistent=0, temporary=1)
    at.train(alice, 1)
    assert at.memory[(1, UUID)] == 13 * GIB
    at.observe()
    refused(at, 2, 12)


def test_parts_that_exceed_the_memory_are_refused() -> None:
    at = turn_world(alice=Quota(1, 8 * GIB))
    request = Request(1, 6 * GIB, persistent=4 * GIB, temporary=4 * GIB)
    decision = at.request("alice", 1, request, wait=False)
    assert isinstance(decision, core.Refuse)
    assert decision.reason is RefusalReason.BAD_REQUEST
    assert "4 GiB persistent and 4 GiB temporary" in decision.message
    too_much = dataclasses.replace(request, memory=None, temporary=5 * GIB)
    assert why_refused(at.request("alice", 1, too_much, wait=False)) is RefusalReason.OVER_QUOTA


# -- offsets -------------------------------------------------------------------------------


def three_by_turns() -> tuple[TurnWorld, list[Actor]]:
    """Three tasks that keep 2 GiB each and need 8 for a step, on a GPU of 24 GiB."""
    at, actors = turn_world(), []
    for pid, who in enumerate(("alice", "bob", "carol"), 1):
        actors.append(at.joins(who, pid, 2, 8, 10))
        at.everybody(30)
    at.observe()
    # A fourth: then the other three are counted by the rule, and the fourth needs 8 plainly.
    actors.append(at.joins("dave", 4, 1, 1, 8))
    return at, actors


def test_two_offsets_before_the_parts_of_three_tasks() -> None:
    """2 + 2 + 2 kept, 8 for a step and 2 offsets of 0.1 GiB: 14.2 of 24; one would be 14.1."""
    at, _actors = three_by_turns()
    books = at.state.gpus[UUID]
    assert books.offset == 2 * CONFIG.turn_offset
    assert books.shared == 8 * GIB + 2 * CONFIG.turn_offset
    shared = [event for event in at.of(ev.GpuShared) if event.shares]
    assert shared[-1].offset == (len(shared[-1].shares) - 1) * CONFIG.turn_offset


def test_the_example_of_three_trainings_in_the_docs() -> None:
    """Each keeps 4 GiB, needs 8 more in a step and asks for 12: docs/allocation.md."""
    for size, third_fits in ((24, False), (32, True)):
        at = TurnWorld(CONFIG)
        at.start([gpu(0, size)], Quota(2, None))
        for pid, who in enumerate(("alice", "bob"), 1):
            at.joins(who, pid, 4, 8, 12)
            at.everybody(30)
        at.observe()
        if not third_fits:
            refused(at, 3, 12)
            continue
        at.joins("carol", 3, 4, 8, 12)
        books = at.state.gpus[UUID]
        assert books.reserved + books.shared == (4 + 4 + 8 + 12) * GIB + CONFIG.turn_offset
        at.everybody(30)
        at.observe()
        at.joins("dave", 4, 1, 1, 10)  # makes it count all three by the rule
        books = at.state.gpus[UUID]
        together = books.reserved - 10 * GIB + books.shared
        assert together == (4 + 4 + 4 + 8) * GIB + 2 * CONFIG.turn_offset


def test_an_offset_goes_with_its_task() -> None:
    at, actors = three_by_turns()
    at.release(actors[1].lease, "bob")
    at.die(2)
    del at.actors[actors[1].lease]
    at.observe()
    assert at.state.gpus[UUID].offset in (0, CONFIG.turn_offset), "two tasks, or plain again"


def test_a_quota_a_gpu_and_a_request_say_their_own_offset() -> None:
    config = dataclasses.replace(CONFIG, turn_offsets=(("pretend", 2 * GIB),))
    at = turn_world(config, bob=Quota(1, None, turn_offset=GIB))
    leases = [
        at.joins("alice", 1, 1, 2, 6).lease,
        at.joins("bob", 2, 1, 2, 6).lease,
        at.joins("carol", 3, 1, 2, 6, turn_offset=3).lease,
        at.joins("dave", 4, 1, 2, 6, turn_offset=1).lease,
    ]

    def offsets(*names: Any) -> int:
        given = [shares.Share(name, GIB, GIB) for name in names]
        return shares.offsets(at.state, config, UUID, given)

    alice, bob, carol, dave = leases
    assert offsets(alice) == 0, "the first one's part needs none"
    assert offsets(alice, bob) == GIB, "her quota's goes before the GPU's"
    assert offsets(bob, alice) == GIB, "the first is who came first"
    assert offsets(alice, carol) == 3 * GIB, "a request may name more"
    assert offsets(alice, dave) == 2 * GIB, "and not less than the administrator"
    assert offsets(*leases) == (1 + 3 + 2) * GIB
    plain = dataclasses.replace(config, turn_offsets=())
    one = shares.Share(alice, GIB, GIB), shares.Share(dave, GIB, GIB)
    assert shares.offsets(at.state, plain, UUID, one) == GIB


def test_an_offset_that_does_not_fit_bars_the_turns() -> None:
    config = dataclasses.replace(CONFIG, turn_offset=3 * GIB)
    at = turn_world(config)
    for pid, who in enumerate(("alice", "bob"), 1):
        at.joins(who, pid, 2, 6, 12)
    at.everybody(30)
    at.observe()
    refused(at, 3, 12)  # 2 + 2 + 6 + 3 leave 11
    at.joins("carol", 4, 1, 1, 11)


# -- processes of one lease ----------------------------------------------------------------


def ready() -> tuple[TurnWorld, Actor]:
    """Alice would be counted by the rule, so that bob's 12 GiB fit."""
    at = turn_world()
    alice = at.joins("alice", 1, 2, 8, 14)
    at.train(alice, 3)
    at.observe()
    return at, alice


def join(at: TurnWorld, actor: Actor, pid: int) -> None:
    at.run(cmd.Attach(at.at, actor.lease, actor.who, process(pid)))


def test_a_worker_excludes_its_lease_from_turns_where_it_uses_the_gpu() -> None:
    at, alice = ready()
    join(at, alice, 7)
    refused(at, 2, 12)  # it may use the GPU: nobody has looked since it joined
    at.memory[(1, UUID)] -= GIB
    at.memory[(7, UUID)] = GIB
    at.look(1.0)
    refused(at, 3, 12)
    del at.memory[(7, UUID)]
    at.look(1.0)
    at.joins("bob", 4, 1, 1, 12)
    assert len(at.state.leases[alice.lease].members) == 2


def test_a_measurement_that_began_before_a_worker_joined_shows_nothing_of_it() -> None:
    at, alice = ready()
    began = at.at
    at.at += 1.0
    join(at, alice, 7)
    alone = ProcessReading((process(1),), at.memory[(1, UUID)])
    reading = GpuReading(UUID, None, alone.memory, (alone,))
    at.run(cmd.Observe(began, (reading,), at.at))
    refused(at, 2, 12)


def test_where_processes_cannot_be_told_apart_all_members_count() -> None:
    at, alice = ready()
    join(at, alice, 7)
    at.at += 1.0
    stranger = dataclasses.replace(process(99), start_time=0)  # of another pid namespace
    mine = ProcessReading((process(1),), at.memory[(1, UUID)])
    reading = GpuReading(UUID, None, mine.memory, (mine, ProcessReading((stranger,), 0)))
    at.run(cmd.Observe(at.at, (reading,), at.at))
    refused(at, 2, 12)
    assert at.phase(alice.lease) == "held"
