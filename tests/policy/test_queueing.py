"""Who waits is served in a fair order and within a bound, or refused when its quota says so."""

from __future__ import annotations

import math

from hypothesis import given, strategies as st
from support.policy_world import GIB, World, gpu, plain_config

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.queue import Account, Queue, Waiting
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.events import LeaseGranted
from jupyter_gpushare.policy.words.model import LeasePhase, PriorityClass, Quota, Request

ALICE = "alice"
BATCH = Request(priority_class=PriorityClass.BATCH)


@given(
    spans=st.lists(st.tuples(st.floats(0.1, 5000), st.integers(0, 4)), min_size=1, max_size=20),
    half_life=st.floats(60, 7200),
)
def test_recent_use_is_the_decayed_integral_however_it_is_cut(spans, half_life):
    account, at, expected = Account(since=100.0), 100.0, 0.0
    end = at + sum(seconds for seconds, _gpus in spans)
    for seconds, gpus in spans:
        account = Account(account.charge, gpus, at)
        # charge in two pieces: cutting must not matter
        account = account.settled(at + seconds / 3, half_life).settled(at + seconds, half_life)
        decay = math.log(2) / half_life
        expected += (
            gpus / decay * (math.exp((at + seconds - end) * decay) - math.exp((at - end) * decay))
        )
        at += seconds
    recent = 2.0 ** (account.charge - end / half_life)
    assert math.isclose(recent, expected, rel_tol=1e-6, abs_tol=1e-6)


def one_gpu(config=None, **users):
    return World(config or plain_config(max_tasks_per_gpu=1)).start(
        [gpu(0)], Quota(1, 24 * GIB), **users
    )


def end(world, lease):
    who = world.state.leases[lease].environment
    world.release(lease, who, seen=True)


def held(world):
    return sorted(n for n, x in world.state.leases.items() if x.phase is LeasePhase.HELD)


def test_a_newcomer_does_not_pass_an_equal_request_when_room_came_unseen():
    """By turns, room may come without anybody's end, and then nobody has looked at the queue."""
    world, most = one_gpu(plain_config()), Request(memory=20 * GIB)
    world.request("alice", 1)
    for number in (2, 3):
        world.request("carol", number, most)
    _ends_unseen(world, "L1", ALICE)
    assert isinstance(world.request("carol", 4, most), core.Wait)
    assert held(world) == ["L2"]


def test_a_newcomer_does_not_pass_who_becomes_urgent_by_the_grants_before_it():
    world = one_gpu(plain_config(overtake_interactive=1))
    world.request("dave", 1, Request(memory=4 * GIB))
    world.request("alice", 2, Request(memory=18 * GIB))
    world.request("bob", 3, Request(memory=24 * GIB))
    small = Request(memory=8 * GIB)
    world.request("carol", 4, small)
    _ends_unseen(world, "L2", ALICE)
    assert isinstance(world.request("carol", 5, small), core.Wait)
    assert held(world) == ["L1", "L4"], "one grant may pass bob's request, no two"


def _ends_unseen(world, lease, who):
    """It ends and its memory is free, and nobody has looked at the queue."""
    end = core.step(world.state, cmd.Release(world.at, lease, who, False), world.config)
    readings = cmd.Observe(world.at, world.readings())
    for event in end.events:
        if not isinstance(event, LeaseGranted):
            world.state = core.evolve(world.state, event)
    for event in core.step(world.state, readings, world.config).events:
        if not isinstance(event, LeaseGranted):
            world.state = core.evolve(world.state, event)
    world.run = lambda command: _run(world, command)


def _run(world, command):
    step = core.step(world.state, command, world.config)
    core.check(step.state)
    world.state = step.state
    return step.decision


def test_first_come_first_served_within_an_environment_and_interactive_before_batch():
    world = one_gpu()
    world.request("alice", 1)
    world.request("bob", 2, BATCH)
    world.request("carol", 3, BATCH)
    world.request("dave", 4)
    end(world, "L1")
    assert held(world) == ["L4"], "the person goes before the batch jobs"
    end(world, "L4")
    assert held(world) == ["L2"]
    end(world, "L2")
    assert held(world) == ["L3"]


def test_who_used_least_lately_by_weight_is_served_first():
    world = one_gpu(carol=Quota(1, 24 * GIB, weight=4.0))
    for pid, (who, seconds) in enumerate([("alice", 100), ("bob", 200), ("carol", 300)], 1):
        world.request(who, pid)
        world.at += seconds
        end(world, f"L{pid}")
    world.request("dave", 10)
    for pid, who in enumerate(["bob", "alice", "carol"], 11):
        world.request(who, pid)
    order = []
    for _ in range(3):
        end(world, held(world)[0])
        order.append(world.state.leases[held(world)[0]].environment)
    # carol's 300 s weigh 75 s, alice's 100, bob's 200
    assert order == ["carol", "alice", "bob"]


def test_a_request_that_fits_overtakes_a_bounded_number_of_times():
    config = plain_config(max_tasks_per_gpu=1, overtake_interactive=3)
    world = World(config).start([gpu(0), gpu(1)], Quota(2, 24 * GIB))
    world.request("alice", 1)
    world.request("bob", 2, Request(2))
    passed = 0
    for pid in range(3, 20):
        decision = world.request("carol", pid)
        if isinstance(decision, core.Wait):
            break
        passed += 1
        end(world, decision.lease)
    assert passed == 3, "three may pass, the fourth waits although it would fit"
    end(world, "L1")
    assert held(world) == ["L2"], "the one that was passed over is served first"


def test_a_retried_request_is_the_same_lease_and_a_lowered_quota_refuses_the_waiting():
    world = one_gpu()
    world.request("alice", 1)
    ask = Request(request_id="r")
    first = world.request("bob", 2, ask)
    assert world.request("bob", 2, ask).lease == first.lease

    world.set_quota("bob", Quota(0))
    assert first.lease not in world.state.leases


def test_waiting_is_limited_for_each_environment():
    world = one_gpu(plain_config(max_tasks_per_gpu=1, max_waiting_per_environment=2))
    world.request("alice", 1)
    world.request("bob", 2)
    world.request("bob", 3)
    refused = world.request("bob", 4)
    assert isinstance(refused, core.Refuse)
    assert refused.reason.value == "rate_limited"
    assert isinstance(world.request("carol", 5), core.Wait), "others are not affected"


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(-5, 5)), min_size=1, max_size=60)
)
def test_the_queue_agrees_with_sorting(moves):
    queue, model, keys = Queue(), {}, {}
    for number, (who, batch, key) in enumerate(moves):
        name = f"e{who}"
        kind = PriorityClass.BATCH if batch else PriorityClass.INTERACTIVE
        if number % 4 == 3 and model:
            gone = sorted(model)[who % len(model)]
            queue = queue.remove(gone)
            del model[gone]
        elif number % 4 == 2:
            keys[name] = key
            queue = queue.charge(name, key)
        else:
            item = Waiting(f"L{number}", name, kind, number, 10**9)
            queue = queue.add(item)
            model[item.lease] = item

    def rank(item: Waiting):
        lane = [
            i.order
            for i in model.values()
            if (i.environment, i.priority_class) == (item.environment, item.priority_class)
        ]
        batch = item.priority_class is PriorityClass.BATCH
        recent = keys.get(item.environment, -math.inf)
        return (batch, recent, min(lane), item.environment, item.order)

    assert list(queue.fair_order()) == sorted(model.values(), key=rank)
    assert len(queue.waiting) == len(model)


def test_a_request_that_has_waited_long_enough_is_refused() -> None:
    world = World(plain_config()).start([gpu(0)], Quota(1, max_wait=10.0))
    world.request("alice", 1)
    world.request("bob", 2)
    state, at = world.state, world.state.leases["L2"].requested_at
    for seconds, ended in ((9.0, False), (10.0, True)):
        step = core.step(state, cmd.Tick(at + seconds, at + seconds), world.config)
        over = [event for event in step.events if isinstance(event, ev.LeaseEnded)]
        assert bool(over) is ended
    assert over[0].lease == "L2", "who holds a GPU is not ended"
    assert over[0].detail.startswith("No GPU became free within 10 seconds, and your quota lets")
    core.check(step.state)
    assert world.phase("L1") == "held"
