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
    touched: bool = False
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
        self._takes(Outcome(Result.DONE, seconds={Step.LIST.value: answer.seconds}))
        self.replaced |= answer.late or answer.died
        if not answer.well:
            how = "in time" if answer.late else f"({answer.error or 'the worker died'})"
            text = f"The processes of the program could not be listed {how}."
            self._fails(None, Outcome(Result.REFUSED, Cause.DRIVER, text))
        return [target for target in answer.processes if target not in self.states]

    def move(
        self, target: Target, action: Action, *, stay_locked: bool = False
    ) -> Generator[Call, Answer, bool]:
        """Bring one process on; whether the plan can go on."""
        # A call with no time would cost the worker, which may be the only one that can trace it.
        seconds = max(self.left, STATE_SECONDS)
        asked = replace(self.request, action=action, target=target, deadline=seconds)
        outcome = yield from _of(target, sequence.plan(asked, stay_locked=stay_locked))
        self._takes(outcome)
        self.touched |= bool(outcome.seconds.keys() - {Step.STATE.value})
        was_looked_at = outcome.result is Result.REFUSED
        if outcome.cause is Cause.GONE or (was_looked_at and outcome.cause is Cause.NO_CUDA):
            self.states.pop(target, None)
            return True
        is_new = target not in self.states
        if is_new and was_looked_at and outcome.state is None:
            return self._fails(target, outcome)
        self.states[target] = outcome.state
        if is_new and action is Action.LOCK and outcome.state is State.CHECKPOINTED:
            self.parked_before.add(target)
            return True
        return outcome.result is Result.DONE or self._fails(target, outcome)

    def each(
        self, targets: Iterable[Target], action: Action, *, stay_locked: bool = False
    ) -> Generator[Call, Answer, bool]:
        """Bring some on until one fails, or there is no time any more; whether none has."""
        for target in targets:
            if self.left <= 0:
                late = "It was not its turn before the time was over."
                return self._fails(target, Outcome(Result.REFUSED, Cause.TIMEOUT, late))
            if not (yield from self.move(target, action, stay_locked=stay_locked)):
                return False
        return True

    def every(
        self, targets: Iterable[Target], action: Action, *, stay_locked: bool = False
    ) -> Generator[Call, Answer, None]:
        """Try to bring all of them on, whatever becomes of the others."""
        for target in targets:
            yield from self.move(target, action, stay_locked=stay_locked)

    def end(self, result: Result, message: str = "") -> Outcome:
        """``message``: what is said after what has failed."""
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

    def _fails(self, target: Target | None, outcome: Outcome) -> bool:
        self.failures.append((target, outcome))
        return False


def _of(target: Target, plan: Plan) -> Plan:
    """A process's plan, its calls with its name."""
    try:
        call = next(plan)
        while True:
            call = plan.send((yield replace(call, target=target)))
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome


def plan(request: Request) -> Plan:
    """The plan for a request about a tree."""
    tree = _Tree(request, request.deadline)
    if request.action is Action.PARK:
        return (yield from _park(tree))
    listed = yield from tree.look()
    if tree.failures:
        return tree.end(Result.REFUSED)
    if request.action is Action.RESUME:
        return (yield from _resume(tree, listed))
    if not (yield from tree.each(listed, Action.STATE)):
        return replace(tree.end(Result.REFUSED), state=None)
    return tree.end(Result.DONE) if tree.states else _without_cuda()


def _without_cuda() -> Outcome:
    return Outcome(Result.REFUSED, Cause.NO_CUDA, "No process of the program uses CUDA.")


# -- parking -----------------------------------------------------------------------------------


def _park(tree: _Tree) -> Plan:
    is_well = True
    while is_well and (fresh := (yield from _lock_new(tree))) and not tree.failures:
        is_well = yield from tree.each(fresh, Action.PARK)
    if tree.failures:
        return (yield from _undo(tree))
    return tree.end(Result.DONE) if tree.states else _without_cuda()


def _lock_new(tree: _Tree) -> Generator[Call, Answer, list[Target]]:
    """Lock what is new of the tree, until nothing is."""
    known = set(tree.states)
    is_well, before = True, -1
    while is_well and len(tree.states) > before:
        before = len(tree.states)
        new = yield from tree.look()
        is_well = not tree.failures and (yield from tree.each(new, Action.LOCK))
    return [target for target in tree.states if target not in known]


def _undo(tree: _Tree) -> Plan:
    """Set going again what ran before."""
    tree.left, reasons = tree.request.deadline, len(tree.failures)
    back = [one for one in tree.those_in(State.CHECKPOINTED, None) if one not in tree.parked_before]
    yield from tree.every(back, Action.RESUME, stay_locked=True)
    yield from tree.every(tree.those_in(State.LOCKED, None), Action.UNLOCK)
    if tree.those_in(State.FAILED):
        return tree.end(Result.DEAD)
    if tree.states and tree.state is not State.RUNNING:
        return tree.end(Result.STUCK, "Not all of the program can go on; resume tries again.")
    del tree.failures[reasons:]  # they were mended
    if not tree.touched:
        return tree.end(Result.REFUSED)
    return tree.end(Result.INTACT, "All of the program runs on as before.")


# -- resuming ----------------------------------------------------------------------------------


def _resume(tree: _Tree, listed: list[Target]) -> Plan:
    for target in listed:
        is_well = yield from tree.each([target], Action.RESUME, stay_locked=True)
        if not is_well and tree.states.get(target) is not State.FAILED:
            return (yield from _park_again(tree))
    yield from tree.every(tree.those_in(State.LOCKED), Action.UNLOCK)
    if tree.those_in(State.FAILED):
        return tree.end(Result.DEAD)
    if tree.failures:
        return tree.end(Result.STUCK)
    return tree.end(Result.DONE, "" if tree.states else "No process of the program uses CUDA now.")


def _park_again(tree: _Tree) -> Plan:
    """One could not be restored: those that were take no room until all can be."""
    tree.failures.insert(0, tree.failures.pop())  # the reason comes first
    tree.left, reasons = tree.request.deadline, len(tree.failures)
    yield from tree.every(tree.those_in(State.LOCKED), Action.PARK)
    _, reason = tree.failures[0]
    if reason.result is Result.STUCK or len(tree.failures) > reasons:
        return tree.end(Result.STUCK)
    return tree.end(Result.INTACT if tree.touched else Result.REFUSED)
