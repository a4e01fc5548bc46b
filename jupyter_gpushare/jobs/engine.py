"""How a sweep reaches hosts. This host alone needs no engine; for many hosts there is Ray."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..console.verb import Refused
from .core import End, Row, Send
from .hostside import Attempt, Ended, Job, Told, idle

if TYPE_CHECKING:
    from .rayengine import RayHosts


@dataclass(frozen=True, slots=True)
class Idle:
    """A host named its idle cards."""

    host: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Silent:
    """A host cannot be asked, in a sentence."""

    host: str
    why: str


Event = Idle | Silent | Told


#: Reaches hosts. No method waits for a host; what a host says comes as an event.
Engine: TypeAlias = "OneHost | RayHosts"


class OneHost:
    """This host alone: its workers, which run ``module``, are processes of this one.

    With ``beside``, cards count as idle, too, where others' tasks make room.
    """

    def __init__(
        self,
        job: Job,
        name: str = "",
        *,
        module: str = "jupyter_gpushare.jobs.worker",
        beside: bool = False,
    ) -> None:
        self._job, self._module, self._beside = job, module, beside
        self._name = name or os.uname().nodename
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._attempts: dict[tuple[int, int], Attempt] = {}

    def hosts(self) -> Iterable[str]:
        """The hosts there are now."""
        return (self._name,)

    def ask(self, host: str) -> None:
        """Ask for the host's idle cards: `Idle` or `Silent` follows, or nothing."""
        threading.Thread(target=self._ask, args=(host,), daemon=True).start()

    def _ask(self, host: str) -> None:
        try:
            self._events.put(Idle(host, tuple(idle(host, self._job.memory, self._beside))))
        except Refused as refused:
            self._events.put(Silent(host, str(refused)))

    def start(self, send: Send, candidate: bytes) -> None:
        """Start a worker: `Granted`, `Reported` and `Ended` follow. `Ended` comes always."""
        known = (send.number, send.attempt)
        try:
            attempt = Attempt(self._job, *known, candidate, self._told, self._module)
            self._attempts[known] = attempt
        except OSError as error:
            self._told(Ended(*known, End.HOST_FAULT, error=f"No worker could be started: {error}"))

    def _told(self, told: Told) -> None:
        if isinstance(told, Ended):
            self._attempts.pop((told.number, told.attempt), None)
        self._events.put(told)

    def stop(self, number: int, attempt: int) -> None:
        """Let a worker save its state and end."""
        if (running := self._attempts.get((number, attempt))) is not None:
            running.stop()

    def kill(self, number: int, attempt: int) -> None:
        """End a worker, which has nothing to save, at once."""
        if (running := self._attempts.get((number, attempt))) is not None:
            running.kill()

    def events(self, within: float) -> list[Event]:
        """What has come, after at most ``within`` seconds."""
        found: list[Event] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._events.get(timeout=within))
            while True:
                found.append(self._events.get_nowait())
        return found

    def close(self) -> None:
        """End all workers."""
        for attempt in list(self._attempts.values()):
            attempt.kill()
