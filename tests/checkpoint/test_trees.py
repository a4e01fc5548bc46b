"""All of a program's processes are parked, or none of them; and what is said of it is so.

The order of the driver calls, against models of processes whose driver fails wherever it likes.
"""

from __future__ import annotations

from collections.abc import Sequence
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
)
from jupyter_gpushare.node.checkpoint.trees import LIST_SECONDS, plan
from jupyter_gpushare.protocol.checkpoint import (
    Action,
    Cause,
    Outcome,
    Request,
    Result,
    State,
    Target,
)

from .test_sequence import MISHAPS, Mishap, ModelDriver

ROOT = Target(100, 1)
LIST, STATE, LOCK, CHECKPOINT, RESTORE, UNLOCK = Step
ERROR, LATE, GONE, FAILED = (Mishap(kind) for kind in ("error", "late", "gone", "failed"))
WELL = Mishap("none")


@dataclass
class ModelTree:
    """The processes of a tree, each under a model of the driver; pids count from the root's on.

    ``mishaps`` meet its calls one after the other, ``at`` meets the calls of one kind on a process
    (by its place in the tree). ``births``: before which calls another process comes, that runs.
    ``given``: the seconds that a call had, the last of its kind on a process.
    """

    states: list[State]
    mishaps: list[Mishap] = field(default_factory=list)
    at: dict[tuple[int, Step], Sequence[Mishap]] = field(default_factory=dict)
    births: set[int] = field(default_factory=set)
    without_cuda: set[int] = field(default_factory=set)
    calls: list[tuple[int | None, Step]] = field(default_factory=list)
    given: dict[tuple[int | None, Step], float] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.drivers = [ModelDriver(state) for state in self.states]
        self.listed = len(self.drivers)

    def answer(self, call: Call) -> Answer:
        place = None if call.target is None else call.target.pid - ROOT.pid
        if len(self.calls) in self.births:
            self.drivers.append(ModelDriver(State.RUNNING))
        self.calls.append((place, call.step))
        self.given[place, call.step] = call.seconds
        mishap = self.mishaps.pop(0) if self.mishaps else WELL
        if place is None:
            return self._list(mishap)
        if place in self.without_cuda:
            return Answer(code=1, error="CUDA_ERROR_INVALID_VALUE", seconds=0.01)
        if mishap.code == 1 and call.step is STATE:
            mishap = ERROR  # of the CUDA that a process has, the driver is believed
        driver = self.drivers[place]
        first, *self.at[place, call.step] = self.at.get((place, call.step)) or [mishap]
        driver.mishaps = [first]
        before = driver.seconds
        answer = driver.answer(call)
        self.seconds += driver.seconds - before
        return answer

    def _list(self, mishap: Mishap) -> Answer:
        if mishap.kind in ("late", "died"):
            self.seconds += LIST_SECONDS
            return Answer(late=mishap.kind == "late", died=mishap.kind == "died", seconds=10.0)
        self.listed = len(self.drivers)
        there = [n for n, driver in enumerate(self.drivers) if not driver.gone]
        return Answer(processes=tuple(Target(ROOT.pid + n, 1) for n in there))

    def follow(self, plan: Plan, most: int = 10**6) -> Outcome | None:
        """The outcome; ``None`` where the helper is killed after so many calls."""
        try:
            call = next(plan)
            for _ in range(most):
                call = plan.send(self.answer(call))
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        return None

    def does(self, action: Action, deadline: float = 60.0) -> Outcome:
        outcome = self.follow(plan(Request(action, ROOT, deadline, tree=True)))
        assert outcome is not None
        return outcome

    def now(self, among: int | None = None) -> list[State]:
        """The states of those that live and use CUDA, of all or the first ones."""
        those = enumerate(self.drivers[:among])
        return [d.state for n, d in those if not d.gone and n not in self.without_cuda]

    def did(self, *steps: Step) -> list[tuple[int | None, Step]]:
        return [call for call in self.calls if call[1] in steps]


RUNS, LOCKED, PARKED = State.RUNNING, State.LOCKED, State.CHECKPOINTED
TREES = st.builds(
    ModelTree,
    st.lists(st.sampled_from([RUNS, RUNS, LOCKED, PARKED, PARKED, State.FAILED]), max_size=4),
    st.lists(MISHAPS, max_size=12),
    births=st.sets(st.integers(0, 20), max_size=2),
    without_cuda=st.sets(st.integers(0, 3), max_size=1),
)


# -- the straight way ------------------------------------------------------------------------


def test_all_are_locked_before_one_is_checkpointed_and_restored_before_one_is_unlocked() -> None:
    tree = ModelTree([RUNS, RUNS, RUNS], without_cuda={1})
    assert tree.does(Action.PARK).state is PARKED
    assert tree.did(LOCK, CHECKPOINT) == [(0, LOCK), (2, LOCK), (0, CHECKPOINT), (2, CHECKPOINT)]
    assert tree.calls[-1] != (2, CHECKPOINT), "it looks again at last"
    assert tree.does(Action.RESUME).state is RUNS
    assert tree.did(RESTORE, UNLOCK) == [(0, RESTORE), (2, RESTORE), (0, UNLOCK), (2, UNLOCK)]


@pytest.mark.parametrize("before", [LOCK, CHECKPOINT, None])
def test_a_child_that_is_born_meanwhile_is_parked_too(before: Step | None) -> None:
    """While others are locked; while they are checkpointed; and before the last look."""
    straight = ModelTree([RUNS, RUNS])
    straight.does(Action.PARK)
    steps = [step for _, step in straight.calls]
    last = len(steps) - 1 - steps[::-1].index(LIST)
    tree = ModelTree([RUNS, RUNS], births={last if before is None else steps.index(before)})
    assert tree.does(Action.PARK).result is Result.DONE
    assert tree.now() == [PARKED] * 3
    if before is LOCK:
        assert [step for _, step in tree.did(LOCK, CHECKPOINT)] == [LOCK] * 3 + [CHECKPOINT] * 3


@pytest.mark.parametrize("action", [Action.PARK, Action.STATE, Action.RESUME])
def test_a_program_without_cuda_is_left_alone(action: Action) -> None:
    for tree in (ModelTree([]), ModelTree([RUNS], without_cuda={0})):
        outcome = tree.does(action)
        assert not tree.did(LOCK, CHECKPOINT, RESTORE, UNLOCK)
        # Nothing of it is parked (any more), so it can go on.
        expected = Result.DONE if action is Action.RESUME else Result.REFUSED
        assert outcome.result is expected
        assert outcome.cause is (None if expected is Result.DONE else Cause.NO_CUDA)


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([RUNS, RUNS], RUNS),
        ([PARKED, PARKED], PARKED),
        ([PARKED, RUNS], LOCKED),
        ([RUNS, State.FAILED, LOCKED], State.FAILED),
        ([PARKED, State.RESTORING], State.RESTORING),
    ],
)
def test_the_state_of_a_tree_is_one_word(states: list[State], said: State) -> None:
    tree = ModelTree(states)
    assert tree.does(Action.STATE).state is said
    assert tree.now() == states
    hung = ModelTree(states, at={(1, STATE): [LATE]}).does(Action.STATE)
    assert (hung.result, hung.state) == (Result.REFUSED, None)


# -- one process fails -----------------------------------------------------------------------


@pytest.mark.parametrize("step", [LOCK, CHECKPOINT])
@pytest.mark.parametrize("mishap", [ERROR, LATE, Mishap("died"), Mishap("error", 600)])
def test_where_the_last_cannot_be_parked_the_others_run_again(step: Step, mishap: Mishap) -> None:
    tree = ModelTree([RUNS, RUNS, RUNS], at={(2, step): [mishap]})
    outcome = tree.does(Action.PARK)
    assert (outcome.result, tree.now()) == (Result.INTACT, [RUNS] * 3)
    assert outcome.message.startswith("Process 102: ")
    assert outcome.replaced is (mishap.kind in ("late", "died"))
    if step is CHECKPOINT:
        first, *undone = tree.did(RESTORE, UNLOCK)
        assert first == (2, UNLOCK)
        assert undone == [(0, RESTORE), (1, RESTORE), (0, UNLOCK), (1, UNLOCK)]
        assert tree.given[0, RESTORE] > 50, "it has as long as the checkpoint had"
    else:
        assert tree.did(UNLOCK, CHECKPOINT) == [(0, UNLOCK), (1, UNLOCK)]


def test_a_worker_that_hangs_at_the_first_look_has_changed_nothing() -> None:
    tree = ModelTree([RUNS, RUNS], at={(0, STATE): [LATE]})
    outcome = tree.does(Action.PARK)
    assert (outcome.result, outcome.cause) == (Result.REFUSED, Cause.TIMEOUT)
    listing = ModelTree([RUNS], [LATE]).does(Action.PARK)
    assert (listing.result, listing.cause) == (Result.REFUSED, Cause.DRIVER)


def test_a_worker_that_hangs_in_the_undoing_leaves_no_other_locked() -> None:
    tree = ModelTree([RUNS, RUNS, RUNS], at={(1, CHECKPOINT): [ERROR], (0, RESTORE): [LATE]})
    outcome = tree.does(Action.PARK)
    assert (outcome.result, tree.now()) == (Result.STUCK, [PARKED, RUNS, RUNS])
    assert "resume tries again" in outcome.message
    assert tree.does(Action.RESUME).result is Result.DONE


def test_what_can_be_mended_in_the_undoing_is_no_trouble_any_more() -> None:
    """The driver does not say at once what became of a restore."""
    looks = [WELL, WELL, WELL, LATE]
    done = [Mishap("late", takes_effect=True)]
    at = {(0, STATE): looks, (0, RESTORE): done, (1, CHECKPOINT): [ERROR]}
    tree = ModelTree([RUNS, RUNS], at=at)
    outcome = tree.does(Action.PARK)
    assert (outcome.result, tree.now()) == (Result.INTACT, [RUNS, RUNS])
    assert "Process 101" in outcome.message
    assert "Process 100" not in outcome.message
    # Nor what became of a lock.
    tree = ModelTree([RUNS, RUNS], at={(1, STATE): [WELL, LATE], (1, LOCK): done})
    assert (tree.does(Action.PARK).result, tree.now()) == (Result.INTACT, [RUNS, RUNS])


def test_one_that_tells_no_state_is_asked_once() -> None:
    """As with NCCL in it: each look costs a worker."""
    tree = ModelTree([RUNS, RUNS], at={(1, STATE): [LATE] * 9})
    outcome = tree.does(Action.PARK)
    assert (outcome.result, tree.now()) == (Result.INTACT, [RUNS, RUNS])
    assert tree.calls.count((1, STATE)) == 1


@pytest.mark.parametrize("step", [STATE, LOCK, CHECKPOINT])
def test_one_that_ends_meanwhile_is_in_nobodys_way(step: Step) -> None:
    tree = ModelTree([RUNS, RUNS, RUNS], at={(1, step): [GONE]})
    assert (tree.does(Action.PARK).result, tree.now()) == (Result.DONE, [PARKED, PARKED])
    tree.at = {(0, RESTORE): [GONE]}
    assert (tree.does(Action.RESUME).result, tree.now()) == (Result.DONE, [RUNS])


def test_one_that_the_driver_gives_up_keeps_the_others_from_nothing() -> None:
    parked = ModelTree([RUNS, RUNS, RUNS], at={(1, CHECKPOINT): [FAILED]})
    assert parked.does(Action.PARK).result is Result.DEAD
    assert parked.now() == [RUNS, State.FAILED, RUNS]
    tree = ModelTree([PARKED, PARKED, PARKED], at={(1, RESTORE): [FAILED]})
    outcome = tree.does(Action.RESUME)
    assert (outcome.result, outcome.state) == (Result.DEAD, State.FAILED)
    assert tree.now() == [RUNS, State.FAILED, RUNS]
    assert "Process 101: The driver has given" in outcome.message
    assert "Restart the program" in outcome.message


@pytest.mark.parametrize(
    ("mishap", "result"),
    [(Mishap("error", 101), Result.INTACT), (Mishap("error", 2), Result.STUCK)],
)
def test_where_the_second_cannot_be_restored_the_first_gives_its_room_back(
    mishap: Mishap, result: Result
) -> None:
    tree = ModelTree([PARKED] * 3, at={(1, RESTORE): [mishap]})
    assert (tree.does(Action.RESUME).result, tree.now()) == (result, [PARKED] * 3)
    assert tree.does(Action.RESUME).result is Result.DONE
    # Also where the driver had given another one up before: that can wait.
    tree = ModelTree([PARKED] * 3, at={(0, RESTORE): [FAILED], (1, RESTORE): [mishap]})
    assert (tree.does(Action.RESUME).result, tree.now()) == (result, [State.FAILED, PARKED, PARKED])


def test_what_was_parked_before_is_not_restored_where_one_more_cannot_be_parked() -> None:
    """There may be no room for it, and a restore without room is the end of it."""
    tree = ModelTree([PARKED, RUNS], at={(1, LOCK): [ERROR]})
    outcome = tree.does(Action.PARK)
    assert (outcome.result, tree.now()) == (Result.STUCK, [PARKED, RUNS])
    assert not tree.did(RESTORE)


def test_one_that_is_not_unlocked_does_not_keep_the_others_locked() -> None:
    tree = ModelTree([LOCKED, PARKED], at={(0, UNLOCK): [LATE, LATE]})
    outcome = tree.does(Action.RESUME)
    assert (outcome.result, tree.now()) == (Result.STUCK, [LOCKED, RUNS])


def test_the_deadline_ends_what_is_not_begun_and_undoes_the_rest() -> None:
    tree = ModelTree([RUNS] * 3)
    outcome = tree.does(Action.PARK, 0.05)
    assert tree.given[1, STATE] == STATE_SECONDS, "a look without time would cost the worker"
    assert (outcome.result, outcome.cause, tree.now()) == (
        Result.INTACT,
        Cause.TIMEOUT,
        [RUNS] * 3,
    )


# -- wherever it fails -----------------------------------------------------------------------


@pytest.mark.parametrize("action", [Action.PARK, Action.RESUME])
@given(tree=TREES, deadline=st.floats(0.1, 120))
def test_what_is_said_is_so(tree: ModelTree, action: Action, deadline: float) -> None:
    before = [driver.state for driver in tree.drivers]
    outcome = tree.does(action, deadline)
    goal = PARKED if action is Action.PARK else RUNS
    first = tree.now(len(before))
    if outcome.result is Result.DONE:
        assert set(tree.now(tree.listed)) <= {goal}
    elif outcome.result is Result.REFUSED:
        assert not tree.did(LOCK, CHECKPOINT, RESTORE, UNLOCK)
    elif outcome.result is Result.INTACT and action is Action.PARK:
        assert set(tree.now(tree.listed)) <= {RUNS}
    elif outcome.result is Result.INTACT:
        were = [b for b, d in zip(before, tree.drivers, strict=False) if not d.gone]
        assert all(now is PARKED for was, now in zip(were, first, strict=False) if was is PARKED)
    elif outcome.result is Result.DEAD:
        assert State.FAILED in (*tree.now(), *before)
    if LOCKED in tree.now(tree.listed) and LOCKED not in before:
        assert outcome.result in (Result.STUCK, Result.DEAD)  # never passed over in silence
    if action is Action.PARK:
        assert all(before[n] is not PARKED for n, _ in tree.did(RESTORE) if n < len(before))
    assert (outcome.result is Result.DONE) == (outcome.cause is None)
    assert outcome.result is Result.DONE or outcome.message.endswith(".")


@given(tree=TREES, most=st.integers(0, 30))
def test_what_was_cut_short_can_be_asked_for_again(tree: ModelTree, most: int) -> None:
    """A helper is killed after so many calls, and the next one goes on."""
    tree.follow(plan(Request(Action.PARK, ROOT, 60.0, tree=True)), most)
    tree.mishaps.clear()
    if State.FAILED in tree.now():
        return
    assert tree.does(Action.PARK).result in (Result.DONE, Result.REFUSED)
    tree.births.clear()
    assert tree.does(Action.RESUME).result is Result.DONE
    assert set(tree.now()) <= {RUNS}


@given(
    states=st.lists(st.sampled_from([RUNS, PARKED]), min_size=1, max_size=4),
    place=st.integers(0, 3),
    step=st.sampled_from([STATE, LOCK, CHECKPOINT, RESTORE, UNLOCK]),
    deadline=st.floats(0.1, 120),
)
def test_a_plan_with_one_hang_ends_in_time(
    states: list[State], place: int, step: Step, deadline: float
) -> None:
    for action in (Action.PARK, Action.RESUME):
        tree = ModelTree(states, at={(place, step): [LATE]})
        tree.does(action, deadline)
        grace = STATE_SECONDS + UNLOCK_SECONDS + LOCK_GRACE
        assert tree.seconds <= Request(action, ROOT, deadline, tree=True).patience + grace
