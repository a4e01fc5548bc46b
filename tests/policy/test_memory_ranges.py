"""Leases that ask for a range of memory have smaller shares as GPUs fill, and larger ones again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from support.examples import examples
from support.policy_world import (
    GIB,
    World,
    gpu,
    plain_config,
    process,
    task,
)

from jupyter_gpushare.policy.books import room
from jupyter_gpushare.policy.books.lifts import STEP, unlifted
from jupyter_gpushare.policy.books.placement import Granted
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.recall import lifts
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import Allocation, GpuUuid, LeasePhase, Quota, Request

LONG = 1e6


def asks(least: int, most: int, gpus: int = 1) -> Request:
    return Request(gpus, least * GIB, memory_most=most * GIB)


def node(*sizes: int, quota: Quota | None = None, **more: Any) -> World:
    config = plain_config(heartbeat_timeout=LONG, settle_interval=LONG, **more)
    gpus = [gpu(index, size) for index, size in enumerate(sizes)]
    return World(config).start(gpus, quota or Quota(4, None))


def share(state: State, lease: str) -> float:
    """GiB that a lease was last told that it may use, on each of its GPUs."""
    found = state.leases[lease]
    (size,) = {lifts.limit(state, found, part) for part in found.allocations}
    return size / GIB


def all_shares(world: World) -> dict[str, float]:
    held = (x for x in world.state.leases.values() if x.phase is LeasePhase.HELD)
    return {lease.id: share(world.state, lease.id) for lease in sorted(held, key=lambda x: x.order)}


def obey(world: World, *, but: Sequence[str] = ()) -> None:
    """All tasks use what they may, and say so; then the GPUs are measured."""
    world.at += 0.5
    for lease in tuple(world.state.leases.values()):
        if lease.phase is not LeasePhase.HELD or lease.id in but:
            continue
        sizes = ((part.gpu, lifts.limit(world.state, lease, part)) for part in lease.allocations)
        limits = tuple(Allocation(*size) for size in sizes)
        if any(world.state.lift(lease.id, part.gpu) for part in lease.allocations):
            world.says(lease.id, cmd.ConfirmLimit, limits, True)
    for lease in tuple(world.state.leases.values()):
        if lease.phase is LeasePhase.HELD and lease.id not in but:
            for part in lease.allocations:
                size = lifts.limit(world.state, lease, part)
                world.memory[(lease.task.process.pid, part.gpu)] = size
    world.look(0.5)


def settled(world: World, *, but: Sequence[str] = ()) -> None:
    """Until nothing moves any more, with the rest after a fall."""
    before, tries = None, 0
    while before != (before := (all_shares(world), world.state.gpus)) or tries < 3:
        obey(world, but=but)
        world.look(lifts.REST + 1)
        tries += 1
        assert tries < 50, "it never comes to rest"


def test_who_comes_first_gets_most_and_gives_it_up_step_by_step() -> None:
    """More at first, then less, then the queue, and back again."""
    world = node(40, max_tasks_per_gpu=8)
    world.request("alice", 1, asks(8, 30))
    assert all_shares(world) == {"L1": 30}, "at once, and no more than it asked for"
    obey(world)
    world.request("bob", 2, asks(8, 30))
    assert all_shares(world) == {"L1": 30, "L2": 10}, "he gets what is left"
    obey(world)
    world.request("carol", 3, asks(8, 30))
    assert all_shares(world) == {"L1": 24, "L2": 8}, "the last one first, then as much as is needed"
    assert "L3" in world.state.queue.waiting, "their words are not enough"
    obey(world)
    assert all_shares(world) == {"L1": 24, "L2": 8, "L3": 8}
    for pid, name in ((4, "dave"), (5, "erin")):
        world.request(name, pid, asks(8, 30))
        obey(world)
    assert all_shares(world) == dict.fromkeys(("L1", "L2", "L3", "L4", "L5"), 8)
    world.request("frank", 6, asks(8, 30))
    settled(world)
    assert "L6" in world.state.queue.waiting, "all have their least"
    assert set(all_shares(world).values()) == {8}
    for pid in (5, 6, 4):
        world.die(pid)
    assert set(all_shares(world).values()) == {8}
    settled(world)
    assert all_shares(world) == {"L1": 24, "L2": 8, "L3": 8}
    world.die(3)
    world.die(2)
    settled(world)
    assert all_shares(world) == {"L1": 30}


def test_where_one_does_not_come_down_the_next_one_has_to() -> None:
    """What is not measured to be free belongs to the one that has it."""
    world = node(48, burst_return=30.0)
    for pid, name in ((1, "alice"), (2, "bob")):
        world.request(name, pid, asks(8, 24))
    obey(world)
    assert all_shares(world) == {"L1": 24, "L2": 24}
    world.request("carol", 3, Request(1, 12 * GIB))
    assert all_shares(world) == {"L1": 24, "L2": 12}, "the last one first"
    for _ in range(8):
        obey(world, but=["L2"])
        world.look(1.0)
    assert share(world.state, "L1") < 24, "the other one did not"
    for _ in range(8):
        obey(world, but=["L2"])
    assert share(world.state, "L3") == 12
    assert world.memory[(2, "GPU-0")] == 24 * GIB


def test_who_cannot_change_its_limit_has_its_least() -> None:
    world = node(40)
    world.request("alice", 1, asks(8, 40))
    world.says("L1", cmd.ConfirmLimit, (), False)
    world.observe()
    settled(world, but=["L1"])
    assert share(world.state, "L1") == 8
    assert world.state.gpus["GPU-0"].reserved == 8 * GIB
    world.says("L1", cmd.ConfirmLimit, (), True)
    settled(world)
    assert share(world.state, "L1") == 40, "a framework that can was imported"


def test_a_range_goes_before_what_the_node_lends() -> None:
    """`burst_memory` is for those who did not ask."""
    world = node(40, burst_memory=0.9, quota=Quota(1, 4 * GIB))
    world.request("alice", 1)
    world.observe()
    obey(world)
    assert share(world.state, "L1") == 36
    world.set_quota("bob", Quota(1, None))
    world.request("bob", 2, asks(8, 32))
    settled(world)
    assert all_shares(world) == {"L1": 4, "L2": 32}


def test_a_share_holds_for_processes_that_joined() -> None:
    """They keep to it as well, and whoever of them can change its limit answers."""
    world = node(40)
    world.request("alice", 1, asks(8, 30))
    lease = world.state.leases["L1"]
    child = process(77)
    world.run(cmd.Attach(world.at, lease.id, lease.environment, child))
    world.says("L1", cmd.ConfirmLimit, (), False)
    settled(world, but=["L1"])
    part = lease.allocations[0].gpu
    world.run(cmd.ConfirmLimit(world.at, lease.id, lease.environment, child, (), True))
    settled(world, but=["L1"])
    assert share(world.state, "L1") == 30
    world.request("bob", 2, Request(1, 20 * GIB))
    assert share(world.state, "L1") == 20
    told = (Allocation(part, 20 * GIB),)
    world.run(cmd.ConfirmLimit(world.at, lease.id, lease.environment, child, told, True))
    world.look(1.0)
    assert share(world.state, "L2") == 20


# -- what always holds --------------------------------------------------------------------------


class Load(RuleBasedStateMachine):
    """Jobs come and go, and all obey; after each command we look at every event of it."""

    def __init__(self) -> None:
        super().__init__()
        self.world = node(24, 40, 80, max_tasks_per_gpu=20)
        self.pid = 0
        self.known: dict[str, float] = {}

    @rule(
        least=st.integers(1, 12),
        more=st.sampled_from([0, 4, 12, 60]),
        gpus=st.integers(1, 3),
        fixed=st.booleans(),
        of_job=st.booleans(),
    )
    def comes(self, least: int, more: int, gpus: int, fixed: bool, of_job: bool) -> None:
        self.pid += 1
        name = "team" if of_job else f"user{self.pid}"
        request = Request(gpus, least * GIB)
        if of_job:
            request, fixed = asks(4, 24), False
        elif not fixed:
            request = asks(least, least + more, gpus)
        worker = replace(task(self.pid), job="job" if of_job else None)
        lease = f"L{self.pid:03}"
        self.world.observe()  # what others left has its takers
        before, heard = all_shares(self.world), len(self.world.history)
        self.world.run(cmd.RequestLease(self.world.at, lease, name, worker, request, True))
        # More load: no share of another job rises.
        after = all_shares(self.world)
        rose = [one for one in before if after[one] > before[one]]
        assert not rose, f"{rose} rose when {lease} came"
        self._events(heard)

    @rule(data=st.data())
    def goes(self, data: st.DataObject) -> None:
        there = sorted(self.world.state.leases)
        if not there:
            return
        lease = self.world.state.leases[data.draw(st.sampled_from(there))]
        before, heard = all_shares(self.world), len(self.world.history)
        waited = bool(self.world.state.queue.waiting)
        self.world.die(lease.task.process.pid)
        # Less load: no share falls, as long as nobody waits for what was freed.
        after = all_shares(self.world)
        fell = [one for one in before if one in after and after[one] < before[one]]
        assert waited or not fell, f"{fell} fell when {lease.id} went"
        self._events(heard)

    @rule()
    def obeys(self) -> None:
        heard = len(self.world.history)
        obey(self.world)
        self._events(heard)

    @rule()
    def settles(self) -> None:
        heard = len(self.world.history)
        settled(self.world)
        self._events(heard)
        self.at_rest()

    def at_rest(self) -> None:
        state = self.world.state
        for name in state.queue.waiting:
            placed = room.try_place(unlifted(state), state.leases[name], self.world.config)
            assert not isinstance(placed, Granted), f"{name} waits while others could fall"
        if state.queue.waiting:
            return
        for job in lifts.residents(state, self.world.config):
            level = max(job.has.values())
            tight = any(state.gpus[uuid].free < STEP for uuid in job.has)
            assert level + STEP > job.most or tight, "there is room, and it did not rise"

    def _events(self, heard: int) -> None:
        """What the ledger has: the reservations after each event never exceed a GPU."""
        for event in self.world.history[heard:]:
            if isinstance(event, ev.LimitMoved) and event.live is None:
                lease = self.world.state.leases.get(event.lease)
                if lease is not None and lease.request.memory_most is not None:
                    sizes = {part.memory for part in event.gpus}
                    assert len(sizes) == 1, "the same on all GPUs"
                    assert (lease.request.memory or 0) <= min(sizes), "never below the least"
                    assert max(sizes) <= lease.request.memory_most, "never above the most"
        for books in self.world.state.gpus.values():
            assert books.reserved <= books.gpu.memory

    @invariant()
    def a_job_has_one_share(self) -> None:
        jobs: dict[tuple[str, str], set[float]] = {}
        for lease in self.world.state.leases.values():
            if lease.phase is LeasePhase.HELD and lease.task.job:
                key = (lease.environment, lease.task.job)
                jobs.setdefault(key, set()).add(share(self.world.state, lease.id))
        assert all(len(sizes) == 1 for sizes in jobs.values()), jobs

    @invariant()
    def the_first_has_most(self) -> None:
        """Of leases with the same range: on the same GPUs, or fewer of them."""
        state = self.world.state
        held = [
            lease
            for lease in sorted(state.leases.values(), key=lambda one: one.order)
            if lease.phase is LeasePhase.HELD and lease.request.memory_most and not lease.task.job
        ]
        for first, later in combinations(held, 2):
            asked = [(one.request.memory, one.request.memory_most) for one in (first, later)]
            gpus = [{part.gpu for part in one.allocations} for one in (first, later)]
            if asked[0] == asked[1] and gpus[0] <= gpus[1]:
                assert share(state, first.id) >= share(state, later.id)


pytestmark = pytest.mark.timeout(600)

SOME = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_shares_are_monotone_and_fit_whatever_comes() -> None:
    run_state_machine_as_test(Load, settings=SOME)


JOBS = st.lists(
    st.tuples(
        st.sets(st.sampled_from("abc"), min_size=1),
        st.integers(0, 60),
        st.integers(0, 60),
        st.booleans(),
    ),
    max_size=6,
)


def _ranks(drawn: Iterable[tuple[set[str], int, int, bool]]) -> list[list[lifts.Resident]]:
    """Jobs by their ranks; then on each GPU those that share what is left."""
    jobs, others = [], dict[str, list[lifts.Resident]]()
    for gpus, most, has, keeps in drawn:
        sizes = {GpuUuid(name): has * STEP for name in gpus}
        if keeps:
            jobs.append([lifts.Resident(sizes, most * STEP, True)])
        for name in () if keeps else gpus:
            one = lifts.Resident({GpuUuid(name): has * STEP}, most * STEP)
            others.setdefault(name, []).append(one)
    return [*jobs, *(rank for _name, rank in sorted(others.items()))]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(drawn=JOBS, room=st.integers(-20, 100), free=st.integers(0, 40))
def test_the_arithmetic(drawn: list[tuple[set[str], int, int, bool]], room: int, free: int) -> None:
    """What is given fits; a job falls only where it must; those of the last rank are equal."""
    ranks, gpus = _ranks(drawn), list(map(GpuUuid, "abc"))
    rooms, frees = dict.fromkeys(gpus, room * STEP), dict.fromkeys(gpus, free * STEP)
    had, has, rises = Counter[GpuUuid](), Counter[GpuUuid](), Counter[GpuUuid]()
    told = list(lifts.shared_out(ranks, rooms, frees))
    assert len(told) == sum(map(len, ranks))
    for one, level in told:
        assert 0 <= level <= one.most
        for uuid, size in one.has.items():
            had[uuid] += size * one.keeps
            has[uuid] += level
            rises[uuid] += max(0, level - size)
    for uuid in gpus:
        assert has[uuid] <= max(0, rooms[uuid])
        assert rises[uuid] <= frees[uuid]
    for one, level in told:
        if one.keeps and level < min(max(one.has.values()), one.most):
            assert any(had[uuid] > rooms[uuid] for uuid in one.has)


def test_nobody_falls_by_a_fraction_of_a_step() -> None:
    uuid = GpuUuid("a")
    for keeps in (False, True):
        one = lifts.Resident({uuid: STEP + 5}, 9 * STEP, keeps)
        assert [*lifts.shared_out([[one]], {uuid: STEP + 9}, {})] == [(one, STEP + 5)]
