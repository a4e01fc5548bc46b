"""A batch task stops only if it said how, and starts only where it delays no person."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given, settings, strategies as st
from support.policy_turns import CONFIG, Actor, TurnWorld
from support.policy_world import GIB, World, gpu, plain_config, replayed, task, why_waits

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import demand
from jupyter_gpushare.policy.recall import backfill, moving, patience
from jupyter_gpushare.policy.recall.stopping import grace
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import (
    DefaultClass,
    EnvironmentName,
    HolderAction,
    LeaseId,
    LeasePhase,
    PriorityClass,
    Quota,
    Request,
    Rung,
    TaskKind,
)
from jupyter_gpushare.policy.words.recalls import Give, RecallPhase, Why
from jupyter_gpushare.policy.words.turns import Moving, TurnPhase

INTERACTIVE, BATCH = PriorityClass.INTERACTIVE, PriorityClass.BATCH
STOPS = Request(priority_class=BATCH, stops=True)
SILENT = Request(priority_class=BATCH)
AFTER, GRACE = 60.0, 30.0


def host(gpus: int = 1, **parts: object) -> World:
    """GPUs for one task each."""
    usual = {"max_tasks_per_gpu": 1, "stop_after": AFTER, "stop_grace": GRACE}
    config = plain_config(**{**usual, "heartbeat_timeout": 1e6, **parts})
    return World(config).start([gpu(index) for index in range(gpus)], Quota(4, None))


def stopped(world: World) -> list[str]:
    """The leases that were asked to stop so far, in order."""
    return [
        event.lease
        for event in world.of(ev.RecallMoved)
        if event.give is Give.STOP and event.phase is RecallPhase.TOLD
    ]


def keeps(world: World, lease: str) -> None:
    world.says(lease, cmd.Keep, "it goes on")


def gives_back(world: World, lease: str) -> None:
    """Its cell has ended, and nothing of it is on the GPU any more."""
    world.idle(lease)
    world.says(lease, cmd.Park, Rung.RELEASE)
    world.observe()


def seconds(world: World, count: float) -> None:
    """Time passes, and the node manager wakes when it must."""
    until = world.at + count
    while world.at < until:
        due = core.next_deadline(world.state, world.config)
        world.tick(max(0.01, min(due, until) - world.at))


# -- stopping -----------------------------------------------------------------------------


def test_a_batch_program_that_said_how_stops_for_a_person_once_it_has_computed_a_while() -> None:
    world = host()
    world.request("alice", 1, STOPS)
    world.request("bob", 2)
    seconds(world, AFTER - 1)
    assert stopped(world) == []
    seconds(world, 2)
    assert stopped(world) == ["L1"]
    assert world.phase("L2") == "queued", "the program still saves its state"
    world.die(1, seen=True)
    assert world.phase("L2") == "held"
    world.request("alice", 3, STOPS)
    seconds(world, 10 * AFTER)
    assert stopped(world) == ["L1"]
    assert world.phase("L3") == "queued", "it waits at the end of the line"
    world.die(2, seen=True)
    assert world.phase("L3") == "held", "and goes on when there is room"


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        (SILENT, {}),
        (Request(priority_class=INTERACTIVE, stops=True), {}),
        (STOPS, {"stop_after": 0.0}),
    ],
    ids=["said-nothing", "interactive", "off"],
)
def test_nothing_else_is_stopped(asked: Request, parts: dict[str, float]) -> None:
    world = host(**parts)
    world.request("alice", 1, asked)
    world.request("bob", 2)
    seconds(world, 20 * AFTER)
    assert stopped(world) == []


DRAINED = 300.0


@pytest.mark.parametrize(
    ("asked", "kernel", "stops"),
    [
        (STOPS, None, True),
        (Request(priority_class=INTERACTIVE, stops=True), None, True),
        (Request(priority_class=INTERACTIVE, stops=True), "k1", False),
        (SILENT, None, False),
    ],
    ids=["batch", "interactive", "notebook", "said-nothing"],
)
@pytest.mark.parametrize("whole", [False, True])
def test_before_its_gpu_is_to_be_empty_a_program_that_said_how_stops(
    asked: Request, kernel: str | None, stops: bool, whole: bool
) -> None:
    """Though nobody waits, and however short it has computed; not where no time was said."""
    world = host(stop_after=0.0)
    kind = TaskKind.PROCESS if kernel is None else TaskKind.KERNEL
    of = dataclasses.replace(task(1, kernel), kind=kind)
    world.run(cmd.RequestLease(world.at, LeaseId("L1"), EnvironmentName("alice"), of, asked, True))
    uuid = None if whole else gpu(0).uuid
    world.run(cmd.TakeOut(world.at, uuid, "its fan", "root"))
    seconds(world, DRAINED)
    assert stopped(world) == []
    world.run(cmd.TakeOut(world.at, uuid, "its fan", "root", DRAINED))
    seconds(world, DRAINED - GRACE - 1)
    world.run(cmd.TakeOut(world.at, uuid, "its new fan", "root"))
    assert stopped(world) == []
    world.state = replayed(world.state)
    seconds(world, 2)
    assert stopped(world) == ["L1"] * stops


def test_a_gpu_that_was_out_before_is_to_be_empty_with_its_node() -> None:
    world = host()
    world.request("alice", 1, STOPS)
    world.drain()
    world.run(cmd.TakeOut(world.at, None, "the job ends", "root", DRAINED))
    world.state = replayed(world.state)
    seconds(world, DRAINED - GRACE + 1)
    assert stopped(world) == ["L1"]


def test_a_program_that_goes_on_for_others_is_still_asked_before_its_gpu_is_to_be_empty() -> None:
    world = host()
    world.request("bob", 1, STOPS)
    world.request("alice", 2)
    for _ in range(4):
        asked = len(stopped(world))
        while len(stopped(world)) == asked:
            seconds(world, 1)
        keeps(world, "L1")
    asked = len(stopped(world))
    world.drain(within=DRAINED)
    seconds(world, DRAINED - GRACE + 1)
    assert len(stopped(world)) == asked + 1
    keeps(world, "L1")
    seconds(world, GRACE)
    assert len(stopped(world)) == asked + 1, "it has heard"


def test_who_waits_is_told_of_the_programs_that_stop_for_people() -> None:
    world = host(gpus=2)
    for pid in (1, 2):
        world.request("bob", pid, STOPS)
    seconds(world, AFTER + 1)
    (part,) = world.state.leases["L1"].allocations
    world.run(cmd.TakeOut(world.at, part.gpu, "its fan", "root", GRACE))
    world.request("alice", 3)
    seconds(world, 1)
    assert stopped(world) == ["L1", "L2"]
    assert "A batch program was asked to save its state and stop." in world.why("L3")


def test_a_program_that_is_to_stop_at_once_has_as_long_as_there_is() -> None:
    world = host()
    world.request("alice", 1, STOPS)
    world.drain(within=5.0)
    assert stopped(world) == ["L1"]
    recall = world.state.recall(LeaseId("L1"), Give.STOP)
    assert recall is not None
    told = (world.state, world.config, world.state.leases["L1"], recall)
    assert grace(*told) == 5.0
    world.put_back()
    assert grace(world.state, *told[1:]) == GRACE


@pytest.mark.parametrize("pid", [1, 4])
def test_it_may_say_so_later_and_take_it_back(pid: int) -> None:
    """So may a command in the lease of `run`, which it has joined."""
    world = host()
    world.request("alice", 1, SILENT)
    world.request("bob", 2)
    world.run(cmd.Attach(world.at, "L1", "alice", task(4).process))
    seconds(world, 2 * AFTER)
    for can in (False, True):
        assert stopped(world) == []
        world.run(cmd.OfferStop(world.at, "L1", "alice", task(pid).process, can))
        seconds(world, 2)
    assert stopped(world) == ["L1"]


def test_who_goes_on_is_asked_again_ever_more_rarely_and_nothing_is_done_to_it() -> None:
    world = host(unparkable_action=HolderAction.KILL)
    world.request("alice", 1, STOPS)
    world.request("bob", 2)
    asked = []
    for _ in range(3 * 3600):
        before = len(stopped(world))
        seconds(world, 1)
        if len(stopped(world)) > before:
            asked.append(world.at)
            keeps(world, "L1")
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert gaps == sorted(gaps)
    assert patience.AGAIN <= gaps[0] < 2 * patience.AGAIN
    assert gaps[-1] <= patience.SELDOM[Give.STOP] + 2
    assert world.phase("L1") == "held"
    assert not any(isinstance(event, ev.LeaseKept) for event in world.history)


def test_an_idle_kernel_is_parked_rather() -> None:
    world = host(gpus=2, idle_timeout=30.0)
    world.request("alice", 1, STOPS)
    world.request("carol", 2)
    world.idle("L2")
    seconds(world, 2 * AFTER)
    world.request("bob", 3)
    seconds(world, 5)
    assert stopped(world) == []
    recall = world.state.memory_recall("L2")
    assert recall.phase is RecallPhase.TOLD


def test_a_batch_task_is_moved_out_of_a_persons_way_before_another_persons() -> None:
    config = dataclasses.replace(CONFIG, moving=Moving(per_gib=0.05), max_tasks_per_gpu=8)
    world = TurnWorld(config)
    world.start([gpu(0, 80)], Quota(1, None))

    def comes(who: str, pid: int, kind: PriorityClass, gib: int = 40) -> Actor:
        request = Request(1, gib * GIB, priority_class=kind)
        return world.comes(who, pid, request, 8, 4, wait=True)

    comes("alice", 1, BATCH)
    world.everybody(100)
    comes("bob", 2, INTERACTIVE)
    world.everybody(180)
    had = [demand.attained(world.state, name, world.at) for name in ("L1", "L2")]
    assert had[1] > had[0] > 60, "he had more, and would be asked first"
    assert not world.holds(comes("carol", 3, INTERACTIVE, 66))
    offers = {offer.lease: offer for offer in moving.served(world.state, config)}
    assert offers["L1"].order < offers["L2"].order
    world.everybody(5)
    told = [event.lease for event in world.of(ev.RecallMoved) if event.why is Why.SERVED]
    assert told[:1] == ["L1"]


class Turns:
    """One GPU by turns, on which people and batch programs compute; each holds what is named."""

    def __init__(self, **parts: object) -> None:
        usual = {"max_tasks_per_gpu": 8, "stop_after": AFTER, "stop_grace": GRACE}
        self.world = TurnWorld(dataclasses.replace(CONFIG, **{**usual, **parts}))
        self.world.start([gpu(0, 80)], Quota(1, None))
        self.pid = 0

    def comes(self, gib: int, kind: PriorityClass, *, stops: bool = False) -> LeaseId:
        self.pid += 1
        world, who = self.world, f"user-{self.pid}"
        request = Request(1, gib * GIB, priority_class=kind, stops=stops)
        return world.comes(who, self.pid, request, gib - 4, 1, wait=True).lease

    def computes(self, count: int) -> None:
        self.world.everybody(count)

    def waits(self, name: LeaseId) -> bool:
        return self.world.turn_of(self.world.actors[name]) is TurnPhase.WAITS

    @property
    def steps_aside(self) -> list[str]:
        """Who was asked for its memory while it computes, or waits to, in order."""
        return [event.lease for event in self.world.of(ev.RecallMoved) if event.why is Why.SERVED]


@pytest.mark.parametrize("stops", [True, False])
def test_a_batch_task_that_waits_for_its_turn_makes_room_too(stops: bool) -> None:
    turns = Turns(moving=None if stops else Moving(per_gib=0.05, least=30.0))
    batch = turns.comes(40, BATCH, stops=stops)
    turns.comes(20, INTERACTIVE)
    turns.computes(int(AFTER) + 2)
    assert turns.waits(batch)
    had = demand.attained(turns.world.state, batch, turns.world.at)
    assert had < 30, "it computed too little for a move to be worth it, if it did compute"
    turns.comes(44, INTERACTIVE)
    turns.computes(3)
    assert (stopped(turns.world) if stops else turns.steps_aside) == [batch]


def test_a_program_that_saves_its_state_is_not_moved() -> None:
    turns = Turns(moving=Moving(per_gib=0.001, least=1.0))
    batch = turns.comes(40, BATCH, stops=True)
    turns.comes(20, INTERACTIVE)
    turns.computes(int(AFTER) + 2)
    state = turns.world.state
    told = ev.RecallMoved(turns.world.at, batch, Give.STOP, RecallPhase.TOLD, Why.CONTENDED)
    turns.comes(44, INTERACTIVE)
    assert turns.steps_aside == [batch], "a move is cheaper than a stop"
    assert [offer.lease for offer in moving.served(state, turns.world.config)] == []
    line = turns.world.state
    line = dataclasses.replace(line, recalls=state.recalls)
    offered = [offer.lease for offer in moving.served(line, turns.world.config)]
    assert batch in offered
    saving = core.evolve(line, told)
    assert batch not in [offer.lease for offer in moving.served(saving, turns.world.config)]


@pytest.mark.parametrize("how", ["stop", "move"])
def test_of_one_class_who_had_most_makes_room_first(how: str) -> None:
    parts = {"moving": Moving(per_gib=0.01, least=5.0)} if how == "move" else {}
    turns = Turns(**parts)
    world = turns.world
    old = turns.comes(30, BATCH, stops=how == "stop")
    turns.computes(12)
    new = turns.comes(30, BATCH, stops=how == "stop")
    world.idle(old)
    world.actors[old].idle = True
    for _ in range(int(AFTER)):
        world.train(world.actors[new], 1)
        world.second()
    turns.computes(15)  # the older one's next cell has just begun
    had = [demand.attained(world.state, name, world.at) for name in (old, new)]
    assert 5 < had[0] < had[1] / 2, "the older one had less"
    turns.comes(44, INTERACTIVE)
    turns.computes(3)
    assert (stopped(world) if how == "stop" else turns.steps_aside)[:1] == [new]


# -- backfill -----------------------------------------------------------------------------


def lasting(lasts: float | None, gpus: int = 1, kind: PriorityClass = BATCH) -> Request:
    return Request(gpus, priority_class=kind, lasts=lasts)


ALICES = lasting(100.0, kind=INTERACTIVE)


def waits_for_two(gpus: int = 2, alices: Request = ALICES) -> World:
    """Alice has one of two GPUs for 100 s more; Bob waits for two."""
    world = host(gpus=gpus)
    world.request("alice", 1, alices)
    world.request("bob", 2, Request(2))
    assert world.phase("L2") == "queued"
    return world


@pytest.mark.parametrize(
    ("gpus", "alices", "carols"),
    [
        pytest.param(2, ALICES, lasting(90.0), id="batch that ends in time"),
        pytest.param(2, ALICES, lasting(200.0, kind=INTERACTIVE), id="a person, as ever"),
        pytest.param(2, ALICES, STOPS, id="batch that can be stopped in time"),
        pytest.param(2, Request(), SILENT, id="anybody where nobody can tell"),
        pytest.param(3, lasting(100.0, 2, INTERACTIVE), SILENT, id="who leaves Alice's for Bob"),
    ],
)
def test_who_goes_before_a_person_that_waits_for_more(
    gpus: int, alices: Request, carols: Request
) -> None:
    world = waits_for_two(gpus, alices)
    world.request("carol", 3, carols)
    assert world.phase("L3") == "held"


def test_a_batch_request_waits_where_it_would_delay_a_person() -> None:
    world = waits_for_two()
    assert "would start later" in why_waits(world.request("carol", 3, lasting(200.0)))
    assert "would start later" in world.why("L3", 1, at=world.at)
    refused = world.request("dave", 4, lasting(200.0), wait=False)
    assert isinstance(refused, core.Refuse)
    world.die(1, seen=True)
    assert (world.phase("L2"), world.phase("L3")) == ("held", "queued")


def test_what_was_expected_and_did_not_come_holds_nobody_back() -> None:
    world = waits_for_two()
    world.request("carol", 3, lasting(200.0))
    seconds(world, 101.0 + world.config.settle_interval)
    assert world.phase("L1") == "held", "Alice is late, and nobody can tell"
    assert world.phase("L3") == "held"


@settings(max_examples=80, deadline=None)
@given(
    alice=st.floats(5, 200),
    others=st.lists(st.one_of(st.none(), st.floats(1, 400)), min_size=1, max_size=6),
)
def test_backfill_never_delays_the_first_person_beyond_what_was_expected(
    alice: float, others: list[float | None]
) -> None:
    world = host(gpus=3)
    world.request("alice", 1, lasting(alice, 2, INTERACTIVE))
    world.request("bob", 2, Request(3))
    expected = backfill.start_of(world.state, world.config, "L2", world.at)
    assert expected is not None
    for pid, lasts in enumerate(others, 3):
        world.request(f"user-{pid}", pid, lasting(lasts))
    while world.phase("L2") != "held":
        running = [one for one in world.state.leases.values() if one.phase is LeasePhase.HELD]
        assert all(one.request.lasts is not None for one in running), "it may never end"
        first = min(running, key=lambda one: (one.granted_at or 0.0) + (one.request.lasts or 0.0))
        ends = (first.granted_at or 0.0) + (first.request.lasts or 0.0)
        seconds(world, max(0.0, ends - world.at))
        world.die(first.task.process.pid, seen=True)
    assert world.at <= expected[0] + 0.1


def starts(world: World, lease: str) -> float | None:
    """Seconds from now until a request is expected to fit."""
    found = backfill.start_of(world.state, world.config, lease, world.at)
    return None if found is None else found[0] - world.at


def stopping(since: float) -> World:
    """Alice's program was asked to stop for Bob some seconds ago."""
    world = host()
    world.request("alice", 1, STOPS)
    seconds(world, AFTER)
    world.request("bob", 2)
    seconds(world, since)
    assert stopped(world) == ["L1"]
    return world


def test_a_program_that_is_stopping_is_expected_to_take_its_grace_unless_it_went_on() -> None:
    world = stopping(2.0)
    (asked,) = [event.at for event in world.of(ev.RecallMoved)]
    assert starts(world, "L2") == pytest.approx(asked + GRACE - world.at)
    keeps(world, "L1")
    assert starts(world, "L2") is None, "an hour later it may go on again"
    assert starts(stopping(1.2 * GRACE), "L2") is None, "it did not even answer"


@pytest.mark.parametrize("warned", [False, True])
def test_a_warning_is_counted_once(warned: bool) -> None:
    world = host(idle_timeout=100.0, notify_before=40.0)
    world.request("alice", 1)
    world.idle("L1")
    since = world.at
    seconds(world, 70.0 if warned else 50.0)
    world.request("bob", 2)
    seconds(world, 1.0)
    recall = world.state.memory_recall("L1")
    assert (recall is not None) is warned
    due = 100.0 if not warned else (recall.warned_at or 0.0) + 40.0 - since if recall else 0.0
    assert starts(world, "L2") == pytest.approx(since + due - world.at)


def test_what_a_task_held_before_it_was_parked_counts() -> None:
    world = host()
    world.request("alice", 1, lasting(3600.0, kind=INTERACTIVE))
    seconds(world, 3000.0)
    gives_back(world, "L1")
    seconds(world, 50.0)
    world.resume("L1")
    world.request("bob", 2)
    assert starts(world, "L2") == pytest.approx(600.0), "not an hour"


def test_a_program_is_stopped_in_time_for_what_ends_by_itself() -> None:
    world = host(gpus=2)
    world.request("alice", 1, lasting(100.0, kind=INTERACTIVE))
    world.request("carol", 3, STOPS)
    seconds(world, 5.0)
    world.request("bob", 2, Request(2))
    assert starts(world, "L3") == pytest.approx(95.0)
    seconds(world, 60.0)
    assert stopped(world) == [], "it would stop in vain"
    seconds(world, 8.0)
    assert stopped(world) == ["L2"], "both GPUs are free when Alice's 100 s are over"
    world.die(3, seen=True)
    seconds(world, 27.0)
    world.die(1, seen=True)
    assert world.phase("L3") == "held"


# -- classes ------------------------------------------------------------------------------


def class_of(world: World, lease: str) -> PriorityClass:
    return world.state.leases[lease].request.priority_class


def test_a_quota_bounds_interactive_gpus_and_what_is_beyond_is_batch() -> None:
    world = World(plain_config()).start([gpu(n) for n in range(4)], Quota(4, None, interactive=2))
    for pid, gpus in enumerate((1, 2, 1, 1), 1):
        world.request("alice", pid, Request(gpus, GIB))
    classes = [class_of(world, f"L{number}") for number in (1, 2, 3, 4)]
    assert classes == [INTERACTIVE, BATCH, INTERACTIVE, BATCH]
    world.request("bob", 9, Request(2, GIB))
    assert class_of(world, "L5") is INTERACTIVE, "each environment by itself"
    world.die(1)
    world.request("alice", 10, Request(1, GIB))
    assert class_of(world, "L6") is INTERACTIVE


@pytest.mark.parametrize("default", DefaultClass)
@pytest.mark.parametrize("looks", PriorityClass)
def test_the_class_of_who_names_none(default: DefaultClass, looks: PriorityClass) -> None:
    world = host(default_class=default)
    request = Request(priority_class=looks)
    alice = "alice"
    command = cmd.RequestLease(world.at, "L9", alice, task(1), request)
    world.run(dataclasses.replace(command, detected=True))
    expected = looks if default is DefaultClass.DETECTED else PriorityClass(default.value)
    assert class_of(world, "L9") is expected
    world.run(dataclasses.replace(command, lease="L10", task=task(2)))
    assert class_of(world, "L10") is looks, "what is named holds"
