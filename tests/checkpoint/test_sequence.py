"""Wherever the driver fails, parking and resuming end in time and say what is so.

The order of the driver calls, against a model of the driver that fails wherever it likes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from jupyter_gpushare.node.checkpoint.sequence import (
    LOCK_GRACE,
    STATE_SECONDS,
    UNLOCK_SECONDS,
    Answer,
    Call,
    Plan,
    Step,
    plan,
)
from jupyter_gpushare.protocol.checkpoint import (
    RESCUE_SECONDS,
    Action,
    Cause,
    Outcome,
    Request,
    Result,
    State,
)

#: The driver's table: from which state a call leads where.
MOVES = {
    (Step.LOCK, State.RUNNING): State.LOCKED,
    (Step.CHECKPOINT, State.LOCKED): State.CHECKPOINTED,
    (Step.RESTORE, State.CHECKPOINTED): State.LOCKED,
    (Step.UNLOCK, State.LOCKED): State.RUNNING,
}


def park(deadline: float, timeout: float = 5.0) -> Plan:
    return plan(Request(Action.PARK, deadline=deadline, lock_timeout=timeout))


def resume(deadline: float, **gpu_map: str) -> Plan:
    return plan(Request(Action.RESUME, deadline=deadline, gpu_map=gpu_map))


@dataclass(frozen=True)
class Mishap:
    """What goes wrong in one call, and whether the call had its effect all the same."""

    kind: str  # "none", "error", "late", "died", "gone", "failed"
    code: int = 999
    takes_effect: bool = False


@dataclass
class ModelDriver:
    """One process under the driver; ``mishaps`` come one after the other, then none."""

    state: State
    mishaps: list[Mishap] = field(default_factory=list)
    gone: bool = False
    calls: list[Call] = field(default_factory=list)
    seconds: float = 0.0

    def answer(self, call: Call) -> Answer:
        self.calls.append(call)
        mishap = self.mishaps.pop(0) if self.mishaps else Mishap("none")
        took = call.seconds if mishap.kind == "late" else min(0.01, call.seconds)
        self.seconds += took + call.pause
        if self.gone or mishap.kind == "gone":
            self.gone = True
            return Answer(gone=True, seconds=took)
        if mishap.kind == "failed" and call.step is not Step.STATE:
            self.state = State.FAILED
            return Answer(code=719, error="CUDA_ERROR_LAUNCH_FAILED", seconds=took)
        if mishap.kind in ("error", "late", "died"):
            if mishap.takes_effect:
                self.state = MOVES.get((call.step, self.state), self.state)
            if mishap.kind == "error":
                return Answer(code=mishap.code, error="CUDA_ERROR", seconds=took)
            return Answer(late=mishap.kind == "late", died=mishap.kind == "died", seconds=took)
        if call.step is Step.STATE:
            return Answer(state=self.state, seconds=took)
        if (call.step, self.state) not in MOVES:
            return Answer(code=401, error="CUDA_ERROR_ILLEGAL_STATE", seconds=took)
        self.state = MOVES[call.step, self.state]
        return Answer(seconds=took)

    def follow(self, plan: Plan) -> Outcome:
        try:
            call = next(plan)
            while True:
                call = plan.send(self.answer(call))
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome


MISHAPS = st.builds(
    Mishap,
    st.sampled_from(["none", "none", "none", "error", "late", "died", "gone", "failed"]),
    st.sampled_from([1, 2, 304, 401, 600, 800, 801, 999]),
    st.booleans(),
)
DRIVERS = st.builds(ModelDriver, st.sampled_from(State), st.lists(MISHAPS, max_size=8))


def check_outcome(driver: ModelDriver, before: State, goal: State, outcome: Outcome) -> None:
    """What each result promises is so in the model."""
    if outcome.result is Result.DONE:
        assert driver.state is goal
        assert outcome.cause is None
    elif outcome.result is Result.REFUSED:
        assert driver.state is before
        assert all(call.step is Step.STATE for call in driver.calls)
    elif outcome.result is Result.INTACT:
        forwards = (State.LOCKED, State.CHECKPOINTED)
        assert driver.state is (State.RUNNING if goal in forwards else before)
    elif outcome.result is Result.DEAD:
        assert driver.gone or driver.state is State.FAILED
    assert (outcome.result is Result.DONE) == (outcome.cause is None)
    if outcome.result is not Result.DONE:
        assert outcome.message.endswith(".")


GOALS = {
    Action.PARK: State.CHECKPOINTED,
    Action.RESUME: State.RUNNING,
    Action.LOCK: State.LOCKED,
    Action.UNLOCK: State.RUNNING,
}


@pytest.mark.parametrize("action", GOALS)
@given(driver=DRIVERS, deadline=st.floats(0.1, 120), timeout=st.floats(0.01, 30))
def test_what_is_said_is_so(
    driver: ModelDriver, action: Action, deadline: float, timeout: float
) -> None:
    before = driver.state
    outcome = driver.follow(plan(Request(action, None, deadline, timeout)))
    check_outcome(driver, before, GOALS[action], outcome)
    was_locked = driver.state is State.LOCKED and before is State.RUNNING and not driver.gone
    if action is Action.PARK and was_locked:
        assert outcome.result is Result.STUCK  # a locked process is never passed over in silence
    if action is Action.LOCK:
        assert not was_locked or outcome.result in (Result.DONE, Result.STUCK)
        assert all(call.step in (Step.STATE, Step.LOCK, Step.UNLOCK) for call in driver.calls)
    if action is Action.UNLOCK and before is not State.LOCKED:
        assert driver.state in (before, State.FAILED)
        assert all(call.step is Step.STATE for call in driver.calls)  # nor what is parked


@given(DRIVERS, st.floats(0.1, 120), st.floats(0.01, 30))
def test_a_plan_ends_in_time(driver: ModelDriver, deadline: float, timeout: float) -> None:
    grace = RESCUE_SECONDS + STATE_SECONDS + UNLOCK_SECONDS + LOCK_GRACE
    driver.follow(park(deadline, timeout))
    assert driver.seconds <= deadline + grace
    driver.seconds = 0.0
    driver.follow(resume(deadline))
    assert driver.seconds <= deadline + grace + UNLOCK_SECONDS


def test_an_unlock_that_never_answers_ends_the_rescue_in_time() -> None:
    """Each time that it hangs counts, and so does each pause before the next look."""
    hangs = [Mishap("none"), Mishap("late")] * 50
    driver = ModelDriver(State.RUNNING, [Mishap("none"), Mishap("late", takes_effect=True), *hangs])
    before = driver.follow(park(60))
    assert before.result is Result.STUCK
    rescue = driver.seconds - 0.01 - driver.calls[1].seconds
    assert RESCUE_SECONDS <= rescue <= RESCUE_SECONDS + UNLOCK_SECONDS
    assert all(call.pause > 0 for call in driver.calls[4::2])


@given(DRIVERS)
def test_what_was_cut_short_can_be_asked_for_again(driver: ModelDriver) -> None:
    if driver.state not in (State.RUNNING, State.LOCKED, State.CHECKPOINTED):
        return
    begun = park(60) if driver.state is State.RUNNING else resume(60)
    try:
        call = next(begun)
        while driver.mishaps:  # the helper is killed when they are used up, wherever that is
            call = begun.send(driver.answer(call))
    except StopIteration:
        driver.mishaps.clear()
    if driver.gone or driver.state is State.FAILED:
        return
    assert driver.follow(park(60)).result is Result.DONE
    assert driver.follow(resume(60)).result is Result.DONE
    assert driver.state is State.RUNNING


def test_the_straight_way() -> None:
    driver = ModelDriver(State.RUNNING)
    assert driver.follow(park(60)).result is Result.DONE
    assert [call.step for call in driver.calls] == [Step.STATE, Step.LOCK, Step.CHECKPOINT]
    driver.calls.clear()
    assert driver.follow(resume(60, a="b")).result is Result.DONE
    assert [call.step for call in driver.calls] == [
        Step.STATE,
        Step.RESTORE,
        Step.STATE,
        Step.UNLOCK,
    ]
    assert driver.calls[1].gpu_map == {"a": "b"}


@pytest.mark.parametrize(
    ("mishap", "result", "cause"),
    [
        (Mishap("error", 600), Result.INTACT, Cause.GPU_WORK),
        (Mishap("error", 46), Result.INTACT, Cause.GPU_LOST),
        (Mishap("error", 304), Result.INTACT, Cause.NOT_PERMITTED),
        (Mishap("error", 999), Result.INTACT, Cause.DRIVER),
        (Mishap("late"), Result.INTACT, Cause.TIMEOUT),
        (Mishap("gone"), Result.DEAD, Cause.GONE),
        (Mishap("failed"), Result.DEAD, Cause.DRIVER),
    ],
)
def test_what_went_wrong_is_named(mishap: Mishap, result: Result, cause: Cause) -> None:
    outcome = ModelDriver(State.RUNNING, [Mishap("none"), mishap]).follow(park(60))
    assert (outcome.result, outcome.cause) == (result, cause)
    assert ("it runs on" in outcome.message) is (cause is Cause.GPU_WORK)


def test_who_tells_no_state_is_not_touched() -> None:
    for mishap, cause in ((Mishap("late"), Cause.TIMEOUT), (Mishap("error", 1), Cause.NO_CUDA)):
        outcome = ModelDriver(State.RUNNING, [mishap]).follow(park(60))
        assert (outcome.result, outcome.cause) == (Result.REFUSED, cause)
        assert ("NCCL" in outcome.message) is (cause is Cause.TIMEOUT)


@pytest.mark.parametrize(
    ("mishap", "result", "cause"),
    [
        (Mishap("error", 2), Result.STUCK, Cause.OUT_OF_MEMORY),
        (Mishap("error", 304), Result.STUCK, Cause.DRIVER),  # after one that ran out of memory
        (Mishap("late"), Result.STUCK, Cause.TIMEOUT),
        (Mishap("error", 101), Result.INTACT, Cause.GPU_LOST),
    ],
)
def test_what_was_not_restored_can_be_tried_again_or_not(
    mishap: Mishap, result: Result, cause: Cause
) -> None:
    outcome = ModelDriver(State.CHECKPOINTED, [Mishap("none"), mishap]).follow(resume(60))
    assert (outcome.result, outcome.cause) == (result, cause)
    assert outcome.state is State.CHECKPOINTED


@pytest.mark.parametrize("state", list(State))
def test_a_look_changes_nothing(state: State) -> None:
    driver = ModelDriver(state)
    outcome = driver.follow(plan(Request(Action.STATE, None, 4)))
    assert (outcome.result, outcome.state, driver.state) == (Result.DONE, state, state)
