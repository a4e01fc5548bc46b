"""Stories with a known end that random histories meet too seldom."""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words import events as ev
from jupyter_gpushare.policy.words.model import (
    Activity,
    BudgetLevel,
    Bytes,
    ClaimPhase,
    EnvironmentName,
    GpuReading,
    LeaseId,
    LeasePhase,
    Movable,
    ParkWhen,
    Quota,
    RefusalReason,
    Request,
    Rung,
)
from jupyter_gpushare.policy.words.recalls import RecallPhase
from support.policy_world import (
    BOOT,
    GIB,
    World,
    gpu,
    is_asked,
    is_asked_back,
    kept,
    process,
)

from .policy_world import plain_config

ALICE = EnvironmentName("alice")


def phase(world: World, lease: str) -> str:
    found = world.state.leases.get(LeaseId(lease))
    return "forgotten" if found is None else found.phase.value


def two_people_one_gpu() -> World:
    """alice holds the only GPU and uses it; bob waits."""
    world = World().start([gpu(0)], Quota(1, Bytes(24 * GIB)))
    world.request("alice", 1)
    world.memory[(1, gpu(0).uuid)] = 20 * GIB
    world.observe()
    world.request("bob", 2)
    return world


def a_stalled_holder_keeps_what_it_uses() -> None:
    """No sign of life is no proof: only a measurement or death is."""
    world = two_people_one_gpu()
    for _ in range(10):
        world.at += 10
        bob = world.state.leases[LeaseId("L2")]
        world.run(cmd.Heartbeat(world.at, bob.id, bob.environment, bob.task.process))
        world.run(cmd.Tick(world.at, world.at))
    assert phase(world, "L1") == "held"
    assert world.state.leases[LeaseId("L1")].stalled
    world.observe()
    assert (phase(world, "L1"), phase(world, "L2")) == ("held", "queued")
    del world.memory[(1, gpu(0).uuid)]
    world.observe()
    assert (phase(world, "L1"), phase(world, "L2")) == ("forgotten", "held")


def a_released_lease_drains_until_measured() -> None:
    """`release` ends the entitlement at once and the claim only when the memory is gone."""
    world = two_people_one_gpu()
    world.release("L1", "alice")
    world.observe()
    assert (phase(world, "L1"), phase(world, "L2")) == ("ended", "queued")
    del world.memory[(1, gpu(0).uuid)]
    stale = cmd.Observe(world.at - 1, world.readings())
    world.run(stale)
    assert phase(world, "L1") == "ended", "a reading begun before the release proves nothing"
    world.observe()
    assert (phase(world, "L1"), phase(world, "L2")) == ("forgotten", "held")


def a_dead_holder_gives_way_after_one_measurement() -> None:
    """Death frees what a measurement confirms; a child that lives on keeps its memory."""
    world = two_people_one_gpu()
    alice = world.state.leases[LeaseId("L1")]
    world.run(cmd.Attach(world.at, alice.id, alice.environment, process(3)))
    world.memory[(3, gpu(0).uuid)] = 4 * GIB
    world.die(1)
    world.observe()
    assert (phase(world, "L1"), phase(world, "L2")) == ("ended", "queued")
    world.die(3)
    world.observe()
    assert (phase(world, "L1"), phase(world, "L2")) == ("forgotten", "held")


def a_late_tick_is_nobodys_fault() -> None:
    """The host slept for an hour: nobody could be heard, so nobody is stalled."""
    world = two_people_one_gpu()
    due = world.at + 5
    world.at += 3600
    world.run(cmd.Tick(world.at, due))
    assert not world.state.stalled
    assert world.state.leases[LeaseId("L2")].phase is LeasePhase.QUEUED


def a_reboot_ends_everything() -> None:
    """A new boot id means that every task is gone."""
    world = two_people_one_gpu()
    world.memory.clear()
    gpus = tuple(books.gpu for books in world.state.gpus.values())
    world.run(cmd.Start(3.0, "boot-2", gpus))
    assert not world.state.leases
    assert not world.state.reservations


def a_full_disk_grants_nothing_and_takes_nothing() -> None:
    """While granting is stopped, releases work, requests are refused, the queue keeps its order."""
    world = two_people_one_gpu()
    world.run(cmd.SetGranting(world.at, "the disk is full."))
    refused = world.request("carol", 4)
    assert refused.reason.value == "unavailable"
    assert "the disk is full" in refused.message
    world.die(1)
    world.observe()
    assert (phase(world, "L1"), phase(world, "L2")) == ("forgotten", "queued")
    world.run(cmd.SetGranting(world.at, None))
    assert phase(world, "L2") == "held"


def a_gpu_that_goes_away_is_lost_while_held_and_forgotten_when_free() -> None:
    """Listing again: a held GPU that is gone is lost, a free one forgotten; both may come back."""
    world = World().start([gpu(0), gpu(1)], Quota(1, Bytes(24 * GIB)))
    world.request("alice", 1)
    world.run(cmd.Discover(world.at, ()))
    assert [books.gpu.index for books in world.state.gpus.values()] == [0]
    assert world.state.gpus[gpu(0).uuid].problem == "this GPU is no longer in the node"
    world.request("bob", 2)
    assert phase(world, "L2") == "queued"
    world.run(cmd.Discover(world.at, (gpu(0), gpu(1))))
    assert all(books.problem is None for books in world.state.gpus.values())
    assert world.gpus_of("L2") == [1], "what waits is served when a GPU comes"


def a_reservation_grows_only_into_room() -> None:
    """A second task that asks for more than is left waits, though its GPU is shared."""
    world = World().start([gpu(0)], Quota(1, None))
    world.request("alice", 1, Request(1, Bytes(4 * GIB)))
    world.request("bob", 2, Request(1, Bytes(16 * GIB)))
    world.request("alice", 3, Request(1, Bytes(10 * GIB)))
    assert phase(world, "L3") == "queued"


def a_restart_refuses_nobody_before_the_quotas_are_read() -> None:
    """What waits is neither granted nor refused while only the ledger has been read."""
    world = two_people_one_gpu()
    state = State()
    for event in core.summarise(world.state):
        state = core.evolve(state, event)
    world.state = state
    world.memory[(9, gpu(0).uuid)] = 2 * GIB  # a squatter that came meanwhile
    world.run(cmd.Start(world.at, BOOT, (gpu(0),)))
    world.observe()
    assert phase(world, "L2") == "queued"
    world.run(cmd.ConfigureQuotas(world.at, Quota(1, Bytes(8 * GIB))))
    assert phase(world, "L2") == "queued"


def budgets(hours: float, **more: Quota) -> World:
    """One GPU for one task at a time; everybody has ``hours`` GPU-hours."""
    config = plain_config(max_tasks_per_gpu=1, overtake_interactive=2)
    return World(config).start([gpu(0)], Quota(1, None, gpu_hours=hours), **more)


def who_has_spent_the_budget_waits_and_bars_nobody() -> None:
    """The request waits with its reason, others pass it, and it goes on when the window rolls."""
    world = budgets(10.0)
    world.spent["alice"] = 10.0
    world.measure_budgets()
    assert world.state.budget(ALICE).level is BudgetLevel.SPENT
    waits = world.request("alice", 1)
    assert isinstance(waits, core.Wait)
    assert "10 of 10 GPU-hours in the last 7 days" in waits.message
    assert "in about" not in waits.message
    told = ((ALICE, 10.0),), ((ALICE, world.at + 2.6 * 3600),)
    world.run(cmd.MeasureBudgets(world.at, *told))
    why = core.why_waiting(world.state, waits.lease, 0, world.config, world.at)
    assert "again in about 3 hours, when" in why.message
    why = core.why_waiting(world.state, waits.lease, 0, world.config)
    assert why.reason is RefusalReason.BUDGET_SPENT
    now = world.request("alice", 2, wait=False)
    assert isinstance(now, core.Refuse)
    assert now.reason is RefusalReason.NO_RESOURCES
    assert "10 of 10" in now.message
    for pid in range(3, 12):  # far more than the bound of 2
        decision = world.request("bob", pid)
        assert isinstance(decision, core.Grant)
        world.release(decision.lease, "bob")
        world.observe()
    world.request("carol", 20)
    world.request("dave", 21)
    world.spent["alice"] = 7.9
    world.measure_budgets()
    assert world.state.budget(ALICE).level is BudgetLevel.OK
    assert world.state.queue.service_order(world.state.grants)[0].lease == "L1"
    assert world.state.queue.first_urgent(world.state.grants) is None, "it was in no line so far"


def a_raised_budget_serves_who_waits() -> None:
    """An administrator's override counts at once, and so does taking it back."""
    world = budgets(10.0)
    world.spent["alice"] = 11.0
    world.measure_budgets()
    world.request("alice", 1)
    root = EnvironmentName("root")
    world.run(cmd.SetQuota(world.at, ALICE, Quota(1, None, gpu_hours=12.0), root))
    assert phase(world, "L1") == "held"
    assert world.state.budget(ALICE).level is BudgetLevel.WARNED
    world.run(cmd.UnsetQuota(world.at, ALICE, root))
    assert world.state.budget(ALICE).level is BudgetLevel.SPENT
    assert phase(world, "L1") == "held", "what runs goes on"
    assert isinstance(world.request("alice", 2), core.Wait), "even on the GPU that is held"


def a_budget_of_nothing_is_spent_from_the_start() -> None:
    """0 GPU-hours: nothing was measured, and nothing may be held."""
    world = budgets(0.0)
    assert isinstance(world.request("alice", 1), core.Wait)


def idle(world: World, lease: str) -> None:
    """The lease's cell has ended."""
    found = world.state.leases[LeaseId(lease)]
    world.run(
        cmd.SetActivity(world.at, found.id, found.environment, found.task.process, Activity.IDLE)
    )


def park(world: World, lease: str) -> core.Decision:
    found = world.state.leases[LeaseId(lease)]
    return world.run(cmd.Park(world.at, found.id, found.environment, found.task.process))


def resume(world: World, lease: str, *, wait: bool = True) -> core.Decision:
    found = world.state.leases[LeaseId(lease)]
    return world.run(cmd.Resume(world.at, found.id, found.environment, found.task.process, wait))


def asked(world: World) -> list[str]:
    """The leases that were asked for their GPUs so far, in order."""
    return [event.lease for event in world.history if is_asked_back(event)]


def lazy(gpus: int = 1, **more: Any) -> World:
    """GPUs for one task each; a kernel may be idle for a minute."""
    parts = {"max_tasks_per_gpu": 1, "idle_timeout": 60.0, "heartbeat_timeout": 1e6, **more}
    return World(plain_config(**parts)).start([gpu(n) for n in range(gpus)], Quota(2, None))


def given(
    world: World,
    lease: str,
    rung: Rung,
    memory: int = 0,
    movable: Movable = Movable.SAME,
) -> core.Decision:
    """The task gives its GPUs back by this rung."""
    found = world.state.leases[LeaseId(lease)]
    who = (found.id, found.environment, found.task.process)
    return world.run(cmd.Park(world.at, *who, rung, memory, movable, 1.0))


def plan(world: World, lease: str, memory: int) -> core.Decision:
    found = world.state.leases[LeaseId(lease)]
    return world.run(
        cmd.PlanParking(world.at, found.id, found.environment, found.task.process, memory)
    )


def restored(world: World, lease: str) -> core.Decision:
    found = world.state.leases[LeaseId(lease)]
    return world.run(cmd.Restored(world.at, found.id, found.environment, found.task.process, 1.0))


def pin(world: World, lease: str, seconds: float | None = None) -> core.Decision:
    found = world.state.leases[LeaseId(lease)]
    return world.run(cmd.Pin(world.at, found.id, found.environment, seconds))


def stays(world: World) -> list[tuple[str, int]]:
    """The leases asked so far, with the bytes that may stay on their first GPU."""
    return [(event.lease, event.keep[0].memory) for event in world.history if is_asked_back(event)]


def what_stays_on_the_gpu_stays_reserved_and_is_asked_for_when_needed() -> None:
    """Tensors move to host memory; the context is measured, kept, and later wanted, too."""
    world = lazy(max_tasks_per_gpu=1)
    world.start([gpu(0)], Quota(2, None), alice=Quota(1, Bytes(16 * GIB)))
    world.request("alice", 1)
    world.memory[(1, gpu(0).uuid)] = 12 * GIB
    world.observe()
    idle(world, "L1")
    world.at += 61
    world.request("bob", 2, Request(1, Bytes(20 * GIB)))
    assert stays(world) == [("L1", 4 * GIB)], "all but what bob needs"
    plan(world, "L1", 11 * GIB)
    given(world, "L1", Rung.STORAGE, 11 * GIB)
    world.memory[(1, gpu(0).uuid)] = GIB // 2
    assert (phase(world, "L1"), phase(world, "L2")) == ("parked", "queued")
    assert world.state.gpus[gpu(0).uuid].reserved == 16 * GIB, "nobody has measured it yet"
    world.observe()
    assert phase(world, "L2") == "held", "what is left behind is no task"
    assert world.state.gpus[gpu(0).uuid].reserved == 20 * GIB + GIB // 2 + 64 * 1024**2
    assert isinstance(resume(world, "L1"), core.Wait)
    park(world, "L1")
    world.release("L2", "bob")
    world.memory.pop((2, gpu(0).uuid), None)
    world.observe()
    world.request("bob", 3, Request(1, Bytes(24 * GIB)))
    world.tick(2)
    assert stays(world)[1:] == [("L1", 0)], "the rest is wanted: nothing may stay"
    given(world, "L1", Rung.DRIVER, 12 * GIB)
    assert phase(world, "L3") == "queued", "the driver's word is no measurement"
    world.memory.pop((1, gpu(0).uuid))
    world.observe()
    assert phase(world, "L3") == "held"
    assert world.state.parked_memory() == 12 * GIB
    resume(world, "L1")
    world.release("L3", "bob")
    world.observe()
    lease = world.state.leases[LeaseId("L1")]
    assert lease.is_resuming
    assert world.state.parked_memory() == 12 * GIB, "it is still there until all is back"
    restored(world, "L1")
    assert world.state.parked_memory() == 0
    assert not world.state.leases[LeaseId("L1")].is_resuming


def host_memory_is_a_resource_too() -> None:
    """Parking is refused where the node, or the environment, has no host memory left for it."""
    world = lazy(2, parked_memory=20 * GIB, parked_memory_per_environment=12 * GIB)
    for pid, who in ((1, "alice"), (2, "bob")):
        world.request(who, pid)
        idle(world, f"L{pid}")
    mine = plan(world, "L1", 13 * GIB)
    assert isinstance(mine, core.Refuse)
    assert "each environment" in mine.message
    assert isinstance(plan(world, "L1", 12 * GIB), core.Done)
    whole = plan(world, "L2", 9 * GIB)
    assert isinstance(whole, core.Refuse)
    assert whole.reason is RefusalReason.NO_RESOURCES
    assert whole.numbers == {"asked": 9 * GIB, "used": 12 * GIB, "most": 20 * GIB}
    found = world.state.leases[LeaseId("L1")]
    who_keeps = (found.id, found.environment, found.task.process)
    world.run(cmd.Keep(world.at, *who_keeps, "It failed."))
    assert isinstance(plan(world, "L2", 9 * GIB), core.Done), "what was set aside is free again"
    given(world, "L2", Rung.DRIVER, 9 * GIB)
    assert world.state.parked_memory() == 9 * GIB
    world.die(2)
    assert world.state.parked_memory() == 0, "a process takes its copy along"


def a_grant_is_dated_when_it_is_made() -> None:
    """A driver that hangs: the measurement was begun long before it was known, or asked for."""
    world = two_people_one_gpu()
    world.release("L1", "alice")
    world.memory.clear()
    begun = world.at
    world.at += 30
    world.run(cmd.Observe(begun + 1, world.readings(), world.at))
    granted = world.state.leases[LeaseId("L2")]
    assert granted.granted_at == world.at
    gone = next(
        e
        for e in world.history
        if isinstance(e, ev.ClaimMoved) and e.lease == "L1" and e.phase is ClaimPhase.GONE
    )
    assert gone.at == begun + 1


def who_is_moving_its_memory_is_waited_for() -> None:
    """A copy of gigabytes takes longer than an answer; nobody else is asked meanwhile."""
    world = lazy(2)
    for pid in (1, 2):
        world.request(f"p{pid}", pid)
        idle(world, f"L{pid}")
        world.at += 1
    world.at += 100
    world.request("bob", 3)
    plan(world, "L1", 20 * GIB)
    world.tick(40)
    assert asked(world) == ["L1"]
    given(world, "L1", Rung.DRIVER, 20 * GIB)
    world.observe()
    assert phase(world, "L3") == "held"
    assert asked(world) == ["L1"]


def its_people_are_told_first_and_may_keep_it() -> None:
    """A warning, a pin within the limit, others asked instead; then the limit."""
    world = lazy(2, notify_before=20.0, pin_limit=600.0, keep_for=300.0)
    for pid in (1, 2):
        world.request(f"p{pid}", pid)
        idle(world, f"L{pid}")
        world.at += 1
    world.at += 38  # past 60 - 20 for the first
    world.request("bob", 3)
    world.tick(2)
    warned = [e.lease for e in world.history if is_asked_back(e, RecallPhase.WARNED)]
    assert (warned, asked(world)) == (["L1"], []), "one is enough, and it is not asked yet"
    assert isinstance(pin(world, "L1"), core.Done)
    world.tick(2)
    warned = [e.lease for e in world.history if is_asked_back(e, RecallPhase.WARNED)]
    assert warned == ["L1", "L2"], "somebody else is told"
    world.tick(17)
    assert asked(world) == []
    world.tick(2)
    assert asked(world) == ["L2"]
    assert isinstance(pin(world, "L1", 10_000.0), core.Done)
    until = world.state.leases[LeaseId("L1")].pinned_until
    assert until is not None
    assert until <= 101 + 600, "from when it became idle, however often it is pinned"
    world.at = 101 + 600
    refused = pin(world, "L1", 60.0)
    assert isinstance(refused, core.Refuse)
    assert refused.reason is RefusalReason.NOT_ALLOWED
    never = lazy(pin_limit=0.0)
    never.request("alice", 1)
    assert isinstance(pin(never, "L1"), core.Refuse)


def a_warning_that_nothing_came_of_is_given_anew() -> None:
    """Who waited left: a day later somebody else waits, and its people are told again."""
    world = lazy(notify_before=20.0)
    world.request("alice", 1)
    idle(world, "L1")
    world.at += 100
    world.request("bob", 2)
    world.release("L2", "bob")
    world.at += 86400
    world.request("carol", 3)
    assert asked(world) == []
    assert len([e for e in world.history if is_asked_back(e, RecallPhase.WARNED)]) == 2
    world.tick(21)
    assert asked(world) == ["L1"]


def a_checkpoint_goes_back_where_it_can() -> None:
    """To the GPUs it came from; to others of the kind only where the driver can move it."""
    for movable, where in ((Movable.SAME, "parked"), (Movable.KIND, "held")):
        world = lazy(2)
        world.request("alice", 1)
        idle(world, "L1")
        given(world, "L1", Rung.DRIVER, GIB, movable)
        world.observe()
        world.request("bob", 2)
        assert world.state.leases[LeaseId("L2")].allocations[0].gpu == gpu(0).uuid
        resume(world, "L1")
        assert phase(world, "L1") == where
        world.release("L2", "bob")
        world.observe()
        assert phase(world, "L1") == "held"


def an_idle_gpu_goes_to_who_waits_and_comes_back() -> None:
    """The whole round: asked, parked, measured, granted to bob; alice waits and gets it back."""
    world = lazy()
    world.request("alice", 1)
    idle(world, "L1")
    world.tick(1000)
    assert asked(world) == [], "nobody waits: she may keep it"
    world.request("bob", 2)
    assert asked(world) == ["L1"], "at once: she was idle for long enough"
    park(world, "L1")
    assert (phase(world, "L1"), phase(world, "L2")) == ("parked", "queued")
    assert isinstance(resume(world, "L1", wait=False), core.Refuse)
    world.observe()
    assert phase(world, "L2") == "held"
    assert isinstance(resume(world, "L1"), core.Wait)
    assert isinstance(resume(world, "L1"), core.Wait), "asked twice is asked once"
    park(world, "L1")
    assert not world.state.queue.waiting, "she left the queue and stays parked"
    resume(world, "L1")
    world.release("L2", "bob")
    world.observe()
    assert phase(world, "L1") == "held"
    assert world.state.leases[LeaseId("L1")].activity is Activity.BUSY


def who_keeps_a_gpu_is_asked_again_later_and_somebody_else_now() -> None:
    """The longest idle first; one that cannot is remembered with its reason."""
    world = lazy(2)
    for pid in (1, 2):
        world.request(f"p{pid}", pid)
        idle(world, f"L{pid}")
        world.at += 1
    world.at += 100
    world.request("bob", 3)
    assert asked(world) == ["L1"], "one is enough"
    lease = world.state.leases[LeaseId("L1")]
    world.run(cmd.Keep(world.at, lease.id, lease.environment, lease.task.process, "CUDA runs."))
    assert asked(world) == ["L1", "L2"]
    assert kept(world.state, "L1") == "CUDA runs."
    world.tick(59)
    assert asked(world) == ["L1", "L2"]
    world.tick(2)
    assert asked(world) == ["L1", "L2", "L1"], "L2 may still answer; another minute is over"


def a_measurement_counts_more_than_a_word() -> None:
    """Who says it parked and was seen with memory on the GPU keeps the lease, and the memory."""
    world = lazy()
    world.request("alice", 1)
    world.memory[(1, gpu(0).uuid)] = GIB
    world.observe()
    idle(world, "L1")
    park(world, "L1")
    assert phase(world, "L1") == "held"
    del world.memory[(1, gpu(0).uuid)]
    world.observe()
    park(world, "L1")
    world.memory[(1, gpu(0).uuid)] = GIB  # after it parked
    world.observe()
    world.request("bob", 2)
    assert (phase(world, "L1"), phase(world, "L2")) == ("parked", "queued")
    resume(world, "L1")
    why = core.why_waiting(world.state, LeaseId("L1"), 1, world.config)
    assert "not measured as free" in why.message
    world.die(1)
    world.observe()
    assert (phase(world, "L1"), phase(world, "L2")) == ("forgotten", "held")


def gave_back_what_is_still_there(left: int = 3) -> World:
    """Alice's parked kernel said that CUDA never started; it has ``left`` GiB on the GPU."""
    world = lazy()
    world.request("alice", 1)
    idle(world, "L1")
    park(world, "L1")
    world.memory[(1, gpu(0).uuid)] = left * GIB
    return world


def what_a_word_did_not_free_is_its_own_again() -> None:
    """It would drain until the process is gone, and bar the task's own way back."""
    world = gave_back_what_is_still_there()
    resume(world, "L1")
    world.observe()
    assert phase(world, "L1") == "parked", "it may be on its way"
    assert "not measured as free" in core.why_waiting(world.state, "L1", 0, world.config).message
    world.tick(11)
    world.observe()
    assert phase(world, "L1") == "held", "its own memory is there: it goes on with it"
    world.observe()
    idle(world, "L1")
    park(world, "L1")
    assert phase(world, "L1") == "held", "now it is known to have memory there"


def what_a_word_did_not_free_is_asked_for_and_said() -> None:
    world = gave_back_what_is_still_there()
    world.request("bob", 2)
    world.tick(11)
    world.observe()
    lease = world.state.leases[LeaseId("L1")]
    assert (lease.phase.value, lease.has_residue) == ("parked", True)
    assert "still has memory there" in (kept(world.state, lease.id) or "")
    world.observe()
    reserved = 3 * GIB + 64 * 1024**2
    assert world.state.gpus[gpu(0).uuid].reserved == reserved, "what is measured, and no more"
    said = core.why_waiting(world.state, LeaseId("L2"), 0, world.config).message
    assert "A parked task still has memory on GPU 0 (3.062 GiB with its reserve)" in said
    assert core.check(restarted(world)) is None
    world.tick(2)
    assert asked(world) == ["L1"]
    given(world, "L1", Rung.DRIVER, 3 * GIB)
    del world.memory[(1, gpu(0).uuid)]
    world.observe()
    assert (phase(world, "L1"), phase(world, "L2")) == ("parked", "held")


def who_can_give_no_more_is_asked_ever_more_seldom() -> None:
    """It trimmed, nothing is measured of it but its name, and whoever waits wants all."""
    world = lazy(measure_granularity=1)
    world.request("alice", 1)
    world.memory[(1, gpu(0).uuid)] = GIB
    world.observe()
    idle(world, "L1")
    given(world, "L1", Rung.TRIM)
    world.memory[(1, gpu(0).uuid)] = 0
    world.tick(2)
    world.observe()
    assert world.state.gpus[gpu(0).uuid].reserved == 64 * 1024**2
    world.request("bob", 2)
    for _ in range(3600):
        world.tick(1)
        if is_asked(world.state, "L1"):
            given(world, "L1", Rung.TRIM)
            assert not is_asked(world.state, "L1"), "that is an answer"
            assert kept(world.state, "L1")
    assert len(asked(world)) == 6, "after 0, 1, 3, 7, 15 and 31 minutes"


def more_moved_to_host_memory_later_counts_there() -> None:
    """A task that had only emptied its caches climbs when it is asked for more."""
    world = lazy()
    world.request("alice", 1)
    world.memory[(1, gpu(0).uuid)] = 8 * GIB
    world.observe()
    idle(world, "L1")
    given(world, "L1", Rung.TRIM)
    world.tick(2)
    world.observe()
    world.request("bob", 2, Request(1, Bytes(20 * GIB)))
    world.tick(2)
    assert asked(world) == ["L1"]
    plan(world, "L1", 7 * GIB)
    given(world, "L1", Rung.STORAGE, 7 * GIB)
    world.memory[(1, gpu(0).uuid)] = GIB // 2
    world.observe()
    assert (phase(world, "L1"), phase(world, "L2")) == ("parked", "held")
    assert world.state.parked_memory() == 7 * GIB
    assert world.state.memory_recall(LeaseId("L1")) is None


def a_trimmed_task_of_which_nothing_is_there_holds_nothing() -> None:
    """Not even a context: a framework that could not say whether it had started CUDA."""
    world = lazy()
    world.request("alice", 1)
    idle(world, "L1")
    given(world, "L1", Rung.TRIM)
    world.tick(1)
    world.observe()
    world.tick(1)
    world.observe()
    world.request("bob", 2)
    assert (phase(world, "L1"), phase(world, "L2")) == ("parked", "held")
    assert not asked(world), "there is nothing to ask it for"


def time_outs_by_quota_and_gpu_and_always() -> None:
    """The quota's own goes first, then the shortest that matches the GPU's name."""
    world = lazy(
        idle_timeout=1000.0,
        idle_timeouts=(("pretend", 30.0), ("h200", 5.0)),
        park_when=ParkWhen.ALWAYS,
    )
    world.request("alice", 1)
    idle(world, "L1")
    assert core.next_deadline(world.state, world.config) == world.at + 30.0
    root = EnvironmentName("root")
    world.run(cmd.SetQuota(world.at, ALICE, Quota(1, None, idle_timeout=0.0), root))
    world.tick(100)
    assert asked(world) == [], "0 is never"
    world.run(cmd.SetQuota(world.at, ALICE, Quota(1, None, idle_timeout=90.0), root))
    world.tick(1)
    assert asked(world) == ["L1"], "though nobody waits"


def an_idle_gpu_of_a_spent_budget_is_taken_back() -> None:
    """Though nobody waits and no time-out is set; what computes is left alone."""
    world = World(plain_config(spent_idle_timeout=20.0, heartbeat_timeout=1e6)).start(
        [gpu(0), gpu(1)], Quota(2, None, gpu_hours=5.0)
    )
    world.request("alice", 1)
    world.request("alice", 2)
    idle(world, "L1")
    world.tick(100)
    assert asked(world) == []
    world.spent["alice"] = 5.0
    world.measure_budgets()
    world.tick(1)
    assert asked(world) == ["L1"]
    park(world, "L1")
    world.observe()
    assert isinstance(resume(world, "L1"), core.Wait)
    why = core.why_waiting(world.state, LeaseId("L1"), 0, world.config)
    assert why.reason is RefusalReason.BUDGET_SPENT
    world.spent["alice"] = 1.0
    world.measure_budgets()
    assert phase(world, "L1") == "held"


def all_of_the_quota_is_what_works_of_it() -> None:
    """A broken GPU, one out of service or one that is too small is not waited for."""
    world = World(plain_config(max_tasks_per_gpu=1)).start(
        [gpu(0), gpu(1), gpu(2), gpu(3)], Quota(3)
    )
    assert world.request("alice", 1, of_quota=True) == core.Grant(LeaseId("L1"))
    assert len(world.state.leases[LeaseId("L1")].allocations) == 3
    assert world.state.leases[LeaseId("L1")].request.gpus == 3
    world.die(1)
    world.observe()
    for index in (0, 1):
        world.run(cmd.TakeGpuOut(world.at, gpu(index).uuid, "a fan", EnvironmentName("root")))
    world.request("alice", 2, of_quota=True)
    assert len(world.state.leases[LeaseId("L2")].allocations) == 2
    world.run(cmd.SetQuota(world.at, EnvironmentName("bob"), Quota(0), EnvironmentName("root")))
    refused = world.request("bob", 3, of_quota=True)
    assert isinstance(refused, core.Refuse)
    assert refused.reason is RefusalReason.ZERO_QUOTA


def a_spent_budget_shortens_the_time_out() -> None:
    """The node's default of half an hour would keep a GPU that nobody has paid for."""
    world = World(
        plain_config(idle_timeout=1800.0, spent_idle_timeout=20.0, heartbeat_timeout=1e6)
    ).start([gpu(0)], Quota(1, None, gpu_hours=5.0))
    world.request("alice", 1)
    idle(world, "L1")
    world.spent["alice"] = 5.0
    world.measure_budgets()
    world.tick(10)
    assert asked(world) == []
    world.tick(11)
    assert asked(world) == ["L1"]


def restarted(world: World) -> State:
    """The state that a node manager has which was killed and started again."""
    state = State()
    for event in core.summarise(world.state):
        state = core.evolve(state, event)
    return core.step(state, cmd.Start(world.at, BOOT, (gpu(0),)), world.config).state


def named(world: World, who: str = "alice") -> tuple[int, int]:
    """GiB that an environment has reserved on GPU 0, and that its tasks there named."""
    held = world.state.reservations[(EnvironmentName(who), gpu(0).uuid)]
    return held.memory // GIB, held.named // GIB


def what_two_tasks_name_is_bounded_by_their_quota() -> None:
    """Each has what it named to itself: the reservation grows, or the second one waits."""
    six = Request(memory=Bytes(6 * GIB))
    world = World().start([gpu(0)], Quota(1, Bytes(8 * GIB)), bob=Quota(1, Bytes(16 * GIB)))
    world.request("bob", 1, six)
    world.request("bob", 2, six)
    assert named(world, "bob") == (12, 12)
    limits = [world.state.leases[LeaseId(name)].allocations[0].memory for name in ("L1", "L2")]
    assert limits == [6 * GIB, 6 * GIB], "none may use what the other one named"
    world.request("alice", 3, six)
    waits = world.request("alice", 4, six)
    assert isinstance(waits, core.Wait)
    assert "exceed the 8 GiB that it allows on each" in waits.message
    assert isinstance(world.request("alice", 5, Request(memory=Bytes(2 * GIB))), core.Grant)
    assert named(world) == (8, 8), "what is left of the quota is for who asks for no more"
    assert restarted(world).reservations == world.state.reservations
    world.memory[(3, gpu(0).uuid)] = 6 * GIB
    world.observe()
    world.release("L3", "alice")
    assert named(world) == (8, 8), "its memory is not measured as free yet"
    assert phase(world, "L4") == "queued"
    world.memory.clear()
    world.observe()
    assert (phase(world, "L4"), named(world)) == ("held", (8, 8))


def what_a_parked_task_named_is_free_until_it_resumes() -> None:
    """Also where it left something behind; then it waits like any other one."""
    six = Request(memory=Bytes(6 * GIB))
    world = lazy()
    world.start([gpu(0)], Quota(1, Bytes(8 * GIB)))
    world.request("alice", 1, six)
    world.memory[(1, gpu(0).uuid)] = 6 * GIB
    world.observe()
    idle(world, "L1")
    plan(world, "L1", 5 * GIB)
    given(world, "L1", Rung.STORAGE, 5 * GIB)
    world.memory[(1, gpu(0).uuid)] = GIB // 2
    world.at += 1
    world.observe()
    assert isinstance(world.request("alice", 2, six), core.Grant), "nobody else has it"
    assert named(world) == (6, 6)
    assert restarted(world).reservations == world.state.reservations
    assert isinstance(resume(world, "L1"), core.Wait)
    world.release("L2", "alice")
    world.at += 1
    world.observe()
    assert (phase(world, "L1"), named(world)) == ("held", (6, 6))


def a_thread_that_computes_keeps_the_gpu_and_keeping_it_warm_does_not() -> None:
    """What the driver measured of the task's own kernels counts, not what its client says."""
    for share, keeps in ((0.9, True), (0.1, True), (0.03, False), (0.0, False)):
        world = lazy()
        world.request("alice", 1)
        world.memory[(1, gpu(0).uuid)] = GIB
        world.work[(1, gpu(0).uuid)] = share
        world.observe()
        idle(world, "L1")
        world.request("bob", 2)
        for _ in range(40):
            world.at += 2.0
            world.observe()
            world.tick(0.0)
        assert asked(world) == ([] if keeps else ["L1"]), share
        if keeps:
            world.work.clear()
            world.tick(59.0)
            world.observe()
            assert asked(world) == [], "less than a minute since it worked"
            world.tick(1.0)
            assert asked(world) == ["L1"]


def a_time_out_shorter_than_any_note_of_work_is_kept_too() -> None:
    """Work is noted at each measurement, so that no time-out runs out between two notes."""
    world = lazy(idle_timeout=3.0)
    world.request("alice", 1)
    world.memory[(1, gpu(0).uuid)] = GIB
    world.work[(1, gpu(0).uuid)] = 0.5
    idle(world, "L1")
    world.request("bob", 2)
    for _ in range(30):
        world.observe()
        world.tick(2.0)
    assert asked(world) == []


def work_before_a_restart_is_not_forgotten_at_once() -> None:
    """A node manager that has just started has not seen what the GPUs did."""
    world = lazy()
    world.request("alice", 1)
    idle(world, "L1")
    world.tick(1000)
    world.state = restarted(world)
    world.run(cmd.ConfigureQuotas(world.at, Quota(2, None)))
    world.request("bob", 2)
    assert asked(world) == []
    world.tick(59)
    assert asked(world) == []
    world.tick(1)
    assert asked(world) == ["L1"]


def a_parked_task_survives_a_restart_and_ends_like_any_other() -> None:
    """With its place in the queue; its death, an administrator or silence end it."""
    for way in ("die", "revoke", "silence"):
        world = lazy(heartbeat_timeout=15.0)
        world.request("alice", 1)
        idle(world, "L1")
        park(world, "L1")
        world.observe()
        world.request("bob", 2)
        resume(world, "L1")
        state = State()
        for event in core.summarise(world.state):
            state = core.evolve(state, event)
        assert state.leases[LeaseId("L1")].phase is LeasePhase.PARKED
        assert "L1" in state.queue.waiting
        if way == "die":
            world.die(1)
        elif way == "revoke":
            world.run(cmd.Revoke(world.at, LeaseId("L1"), "enough", EnvironmentName("root")))
        else:
            bob = world.state.leases[LeaseId("L2")]
            world.at += 15
            world.run(cmd.Heartbeat(world.at, bob.id, bob.environment, bob.task.process))
            world.run(cmd.Tick(world.at, world.at))
        assert (phase(world, "L1"), phase(world, "L2")) == ("forgotten", "held")
        assert not world.state.queue.waiting


def nobody_parks_or_resumes_for_another() -> None:
    """Neither another environment nor another process of the same one."""
    world = lazy()
    world.request("alice", 1)
    before = world.state.leases[LeaseId("L1")]
    for who, pid in (("bob", 1), ("alice", 9)):
        caller = (before.id, EnvironmentName(who), process(pid))
        for command in (
            cmd.Park(world.at, *caller),
            cmd.Keep(world.at, *caller, "no"),
            cmd.Resume(world.at, *caller),
        ):
            decision = world.run(command)
            assert isinstance(decision, core.Refuse)
            assert decision.reason is RefusalReason.UNKNOWN_LEASE
    assert world.state.leases[before.id] == before
    world.run(cmd.Attach(world.at, before.id, ALICE, process(9)))
    child = world.run(cmd.Park(world.at, before.id, ALICE, process(9)))
    assert isinstance(child, core.Refuse)
    park(world, "L1")
    assert phase(world, "L1") == "held", "a child shares it"
    assert "Child" in (kept(world.state, before.id) or "")


def what_comes_back_is_kept_free_though_it_is_more_than_was_promised() -> None:
    """Ten GiB were used on a lease of four: a restore that meets a full GPU loses the process."""
    world = lazy(max_tasks_per_gpu=3)
    uuid = gpu(0).uuid
    world.request("alice", 1, Request(1, Bytes(4 * GIB)))
    world.memory[(1, uuid)] = 10 * GIB
    world.observe()
    idle(world, "L1")
    plan(world, "L1", 10 * GIB)
    given(world, "L1", Rung.DRIVER, 10 * GIB)
    world.memory.pop((1, uuid))
    world.observe()
    world.request("bob", 2, Request(1, Bytes(17 * GIB)))
    world.memory[(2, uuid)] = 17 * GIB
    world.observe()
    resume(world, "L1")
    assert phase(world, "L1") == "parked", "7 GiB are free: enough for the lease, not for her"
    world.release("L2", "bob")
    world.memory.pop((2, uuid))
    world.observe()
    assert phase(world, "L1") == "held"
    world.request("bob", 3, Request(1, Bytes(16 * GIB)))
    assert phase(world, "L3") == "queued", "it is on its way back, and nothing of it is measured"
    for there in (1, 6):
        world.memory[(1, uuid)] = there * GIB
        world.observe()
        assert phase(world, "L3") == "queued", f"{there} GiB of ten have arrived"
    world.memory[(1, uuid)] = 10 * GIB
    restored(world, "L1")
    world.observe()
    assert phase(world, "L3") == "queued", "from now on it is measured"
    world.memory[(1, uuid)] = 4 * GIB
    world.observe()
    assert phase(world, "L3") == "held"


ADMIN = EnvironmentName("root")


def drain(world: World, index: int = 0, reason: str = "fan replaced") -> core.Decision:
    return world.run(cmd.TakeGpuOut(world.at, gpu(index).uuid, reason, ADMIN))


def put_back(world: World, index: int = 0) -> core.Decision:
    return world.run(cmd.PutGpuBack(world.at, gpu(index).uuid, ADMIN))


def a_gpu_out_of_service_takes_nothing_new_and_empties() -> None:
    """A busy kernel goes on; an idle one is asked for all, though it may be idle for ever."""
    world = lazy(2, idle_timeout=0.0, max_tasks_per_gpu=4)
    world.request("alice", 1, Request(1, Bytes(4 * GIB)))
    world.request("bob", 2, Request(1, Bytes(4 * GIB)))
    assert world.gpus_of("L1") == [0]
    pin(world, "L1", 3600.0)
    idle(world, "L1")
    drain(world)
    assert not isinstance(pin(world, "L1"), core.Done), "it cannot be kept there"
    world.request("carol", 3, Request(1, Bytes(4 * GIB)))
    assert world.gpus_of("L3") == [1]
    world.request("alice", 4, Request(1, Bytes(4 * GIB)))
    assert world.gpus_of("L4") == [1], "not beside her own task either"
    assert asked(world) == []
    assert core.next_deadline(world.state, world.config) <= world.at + 10
    world.tick(10)
    assert stays(world) == [("L1", 0)]
    park(world, "L1")
    world.observe()
    assert world.state.gpus[gpu(0).uuid].tasks == 0
    resume(world, "L1")
    assert world.gpus_of("L1") == [1], "its memory was nowhere, so it goes on elsewhere"
    put_back(world)
    world.request("dave", 5, Request(1, Bytes(20 * GIB)))
    assert world.gpus_of("L5") == [0]


def who_computes_on_a_gpu_out_of_service_goes_on() -> None:
    """Nobody is asked in a cell; a kernel that cannot give is asked more and more seldom."""
    world = lazy(1)
    world.request("alice", 1)
    drain(world)
    world.tick(3600)
    assert asked(world) == []
    assert phase(world, "L1") == "held"
    idle(world, "L1")
    world.tick(10)
    for _ in range(3600):
        if is_asked(world.state, "L1"):
            who = world.state.leases[LeaseId("L1")]
            world.run(cmd.Keep(world.at, who.id, who.environment, who.task.process, "CUDA runs"))
        world.tick(1)
    assert 3 <= len(asked(world)) <= 7
    assert phase(world, "L1") == "held"


def who_needs_a_gpu_out_of_service_waits_and_bars_nobody() -> None:
    """It comes back, so nothing is refused; the reason is said, and others pass."""
    for restart in (False, True):
        world = lazy(2, overtake_interactive=2)
        drain(world, 1)
        waits = world.request("alice", 1, Request(2))
        assert isinstance(waits, core.Wait)
        assert waits.message.startswith("GPU 1 is out of service: fan replaced. ")
        refused = world.request("alice", 2, Request(2), wait=False)
        assert isinstance(refused, core.Refuse)
        assert "GPU 1 is out of service" in refused.message
        for pid in range(3, 12):  # far more than the bound of 2
            decision = world.request("bob", pid)
            assert isinstance(decision, core.Grant)
            world.release(decision.lease, "bob")
            world.observe()
        if restart:
            world.state = restarted(world)
            world.run(cmd.Start(world.at, BOOT, (gpu(0), gpu(1))))
            world.run(cmd.ConfigureQuotas(world.at, Quota(2, None)))
        drain(world, 1, "a new driver!")
        why = core.why_waiting(world.state, LeaseId("L1"), 0, world.config)
        assert why.message.startswith("GPU 1 is out of service: a new driver! ")
        world.request("bob", 20)
        world.request("carol", 21)
        assert phase(world, "L13") == "queued"
        put_back(world, 1)
        assert phase(world, "L13") == "held", "it fits, and the other has been passed by nobody"
        for name in ("L12", "L13"):
            world.release(name, world.state.leases[LeaseId(name)].environment)
        world.observe()
        assert phase(world, "L1") == "held"


def who_is_bound_to_a_gpu_out_of_service_is_told() -> None:
    """A context that stayed there binds the kernel; it goes on when the GPU is back."""
    world = lazy(2)
    world.request("alice", 1)
    idle(world, "L1")
    world.memory[(1, gpu(0).uuid)] = GIB
    world.observe()
    given(world, "L1", Rung.STORAGE, 4 * GIB)
    drain(world, 0)
    waits = resume(world, "L1")
    assert isinstance(waits, core.Wait)
    assert "fan replaced" in waits.message
    assert "Restarting the kernel" in waits.message
    world.request("bob", 2, Request(2))
    world.request("carol", 3)
    assert phase(world, "L3") == "held"
    put_back(world, 0)
    assert phase(world, "L1") == "held"


def ones_own_tasks_on_a_gpu_out_of_service_count() -> None:
    """The quota is used up there, so the next kernel waits; it bars nobody meanwhile."""
    world = World(plain_config(overtake_interactive=1)).start([gpu(0), gpu(1)], Quota(1, None))
    world.request("alice", 1)
    drain(world, 0)
    waits = world.request("alice", 2)
    assert isinstance(waits, core.Wait)
    assert "count towards your quota" in waits.message
    for pid in range(3, 9):
        decision = world.request("bob", pid)
        assert isinstance(decision, core.Grant)
        world.release(decision.lease, "bob")
        world.observe()
    world.release("L1", "alice")
    world.observe()
    assert world.gpus_of("L2") == [1]


def a_lost_gpu_bars_nobody() -> None:
    """A request that needs a GPU that does not work waits for it, and others pass."""
    world = World(plain_config(overtake_interactive=1)).start([gpu(0), gpu(1)], Quota(2, None))
    world.run(cmd.Observe(world.at, (GpuReading(gpu(1).uuid, "it fell off the bus", None),)))
    waits = world.request("alice", 1, Request(2))
    assert isinstance(waits, core.Wait)
    assert waits.message.startswith("GPU 1 cannot be used: it fell off the bus. ")
    for pid in range(3, 9):
        decision = world.request("bob", pid)
        assert isinstance(decision, core.Grant)
        world.release(decision.lease, "bob")
        world.observe_only(0)
    world.observe()
    assert phase(world, "L1") == "held"


def a_gpu_out_of_service_stays_so() -> None:
    """Over restarts, a reboot, and while it is not in the node at all; only an admin ends it."""
    world = lazy(2)
    drain(world, 1)
    world.run(cmd.Discover(world.at, (gpu(0),)))
    world.state = restarted(world)
    world.run(cmd.Start(3.0, "boot-2", (gpu(0), gpu(1))))
    world.at = 4.0
    assert world.state.out[gpu(1).uuid].reason == "fan replaced"
    world.run(cmd.ConfigureQuotas(world.at, Quota(2, None)))
    for pid in (1, 2):
        world.request(f"p{pid}", pid)
    assert (world.gpus_of("L1"), phase(world, "L2")) == ([0], "queued")
    nobodys = world.run(cmd.TakeGpuOut(world.at, gpu(7).uuid, "it smells", ADMIN))
    assert isinstance(nobodys, core.Refuse)
    assert isinstance(put_back(world, 7), core.Refuse)
    again = world.run(cmd.TakeGpuOut(world.at, gpu(1).uuid, "fan replaced", ADMIN))
    assert isinstance(again, core.Done)
    assert again.count == 0, "nothing has changed"
    put_back(world, 1)
    assert phase(world, "L2") == "held"


STORIES = (
    what_two_tasks_name_is_bounded_by_their_quota,
    what_a_parked_task_named_is_free_until_it_resumes,
    a_gpu_out_of_service_takes_nothing_new_and_empties,
    who_computes_on_a_gpu_out_of_service_goes_on,
    who_needs_a_gpu_out_of_service_waits_and_bars_nobody,
    who_is_bound_to_a_gpu_out_of_service_is_told,
    ones_own_tasks_on_a_gpu_out_of_service_count,
    a_lost_gpu_bars_nobody,
    a_gpu_out_of_service_stays_so,
    what_comes_back_is_kept_free_though_it_is_more_than_was_promised,
    a_thread_that_computes_keeps_the_gpu_and_keeping_it_warm_does_not,
    a_time_out_shorter_than_any_note_of_work_is_kept_too,
    work_before_a_restart_is_not_forgotten_at_once,
    nobody_parks_or_resumes_for_another,
    what_stays_on_the_gpu_stays_reserved_and_is_asked_for_when_needed,
    host_memory_is_a_resource_too,
    a_grant_is_dated_when_it_is_made,
    who_is_moving_its_memory_is_waited_for,
    its_people_are_told_first_and_may_keep_it,
    a_warning_that_nothing_came_of_is_given_anew,
    a_checkpoint_goes_back_where_it_can,
    an_idle_gpu_goes_to_who_waits_and_comes_back,
    who_keeps_a_gpu_is_asked_again_later_and_somebody_else_now,
    a_measurement_counts_more_than_a_word,
    what_a_word_did_not_free_is_its_own_again,
    what_a_word_did_not_free_is_asked_for_and_said,
    who_can_give_no_more_is_asked_ever_more_seldom,
    more_moved_to_host_memory_later_counts_there,
    a_trimmed_task_of_which_nothing_is_there_holds_nothing,
    time_outs_by_quota_and_gpu_and_always,
    an_idle_gpu_of_a_spent_budget_is_taken_back,
    a_spent_budget_shortens_the_time_out,
    all_of_the_quota_is_what_works_of_it,
    a_parked_task_survives_a_restart_and_ends_like_any_other,
    a_reservation_grows_only_into_room,
    a_restart_refuses_nobody_before_the_quotas_are_read,
    who_has_spent_the_budget_waits_and_bars_nobody,
    a_raised_budget_serves_who_waits,
    a_budget_of_nothing_is_spent_from_the_start,
    a_gpu_that_goes_away_is_lost_while_held_and_forgotten_when_free,
    a_stalled_holder_keeps_what_it_uses,
    a_released_lease_drains_until_measured,
    a_dead_holder_gives_way_after_one_measurement,
    a_late_tick_is_nobodys_fault,
    a_reboot_ends_everything,
    a_full_disk_grants_nothing_and_takes_nothing,
)
