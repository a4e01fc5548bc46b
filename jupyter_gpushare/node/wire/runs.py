"""What the same code needed before: measured peaks of leases and their parts, and estimates of it.

A run is recorded when its cell or the lease has ended, in the ledger, so that a restart forgets
nothing. The run of a task that lives yet is not counted: it may need more later. Nobody's runs
count for another environment.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ...policy.books.shares import KNOWN_AFTER
from ...policy.books.state import State
from ...policy.words import commands as cmd
from ...policy.words.events import LeaseEnded, MemoryReported
from ...policy.words.model import Activity, Bytes, Estimate, LeaseId, LeasePhase, Parts
from ..host.outcome import Outcome
from ..host.troubles import Trouble
from ..inventory.readings import Readings
from ..ledger.ledger import LedgerError
from ..ledger.runs import IN_ALL, OF_CODE, OF_ENVIRONMENT, Run
from ..manager import Manager
from ..views.status import measured_by_lease

#: Fewer runs are no estimate.
LEAST: Final = 2
#: The share of the runs that an estimate would have been enough for.
QUANTILE: Final = 0.9
#: A run that grew by less is not written again.
GRAIN: Final = 16 * 2**20


def estimate_of(sizes: Iterable[int]) -> Estimate | None:
    """What to expect after runs that needed these bytes; ``None``: too few are known."""
    known = sorted(sizes)
    if len(known) < LEAST:
        return None
    return Estimate(Bytes(known[math.ceil(QUANTILE * len(known)) - 1]), len(known))


def parts_of(runs: Iterable[Run]) -> Parts | None:
    """The parts to expect after these runs; ``None``: too few of them told theirs."""
    told = [(run.persistent, run.temporary) for run in runs]
    kept = estimate_of(persistent for persistent, _ in told if persistent is not None)
    step = estimate_of(temporary for _, temporary in told if temporary is not None)
    return None if kept is None or step is None else Parts(kept.memory, step.memory)


class Known:
    """The newest runs, as the ledger keeps them."""

    def __init__(self) -> None:
        self._by_code: OrderedDict[tuple[str, str], OrderedDict[str, Run]] = OrderedDict()
        self._of_environment: dict[str, OrderedDict[str, Run]] = {}
        self._all: OrderedDict[str, Run] = OrderedDict()

    def put(self, run: Run) -> None:
        """Keep a run, the newest; forget the oldest beyond the bounds."""
        self._drop(run.lease)
        code = self._by_code.setdefault((run.environment, run.code), OrderedDict())
        mine = self._of_environment.setdefault(run.environment, OrderedDict())
        for runs, most in ((code, OF_CODE), (mine, OF_ENVIRONMENT), (self._all, IN_ALL)):
            runs[run.lease] = run
            while len(runs) > most:
                self._drop(next(iter(runs)))

    def of(self, environment: str, code: str) -> Iterable[Run]:
        """The newest runs of this environment's code, oldest first."""
        return tuple(self._by_code.get((environment, code), {}).values())

    def run(self, lease: str) -> Run | None:
        """The run of a lease, as it is known so far."""
        return self._all.get(lease)

    def _drop(self, lease: str) -> None:
        run = self._all.pop(lease, None)
        if run is None:
            return
        for index, key in (
            (self._by_code, (run.environment, run.code)),
            (self._of_environment, run.environment),
        ):
            runs = index[key]  # type: ignore[index]  # each with its own kind of key
            runs.pop(lease, None)
            if not runs:
                del index[key]  # type: ignore[arg-type]


@dataclass(slots=True)
class _Running:
    """A lease that lives: its run so far, and what of it is written."""

    run: Run
    written: Run | None = None

    @property
    def is_news(self) -> bool:
        """Whether it grew, or told its parts, since it was written."""
        if self.written is None:
            return self.run.memory >= GRAIN
        return any(
            (now or 0) >= (before or 0) + GRAIN
            for now, before in zip(_sizes(self.run), _sizes(self.written), strict=True)
        )


def _sizes(run: Run) -> tuple[int | None, ...]:
    return run.memory, run.persistent, run.temporary


class Runs:
    """Watches a manager. All methods belong to its loop; ``spawn`` begins a task there."""

    def __init__(
        self,
        manager: Manager,
        spawn: Callable[[object], None],
        log: logging.Logger,
    ) -> None:
        self._manager = manager
        self._spawn = spawn
        self._known = Known()
        self._running: dict[LeaseId, _Running] = {}
        self._told: dict[LeaseId, Parts] = {}
        self._unwritten: dict[str, Run] = {}
        self._writing = asyncio.Lock()
        self._trouble = Trouble(log, manager.clock.boot, "Runs are recorded again")
        manager.listeners.append(self._heard)
        manager.measured.append(self._measured)

    async def recall(self) -> None:
        """Read what the ledger has. Raises :class:`LedgerError`."""
        ledger = self._manager.ledger
        for run in await self._manager.in_ledger(ledger.runs):
            self._known.put(run)

    def with_estimate(self, command: cmd.RequestLease) -> cmd.RequestLease:
        """The same request with what its code needed before, where that is known and not named."""
        request, leases = command.request, self._manager.state.leases
        if request.code is None or command.of_quota:
            return command
        known = self._known.of(command.environment, request.code)
        over = [run for run in known if run.gpus == request.gpus and run.lease not in leases]
        estimate = None if request.memory is not None else estimate_of(run.memory for run in over)
        learned = None if request.parts is not None else parts_of(over)
        return replace(command, request=replace(request, estimate=estimate, learned=learned))

    # -- inside --------------------------------------------------------------------------

    def _measured(self, readings: Readings) -> None:
        state = self._manager.state
        for (name, _gpu), size in measured_by_lease(state, readings.by_gpu).items():
            lease = state.leases[name]
            if not size or lease.request.code is None:
                continue
            known = self._running.get(name)
            if known is None:  # new, or recorded before: by a node manager that ended, or it drains
                before = self._known.run(name)
                run = Run(name, lease.environment, lease.request.code, lease.request.gpus, size)
                known = self._running[name] = _Running(before or run, before)
            if size > known.run.memory:
                known.run = replace(known.run, memory=size)
        for name, running in tuple(self._running.items()):
            found = state.leases.get(name)
            if found is None or found.phase is LeasePhase.ENDED:
                self._ended(name)
            elif found.activity is Activity.IDLE:
                self._note(running)

    def _heard(self, outcome: Outcome, state: State) -> None:
        for event in outcome.events:
            if isinstance(event, LeaseEnded):
                self._ended(event.lease)
            elif isinstance(event, MemoryReported) and event.steps >= KNOWN_AFTER:
                self._has_told(event)

    def _has_told(self, event: MemoryReported) -> None:
        """The most of each part on one of its GPUs, from the step on from which it is relied on."""
        before = self._told.get(event.lease, Parts(Bytes(0), Bytes(0)))
        kept = max((one.persistent for one in event.figures), default=Bytes(0))
        step = max((one.temporary for one in event.figures), default=Bytes(0))
        if kept or step:
            most = Parts(max(before.persistent, kept), max(before.temporary, step))
            self._told[event.lease] = most

    def _ended(self, name: LeaseId) -> None:
        if name in self._running:
            self._note(self._running.pop(name))
        self._told.pop(name, None)

    def _note(self, known: _Running) -> None:
        told = self._told.get(LeaseId(known.run.lease))
        if told is not None:
            kept = max(told.persistent, known.run.persistent or 0)
            step = max(told.temporary, known.run.temporary or 0)
            known.run = replace(known.run, persistent=kept, temporary=step)
        if not known.is_news:
            return
        known.written = known.run
        self._known.put(known.run)
        self._unwritten[known.run.lease] = known.run
        self._spawn(self._write())

    async def _write(self) -> None:
        async with self._writing:
            runs = tuple(self._unwritten.values())
            if not runs:
                return
            try:
                write = partial(self._manager.ledger.record_runs, runs)
                await self._manager.in_ledger(write)
            except LedgerError as error:
                self._trouble.came(f"What runs needed could not be recorded: {error}")
                return  # with the next ones
            self._trouble.is_over()
            for run in runs:
                if self._unwritten.get(run.lease) == run:
                    del self._unwritten[run.lease]
