"""Plans for parking, resuming and locking: pure, one driver call at a time.

The driver can take a process's GPU memory to the host and back, in four steps between three
states::

    RUNNING -lock-> LOCKED -checkpoint-> CHECKPOINTED -restore-> LOCKED -unlock-> RUNNING

Each step may fail, hang for ever, or be done although the answer was lost, and the process is
somebody's notebook with hours of work in it. So nothing is believed but the state that the driver
tells. A plan starts from whatever state the process is in, so a plan that the death of a helper cut
short can be asked for again, and doing it twice does no harm. After a failure it looks, until what
it sees says what to do.

One state is worse than all others: a process that is left locked hangs at its next CUDA call, and
its person cannot know why. So whatever goes wrong after a lock ends in :func:`_rescue`, which has
time of its own. A plan never gives up memory: what cannot be restored now is kept in host memory as
long as the process lives, and the outcome says whether it may be tried again.

A plan for one process stands here, one for a process tree is made of such in :mod:`.trees`.

A plan is a generator. It yields a :class:`Call`, is sent its :class:`Answer` (which may say that
the call hung and the worker was killed), and returns the :class:`Outcome`. It makes no call itself
and has no clock, so each way in which a driver can fail can be played in a test.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from jupyter_gpushare.protocol.checkpoint import (
    RESCUE_SECONDS,
    Action,
    Cause,
    Outcome,
    Request,
    Result,
    State,
    Target,
)

#: Seconds that the driver may take to say in which state a process is.
STATE_SECONDS: Final = 4.0
#: Seconds that an unlock may take, and a lock beyond the driver's own timeout.
UNLOCK_SECONDS: Final = 4.0
# The driver is to give up a lock before we do: a lock that is broken off leaves the process locked
# (checkpoint-restore/criu#2547).
LOCK_GRACE: Final = 2.0
#: Seconds between two looks at a state that changes by itself.
LOOK_AGAIN: Final = 0.2

_SYSTEM_CALL_FAILED: Final = 304
_BY_CODE: Final = {
    1: Cause.NO_CUDA,  # an invalid value: no process with CUDA in it
    2: Cause.OUT_OF_MEMORY,
    3: Cause.NO_CUDA,  # not initialized
    46: Cause.GPU_LOST,  # a device that is unavailable
    100: Cause.NO_DRIVER,
    101: Cause.GPU_LOST,
    _SYSTEM_CALL_FAILED: Cause.NOT_PERMITTED,  # most often ptrace or /proc is forbidden
    401: Cause.ILLEGAL_STATE,
    600: Cause.GPU_WORK,  # not ready: the lock's timeout
    800: Cause.NOT_PERMITTED,
    801: Cause.NOT_SUPPORTED,
}


class Step(Enum):
    """One call on the driver; ``LIST`` looks only which processes of a tree may use CUDA."""

    LIST = "list"
    STATE = "state"
    LOCK = "lock"
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    UNLOCK = "unlock"


@dataclass(frozen=True, slots=True)
class Call:
    """After ``seconds`` the worker is killed. ``pause`` is how many seconds to wait before."""

    step: Step
    seconds: float
    lock_timeout: float = 0.0
    gpu_map: Mapping[str, str] = field(default_factory=dict)
    pause: float = 0.0
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call.

    ``code`` is the driver's, 0 for success, and ``error`` is its name. It is ``late`` when it hung
    and the worker was killed, ``died`` when the worker ended by itself, and ``gone`` when the
    process is not there any more. ``seconds`` is how long it took. ``processes``: what was listed.
    """

    state: State | None = None
    code: int = 0
    error: str | None = None
    late: bool = False
    died: bool = False
    gone: bool = False
    seconds: float = 0.0
    processes: tuple[Target, ...] = ()

    @property
    def well(self) -> bool:
        return not (self.code or self.error or self.late or self.died or self.gone)


Plan = Generator[Call, Answer, Outcome]


@dataclass
class _Story:
    """The course of one plan so far; ``whole`` is what its person can start anew.

    ``stay_locked``: a process that was checkpointed is restored, and left locked.
    """

    left: float
    target: Target | None
    whole: str
    stay_locked: bool
    seconds: dict[str, float] = field(default_factory=dict)
    state: State | None = None
    replaced: bool = False

    def note(self, step: Step, answer: Answer) -> None:
        self.left -= answer.seconds
        self.seconds[step.value] = self.seconds.get(step.value, 0.0) + answer.seconds
        self.replaced |= answer.late or answer.died
        if answer.state is not None:
            self.state = answer.state

    def is_in(self, *states: State) -> bool:
        """Whether the process was last seen in one of these states."""
        return self.state in states

    def end(
        self, result: Result, message: str, cause: Cause | None = None, error: str | None = None
    ) -> Outcome:
        return Outcome(result, cause, message, self.state, dict(self.seconds), error, self.replaced)


#: The state to which an action brings a process, and what is said of one that is there already.
_GOALS: Final = {
    Action.PARK: (State.CHECKPOINTED, "It was checkpointed already."),
    Action.RESUME: (State.RUNNING, "It was running already."),
    Action.LOCK: (State.LOCKED, "It was locked already."),
    Action.UNLOCK: (State.RUNNING, "It was running already."),
}


def plan(request: Request, *, stay_locked: bool = False) -> Plan:
    """The plan for a request about a process; one without a goal only asks for the state.

    With ``stay_locked`` a process that was checkpointed is restored, and left locked.
    """
    whole, action = "program" if request.tree else "kernel", request.action
    story = _Story(request.deadline, request.target, whole, stay_locked)
    goal, already = _GOALS.get(action, (None, ""))
    seconds = story.left if goal is None else min(STATE_SECONDS, story.left)
    answer = yield from _do(story, Call(Step.STATE, seconds))
    if not answer.well:
        return _no_state(story, answer)
    if goal is None or story.is_in(goal):
        return story.end(Result.DONE, already)
    if story.is_in(State.FAILED):
        return _dead(story)
    if story.is_in(State.CHECKPOINTING, State.RESTORING):
        busy = "Somebody else is checkpointing or restoring this process just now."
        return story.end(Result.REFUSED, busy, Cause.BUSY)
    if action in (Action.LOCK, Action.UNLOCK) and story.is_in(State.CHECKPOINTED):
        parked = "The process is parked; nothing was changed."
        return story.end(Result.REFUSED, parked, Cause.BUSY)
    return (yield from _act(story, request))


def _act(story: _Story, request: Request) -> Plan:
    """Do what was asked to a process that runs, is locked or is checkpointed."""
    if request.action is Action.RESUME:
        return (yield from _resume(story, request.gpu_map))
    if request.action is Action.UNLOCK:
        return (yield from _unlock_to_run(story))
    step, goal = Step.LOCK, State.LOCKED
    answer = Answer()
    if story.is_in(State.RUNNING):
        timeout = max(0.001, min(request.lock_timeout, story.left))
        lock = Call(Step.LOCK, timeout + LOCK_GRACE, lock_timeout=timeout)
        answer = yield from _do(story, lock)
    if answer.well and request.action is Action.PARK:
        step, goal = Step.CHECKPOINT, State.CHECKPOINTED
        answer = yield from _do(story, Call(step, max(0.001, story.left)))
    if not answer.well:
        return (yield from _rescue(story, answer, step))
    story.state = goal
    return story.end(Result.DONE, "")


def _resume(story: _Story, gpu_map: Mapping[str, str]) -> Plan:
    """Bring a process to RUNNING. The room that it needs must be reserved before."""
    if story.is_in(State.CHECKPOINTED):
        call = Call(Step.RESTORE, max(0.001, story.left), gpu_map=gpu_map)
        answer = yield from _do(story, call)
        failed = answer
        if answer.well:
            # We do not believe this: a process unlocked too early would use memory that is not
            # there.
            answer = yield from _do(story, Call(Step.STATE, STATE_SECONDS))
        if not answer.well or not story.is_in(State.LOCKED):
            return (yield from _after_restore(story, answer if failed.well else failed))
    return (yield from _unlock_to_run(story))


# -- when something goes wrong -----------------------------------------------------------------


#: What follows from the state of a process, given the seconds that are left. ``None`` means that
#: nothing follows yet, and the process is looked at again.
_Then = Callable[[float], Generator[Call, Answer, Outcome | None]]


def _look_until(
    story: _Story, failure: Answer, then: _Then
) -> Generator[Call, Answer, Outcome | None]:
    """Look at the process until something follows from it, or ``None`` if nothing does in time."""
    left, pause = RESCUE_SECONDS, 0.0
    while left > 0:
        call = Call(Step.STATE, min(STATE_SECONDS, left), pause=pause)
        answer = yield from _do(story, call)
        left -= answer.seconds + pause
        if answer.gone:
            return _gone(story, failure)
        if not answer.well:
            story.state = None
            return None
        if story.is_in(State.FAILED):
            return _dead(story, failure)
        before = story.left
        if (found := (yield from then(left))) is not None:
            return found
        # What ``then`` has called took its time from this rescue, too.
        left -= before - story.left
        pause = LOOK_AGAIN
    return None


def _rescue(story: _Story, failure: Answer, step: Step) -> Plan:
    """After a failure between RUNNING and CHECKPOINTED: back to running, or say what is."""

    def then(left: float) -> Generator[Call, Answer, Outcome | None]:
        if story.is_in(State.CHECKPOINTED):
            return story.end(Result.DONE, f"It was done, though {_what(failure, step)}.")
        if story.is_in(State.LOCKED):
            # Also when the time is over: nothing is worse than to leave it locked.
            answer = yield from _do(story, Call(Step.UNLOCK, min(UNLOCK_SECONDS, max(left, 1.0))))
            if answer.well:
                story.state = State.RUNNING
        return _failed_but_runs(story, failure, step) if story.is_in(State.RUNNING) else None

    found = yield from _look_until(story, failure, then)
    return found or story.end(
        Result.STUCK,
        f"The checkpoint failed ({_what(failure, step)}), and the process could not be set going"
        f" again: its next CUDA call may hang. Resume tries again; else restart the {story.whole}.",
        _cause(failure),
        failure.error,
    )


def _after_restore(story: _Story, failure: Answer) -> Plan:
    """After a restore that failed, hung, or did not end where it should."""

    def then(_left: float) -> Generator[Call, Answer, Outcome | None]:
        if story.is_in(State.RUNNING):
            return story.end(Result.DONE, f"It runs, though {_what(failure, Step.RESTORE)}.")
        if story.is_in(State.LOCKED):
            return (yield from _unlock_to_run(story))
        return _not_restored(story, failure) if story.is_in(State.CHECKPOINTED) else None

    found = yield from _look_until(story, failure, then)
    return found or story.end(
        Result.STUCK,
        f"The restore failed ({_what(failure, Step.RESTORE)}), and the driver does not say where"
        " the process stands. Its copy in host memory is kept as long as it lives; try again"
        f" later, or restart the {story.whole}.",
        _cause(failure),
        failure.error,
    )


def _not_restored(story: _Story, failure: Answer) -> Outcome:
    """It is still CHECKPOINTED; may it be tried again?"""
    cause = _cause(failure)
    if cause is Cause.OUT_OF_MEMORY:
        # NVIDIA/cuda-checkpoint#44: every later restore of this process fails as well.
        return story.end(
            Result.STUCK,
            "The GPU had too little free memory for the restore, and known drivers cannot restore"
            " a process after that. Its copy is kept as long as it lives; a retry may help with"
            f" a newer driver, else restart the {story.whole}.",
            cause,
            failure.error,
        )
    if cause is Cause.NOT_PERMITTED and failure.code == _SYSTEM_CALL_FAILED:
        return story.end(
            Result.STUCK,
            "The driver says that a system call failed, as it does for ever once a restore has met"
            f" a full GPU. The copy is kept as long as the process lives; restart the {story.whole}"
            " if it does not help to try again.",
            Cause.DRIVER,
            failure.error,
        )
    if failure.late:
        return story.end(
            Result.STUCK,
            "The restore did not end in time and was broken off. The copy in host memory is kept"
            f" as long as the process lives; try again, or restart the {story.whole}.",
            cause,
        )
    return story.end(
        Result.INTACT,
        f"The restore failed ({_what(failure, Step.RESTORE)}). The process is still parked, its"
        " copy is kept as long as it lives; it can be tried again.",
        cause,
        failure.error,
    )


def _unlock_to_run(story: _Story) -> Plan:
    """The last step of a resume, tried twice."""
    if story.stay_locked:
        return story.end(Result.DONE, "")
    # Its memory is there: to give up now would leave a process that hangs for want of one call.
    answer = yield from _do(story, Call(Step.UNLOCK, UNLOCK_SECONDS))
    if answer.well:
        story.state = State.RUNNING
        return story.end(Result.DONE, "")
    if answer.gone:
        return _gone(story, answer)
    failure = answer
    answer = yield from _do(story, Call(Step.STATE, STATE_SECONDS))
    if answer.well and story.is_in(State.LOCKED):
        again = yield from _do(story, Call(Step.UNLOCK, UNLOCK_SECONDS))
        if again.well:
            story.state = State.RUNNING
    if story.is_in(State.RUNNING):
        return story.end(Result.DONE, f"It runs, though {_what(failure, Step.UNLOCK)}.")
    if answer.gone:
        return _gone(story, failure)
    if story.is_in(State.FAILED):
        return _dead(story, failure)
    return story.end(
        Result.STUCK,
        f"Its memory is on the GPU, but the process could not be unlocked"
        f" ({_what(failure, Step.UNLOCK)}): its next CUDA call may hang. Try again, or restart"
        f" the {story.whole}.",
        _cause(failure),
        failure.error,
    )


# -- endings -----------------------------------------------------------------------------------


def _do(story: _Story, call: Call) -> Generator[Call, Answer, Answer]:
    answer = yield replace(call, target=story.target)
    story.note(call.step, answer)
    return answer


def _no_state(story: _Story, answer: Answer) -> Outcome:
    """The driver did not tell the process's state, so nothing was changed."""
    if answer.gone:
        return _gone(story, answer)
    if answer.late:
        message = (
            "The driver did not say in time in which state this process is, as it happens with"
            " NCCL in a process. Nothing was changed."
        )
    else:
        message = f"The driver cannot checkpoint this process ({_what(answer, Step.STATE)})."
    return story.end(Result.REFUSED, message, _cause(answer), answer.error)


def _failed_but_runs(story: _Story, failure: Answer, step: Step) -> Outcome:
    if _cause(failure) is Cause.GPU_WORK:
        message = "GPU work of this process did not end in time; it runs on."
    else:
        message = f"The checkpoint failed ({_what(failure, step)}); the process runs on as before."
    return story.end(Result.INTACT, message, _cause(failure), failure.error)


def _dead(story: _Story, failure: Answer | None = None) -> Outcome:
    story.state = State.FAILED
    return story.end(
        Result.DEAD,
        f"The driver has given this process up: its GPU memory is lost. Restart the {story.whole}.",
        Cause.DRIVER if failure is None else _cause(failure),
        None if failure is None else failure.error,
    )


def _gone(story: _Story, failure: Answer) -> Outcome:
    story.state = None
    return story.end(Result.DEAD, "The process has ended.", Cause.GONE, failure.error)


def _what(failure: Answer, step: Step) -> str:
    if failure.late:
        return f"the driver's {step.value} did not answer in time"
    if failure.died:
        return f"the worker died in the driver's {step.value}"
    if failure.gone:
        return "the process has ended"
    if failure.code or failure.error:
        return f"the driver's {step.value} said {failure.error or failure.code}"
    return f"the driver's {step.value} had no effect"


def _cause(failure: Answer) -> Cause:
    if failure.gone:
        return Cause.GONE
    if failure.late:
        return Cause.TIMEOUT
    return _BY_CODE.get(failure.code, Cause.DRIVER)
