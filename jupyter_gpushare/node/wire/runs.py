"""What the same code needed before: measured peaks of leases, and estimates from them.

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

from ...policy.books.state import State
from ...policy.words import commands as cmd
from ...policy.words.events import LeaseEnded
from ...policy.words.model import Activity, Bytes, Estimate, LeaseId, LeasePhase
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
    """A lease that lives: its run so far, and the bytes that are written."""

    run: Run
    written: int = 0


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
        """The same request with what its code needed before, where that is known."""
        request, leases = command.request, self._manager.state.leases
        if request.code is None or request.memory is not None or command.of_quota:
            return command
        known = self._known.of(command.environment, request.code)
        over = [run for run in known if run.gpus == request.gpus and run.lease not in leases]
        estimate = estimate_of(run.memory for run in over)
        return replace(command, request=replace(request, estimate=estimate))

    # -- inside --------------------------------------------------------------------------

    def _measured(self, readings: Readings) -> None:
        state = self._manager.state
        for (name, _gpu), size in measured_by_lease(state, readings.by_gpu).items():
            lease = state.leases[name]
            if not size or lease.request.code is None:
                continue
            known = self._running.get(name)
            if known is None:
                run = Run(name, lease.environment, lease.request.code, lease.request.gpus, size)
                known = self._running[name] = _Running(run)
            elif size > known.run.memory:
                known.run = replace(known.run, memory=size)
        for name, running in tuple(self._running.items()):
            found = state.leases.get(name)
            if found is None or found.phase is LeasePhase.ENDED:
                self._note(self._running.pop(name))
            elif found.activity is Activity.IDLE:
                self._note(running)

    def _heard(self, outcome: Outcome, state: State) -> None:
        for event in outcome.events:
            if isinstance(event, LeaseEnded) and event.lease in self._running:
                self._note(self._running.pop(event.lease))

    def _note(self, known: _Running) -> None:
        if known.run.memory < known.written + GRAIN:
            return
        known.written = known.run.memory
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
