"""Carries out requests, one at a time, with one worker."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from typing import Any, Final

from jupyter_gpushare.protocol.checkpoint import (
    Ability,
    Action,
    Cause,
    Outcome,
    Request,
    Result,
    State,
    Target,
)
from jupyter_gpushare.protocol.processes import is_same, only_ancestors_trace, user_ids

from . import ability, sequence, trees
from .targets import read_targets, write_targets
from .workerlink import WorkerLink, WorkerLost

#: Seconds that a new worker may take to load the driver; ``cuInit`` alone can take three.
LOAD_SECONDS: Final = 20.0
#: The same while a process waits to be brought back.
_RELOAD_SECONDS: Final = 8.0


class _NotLoaded(Exception):
    """The worker has no driver; ``outcome`` and ``ability`` say why."""

    def __init__(self, cause: Cause, text: str, bindings: str | None = None) -> None:
        super().__init__(text)
        self.ability = ability.cannot_load(cause, text, bindings)
        self.outcome = Outcome(Result.REFUSED, cause, self.ability.why)


#: What is said where only ancestors may trace a process, and the worker is none of the tree's.
_NO_ANCESTOR: Final = (
    " Only an ancestor may trace the program here (kernel.yama.ptrace_scope = 1), and the one that"
    " could has ended. With 0 there it can be tried again; else start the program anew."
)


class Operations:
    """The helper's work. Thread-safe: callers wait for their turn.

    ``place``: where the helper listens. Beside it is noted which processes of a tree use CUDA, as
    an orphan cannot be found from the root. ``adopts``: this helper is the ancestor of the tree.
    """

    def __init__(self, link: WorkerLink, place: str = "", *, adopts: bool = False) -> None:
        self._link = link
        self._noted = f"{place}.tree"
        self._adopts = adopts
        self._turn = threading.Lock()
        self._loaded: int | None = None  # the pid of the worker that has loaded the driver
        self._parked: set[Target] = set()
        self._parked_lock = threading.Lock()

    def has_parked(self) -> bool:
        """Whether a process that was parked here still lives and is still parked."""
        with self._parked_lock:
            self._parked = {t for t in self._parked if is_same(t.pid, t.start_time)}
            return bool(self._parked)

    def carry_out(self, request: Request) -> Outcome | Ability:
        """The answer to ``request``."""
        began = time.monotonic()
        target = request.target
        if target is not None and (refusal := _not_ours(target)) is not None:
            others = self._members(target) if request.tree and refusal.cause is Cause.GONE else []
            if not others:
                return refusal
        if not self._turn.acquire(timeout=request.deadline):
            return Outcome(
                Result.REFUSED,
                Cause.BUSY,
                "The checkpoint helper was busy with other kernels for too long; nothing was"
                " changed.",
                seconds={"wait": time.monotonic() - began},
            )
        try:
            waited = time.monotonic() - began
            left = max(0.001, request.deadline - waited)
            answer = self._with_turn(dataclasses.replace(request, deadline=left))
        finally:
            self._turn.release()
        if isinstance(answer, Outcome):
            answer = dataclasses.replace(answer, seconds={"wait": waited, **answer.seconds})
        return answer

    def _with_turn(self, request: Request) -> Outcome | Ability:
        began = time.monotonic()
        try:
            self._load(min(LOAD_SECONDS, request.deadline))
        except _NotLoaded as error:
            return error.ability if request.action is Action.PROBE else error.outcome
        loading = time.monotonic() - began
        left = max(0.001, request.deadline - loading)
        if request.action is Action.PROBE:
            return self._probe(dataclasses.replace(request, deadline=left))
        outcome = self._follow(dataclasses.replace(request, deadline=left))
        return dataclasses.replace(outcome, seconds={"start": loading, **outcome.seconds})

    def _probe(self, request: Request) -> Ability:
        try:
            said = self._link.ask({"step": "probe"}, request.deadline)
        except WorkerLost:
            return ability.cannot_load(Cause.TIMEOUT, "it hung")
        found = ability.judge(said)
        if not found.usable or request.target is None:
            return found
        seconds = min(sequence.STATE_SECONDS, request.deadline)
        look = dataclasses.replace(request, action=Action.STATE, deadline=seconds)
        return ability.with_trial(found, self._follow(look))

    def _follow(self, request: Request) -> Outcome:
        """Carry the plan for a request out to its end."""
        plan = trees.plan(request) if request.tree else sequence.plan(request)
        root = request.target
        assert root is not None
        try:
            call = next(plan)
            while True:
                call = plan.send(self._call(call, call.target or root))
        except StopIteration as end:
            outcome: Outcome = end.value
        self._remember(request, root, outcome)
        if request.tree and outcome.cause is Cause.NOT_PERMITTED and only_ancestors_trace():
            outcome = dataclasses.replace(outcome, message=outcome.message + _NO_ANCESTOR)
        return outcome

    def _members(self, root: Target) -> list[Target]:
        """The processes of this tree that were noted and live."""
        first, *members = read_targets(self._noted) or (None,)
        return (
            []
            if first != root
            else [one for one in members if one and is_same(one.pid, one.start_time)]
        )

    def _call(self, call: sequence.Call, target: Target) -> sequence.Answer:
        if call.pause:
            time.sleep(call.pause)
        command: dict[str, Any] = {
            "step": call.step.value,
            "pid": target.pid,
            "start_time": target.start_time,
            "lock_timeout": call.lock_timeout,
            "gpu_map": dict(call.gpu_map),
        }
        if is_list := call.step is sequence.Step.LIST:
            noted = self._members(target)
            command["roots"] = [[one.pid, one.start_time] for one in (target, *noted)]
            command["helper"] = os.getpid() if self._adopts else None
        began = time.monotonic()
        try:
            self._load(_RELOAD_SECONDS)
            began = time.monotonic()
            said = self._link.ask(command, call.seconds)
        except _NotLoaded as error:
            return sequence.Answer(code=999, error=str(error), seconds=time.monotonic() - began)
        except WorkerLost as lost:
            seconds, gone = time.monotonic() - began, not is_same(target.pid, target.start_time)
            return sequence.Answer(late=lost.late, died=not lost.late, gone=gone, seconds=seconds)
        state = said.get("state")
        processes = tuple(Target(*one) for one in said.get("processes", ()))
        if is_list and not set(processes) <= set(noted):
            # Where that fails, an orphan is not found after this helper's death.
            with contextlib.suppress(OSError):
                write_targets(self._noted, (target, *dict.fromkeys((*noted, *processes))))
        return sequence.Answer(
            state=None if state is None else State(state),
            code=int(said.get("code", 0)),
            error=said.get("error"),
            gone=bool(said.get("gone")),
            seconds=float(said["seconds"]),
            processes=processes,
        )

    def _load(self, seconds: float) -> None:
        """See that a worker with a driver runs. Raises :class:`_NotLoaded`."""
        if self._loaded is not None and self._loaded == self._link.pid:
            return
        self._loaded = None
        try:
            said = self._link.ask({"step": "load"}, seconds)
        except WorkerLost as lost:
            why = Cause.TIMEOUT if lost.late else Cause.DRIVER
            raise _NotLoaded(why, f"the worker was lost as it started: {lost}") from lost
        if (cause := said.get("cannot_load")) is not None:
            raise _NotLoaded(Cause(cause), str(said["error"]), said.get("bindings"))
        if said["code"]:
            raise _NotLoaded(Cause.DRIVER, str(said["error"]))
        self._loaded = self._link.pid

    def _remember(self, request: Request, root: Target, outcome: Outcome) -> None:
        about = {root, *(self._members(root) if request.tree else ())}
        with self._parked_lock:
            if outcome.state in (State.LOCKED, State.CHECKPOINTED):
                self._parked |= about
            elif outcome.state is not None or outcome.result in (Result.DONE, Result.DEAD):
                self._parked -= about


def _not_ours(target: Target) -> Outcome | None:
    """The refusal of a process that has ended or belongs to another user; else ``None``."""
    if not is_same(target.pid, target.start_time):
        return Outcome(Result.DEAD, Cause.GONE, "The process has ended.")
    if user_ids(target.pid) != {os.getuid()}:
        return Outcome(
            Result.REFUSED, Cause.NOT_YOURS, "The process belongs to another user; not touched."
        )
    return None
