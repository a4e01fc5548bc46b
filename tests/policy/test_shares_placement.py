"""A task is placed where its predicted share fits, and no share is given twice.

The rules and the examples of the source document S3.
Percentages of a GPU's compute. The kinds are the source's A1, A2 and A3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from support.examples import examples
from support.policy_world import GIB, World, gpu, plain_config, task

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.placement import (
    ByShare,
    GpuRoom,
    Granted,
    NoRoom,
    choose_node,
    place,
)
from jupyter_gpushare.policy.decide import given as given_shares
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import (
    Activity,
    LeasePhase,
    PriorityClass,
    Quota,
    Request,
    TaskKind,
)
from jupyter_gpushare.policy.words.promises import Expected, Promise, ShareWhy
from jupyter_gpushare.policy.words.turns import ShareMode

BATCH = PriorityClass.BATCH


def rooms(*left: tuple[str, int] | int) -> list[GpuRoom]:
    """The GPUs of a node: their kind (A1 where none is said) and what is left of each."""
    named = [one if isinstance(one, tuple) else ("A1", one) for one in left]
    return [
        GpuRoom(f"GPU-{index}", index, 24 * GIB, 24 * GIB, 0, kind=kind, left=share)
        for index, (kind, share) in enumerate(named)
    ]


def needs(*shares: int, batch: bool = False, seconds: Sequence[float] = ()) -> ByShare:
    """A request that needs so much of an A1, an A2, an A3."""
    return ByShare(
        tuple(
            Expected(f"A{number}", share, GIB, seconds[number - 1] if seconds else None)
            for number, share in enumerate(shares, 1)
        ),
        batch,
    )


def chosen(node: list[GpuRoom], ask: ByShare) -> int | None:
    """The index of the GPU that a request for one gets on a node."""
    result = place(node, Quota(9), 1, GIB, 4, ask)
    if isinstance(result, NoRoom):
        return None
    assert isinstance(result, Granted)
    (part,) = result.allocations
    return int(part.gpu.removeprefix("GPU-"))


def test_thirty_of_80_40_100_10_is_the_third() -> None:
    """Where a person waits: most left, so that there is room to grow."""
    assert chosen(rooms(80, 40, 100, 10), needs(30)) == 2


def test_example_d() -> None:
    """A's best GPU has 100 left, and B's has 90; nothing of C fits."""
    ask = needs(40, 50, 70)
    a = rooms(90, 100, 30)
    b = rooms(("A1", 90), ("A2", 40), ("A3", 80))
    c = rooms(("A1", 10), ("A2", 20), ("A3", 50))
    assert choose_node((a, b, c), ask) == 0
    assert choose_node((c, b, a), ask) == 2, "the node decides, not its place"
    assert choose_node((c,), ask) is None
    assert chosen(a, ask) == 1
    sums = (rooms(60, 60, 60), rooms(70))
    assert choose_node(sums, ask) == 1, "the best GPU decides, not the sum of the node"


def test_example_f_is_reclaimed_from_batch() -> None:
    """Nothing fits. On C's A1 20 are free and batch tasks have 40: together more than 35.

    The source calls the task C there, a misprint for F.
    """
    ask = needs(35, 45, 65)
    a = rooms(0, 0, 0)
    b = rooms(("A1", 0), ("A1", 30), ("A3", 50))
    c = rooms(("A1", 20), ("A2", 20), ("A3", 40))
    c[0] = c[0]._replace(batch=(40,))
    nodes = (a, b, c)
    assert choose_node(nodes, ask) is None
    back = [[one._replace(left=one.reclaimed(0)) for one in node] for node in nodes]
    assert back[2][0].left == 60
    assert choose_node(back, ask) == 2
    assert chosen(back[2], ask) == 0
    assert c[0].reclaimed(10) == 50, "with a least share for batch"


def test_batch_goes_where_it_runs_for_the_shortest_time() -> None:
    node = rooms(("A1", 100), ("A2", 60), ("A3", 90))
    ask = needs(20, 30, 40, batch=True, seconds=(300.0, 100.0, 200.0))
    assert chosen(node, ask) == 1
    assert chosen(node, dataclasses.replace(ask, batch=False)) == 0, "a person: most left"


def test_memory_must_be_there_too() -> None:
    node = rooms(80, 100)
    node[1] = node[1]._replace(free=GIB // 2)
    assert chosen(node, needs(30)) == 0
    assert choose_node((node,), needs(90)) is None


shares = st.integers(0, 100)
nodes = st.lists(
    st.lists(st.tuples(st.sampled_from(["A1", "A2", "A3"]), shares), min_size=1, max_size=4),
    min_size=1,
    max_size=4,
)


@given(nodes, st.lists(st.integers(1, 100), min_size=1, max_size=3))
def test_the_node_and_its_gpu_are_the_best_that_fit(
    given_nodes: list[list[tuple[str, int]]], asked: list[int]
) -> None:
    ask = needs(*asked)
    need = {f"A{number}": share for number, share in enumerate(asked, 1)}
    fitting = [
        [left for kind, left in node if kind in need and left >= need[kind]] for node in given_nodes
    ]
    made = [rooms(*node) for node in given_nodes]
    best = choose_node(made, ask)
    if best is None:
        assert not any(fitting)
        assert all(chosen(node, ask) is None for node in made)
        return
    assert max(fitting[best]) == max(max(some) for some in fitting if some)
    assert all(max(some, default=-1) < max(fitting[best]) for some in fitting[:best])
    on = chosen(made[best], ask)
    assert on is not None
    assert given_nodes[best][on][1] == max(fitting[best])


# -- the same, in a node's life ---------------------------------------------------------------

KIND = gpu(0).name


def expects(share: int, seconds: float | None = None, *, sure: bool = False) -> Request:
    return Request(1, GIB, expected=(Expected(KIND, share, GIB, seconds, sure),))


def batch(share: int, *, stops: bool = False) -> Request:
    return dataclasses.replace(expects(share), priority_class=BATCH, stops=stops)


def node(gpus: int = 1, **settings: object) -> World:
    config = plain_config(**{"batch_share_least": 5, "stop_after": 10.0, **settings})
    return World(config).start([gpu(index) for index in range(gpus)], Quota(2))


def ask(world: World, who: str, pid: int, request: Request) -> core.Decision:
    return world.run(cmd.RequestLease(world.at, f"lease-{pid}", who, task(pid), request))


def ends(world: World, pid: int, who: str) -> None:
    world.release(f"lease-{pid}", who)


def where(world: World, pid: int) -> str | None:
    lease = world.state.leases[f"lease-{pid}"]
    return lease.allocations[0].gpu if lease.phase is LeasePhase.HELD else None


def given_to(world: World, pid: int) -> int | None:
    return world.state.given.get(f"lease-{pid}")


def test_a_task_is_given_exactly_what_is_predicted() -> None:
    world = node(2)
    ask(world, "alice", 1, expects(30))
    assert given_to(world, 1) == 30
    ask(world, "bob", 2, expects(60))
    assert where(world, 2) != where(world, 1), "most left"
    ask(world, "carol", 3, expects(50))
    assert where(world, 3) == where(world, 1), "70 are left there, and 40 on the other"
    assert isinstance(ask(world, "dave", 4, expects(50)), core.Wait), "20 and 40 are left"
    left = "GPU 1 has 40 % of its compute left, most of all; this is predicted to use 50 %."
    assert left in world.why("lease-4", at=world.at)
    ends(world, 2, "bob")
    assert where(world, 4), "100 are left on the second GPU now"


def test_batch_makes_way_for_a_person_and_has_it_back() -> None:
    """F in a node's life: 20 free, batch has 40; 35 are needed."""
    world = node()
    ask(world, "alice", 1, expects(40))
    ask(world, "bob", 2, batch(40))
    assert isinstance(ask(world, "carol", 3, batch(35)), core.Wait), "batch does not take from it"
    ends(world, 3, "carol")
    ask(world, "dave", 4, expects(35))
    assert where(world, 4), "reclaimed"
    assert given_to(world, 2) == 25
    shrunk = world.of(ev.ShareSet)
    assert [(e.share, e.why) for e in shrunk] == [(25, ShareWhy.SHRUNK)]
    ends(world, 4, "dave")
    assert given_to(world, 2) == 40, "nobody needs it any more"


def test_where_batch_would_keep_too_little_it_is_asked_to_stop() -> None:
    """It keeps 5 at least; a person needs 60 of 40 + 55: the batch task saves its state."""
    world = node()
    ask(world, "bob", 2, batch(60, stops=True))
    world.at += 11.0
    assert isinstance(ask(world, "dave", 4, expects(97)), core.Wait)
    world.run(cmd.Tick(world.at, world.at))
    asked = world.of(ev.RecallMoved)
    assert [(e.lease, e.give.value) for e in asked] == [("lease-2", "stop")]
    ends(world, 2, "bob")
    assert where(world, 4)


def test_an_idle_task_holds_no_share_and_ones_own_tasks_bar_nobody() -> None:
    world = node()
    ask(world, "alice", 1, expects(80))
    ask(world, "alice", 2, expects(80))
    assert where(world, 2), "her own"
    assert isinstance(ask(world, "bob", 3, expects(50)), core.Wait)
    for pid in (1, 2):
        world.says(f"lease-{pid}", cmd.SetActivity, Activity.IDLE)
    ends(world, 3, "bob")
    assert isinstance(ask(world, "bob", 5, expects(50)), core.Grant)


@pytest.mark.parametrize(
    ("seconds", "sure", "goes"),
    [
        (1000.0, True, True),
        (2500.0, True, True),
        (3000.0, True, False),  # it may well take longer than is predicted
        (5000.0, True, False),
        (1000.0, False, False),
        (None, True, False),
    ],
)
def test_backfill_goes_by_predicted_seconds_where_these_are_sure(
    seconds: float | None, sure: bool, goes: bool
) -> None:
    """Alice's program ends in an hour, bob waits for two GPUs: may carol's batch program start?"""
    world = node(2, max_tasks_per_gpu=1)

    def program(who: str, pid: int, request: Request) -> core.Decision:
        made = dataclasses.replace(task(pid), kind=TaskKind.PROCESS)
        return world.run(cmd.RequestLease(world.at, f"lease-{pid}", who, made, request))

    assert isinstance(program("alice", 1, expects(10, 3600.0, sure=True)), core.Grant)
    assert isinstance(program("bob", 2, dataclasses.replace(Request(2), memory=GIB)), core.Wait)
    carol = dataclasses.replace(expects(10, seconds, sure=sure), priority_class=BATCH)
    decision = program("carol", 3, carol)
    assert isinstance(decision, core.Grant if goes else core.Wait)


# -- where tasks take turns ---------------------------------------------------------------------


def takes_turns(gpus: int = 1) -> World:
    return node(gpus, share_mode=ShareMode.TIME, max_tasks_per_gpu=9)


def shares_set(world: World) -> list[tuple[str, int, ShareWhy]]:
    return [(e.lease, e.share, e.why) for e in world.of(ev.ShareSet)]


def test_by_turns_a_person_does_not_wait_for_a_share() -> None:
    world = takes_turns()
    ask(world, "alice", 1, expects(70))
    assert isinstance(ask(world, "bob", 2, expects(60, 100.0)), core.Grant)
    assert given_to(world, 2) == 30, "what is left"
    assert shares_set(world) == [("lease-2", 30, ShareWhy.LEFT)]
    assert not world.state.promises, "nobody can tell how long it takes beside alice's"
    assert isinstance(ask(world, "carol", 3, expects(10)), core.Grant)
    assert given_to(world, 3) == 1, "it is in the books all the same"


def test_by_share_goes_before_by_turns() -> None:
    """Also where batch makes way for it, and where the other GPU has more memory."""
    world = takes_turns(2)
    ask(world, "alice", 1, expects(70))
    ask(world, "bob", 2, dataclasses.replace(batch(90), memory=9 * GIB))
    assert where(world, 1) != where(world, 2)
    ask(world, "carol", 3, expects(60))
    assert where(world, 3) == where(world, 2)
    assert (given_to(world, 2), given_to(world, 3)) == (40, 60)


def test_by_turns_batch_waits_for_its_share_and_a_promise_for_its_floor() -> None:
    world = takes_turns()
    ask(world, "alice", 1, expects(70))
    assert isinstance(ask(world, "bob", 2, batch(60)), core.Wait)
    named = dataclasses.replace(expects(60), promise=Promise(deadline=600.0))
    assert isinstance(ask(world, "carol", 3, named), core.Wait)
    assert isinstance(ask(world, "dave", 4, expects(60)), core.Grant), "neither bars a person"


def test_a_person_who_waits_for_memory_is_not_told_of_shares() -> None:
    world = takes_turns()
    ask(world, "alice", 1, dataclasses.replace(expects(70), memory=20 * GIB))
    waits = ask(world, "bob", 2, dataclasses.replace(expects(60), memory=20 * GIB))
    assert isinstance(waits, core.Wait)
    assert "compute" not in waits.message


KNOWN = st.builds(
    Request,
    st.integers(1, 2),
    st.one_of(st.none(), st.integers(1, 14).map(lambda gib: gib * GIB)),
    st.sampled_from(PriorityClass),
    expected=st.one_of(
        st.just(()), st.integers(1, 100).map(lambda share: (Expected(KIND, share, GIB, 60.0),))
    ),
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), KNOWN), max_size=8), KNOWN, st.integers(1, 100))
def test_what_is_known_of_a_request_never_makes_a_person_wait(
    others: list[tuple[str, Request]], last: Request, share: int
) -> None:
    """With an estimate a person's request is granted wherever it would be without one."""
    world = takes_turns(2)
    for pid, (who, request) in enumerate(others, 1):
        ask(world, who, pid, request)
    last = dataclasses.replace(last, priority_class=PriorityClass.INTERACTIVE)
    told = (Expected(KIND, share, GIB, 60.0),)
    plain, known = (dataclasses.replace(last, expected=expected) for expected in ((), told))

    def answer(request: Request) -> core.Decision:
        command = cmd.RequestLease(world.at, "last", "eve", task(99), request)
        return core.step(world.state, command, world.config).decision

    if isinstance(answer(plain), core.Grant):
        assert isinstance(answer(known), core.Grant)


# -- predicted when it has its GPU ---------------------------------------------------------------


def foresee(world: World, pid: int, share: int) -> None:
    world.says(f"lease-{pid}", cmd.Foresee, (Expected(KIND, share, GIB, 60.0),))


def test_a_task_that_is_predicted_later_has_its_share_at_once() -> None:
    world = node()
    plain = Request(1, GIB)
    for pid, who in enumerate(("alice", "bob", "carol"), 1):
        request = dataclasses.replace(plain, priority_class=BATCH) if who == "bob" else plain
        ask(world, who, pid, request)
        assert given_to(world, pid) is None
    foresee(world, 2, 60)
    assert given_to(world, 2) == 60
    foresee(world, 1, 70)
    assert (given_to(world, 1), given_to(world, 2)) == (70, 30), "batch makes way"
    for _ in range(2):
        foresee(world, 3, 50)
        assert (given_to(world, 2), given_to(world, 3)) == (5, 25), "what is left"
    assert len(world.of(ev.TaskForeseen)) == 3, "the last one is no news"
    assert world.state.leases["lease-2"].request.expected == (Expected(KIND, 60, GIB, 60.0),)


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param((ByShare, "fits", lambda *_: True), id="shares are ignored"),
        pytest.param((given_shares, "make_way", lambda *_: None), id="batch keeps all"),
    ],
)
def test_a_planted_bug_is_caught(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*bug)
    with pytest.raises(AssertionError):
        grants_of_many()


def test_no_share_is_given_twice() -> None:
    assert grants_of_many() > 20


def grants_of_many() -> int:
    """Many come and go; the world looks at each grant."""
    chance, granted = Random(7), 0
    world = node(2, max_tasks_per_gpu=9)
    for pid in range(1, 120):
        request = (expects if chance.random() < 0.6 else batch)(chance.choice([10, 30, 60, 90]))
        ask(world, f"p{pid}", pid, request)
        held = [x for x in world.state.leases.values() if x.phase is LeasePhase.HELD]
        granted += any(x.id == f"lease-{pid}" for x in held)
        if chance.random() < 0.7:
            gone = chance.choice(sorted(world.state.leases.values(), key=lambda x: x.order))
            world.run(cmd.Release(world.at, gone.id, gone.environment))
        world.observe()
        world.at += 0.1
    return granted
