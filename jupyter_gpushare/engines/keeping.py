"""Keeps as many hosts of an engine in the pool as are wanted: a look every few seconds.

It runs beside the pool, asks it as an administrator does, and keeps nothing: what there is, the
engine and the pool say at each look. So it may be ended and started again at any time, and hosts go
on without it. Where the engine or the pool does not answer, nothing is done.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ..console.verb import Refused, UsageError, number, option
from ..pool.verbs import AtPool
from ..protocol.poolcalls import PoolMethod
from ..protocol.times import parse_duration
from .engine import Engine, EngineAway
from .wanted import Bounds, Demand, Held, Memory, Seen, Stage, failed, wanted

#: Seconds for which a host's token can be used, and after which one that did not join is given up.
TOKEN_LASTS: Final = 300.0
#: Why a host is taken out of service that is given back, for people.
_GIVEN_BACK: Final = "it is given back, since nobody used it"

Rows = Mapping[str, Mapping[str, Any]]
Ask = Callable[..., dict[str, Any]]


def demand_of(rows: Iterable[Mapping[str, Any]]) -> Demand:
    """Who waits, and what is free, on the hosts that can be reached."""
    waiting, free = Counter[int](), list[int]()
    for row in rows:
        report = row["report"] if row["connected"] else None
        if report is None:
            continue
        for one in report["lacking"]:
            waiting[one["gpus"]] += one["requests"]
        if row["drain"] is None and report["draining"] is None:
            gpus = [gpu for gpu in report["gpus"] if gpu["out"] is None]
            free.append(sum(gpu["exclusive_free"] for gpu in gpus))
    return Demand(waiting, free)


def is_used(row: Mapping[str, Any]) -> bool:
    """Whether somebody has or wants something there; of a host that is lost nobody knows."""
    report = row["report"] if row["connected"] else None
    # What may be used is not given back: its people would lose what they have there.
    return report is None or any(
        one["held"] or one["parked"] or one["waiting"] for one in report["environments"]
    )


def is_given_back(row: Mapping[str, Any]) -> bool:
    """Whether it was taken out of service to be given back."""
    return row["drain"] is not None and bool(row["drain"]["gives_back"])


class Keeping:
    """``ask`` calls the pool; ``say`` tells the administrator what is done."""

    def __init__(
        self,
        engine: Engine,
        bounds: Bounds,
        ask: Ask,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._bounds = bounds
        self._ask = ask
        self._say = say
        self._clock = clock
        self._memory = Memory()
        self._trouble = ""
        #: Hosts that were let in: by what name, and when.
        self._names: dict[str, tuple[str, float]] = {}
        self._coming: set[str] = set()

    def look(self) -> None:
        """Look once, and do what is wanted. Never raises for an engine or a pool that is away."""
        try:
            self._look()
            self._trouble = ""
        except Refused as problem:
            if str(problem) != self._trouble:
                self._trouble = str(problem)
                self._say(f"Nothing is changed now: {problem}")

    def _look(self) -> None:
        now = self._clock()
        held = {one.piece: one for one in self._engine.hosts()}
        rows: dict[str, Mapping[str, Any]] = {
            row["host"]: row for row in self._ask(PoolMethod.HOSTS)["hosts"]
        }
        self._forget(held, rows)
        own = {row["held"]["piece"]: row for row in rows.values() if self._is_own(row)}
        for piece, one in held.items():
            row = own.get(piece)
            if row is None and one.stage is Stage.THERE:
                self._let_in(one, held, rows)
            elif row is not None:
                if one.stage is Stage.THERE and one.until != row["held"]["until"]:
                    self._ask(PoolMethod.HELD, host=row["host"], **self._told(one))
                # A host that is lost cannot be asked whether it is empty, and was out of service
                # already.
                if is_given_back(row) and (row["empty"] or not row["connected"]):
                    self._engine.gone(one)
        self._count_failures(held, own, now)
        seen = [_seen(one, own.get(one.piece), now) for one in held.values()]
        self._act(seen, own, demand_of(rows.values()), now)

    def _told(self, one: Held) -> dict[str, Any]:
        told = {"engine": self._engine.name, "piece": one.piece, "until": one.until}
        return {**told, "place": one.place}

    def _is_own(self, row: Mapping[str, Any]) -> bool:
        return row["held"] is not None and row["held"]["engine"] == self._engine.name

    # -- hosts come and go -------------------------------------------------------------------------

    def _forget(self, held: Mapping[str, Held], rows: dict[str, Mapping[str, Any]]) -> None:
        """A host whose piece of the engine is gone is gone, whoever may still answer there."""
        for name, row in list(rows.items()):
            if self._is_own(row) and row["held"]["piece"] not in held:
                self._ask(PoolMethod.FORGET, host=name)
                del rows[name]
                self._say(f"{name} has left: {self._engine.name} {row['held']['piece']} has ended.")

    def _let_in(self, one: Held, held: Mapping[str, Held], rows: Rows) -> None:
        if one.piece in self._names:
            return
        name, number = one.place, 1
        taken = {name for name, _at in self._names.values()}
        while name in rows or name in taken:
            row = rows.get(name)
            before = held[row["held"]["piece"]] if row and self._is_own(row) else None
            if before is not None and before.stage is Stage.GOING:
                return  # it takes over there as soon as the one before has left
            number += 1
            name = f"{one.place}.{number}"
        told = self._ask(PoolMethod.TOKEN, host=name, seconds=TOKEN_LASTS, **self._told(one))
        self._engine.admit(one, name, told["token"])
        self._names[one.piece] = name, self._clock()
        self._say(f"{self._engine.name} {one.piece} is on {one.place}; it joins as {name}.")

    def _count_failures(self, held: Mapping[str, Held], own: Rows, now: float) -> None:
        """What ended, or does not join, before it was any use to anybody."""
        lost = sorted(self._coming - held.keys() - own.keys())
        if lost:
            # One that never ran was cancelled, or forgotten by the engine: the next may well run.
            ran = self._names.keys() & lost
            self._memory = failed(self._memory if ran else replace(self._memory, failed=0), now)
        for piece, (name, at) in list(self._names.items()):
            if piece not in held or piece in own:
                del self._names[piece]
            elif now > at + TOKEN_LASTS:
                self._engine.gone(held[piece])
                self._say(f"{name} did not join within {TOKEN_LASTS:.0f} s, and is given back.")
        for piece in lost:
            self._say(
                f"{self._engine.name} {piece} ended before it had joined; its log says why. The "
                f"next one is asked for in {self._memory.again - now:.0f} s."
            )
        self._coming = held.keys() - own.keys()

    # -- more, fewer -------------------------------------------------------------------------------

    def _act(self, seen: list[Seen], own: Rows, demand: Demand, now: float) -> None:
        """Do what is wanted; what fails is asked for later."""
        todo = wanted(now, seen, demand, self._bounds, self._memory)
        self._memory = todo.memory
        try:
            for _ in range(todo.more):
                self._engine.hold(None)
                count = sum(demand.waiting.values())
                self._say(f"One more host is asked for: {count} requests wait.")
            for one in todo.successors:
                self._engine.hold(one)
                self._say(f"A successor of {one.piece} ({one.place}) is asked for.")
        except EngineAway:
            self._memory = failed(self._memory, now)
            raise
        for one in todo.back:
            if one.piece in own:
                host = own[one.piece]["host"]
                self._ask(PoolMethod.DRAIN, host=host, reason=_GIVEN_BACK, gives_back=True)
            else:
                self._coming.discard(one.piece)
                self._engine.gone(one)
            self._say(f"{one.piece} ({one.place or 'it waits'}) is given back: nobody needs it.")


def _seen(one: Held, row: Mapping[str, Any] | None, now: float) -> Seen:
    """A host that runs and has not joined is still on its way.

    One that was taken out of service serves nobody: it is neither enough nor unused, and what a
    person took out stays out. So it is with one that the pool has lost for longer than what was
    lent there lasts: it may never come back.
    """
    if row is None:
        return Seen(replace(one, stage=Stage.ASKED) if one.stage is Stage.THERE else one)
    is_lost = not row["connected"] and row["until"] is not None and row["until"] <= now
    if one.stage is Stage.THERE and (is_lost or row["drain"] is not None):
        return Seen(replace(one, stage=Stage.GOING))
    return Seen(one, is_used(row))


class KeepingVerb(AtPool):
    """A verb that keeps hosts of an engine in the pool until it is ended."""

    least = option(1, "So many hosts at least.", read=number(0, 10_000), name="min")
    most = option(1, "So many hosts at most.", read=number(0, 10_000), name="max")
    patience = option(
        30.0, "How long people wait until one more host is asked for.", parse_duration
    )
    idle = option(900.0, "How long a host is unused until it is given back.", parse_duration)
    ahead = option(
        1800.0, "How long before a host's end its successor is asked for.", parse_duration
    )
    interval = option(10.0, "Seconds between two looks.", read=number(0.1, 3600.0))

    def keep(self, engine: Engine, gpus: int) -> int:
        """Keep hosts until SIGTERM or SIGINT. Hosts stay then."""
        if self.least > self.most:
            raise UsageError(f"--min {self.least} is more than --max {self.most}")
        bounds = Bounds(gpus, self.least, self.most, self.patience, self.idle, self.ahead)
        keeping = Keeping(engine, bounds, self.ask, partial(print, flush=True))
        ends = threading.Event()
        for which in (signal.SIGTERM, signal.SIGINT):
            signal.signal(which, lambda *_: ends.set())
        while not ends.is_set():
            keeping.look()
            ends.wait(self.interval)
        return 0
