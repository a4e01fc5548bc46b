"""An idle lease is asked for its GPU by who waits, is parked, and comes back."""

from __future__ import annotations

from typing import Any

from support.policy_moves import (
    ALICE,
    gave_back_what_is_still_there,
    held_by,
    lazy,
    resting,
    two_people_one_gpu,
)
from support.policy_world import (
    GIB,
    World,
    gpu,
    is_asked,
    is_asked_back,
    kept,
    process,
    why_refused,
    why_waits,
)

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.links import LONGEST
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import (
    Activity,
    ClaimPhase,
    Movable,
    ParkWhen,
    Quota,
    RefusalReason,
    Request,
    Rung,
)
from jupyter_gpushare.policy.words.recalls import RecallPhase


def test_what_stays_on_the_gpu_stays_reserved_and_is_asked_for_when_needed() -> None:
    """Tensors move to host memory; the context is measured, kept, and later wanted, too."""
    world = lazy(max_tasks_per_gpu=1)
    world.start([gpu(0)], Quota(2, None), alice=Quota(1, 16 * GIB))
    world.request("alice", 1)
    world.uses(1, 12 * GIB)
    world.idle("L1")
    world.at += 61
    world.request("bob", 2, Request(1, 20 * GIB))
    assert world.stays() == [("L1", 4 * GIB)], "all but what bob needs"
    world.plan("L1", 11 * GIB)
    world.gives("L1", Rung.STORAGE, 11 * GIB)
    world.memory[(1, gpu(0).uuid)] = GIB // 2
    assert (world.phase("L1"), world.phase("L2")) == ("parked", "queued")
    assert world.state.gpus[gpu(0).uuid].reserved == 16 * GIB, "nobody has measured it yet"
    world.observe()
    assert world.phase("L2") == "held", "what is left behind is no task"
    assert world.state.gpus[gpu(0).uuid].reserved == 20 * GIB + GIB // 2 + 64 * 1024**2
    assert isinstance(world.resume("L1"), core.Wait)
    world.park("L1")
    world.release("L2", "bob")
    world.uses(2, 0)
    world.request("bob", 3, Request(1, 24 * GIB))
    world.tick(2)
    assert world.stays()[1:] == [("L1", 0)], "the rest is wanted: nothing may stay"
    world.gives("L1", Rung.DRIVER, 12 * GIB)
    assert world.phase("L3") == "queued", "the driver's word is no measurement"
    world.uses(1, 0)
    assert world.phase("L3") == "held"
    assert world.state.parked_memory() == 12 * GIB
    world.resume("L1")
    world.release("L3", "bob", seen=True)
    lease = world.state.leases["L1"]
    assert lease.is_resuming
    assert world.state.parked_memory() == 12 * GIB, "it is still there until all is back"
    world.restored("L1")
    assert world.state.parked_memory() == 0
    assert not world.state.leases["L1"].is_resuming


def test_the_place_of_a_parked_task_is_free_where_all_of_its_memory_may_stay() -> None:
    """No measurement changes its reservation then, which could have somebody else looked at."""
    world = lazy(max_tasks_per_gpu=1)
    world.start([gpu(0)], Quota(2, None), alice=Quota(1, 16 * GIB))
    world.request("alice", 1)
    world.uses(1, 16 * GIB)
    world.idle("L1")
    world.at += 61
    world.request("bob", 2, Request(1, 2 * GIB))
    assert world.stays() == [("L1", 22 * GIB)]
    world.gives("L1", Rung.TRIM)
    assert (world.phase("L1"), world.phase("L2")) == ("parked", "held")
    assert world.state.gpus[gpu(0).uuid].reserved == 18 * GIB


def test_host_memory_is_a_resource_too() -> None:
    """Parking is refused where the node, or the environment, has no host memory left for it."""
    most = {"parked_memory": 20 * GIB, "parked_memory_per_environment": 12 * GIB}
    world = held_by("alice", "bob", **most)
    for name in ("L1", "L2"):
        world.idle(name)
    mine = world.plan("L1", 13 * GIB)
    assert isinstance(mine, core.Refuse)
    assert "each environment" in mine.message
    assert isinstance(world.plan("L1", 12 * GIB), core.Done)
    whole = world.plan("L2", 9 * GIB)
    assert isinstance(whole, core.Refuse)
    assert whole.reason is RefusalReason.NO_RESOURCES
    assert whole.numbers == {"asked": 9 * GIB, "used": 12 * GIB, "most": 20 * GIB}
    world.says("L1", cmd.Keep, "It failed.")
    assert isinstance(world.plan("L2", 9 * GIB), core.Done), "what was set aside is free again"
    world.gives("L2", Rung.DRIVER, 9 * GIB)
    assert world.state.parked_memory() == 9 * GIB
    world.die(2)
    assert world.state.parked_memory() == 0, "a process takes its copy along"


def test_a_grant_is_dated_when_it_is_made() -> None:
    """A driver that hangs: the measurement was begun long before it was known, or asked for."""
    world = two_people_one_gpu()
    world.release("L1", "alice")
    world.memory.clear()
    begun = world.at
    world.at += 30
    world.run(cmd.Observe(begun + 1, world.readings(), world.at))
    granted = world.state.leases["L2"]
    assert granted.granted_at == world.at
    gone = next(
        e for e in world.of(ev.ClaimMoved) if e.lease == "L1" and e.phase is ClaimPhase.GONE
    )
    assert gone.at == begun + 1


def two_idle(**more: Any) -> World:
    """Two kernels have a GPU each; the first one is idle for a second longer."""
    world = held_by("p1", "p2", **more)
    for name in ("L1", "L2"):
        world.idle(name)
        world.at += 1
    return world


def test_who_is_moving_its_memory_is_waited_for() -> None:
    """A copy of gigabytes takes longer than an answer; nobody else is asked meanwhile."""
    world = two_idle()
    world.at += 100
    world.request("bob", 3)
    world.plan("L1", 20 * GIB)
    world.tick(40)
    assert world.asked_back() == ["L1"]
    world.gives("L1", Rung.DRIVER, 20 * GIB)
    world.observe()
    assert world.phase("L3") == "held"
    assert world.asked_back() == ["L1"]


def test_who_never_ends_moving_is_not_waited_for_for_ever() -> None:
    """Nor does it begin anew by saying again that it moves."""
    world = two_idle()
    world.at += 100
    world.request("bob", 3)
    world.plan("L1", 20 * GIB)
    world.tick(LONGEST - 10)
    world.plan("L1", 20 * GIB)
    assert world.asked_back() == ["L1"]
    world.tick(10)
    assert world.asked_back() == ["L1", "L1"]
    world.tick(10)
    assert world.asked_back() == ["L1", "L1", "L2"]


def test_its_people_are_told_first_and_may_keep_it() -> None:
    """A warning, a pin within the limit, others asked instead; then the limit."""
    world = two_idle(notify_before=20.0, pin_limit=600.0, keep_for=300.0)
    world.at += 38  # past 60 - 20 for the first
    world.request("bob", 3)
    world.tick(2)
    warned = world.asked_back(RecallPhase.WARNED)
    assert (warned, world.asked_back()) == (["L1"], []), "one is enough, and it is not asked yet"
    assert isinstance(world.pin("L1"), core.Done)
    world.tick(2)
    warned = world.asked_back(RecallPhase.WARNED)
    assert warned == ["L1", "L2"], "somebody else is told"
    world.tick(17)
    assert world.asked_back() == []
    world.tick(2)
    assert world.asked_back() == ["L2"]
    assert isinstance(world.pin("L1", 10_000.0), core.Done)
    until = world.state.leases["L1"].pins.until
    assert until is not None
    assert until <= 101 + 600, "from when it became idle, however often it is pinned"
    world.at = 101 + 600
    assert why_refused(world.pin("L1", 60.0)) is RefusalReason.NOT_ALLOWED
    never = lazy(pin_limit=0.0)
    never.request("alice", 1)
    assert isinstance(never.pin("L1"), core.Refuse)


def test_a_warning_that_nothing_came_of_is_given_anew() -> None:
    """Who waited left: a day later somebody else waits, and its people are told again."""
    world = lazy(notify_before=20.0)
    world.request("alice", 1)
    world.idle("L1")
    world.at += 100
    world.request("bob", 2)
    world.release("L2", "bob")
    world.at += 86400
    world.request("carol", 3)
    assert world.asked_back() == []
    assert len([e for e in world.history if is_asked_back(e, RecallPhase.WARNED)]) == 2
    world.tick(21)
    assert world.asked_back() == ["L1"]


def test_a_checkpoint_goes_back_where_it_can() -> None:
    """To the GPUs it came from; to others of the kind only where the driver can move it."""
    for movable, where in ((Movable.SAME, "parked"), (Movable.KIND, "held")):
        world = lazy(2)
        world.request("alice", 1)
        world.idle("L1")
        world.gives("L1", Rung.DRIVER, GIB, movable)
        world.observe()
        world.request("bob", 2)
        assert world.state.leases["L2"].allocations[0].gpu == gpu(0).uuid
        world.resume("L1")
        assert world.phase("L1") == where
        world.release("L2", "bob", seen=True)
        assert world.phase("L1") == "held"


def test_an_idle_gpu_goes_to_who_waits_and_comes_back() -> None:
    """The whole round: asked, parked, measured, granted to bob; alice waits and gets it back."""
    world = resting()
    world.tick(1000)
    assert world.asked_back() == [], "nobody waits: she may keep it"
    world.request("bob", 2)
    assert world.asked_back() == ["L1"], "at once: she was idle for long enough"
    world.park("L1")
    assert (world.phase("L1"), world.phase("L2")) == ("parked", "queued")
    assert isinstance(world.resume("L1", wait=False), core.Refuse)
    world.observe()
    assert world.phase("L2") == "held"
    assert isinstance(world.resume("L1"), core.Wait)
    assert isinstance(world.resume("L1"), core.Wait), "asked twice is asked once"
    world.park("L1")
    assert not world.state.queue.waiting, "she left the queue and stays parked"
    world.resume("L1")
    world.release("L2", "bob", seen=True)
    assert world.phase("L1") == "held"
    assert world.state.leases["L1"].activity is Activity.BUSY


def test_nobody_is_asked_for_who_is_behind_an_urgent_request() -> None:
    world = held_by("alice", "bob", overtake_interactive=0)
    world.request("carol", 3, Request(2))
    world.request("dave", 4)
    world.idle("L1")
    world.at += 61
    world.tick(0)
    assert not is_asked(world.state, "L1"), "carol needs bob's GPU too, and nobody passes her"
    world.idle("L2")
    world.at += 61
    world.tick(0)
    assert is_asked(world.state, "L1")
    assert is_asked(world.state, "L2")


def test_who_keeps_a_gpu_is_asked_again_later_and_somebody_else_now() -> None:
    """The longest idle first; one that cannot is remembered with its reason."""
    world = two_idle()
    world.at += 100
    world.request("bob", 3)
    assert world.asked_back() == ["L1"], "one is enough"
    world.says("L1", cmd.Keep, "CUDA runs.")
    assert world.asked_back() == ["L1", "L2"]
    assert kept(world.state, "L1") == "CUDA runs."
    world.tick(59)
    assert world.asked_back() == ["L1", "L2"]
    world.tick(2)
    assert world.asked_back() == ["L1", "L2", "L1"], "L2 may still answer; another minute is over"


def test_a_measurement_counts_more_than_a_word() -> None:
    """Who says it parked and was seen with memory on the GPU keeps the lease, and the memory."""
    world = resting(1)
    world.park("L1")
    assert world.phase("L1") == "held"
    world.uses(1, 0)
    world.park("L1")
    world.memory[(1, gpu(0).uuid)] = GIB  # after it parked
    world.observe()
    world.request("bob", 2)
    assert (world.phase("L1"), world.phase("L2")) == ("parked", "queued")
    world.resume("L1")
    assert "not measured as free" in world.why("L1", 1)
    world.die(1, seen=True)
    assert (world.phase("L1"), world.phase("L2")) == ("forgotten", "held")


def test_what_a_word_did_not_free_is_its_own_again() -> None:
    """It would drain until the process is gone, and bar the task's own way back."""
    world = gave_back_what_is_still_there()
    world.resume("L1")
    world.observe()
    assert world.phase("L1") == "parked", "it may be on its way"
    assert "not measured as free" in world.why("L1")
    world.tick(11)
    world.observe()
    assert world.phase("L1") == "held", "its own memory is there: it goes on with it"
    world.observe()
    world.idle("L1")
    world.park("L1")
    assert world.phase("L1") == "held", "now it is known to have memory there"


def test_what_a_word_did_not_free_is_asked_for_and_said() -> None:
    world = gave_back_what_is_still_there()
    world.request("bob", 2)
    world.tick(11)
    world.observe()
    lease = world.state.leases["L1"]
    assert (lease.phase.value, lease.has_residue) == ("parked", True)
    assert "still has memory there" in (kept(world.state, lease.id) or "")
    world.observe()
    reserved = 3 * GIB + 64 * 1024**2
    assert world.state.gpus[gpu(0).uuid].reserved == reserved, "what is measured, and no more"
    said = world.why("L2")
    assert "A parked task still has memory on GPU 0 (3.062 GiB with its reserve)" in said
    world.tick(2)
    assert world.asked_back() == ["L1"]
    world.gives("L1", Rung.DRIVER, 3 * GIB)
    world.uses(1, 0)
    assert (world.phase("L1"), world.phase("L2")) == ("parked", "held")


def test_who_can_give_no_more_is_asked_ever_more_seldom() -> None:
    """It trimmed, nothing is measured of it but its name, and whoever waits wants all."""
    world = lazy(measure_granularity=1)
    world.request("alice", 1)
    world.uses(1, GIB)
    world.idle("L1")
    world.gives("L1", Rung.TRIM)
    world.memory[(1, gpu(0).uuid)] = 0
    world.tick(2)
    world.observe()
    assert world.state.gpus[gpu(0).uuid].reserved == 64 * 1024**2
    world.request("bob", 2)
    for _ in range(3600):
        world.tick(1)
        if is_asked(world.state, "L1"):
            world.gives("L1", Rung.TRIM)
            assert not is_asked(world.state, "L1"), "that is an answer"
            assert kept(world.state, "L1")
    assert len(world.asked_back()) == 6, "after 0, 1, 3, 7, 15 and 31 minutes"


def test_a_trimmed_task_of_which_nothing_is_there_holds_nothing() -> None:
    """Not even a context: a framework that could not say whether it had started CUDA."""
    world = resting()
    world.gives("L1", Rung.TRIM)
    world.tick(1)
    world.observe()
    world.tick(1)
    world.observe()
    world.request("bob", 2)
    assert (world.phase("L1"), world.phase("L2")) == ("parked", "held")
    assert not world.asked_back(), "there is nothing to ask it for"


def test_time_outs_by_quota_and_gpu_and_always() -> None:
    """The quota's own goes first, then the shortest that matches the GPU's name."""
    world = lazy(
        idle_timeout=1000.0,
        idle_timeouts=(("pretend", 30.0), ("h200", 5.0)),
        park_when=ParkWhen.ALWAYS,
    )
    world.request("alice", 1)
    world.idle("L1")
    assert core.next_deadline(world.state, world.config) == world.at + 30.0
    world.set_quota(ALICE, Quota(1, None, idle_timeout=0.0))
    world.tick(100)
    assert world.asked_back() == [], "0 is never"
    world.set_quota(ALICE, Quota(1, None, idle_timeout=90.0))
    world.tick(1)
    assert world.asked_back() == ["L1"], "though nobody waits"


def test_a_thread_that_computes_keeps_the_gpu_and_keeping_it_warm_does_not() -> None:
    """What the driver measured of the task's own kernels counts, not what its client says."""
    for share, keeps in ((0.9, True), (0.1, True), (0.03, False), (0.0, False)):
        world = lazy()
        world.request("alice", 1)
        world.memory[(1, gpu(0).uuid)] = GIB
        world.work[(1, gpu(0).uuid)] = share
        world.observe()
        world.idle("L1")
        world.request("bob", 2)
        for _ in range(40):
            world.look(2.0)
            world.tick(0.0)
        assert world.asked_back() == ([] if keeps else ["L1"]), share
        if keeps:
            world.work.clear()
            world.tick(59.0)
            world.observe()
            assert world.asked_back() == [], "less than a minute since it worked"
            world.tick(1.0)
            assert world.asked_back() == ["L1"]


def test_work_before_a_restart_is_not_forgotten_at_once() -> None:
    """A node manager that has just started has not seen what the GPUs did."""
    world = resting()
    world.tick(1000)
    world.state = world.restarted()
    world.run(cmd.ConfigureQuotas(world.at, Quota(2, None)))
    world.request("bob", 2)
    assert world.asked_back() == []
    world.tick(59)
    assert world.asked_back() == []
    world.tick(1)
    assert world.asked_back() == ["L1"]


def test_a_parked_task_survives_a_restart_and_ends_like_any_other() -> None:
    """With its place in the queue; its death, its kernel's end, any order or silence end it."""
    for way in ("die", "kernel", "release", "revoke", "silence"):
        world = lazy(heartbeat_timeout=15.0)
        world.request("alice", 1, kernel_id="k")
        world.idle("L1")
        world.park("L1")
        world.observe()
        world.request("bob", 2)
        world.resume("L1")
        if way == "die":
            world.die(1)
        elif way == "kernel":
            world.run(cmd.EndKernel(world.at, ALICE, "k"))
        elif way == "release":
            world.release("L1", ALICE)
        elif way == "revoke":
            world.run(cmd.Revoke(world.at, "L1", "enough", "root"))
        else:
            world.at += 15
            world.says("L2", cmd.Heartbeat)
            world.run(cmd.Tick(world.at, world.at))
        assert (world.phase("L1"), world.phase("L2")) == ("forgotten", "held")
        assert not world.state.queue.waiting


def test_nobody_releases_for_another_or_parks_what_a_child_shares() -> None:
    world = lazy()
    world.request("alice", 1)
    before = world.state.leases["L1"]
    assert isinstance(world.release(before.id, "bob"), core.Refuse)
    assert world.state.leases[before.id] == before
    world.run(cmd.Attach(world.at, before.id, ALICE, process(9)))
    child = world.run(cmd.Park(world.at, before.id, ALICE, process(9)))
    assert isinstance(child, core.Refuse)
    world.park("L1")
    assert world.phase("L1") == "held", "a child shares it"
    assert "Child" in (kept(world.state, before.id) or "")


def test_what_comes_back_is_kept_free_though_it_is_more_than_was_promised() -> None:
    """Ten GiB were used on a lease of four: a restore that meets a full GPU loses the process."""
    world = lazy(max_tasks_per_gpu=3)
    uuid = gpu(0).uuid
    world.request("alice", 1, Request(1, 4 * GIB))
    world.uses(1, 10 * GIB)
    world.idle("L1")
    world.plan("L1", 10 * GIB)
    world.gives("L1", Rung.DRIVER, 10 * GIB)
    world.uses(1, 0)
    world.request("bob", 2, Request(1, 17 * GIB))
    world.uses(2, 17 * GIB)
    world.resume("L1")
    assert world.phase("L1") == "parked", "7 GiB are free: enough for the lease, not for her"
    world.release("L2", "bob")
    world.uses(2, 0)
    assert world.phase("L1") == "held"
    world.request("bob", 3, Request(1, 16 * GIB))
    assert world.phase("L3") == "queued", "it is on its way back, and nothing of it is measured"
    for there in (1, 6):
        world.uses(1, there * GIB)
        assert world.phase("L3") == "queued", f"{there} GiB of ten have arrived"
    world.memory[(1, uuid)] = 10 * GIB
    world.restored("L1")
    world.observe()
    assert world.phase("L3") == "queued", "from now on it is measured"
    world.uses(1, 4 * GIB)
    assert world.phase("L3") == "held"


def test_what_comes_back_leaves_what_another_task_of_the_same_person_named() -> None:
    """Both are in one reservation, but in the GPU there must be room for both."""
    world = lazy(max_tasks_per_gpu=3)
    world.request("alice", 1, Request(1, 4 * GIB))
    world.uses(1, 10 * GIB)
    world.idle("L1")
    world.plan("L1", 10 * GIB)
    world.gives("L1", Rung.DRIVER, 10 * GIB)
    world.uses(1, 0)
    world.request("alice", 2, Request(1, 15 * GIB))
    world.uses(2, 15 * GIB)
    assert "Your own tasks hold" in why_waits(world.resume("L1"))
    world.release("L2", "alice")
    world.uses(2, 0)
    assert world.phase("L1") == "held"


def test_an_idle_first_notebook_is_asked_to_make_room_for_the_second() -> None:
    """And takes its turn again when the second is idle: neither has to be ended."""
    world = lazy(2, max_tasks_per_gpu=4, idle_timeout=0.3)
    world.set_quota("alice", Quota(1, None))
    for pid, (who, gib) in enumerate((("alice", 8), ("bob", 16), ("bob", 16)), 1):
        world.request(who, pid, Request(1, gib * GIB))
    assert [world.gpus_of(name) for name in ("L1", "L2", "L3")] == [[0], [1], [0]]
    world.release("L2", "bob", seen=True)
    world.idle("L1")
    world.tick(1.0)
    # It wants more than the first leaves there, and may have no other GPU.
    own = "Your own tasks hold 1 of the 1 GPU that your quota allows"
    assert own in why_waits(world.request("alice", 4, Request(1, 16 * GIB)))
    assert world.asked_back() == ["L1"]
    world.gives("L1", Rung.DRIVER, 4 * GIB)
    world.observe()
    assert world.phase("L4") == "held"
    assert own in why_waits(world.resume("L1"))
    world.idle("L4")
    world.tick(1.0)
    assert world.asked_back() == ["L1", "L4"]
    world.park("L4")
    world.observe()
    assert world.gpus_of("L1") == [0]
