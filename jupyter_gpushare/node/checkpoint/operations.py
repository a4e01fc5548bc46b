"""Carries out requests, one at a time, with one worker."""

from __future__ import annotations

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
from jupyter_gpushare.protocol.processes import start_time, user_ids

from . import ability, sequence
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


class Operations:
    """The helper's work. Thread-safe: callers wait for their turn."""

    def __init__(self, link: WorkerLink) -> None:
        self._link = link
        self._turn = threading.Lock()
        self._loaded: int | None = None  # the pid of the worker that has loaded the driver
        self._parked: set[Target] = set()
        self._parked_lock = threading.Lock()

    def has_parked(self) -> bool:
        """Whether a process that was parked here still lives and is still parked."""
        with self._parked_lock:
            self._parked = {t for t in self._parked if start_time(t.pid) == t.start_time}
            return bool(self._parked)

    def carry_out(self, request: Request) -> Outcome | Ability:
        """The answer to ``request``."""
        began = time.monotonic()
        target = request.target
        if target is not None and (refusal := _not_ours(target)) is not None:
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
            return self._probe(request.target, left)
        assert request.target is not None
        outcome = self._follow(
            sequence.plan(dataclasses.replace(request, deadline=left)), request.target
        )
        self._remember(request.target, outcome)
        return dataclasses.replace(outcome, seconds={"start": loading, **outcome.seconds})

    def _probe(self, target: Target | None, seconds: float) -> Ability:
        try:
            said = self._link.ask({"step": "probe"}, seconds)
        except WorkerLost:
            return ability.cannot_load(Cause.TIMEOUT, "it hung")
        found = ability.judge(said)
        if not found.usable or target is None:
            return found
        look = Request(Action.STATE, target, min(sequence.STATE_SECONDS, seconds))
        trial = self._follow(sequence.plan(look), target)
        return ability.with_trial(found, trial)

    def _follow(self, plan: sequence.Plan, target: Target) -> Outcome:
        """Carry a plan out to its end."""
        try:
            call = next(plan)
            while True:
                call = plan.send(self._call(call, target))
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome

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
        began = time.monotonic()
        try:
            self._load(_RELOAD_SECONDS)
            began = time.monotonic()
            said = self._link.ask(command, call.seconds)
        except _NotLoaded as error:
            return sequence.Answer(code=999, error=str(error), seconds=time.monotonic() - began)
        except WorkerLost as lost:
            seconds, gone = time.monotonic() - began, _is_gone(target)
            return sequence.Answer(late=lost.late, died=not lost.late, gone=gone, seconds=seconds)
        state = said.get("state")
        return sequence.Answer(
            state=None if state is None else State(state),
            code=int(said.get("code", 0)),
            error=said.get("error"),
            gone=bool(said.get("gone")),
            seconds=float(said["seconds"]),
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

    def _remember(self, target: Target, outcome: Outcome) -> None:
        with self._parked_lock:
            if outcome.state in (State.LOCKED, State.CHECKPOINTED):
                self._parked.add(target)
            elif outcome.state is not None or outcome.result is Result.DEAD:
                self._parked.discard(target)


def _is_gone(target: Target) -> bool:
    return start_time(target.pid) != target.start_time


def _not_ours(target: Target) -> Outcome | None:
    """The refusal of a process that has ended or belongs to another user; else ``None``."""
    if _is_gone(target):
        return Outcome(Result.DEAD, Cause.GONE, "The process has ended.")
    if user_ids(target.pid) != {os.getuid()}:
        return Outcome(
            Result.REFUSED, Cause.NOT_YOURS, "The process belongs to another user; not touched."
        )
    return None
