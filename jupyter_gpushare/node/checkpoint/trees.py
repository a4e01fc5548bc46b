"""Plans for a process tree: all of its processes are parked, or none of them is. Pure.

Processes of one program wait for each other, and may share memory of the GPU. So a tree is parked
in two rounds, first all are locked, then all are checkpointed; and resumed in two, all are
restored, then all are unlocked. Each of these is a part of the plan for one process in
:mod:`.sequence`, which starts from any state of the process and looks after it where a call fails.
So a tree, too, can be asked for again from wherever the death of a helper has left it.

A program starts processes as it likes. One that came while others were locked is found by listing
the tree again until nothing is new, and once more after all have been checkpointed. A process that
ended meanwhile is none of the tree any more, and one without CUDA is not touched.

Where one process fails, a park is undone for all that this plan has locked or checkpointed; what it
found checkpointed stays so, as there may be no room for it. Where a restore fails, those that were
restored go back to host memory: the tree is parked as before, and no GPU has a part of it. A
process that the driver gave up keeps the others from nothing: they go on, and the outcome says it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from jupyter_gpushare.protocol.checkpoint import (
    Action,
    Cause,
    Outcome,
    Request,
    Result,
    State,
    Target,
)

from . import sequence
from .sequence import STATE_SECONDS, Answer, Call, Plan, Step

#: Seconds in which a tree must be listed; a process whose memory the driver holds up takes longer.
LIST_SECONDS: Final = 10.0
#: The steps that change nothing.
_LOOKS: Final = {Step.LIST.value, Step.STATE.value}
_WITHOUT_CUDA: Final = Outcome(
    Result.REFUSED, Cause.NO_CUDA, "No process of the program uses CUDA."
)
#: The states that a tree is in if one of its processes is.
_GRAVEST: Final = (State.FAILED, State.RESTORING, State.CHECKPOINTING)


@dataclass
class _Tree:
    """The course of one plan so far.

    ``states`` has the processes that use CUDA, as they were seen last; ``None`` is not known.
    ``parked_before`` are those that were checkpointed when the plan began.
    """

    request: Request
    left: float
    states: dict[Target, State | None] = field(default_factory=dict)
    parked_before: set[Target] = field(default_factory=set)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: list[tuple[Target | None, Outcome]] = field(default_factory=list)
    replaced: bool = False

    @property
    def state(self) -> State | None:
        """That of all its processes; locked: some of them cannot go on."""
        found = set(self.states.values())
        if len(found) == 1:
            return found.pop()
        grave = next((state for state in _GRAVEST if state in found), State.LOCKED)
        return grave if found and None not in found else None

    def those_in(self, *states: State | None) -> list[Target]:
        return [target for target, state in self.states.items() if state in states]

    def look(self) -> Generator[Call, Answer, list[Target]]:
        """The processes of the tree that may use CUDA and are not known yet."""
        answer = yield Call(Step.LIST, LIST_SECONDS)
        why = "it took too long" if answer.late else answer.error or "the worker died"
        failure = Outcome(
            Result.REFUSED,
            Cause.DRIVER,
            f"The processes of the program could not be listed: {why}.",
            seconds={Step.LIST.value: answer.seconds},
            replaced=answer.late or answer.died,
        )
        self._takes(failure)
        if not answer.well:
            self._fails(None, failure)
        return [target for target in answer.processes if target not in self.states]

    def bring(
        self,
        targets: Iterable[Target],
        action: Action,
        *,
        stay_locked: bool = False,
        whatever: bool = False,
    ) -> Generator[Call, Answer, bool]:
        """Bring some on until one fails, or there is no time any more; whether none has.

        ``whatever``: try it with all of them. One that the driver gives up as it is resumed is not
        waited for.
        """
        for target in targets:
            if self.left <= 0 and not whatever:
                late = "It was not its turn before the time was over."
                return self._fails(target, Outcome(Result.REFUSED, Cause.TIMEOUT, late))
            # A call with no time would cost the worker, perhaps the only one that can trace it.
            seconds = max(self.left, STATE_SECONDS)
            asked = replace(self.request, action=action, target=target, deadline=seconds)
            outcome = yield from sequence.plan(asked, stay_locked=stay_locked)
            self._takes(outcome)
            if not self._is_well(target, action, outcome):
                self._fails(target, outcome)
                is_lost = action is Action.RESUME and outcome.state is State.FAILED
                if not (whatever or is_lost):
                    return False
        return True

    def end(self, result: Result, message: str = "") -> Outcome:
        """``message``: what is said after what has failed."""
        if result is Result.INTACT and self.seconds.keys() <= _LOOKS:
            result = Result.REFUSED
        if result is Result.REFUSED and not self.failures:
            self._fails(None, _WITHOUT_CUDA)
        _, first = self.failures[0] if self.failures else (None, Outcome(result))
        said = [
            outcome.message if target is None else f"Process {target.pid}: {outcome.message}"
            for target, outcome in self.failures[:2]
        ]
        return replace(
            first,
            result=result,
            message=" ".join(filter(None, (*said, message))),
            state=self.state,
            seconds=dict(self.seconds),
            replaced=self.replaced,
        )

    def _takes(self, outcome: Outcome) -> None:
        for step, seconds in outcome.seconds.items():
            self.seconds[step] = self.seconds.get(step, 0.0) + seconds
            self.left -= seconds
        self.replaced |= outcome.replaced

    def _is_well(self, target: Target, action: Action, outcome: Outcome) -> bool:
        """Note where a process stands; whether the plan can go on."""
        is_refused, is_new = outcome.result is Result.REFUSED, target not in self.states
        if outcome.cause is Cause.GONE or (is_refused and outcome.cause is Cause.NO_CUDA):
            self.states.pop(target, None)
            return True
        if outcome.state is not None or not (is_new and is_refused):
            self.states[target] = outcome.state
        if is_new and action is Action.LOCK and outcome.state is State.CHECKPOINTED:
            self.parked_before.add(target)
            return True
        return outcome.result is Result.DONE

    def _fails(self, target: Target | None, outcome: Outcome) -> bool:
        self.failures.append((target, outcome))
        return False


def plan(request: Request) -> Plan:
    """The plan for a request about a tree."""
    tree = _Tree(request, request.deadline)
    if request.action is Action.PARK:
        return (yield from _park(tree))
    listed = yield from tree.look()
    if request.action is Action.RESUME and not tree.failures:
        return (yield from _resume(tree, listed))
    yield from tree.bring(listed, Action.STATE)
    if tree.failures:
        return replace(tree.end(Result.REFUSED), state=None)
    return tree.end(Result.DONE if tree.states else Result.REFUSED)


# -- parking -----------------------------------------------------------------------------------


def _park(tree: _Tree) -> Plan:
    while not tree.failures:
        known = set(tree.states)
        yield from tree.bring((yield from tree.look()), Action.LOCK)
        locked = tree.those_in(State.LOCKED)
        if not (locked or tree.failures):
            return tree.end(Result.DONE if tree.states else Result.REFUSED)
        if (
            not tree.failures and known >= tree.states.keys()
        ):  # else it is listed again first, until nothing is new
            yield from tree.bring(locked, Action.PARK)
    return (yield from _undo(tree))


def _undo(tree: _Tree) -> Plan:
    """Set going again what ran before."""
    # To undo has time of its own: the failure may have used up all that was asked for.
    tree.left, reasons = tree.request.deadline, len(tree.failures)
    # An unknown one may be checkpointed or locked: both are tried, as neither harms one that runs.
    back = [one for one in tree.those_in(State.CHECKPOINTED, None) if one not in tree.parked_before]
    yield from tree.bring(back, Action.RESUME, stay_locked=True, whatever=True)
    yield from tree.bring(tree.those_in(State.LOCKED, None), Action.UNLOCK, whatever=True)
    if tree.those_in(State.FAILED):
        return tree.end(Result.DEAD)
    if tree.states and tree.state is not State.RUNNING:
        return tree.end(Result.STUCK, "Not all of the program can go on; resume tries again.")
    del tree.failures[reasons:]  # they were mended
    return tree.end(Result.INTACT, "All of the program runs on as before.")


# -- resuming ----------------------------------------------------------------------------------


def _resume(tree: _Tree, listed: list[Target]) -> Plan:
    if not (yield from tree.bring(listed, Action.RESUME, stay_locked=True)):
        return (yield from _park_again(tree))
    yield from tree.bring(tree.those_in(State.LOCKED), Action.UNLOCK, whatever=True)
    if tree.those_in(State.FAILED):
        return tree.end(Result.DEAD)
    return tree.end(Result.STUCK if tree.failures else Result.DONE)


def _park_again(tree: _Tree) -> Plan:
    """One could not be restored: those that were take no room until all can be."""
    tree.failures.insert(0, tree.failures.pop())  # the reason comes first
    tree.left, reasons = tree.request.deadline, len(tree.failures)
    yield from tree.bring(tree.those_in(State.LOCKED), Action.PARK, whatever=True)
    _, reason = tree.failures[0]
    if reason.result is Result.STUCK or len(tree.failures) > reasons:
        return tree.end(Result.STUCK)
    return tree.end(Result.INTACT)
