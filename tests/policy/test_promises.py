"""A promised deadline or rate has a floor of turn time, which is raised until it is kept."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import Phase, given, settings, strategies as st
from support.examples import examples
from support.policy_loops import KIND, Loop, Loops
from support.policy_turns import CONFIG, Actor
from support.policy_world import GIB, gpu, why_refused

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import compute, meters
from jupyter_gpushare.policy.books.demand import attained
from jupyter_gpushare.policy.turns import terms
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import (
    Activity,
    PriorityClass,
    Quota,
    RefusalReason,
    Request,
)
from jupyter_gpushare.policy.words.moves import InvariantBroken
from jupyter_gpushare.policy.words.promises import (
    Cause,
    Expected,
    Promise,
    PromiseState,
    ShareWhy,
)
from jupyter_gpushare.policy.words.recalls import Give, Why
from jupyter_gpushare.policy.words.turns import ShareMode, TurnPhase

BATCH = PriorityClass.BATCH
MOST, TENTH = Quota(2, None, share=90), Quota(2, None, share=10)
#: It does not say how far it is.
SILENT = 10**9
#: More than four fifths of the time.
ALL = (0.8, 1.1)


def crowd(allowed: int = 90) -> tuple[Loops, Loop, float]:
    """Alice's loop of 40 steps, which slows in mid-run, and two others on the GPU.

    Her promise begins after 10 s.
    """
    node = Loops(alice=Quota(2, None, share=allowed))
    alice = node.come("alice", 40, 1.0, share=30, slows=15, times=1.5)
    for who in ("bob", "carol"):
        node.come(who, 10**6, 1.0, tells=SILENT)
    node.run(10)
    assert isinstance(node.promise(alice, deadline=70.0), core.Done)
    return node, alice, node.world.at


def test_a_slowed_loop_is_raised_until_it_keeps_its_promise() -> None:
    node, alice, made = crowd()
    node.run(80)
    assert node.shares(alice)[:3] == [30, 40, 50], "p, p + 10, p + 20"
    assert node.ended(alice) is PromiseState.KEPT
    assert alice.ended_at is not None
    assert alice.ended_at <= made + 70.0
    assert all(event.why is ShareWhy.RAISED for event in node.world.of(ev.ShareSet))


def test_without_the_loop_it_misses_and_says_so_at_once() -> None:
    """The same, but her quota allows no more than 30."""
    node, alice, made = crowd(allowed=30)
    node.run(180)  # she takes longer than she said at first, so she no longer goes first by that
    assert node.shares(alice) == [30]
    assert node.ended(alice) is PromiseState.MISSED
    told = node.moved()
    assert [(one.state, one.why) for one in told[:1]] == [(PromiseState.LATE, Cause.QUOTA)]
    assert told[0].at < made + 40.0, "long before the deadline"
    assert told[0].ends is not None
    assert told[0].ends > made + 70.0, "with the new estimate"
    assert told[-1].state is PromiseState.MISSED
    assert made + 70.0 < told[-1].at <= made + 71.0


def test_ninety_and_sixty_seconds_are_more_than_two_minutes() -> None:
    """S3's figures: 100 iterations, 60 done, 90 s have passed and 60 s are predicted; 120 s are
    promised.
    """
    node = Loops(alice=MOST)
    alice = node.come("alice", 10**6, 0.5, share=30, tells=SILENT)
    for who in ("bob", "carol", "dave"):
        node.come(who, 10**6, 0.5, tells=SILENT)
    node.run(20)
    node.promise(alice, deadline=120.0)
    begun = node.world.at
    node.run(90)
    state, name = node.world.state, alice.actor.lease
    part = (attained(state, name, node.world.at) - state.promises[name].attained) / 90
    pace = max(part, 0.3)
    assert part >= 0.29, "its floor"
    node.world.acts(alice.actor, cmd.ReportProgress, 60, 100, 1.5 * pace)
    assert node.world.at == begun + 90
    shares = node.shares(alice)
    assert shares[:3] == [30, 40, 50], "again and again"
    known = node.world.state.promises[name]
    assert known.state is PromiseState.ON_TIME
    assert known.ends is not None
    assert known.ends <= begun + 120
    kept = 100 * 1.5 * pace * 40 / 30
    assert shares[-1] - 10 < kept * compute.SPARE <= shares[-1] + 1e-6, (
        "until it is met, and no further"
    )


def test_what_is_infeasible_is_refused_with_the_best_possible_time() -> None:
    """40 s of computing in 50 s need 80 %, and the quota allows 50: 80 s."""
    node = Loops(alice=Quota(2, None, share=50))
    alice = node.come("alice", 40, 1.0, share=30, predicted=40.0)
    refused = node.promise(alice, deadline=50.0)
    assert isinstance(refused, core.Refuse)
    assert refused.reason is RefusalReason.INFEASIBLE
    assert refused.numbers == {"deadline": 50, "best": 80, "share": 80, "most": 50}
    assert "80 %" in refused.message
    assert "time is about 2 min; ask for that" in refused.message, "80 s, and never less"
    assert node.standing(alice) is PromiseState.ON_TIME, "the predicted time is watched as before"
    assert isinstance(node.promise(alice, deadline=100.0), core.Done)
    assert node.shares(alice)[-1] == 40
    bob = node.come("bob", 40, 1.0, share=10, predicted=40.0)
    refused = node.promise(bob, deadline=90.0)
    assert isinstance(refused, core.Refuse), "alice has 40 and she may have 50; 80 is all"
    assert refused.numbers["most"] == 40
    rate = node.promise(bob, rate=0.5)
    assert isinstance(rate, core.Refuse)
    assert "0.4 steps a second" in rate.message


def named(deadline: float) -> Request:
    expected = (Expected(KIND, 30, GIB, 40.0),)
    return Request(1, GIB, expected=expected, promise=Promise(deadline=deadline))


def test_a_request_names_its_promise() -> None:
    node = Loops(alice=Quota(2, None, share=50))
    for deadline, answer in ((60.0, core.Refuse), (100.0, core.Grant)):
        decision = node.world.request("alice", 7, named(deadline))
        assert isinstance(decision, answer), decision
    assert isinstance(decision, core.Grant)
    known = node.world.state.promises[decision.lease]
    assert known.named
    assert node.world.state.given[decision.lease] == 40
    # 20 more are more than her 50.
    refused = node.world.request("alice", 8, named(200.0))
    assert why_refused(refused) is RefusalReason.INFEASIBLE


def test_a_request_waits_where_promises_leave_no_floor_for_its_own() -> None:
    """80 % of the GPU may be promised: 60 and 40 are more."""
    node = Loops(alice=MOST, bob=MOST)
    node.promise(node.come("alice", 60, 1.0, share=30, predicted=60.0), deadline=100.0)
    decision = node.world.request("bob", 7, named(100.0))
    assert isinstance(decision, core.Wait), "it may be kept when alice's is over"
    assert "Promises to other tasks claim" in decision.message
    node.world.release(node.loops[0].actor.lease, "alice")
    assert node.world.state.promises[decision.lease].named


@pytest.mark.parametrize(
    ("promise", "batch"),
    [
        ({}, False),
        ({"deadline": 0.0}, False),
        ({"deadline": math.inf}, False),
        ({"rate": -1.0}, False),
        ({"deadline": 100.0}, True),
    ],
)
def test_what_is_no_promise_is_refused(promise: dict[str, float], batch: bool) -> None:
    node = Loops()
    loop = node.come("alice", 10, 1.0, share=10, batch=batch)
    refused = why_refused(node.promise(loop, **promise))
    assert refused is (RefusalReason.NOT_ALLOWED if batch else RefusalReason.BAD_REQUEST)


def test_a_rate_is_kept_and_counts_from_its_begin() -> None:
    """0.3 steps of a second each, beside three others: ordinary turns would give a quarter."""
    node = Loops(alice=MOST)
    alice = node.come("alice", 30, 1.0, share=30)
    for who in ("bob", "carol", "dave"):
        node.come(who, 10**6, 1.0, tells=SILENT)
    node.run(5)
    assert isinstance(node.promise(alice, rate=0.3), core.Done)
    node.run(120)
    assert node.ended(alice) is PromiseState.KEPT


def batch_beside(stops: bool) -> tuple[Loops, Loop, Loop]:
    """Alice's loop needs 80 % of the time, and batch keeps 30; two others compute, too."""
    node = Loops(dataclasses.replace(CONFIG, batch_share_least=30, max_tasks_per_gpu=9), alice=MOST)
    alice = node.come("alice", 50, 1.0, share=30, slows=5, times=1.5)
    batch = node.come("bob", 10**6, 1.0, share=70, batch=True, stops=stops, tells=SILENT)
    for who in ("carol", "dave"):
        node.come(who, 10**6, 1.0, tells=SILENT)
    node.run(10)
    assert isinstance(node.promise(alice, deadline=84.0), core.Done)
    return node, alice, batch


def test_batch_shrinks_then_stops_and_comes_back_to_the_queue() -> None:
    node, alice, batch = batch_beside(stops=True)
    node.run(30)
    assert min(node.shares(batch)) == 30, "down to its least share"
    asked = [event for event in node.world.of(ev.RecallMoved) if event.give is Give.STOP]
    assert [(one.lease, one.why) for one in asked] == [(batch.actor.lease, Why.PROMISED)]
    assert Cause.STOPPING in {one.why for one in node.moved()}, "that is said"
    node.stop(batch)
    again = Request(1, 8 * GIB, BATCH, stops=True, expected=(Expected(KIND, 70, GIB),))
    decision = node.world.request("bob", 9, again)
    assert isinstance(decision, core.Wait), "back in the batch queue"
    node.world.actors[decision.lease] = Actor(9, "bob", decision.lease, GIB, GIB, gated=True)
    node.run(80)
    assert node.ended(alice) is PromiseState.KEPT
    assert any(
        isinstance(event, ev.LeaseGranted) and event.environment == "bob" and event.at > 150
        for event in node.world.history
    ), "it goes on when the GPU has room"


def test_batch_that_cannot_stop_is_never_stopped_and_that_is_said() -> None:
    node, _alice, batch = batch_beside(stops=False)
    node.run(95)
    told = node.moved()
    assert (told[0].state, told[0].why) == (PromiseState.LATE, Cause.BATCH)
    assert told[-1].state is PromiseState.MISSED
    assert batch.actor.lease in node.world.state.leases
    assert not any(
        isinstance(event, ev.RecallMoved) and event.give is Give.STOP
        for event in node.world.history
    )


def test_batch_has_its_share_again_when_a_promise_is_over() -> None:
    node, alice, batch = batch_beside(stops=False)
    node.run(30)
    assert node.world.state.given[batch.actor.lease] == 30
    node.world.acts(alice.actor, cmd.MakePromise, None)
    assert node.world.state.given[batch.actor.lease] == 70
    assert node.world.state.given[alice.actor.lease] == 30, "what is predicted, and no more"


def test_a_predicted_time_is_watched_and_claims_nothing() -> None:
    node = Loops()
    alice = node.come("alice", 60, 1.0, share=30, predicted=60.0)
    for who in ("bob", "carol"):
        node.come(who, 10**6, 1.0, tells=SILENT)
    assert node.standing(alice) is PromiseState.ON_TIME
    node.run(40)
    assert node.standing(alice) is PromiseState.LATE, "it has a third of the time"
    assert node.shares(alice) == [30]
    assert meters.floor(node.world.state, alice.actor.lease) == 0.0
    node.run(180)
    assert node.ended(alice) is PromiseState.MISSED


#: Alice's quota and promise, what is known of her loop, and which part of the time it then has.
LIMITS: dict[str, tuple[Quota, dict[str, float], dict[str, Any], tuple[float, float]]] = {
    "about its share, where it keeps its promise with less": (
        MOST,
        {"rate": 0.05},
        {"share": 10},
        (0.09, 0.25),
    ),
    "no more than is predicted, where its floor is less": (
        MOST,
        {"deadline": 1e7},
        {"share": 60, "predicted": 100.0},
        (0.5, 0.7),
    ),
    "all that it had before, where nothing was predicted": (MOST, {"rate": 0.05}, {}, ALL),
    "all that it had before, where it is late": (TENTH, {"rate": 1.2}, {"share": 10}, ALL),
    # With a tenth of the time she would be late, and then on time again, to and fro.
    "all, where it keeps its promise only so": (
        TENTH,
        {"deadline": 150.0},
        {"total": 240, "seconds": 0.5, "share": 10},
        ALL,
    ),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_who_has_a_promise_has_of_the_time(limit: str) -> None:
    """Alice's loop has a promise after 20 s. Bob's is batch; its time counts from then on."""
    quota, promise, known, (least, most) = LIMITS[limit]
    node, ends = Loops(alice=quota), "total" in known
    alice = node.come("alice", **{"total": 10**6, "seconds": 1.0, **known})
    bob = node.come("bob", 10**6, alice.seconds, batch=True, tells=SILENT)
    node.run(20)
    assert alice.had > 4 * bob.had, "people go before batch"
    assert isinstance(node.promise(alice, **promise), core.Done)
    alice.had = bob.had = 0.0
    node.run(80 if ends else 200)
    assert least < alice.had / (alice.had + bob.had) < most
    late = "it is late" in limit
    assert node.standing(alice) is (PromiseState.LATE if late else PromiseState.ON_TIME)
    asked = {event.why for event in node.world.of(ev.RecallMoved)}
    assert (Why.BEYOND in asked) is (most < 1.0)
    node.run(90 if ends else 0)
    assert not ends or node.ended(alice) is PromiseState.KEPT


@pytest.mark.parametrize(("spare", "late"), [(0.0, True), (1.3, True), (1.5, False)])
def test_shortly_before_its_deadline_it_is_not_late_to_and_fro(
    spare: float, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fiftieth of 70 s is 1.4 s."""
    node, alice, _made = crowd(allowed=30)
    node.run(50)
    state, name = node.world.state, alice.actor.lease
    until = state.promises[name].until
    assert until is not None
    assert node.standing(alice) is PromiseState.LATE
    monkeypatch.setattr(compute, "ends", lambda *_args, **_parts: until - spare)
    assert compute.is_late(state, name, until - 2.0) is late
    on_time = dataclasses.replace(state.promises[name], state=PromiseState.ON_TIME)
    before = dataclasses.replace(state, promises=state.promises.set(name, on_time))
    assert not compute.is_late(before, name, until - 2.0)


def measured(node: Loops, loop: Loop, use: float | None) -> list[int]:
    """The shares of a loop that was seen to use so much of its GPU; ``None``: not to be on it."""
    for _ in range(3):
        node.run(6)
        node.world.work = {(loop.actor.pid, gpu(0).uuid): use or 0.0}
        if use is None:
            node.world.memory.clear()
        node.world.observe()
    return node.shares(loop)


@pytest.mark.parametrize(("use", "shares"), [(0.6, [60]), (None, [])])
def test_a_wrong_prediction_is_corrected_by_what_is_measured(
    use: float | None, shares: list[int]
) -> None:
    """Not where it is not seen: it reads its data yet, or the GPU is simulated."""
    node = Loops()
    assert measured(node, node.come("alice", 10**6, 1.0, share=30), use) == shares
    assert [e.why for e in node.world.of(ev.ShareSet)] == [ShareWhy.MEASURED] * len(shares)


def test_what_is_measured_stays_when_somebody_goes() -> None:
    """A batch task is predicted to use 30 %, and uses 10: it is not given back the rest."""
    node = Loops()
    batch = node.come("alice", 10**6, 1.0, share=30, batch=True)
    assert measured(node, batch, 0.1) == [10]
    node.stop(node.come("bob", 10**6, 1.0, share=10))
    assert node.shares(batch) == [10]


def test_where_time_is_not_shared_out_that_is_said_at_once() -> None:
    node = Loops(dataclasses.replace(CONFIG, share_mode=ShareMode.SPACE))
    alice = node.come("alice", 60, 1.0, share=30)
    assert isinstance(node.promise(alice, deadline=100.0), core.Done)
    known = node.world.state.promises[alice.actor.lease]
    assert (known.state, known.why) == (PromiseState.ON_TIME, Cause.NO_TURNS)


def test_a_cell_that_ends_ends_its_promise() -> None:
    node = Loops()
    alice = node.come("alice", 60, 1.0, share=30)
    node.promise(alice, deadline=100.0)
    node.run(5)
    node.world.acts(alice.actor, cmd.SetActivity, Activity.IDLE)
    assert node.ended(alice) is PromiseState.ENDED, "5 of 60 steps: nobody can tell"
    assert not node.world.state.promises


def test_what_a_task_is_owed_goes_on_after_a_floor_came_between() -> None:
    """Bob is batch: he is owed 10 s after 190 s, and the two floors are due every few seconds."""
    node = Loops(dataclasses.replace(CONFIG, quantum=10.0), alice=MOST, dave=MOST)
    floors = [node.come(who, 10**6, 0.5, share=40, tells=SILENT) for who in ("alice", "dave")]
    bob = node.come("bob", 10**6, 0.5, batch=True, tells=SILENT)
    node.run(5)
    for loop in floors:
        node.promise(loop, deadline=10_000.0)
    name, interrupted = bob.actor.lease, 0
    for _ in range(420):
        node.run(1)
        turn = node.world.state.turns.get(name)
        if turn is not None and turn.part > 0 and turn.phase is TurnPhase.WAITS:
            interrupted += 1
            assert turn.part < 10.0
            assert meters.ripe_at(node.world.state, name, 10.0) == math.inf
    assert interrupted
    given = [e for e in node.world.of(ev.TurnGiven) if e.lease == name]
    # Twice owed, in two or three pieces each. Anew each time, it would go on for ever.
    assert 10 <= bob.had <= 45
    assert 2 <= len(given) <= 9


def test_a_promise_of_a_request_begins_once() -> None:
    """A kernel that was parked and resumes runs another cell."""
    world = Loops().world
    decision = world.request("alice", 7, named(100.0))
    assert isinstance(decision, core.Grant)
    world.says(decision.lease, cmd.SetActivity, Activity.IDLE)
    world.says(decision.lease, cmd.Park)
    assert not world.state.given
    world.observe()
    world.look(1.0)
    assert isinstance(world.says(decision.lease, cmd.Resume), core.Grant)
    assert not world.state.promises
    assert not world.state.given


@pytest.mark.parametrize("tells", [1, SILENT])
def test_who_has_least_left_goes_first_where_that_is_known(tells: int) -> None:
    """100 s and 30 s of computing: bob's goes first. By what they had, both would alternate."""
    node = Loops()
    began = node.world.at
    alice, bob = (node.come(*one, 1.0, tells=tells) for one in (("alice", 100), ("bob", 30)))
    node.run(150)
    assert alice.ended_at is not None
    assert bob.ended_at is not None
    assert alice.ended_at > bob.ended_at
    assert (bob.ended_at - began <= 45) is (tells == 1), "its own 30 s, and what she had first"


# -- properties ------------------------------------------------------------------------------

floors = st.lists(st.integers(10, 40), min_size=1, max_size=3).filter(lambda one: sum(one) <= 80)
steps = st.sampled_from([0.5, 1.0])


def floors_hold(named: list[int], step: float, others: list[tuple[float, bool]]) -> None:
    """Over any minute in which it wants to compute a task has its floor, but for a piece of it.

    All others have a part of the rest: batch tasks after 19 quanta of it, which are seconds here.
    """
    quotas = {f"p{number}": MOST for number in range(len(named))}
    node = Loops(dataclasses.replace(CONFIG, max_tasks_per_gpu=9, quantum=1.0), **quotas)
    told = {"tells": SILENT}
    loops = [node.come(f"p{n}", 10**6, step, share=one, **told) for n, one in enumerate(named)]
    crowd = [
        node.come(f"o{n}", 10**6, one, batch=is_batch, **told)
        for n, (one, is_batch) in enumerate(others)
    ]
    node.run(5)
    for loop in loops:
        assert isinstance(node.promise(loop, deadline=10_000.0), core.Done)
    longest, seconds = max([step, *(one for one, _batch in others)]), 120
    begun = [loop.had for loop in crowd]
    history: list[list[float]] = []
    for _ in range(seconds + 1):
        history.append([loop.had for loop in loops])
        node.run(1)
    # A piece that is due waits for the steps, and the pieces, of those before it.
    for number, share in enumerate(named):
        slack = sum(named) / 10 + 2 * (1 + len(named)) * longest
        for start in range(0, seconds - 59, 10):
            had = history[start + 60][number] - history[start][number]
            assert had >= 0.6 * share - slack, f"{had} s of {0.6 * share}"
    for loop, before in zip(crowd, begun, strict=True):
        assert loop.had > before, "somebody starved"


@settings(max_examples=examples(10), deadline=None, phases=(Phase.explicit, Phase.generate))
@given(floors, steps, st.lists(st.tuples(steps, st.booleans()), min_size=1, max_size=3))
def test_floors_hold_and_nobody_starves(
    named: list[int], step: float, others: list[tuple[float, bool]]
) -> None:
    floors_hold(named, step, others)


spent_at = meters.spent_at
BUGS = {
    "a floor is ignored": (meters, "ripe_at", lambda *_: math.inf),
    "floors are unbounded": (terms, "most_of", lambda *_: (100, Cause.FULL)),
    "who has its turn by its floor keeps it": (
        meters,
        "spent_at",
        lambda *who: math.inf if spent_at(*who) > -math.inf else -math.inf,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises((AssertionError, InvariantBroken)):
        hold_floors_of_all_sizes()


def hold_floors_of_all_sizes() -> None:
    for named in ([40], [70, 60]):
        floors_hold(named, 1.0, [(1.0, False)] * 3 + [(1.0, True)])
