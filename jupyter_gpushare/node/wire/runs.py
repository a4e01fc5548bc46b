"""What the same code needed before: measured peaks of leases, their parts and steps, and estimates.

Most requests name no memory, and to reserve a whole GPU for each wastes most of it. The best guess
of what a program needs is what it needed last time. So each lease's measured peak is kept under a
hash of its code, and the next request of the same code brings an estimate: what would have been
enough for nine of ten of its runs. A dry run tells of the model and batch, too; then runs of the
same ones count, and before there are any the prediction does.

A guess may be wrong without harm: it reserves memory, and the policy watches what is really used.
But it must not be wrong for reasons that have nothing to do with the code. A task that lives yet
may still grow, so its run is not counted. A GPU's utilisation counts only while the task is alone
there. Nobody's runs count for another environment.

A run is recorded when its cell or the lease has ended, in the ledger, so that a restart forgets
nothing. If the ledger cannot take it, it is tried again with the next one: no grant waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Final

from ...daemon.troubles import Trouble
from ...ledger.learned import Learned
from ...ledger.ledger import LedgerError
from ...ledger.runs import IN_ALL, OF_CODE, OF_ENVIRONMENT, Run
from ...policy.books.shares import KNOWN_AFTER
from ...policy.books.state import Lease, State
from ...policy.words import commands as cmd
from ...policy.words.events import LeaseEnded, MemoryReported
from ...policy.words.model import (
    Activity,
    Bytes,
    Estimate,
    GpuUuid,
    LeaseId,
    LeasePhase,
    Parts,
    ProcessId,
)
from ...policy.words.promises import Expected
from ...predict.estimates import Basis, Estimates
from ...predict.records import Record
from ..host.outcome import Outcome
from ..inventory.readings import Readings
from ..manager import Manager
from ..views.status import measured_by_lease
from .predictions import Prediction, by_kind

#: Fewer runs are no estimate.
LEAST: Final = 2
#: The share of the runs that an estimate would have been enough for.
QUANTILE: Final = 0.9
#: A run that grew by less, or whose steps take another part less or more, is not written again.
GRAIN: Final = 16 * 2**20
CHANGE: Final = 0.05


def estimate_of(sizes: Iterable[int], least: int = LEAST) -> Estimate | None:
    """What to expect after runs that needed these bytes, or ``None`` if too few are known."""
    known = sorted(sizes)
    if len(known) < least:
        return None
    return Estimate(Bytes(known[math.ceil(QUANTILE * len(known)) - 1]), len(known))


def parts_of(runs: Iterable[Run]) -> Parts | None:
    """The parts to expect after these runs, or ``None`` if too few of them told theirs."""
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

    def of_shapes(self, environment: str, code: str | None, shapes: str) -> tuple[Run, ...]:
        """The newest runs of this model and batch; of the same code, if it has any."""
        mine = self._of_environment.get(environment, OrderedDict[str, Run]())
        alike = tuple(run for run in mine.values() if run.shapes == shapes)
        return tuple(run for run in alike if run.code == code) or alike

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
        if (self.run.shapes, self.run.kind) != (self.written.shapes, self.written.kind):
            return True
        before, now = self.written.seconds, self.run.seconds
        if now is not None and (before is None or abs(now - before) > before * CHANGE):
            return True
        return any(
            (now or 0) >= (before or 0) + GRAIN
            for now, before in zip(_sizes(self.run), _sizes(self.written), strict=True)
        )


def _sizes(run: Run) -> tuple[int | None, ...]:
    return run.memory, run.persistent, run.temporary


@dataclass(slots=True)
class _Steps:
    """What the steps of a lease that lives told: its model, if it is known, and how fast it is."""

    prediction: Prediction | None = None
    seconds: float | None = None
    #: Of the measurements since its second step, the sum and the count.
    worked: float = 0.0
    looks: int = 0

    @property
    def utilisation(self) -> int | None:
        """Hundredths of its GPU's compute."""
        return max(1, round(100 * self.worked / self.looks)) if self.looks else None


def corrected(predicted: Estimates, runs: Sequence[Run], iterations: int) -> Estimates:
    """What was measured in ``runs`` of the same model and batch, where it was, else as predicted.

    Memory is much the same on each kind of GPU. Times are those of the same kind.
    """
    memory = estimate_of((run.memory for run in runs), least=1)
    if memory is None:
        return predicted
    same = [run for run in runs if run.kind == predicted.kind]
    now = replace(
        predicted, memory=round(median(run.memory for run in runs)), memory_p90=int(memory.memory)
    )
    if times := [run.seconds for run in same if run.seconds is not None]:
        middle = median(times)
        spread = max(abs(one / middle - 1) for one in times) if middle else 0.0
        now = replace(
            now,
            seconds=middle * iterations,
            seconds_p90=max(times) * iterations,
            error=spread,
            basis=Basis.MEASURED,
        )
    if used := [run.utilisation for run in same if run.utilisation is not None]:
        now = replace(now, utilisation=round(median(used)))
    return now


def record_of(run: Run, prediction: Prediction | None) -> Record | None:
    """What is kept of a run for training: nothing of who ran it, and of its code only a hash."""
    if prediction is None or run.shapes != prediction.shapes or not run.seconds or run.gpus != 1:
        return None
    hardware = next((kind for kind in prediction.kinds if kind.name == run.kind), None)
    if hardware is None:
        return None
    family = hashlib.sha256(f"{run.code} {run.shapes}".encode()).hexdigest()[:32]
    used = float(run.utilisation or 0)
    return Record(family, prediction.features, hardware, run.seconds, run.memory, used)


class Runs:
    """Watches a manager. All methods belong to its loop; ``spawn`` begins a task there."""

    def __init__(
        self,
        manager: Manager,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        log: logging.Logger,
        computes: Callable[[ProcessId], Prediction | None],
        predicted: Callable[[ProcessId], Prediction | None],
        learned: Learned | None = None,
    ) -> None:
        """``predicted`` is the newest prediction of a task, ``computes`` that of what it runs.

        ``learned`` is where finished runs are kept for training, if they are kept at all.
        """
        self._learned = learned
        self._manager = manager
        self._computes = computes
        self._predicted = predicted
        self._spawn = spawn
        self._known = Known()
        self._running: dict[LeaseId, _Running] = {}
        self._told: dict[LeaseId, Parts] = {}
        self._steps: dict[LeaseId, _Steps] = {}
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
        if command.of_quota:
            return command
        who, code = command.environment, request.code
        known = self._known.of(who, code) if code is not None else ()
        # A run on another number of GPUs was split in another way.
        over = [run for run in known if run.gpus == request.gpus and run.lease not in leases]
        estimate = None if request.memory is not None else self._expected(command, over)
        learned = None if request.parts is not None else parts_of(over)
        expected = self._expected_by_kind(command)
        if (estimate, learned, expected) == (None, None, ()):
            return command  # nothing is known, and it says nothing of this itself
        known_now = replace(request, estimate=estimate, learned=learned, expected=expected)
        return replace(command, request=known_now)

    def _expected_by_kind(self, command: cmd.RequestLease) -> tuple[Expected, ...]:
        request, prediction = command.request, self._predicted(command.task.process)
        if prediction is None or request.gpus != 1:
            return ()
        who, shapes = command.environment, prediction.shapes
        iterations = prediction.features.iterations
        found = (
            self.measured(who, request.code, shapes, iterations, one)
            for one in prediction.estimates
        )
        return by_kind(found)

    def _expected(self, command: cmd.RequestLease, over: Sequence[Run]) -> Estimate | None:
        """By runs of the model and batch that the task asked about, else by a dry run of them.

        Where it asked about none, by runs of its code, whatever that computed.
        """
        request, leases = command.request, self._manager.state.leases
        prediction = self._predicted(command.task.process)
        if prediction is None or request.gpus != 1:
            return estimate_of(run.memory for run in over)
        alike = self._known.of_shapes(command.environment, request.code, prediction.shapes)
        ended = (run for run in alike if run.gpus == 1 and run.lease not in leases)
        # One run of the very model and batch says more than a dry run, and more than others of the
        # code.
        measured = estimate_of((run.memory for run in ended), least=1)
        return measured or Estimate(prediction.memory, 0)

    def measured(
        self, who: str, code: str | None, shapes: str, iterations: int, predicted: Estimates
    ) -> Estimates:
        """An estimate as its environment's own runs of the same model and batch correct it."""
        return corrected(predicted, self._known.of_shapes(who, code, shapes), iterations)

    def stepped(self, lease: Lease, steps: int, seconds: float | None = None) -> None:
        """A task says how many steps have ended, each after ``seconds`` of computing."""
        # The first steps warm up: they compile, fill caches and take much longer than the others.
        if steps < KNOWN_AFTER or lease.request.code is None:
            return
        now = self._steps.setdefault(lease.id, _Steps())
        now.prediction = self._computes(lease.task.process)
        now.seconds = seconds or now.seconds

    # -- inside --------------------------------------------------------------------------

    def _measured(self, readings: Readings) -> None:
        state = self._manager.state
        for (name, gpu), size in measured_by_lease(state, readings.by_gpu).items():
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
            self._sees_work(lease, gpu, readings)
        for name, running in tuple(self._running.items()):
            found = state.leases.get(name)
            if found is None or found.phase is LeasePhase.ENDED:
                self._ended(name)
            # A notebook's lease may live for days: what its cell needed counts from the cell's end.
            elif found.activity is Activity.IDLE:
                self._note(running)

    def _sees_work(self, lease: Lease, gpu: GpuUuid, readings: Readings) -> None:
        """Count how much a lease's work uses of its GPU, while it computes and is alone there."""
        steps, work = self._steps.get(lease.id), readings.by_gpu[gpu].utilisation
        alone = sum(where == gpu for _name, where in self._manager.state.claims) == 1
        if steps is not None and work is not None and alone and lease.activity is Activity.BUSY:
            steps.worked, steps.looks = steps.worked + work, steps.looks + 1

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
        steps = self._steps.get(name)
        if (running := self._running.pop(name, None)) is not None:
            self._note(running)
            if self._learned is not None and steps is not None:
                self._spawn(self._learn(self._learned, running.run, steps))
        self._told.pop(name, None)
        self._steps.pop(name, None)

    async def _learn(self, learned: Learned, run: Run, steps: _Steps) -> None:
        record = record_of(run, steps.prediction)
        if record is None:
            return
        try:
            await asyncio.to_thread(learned.add, record)
        except OSError as error:
            self._trouble.came(f"What a run needed could not be kept for training: {error}")

    def _note(self, known: _Running) -> None:
        told = self._told.get(LeaseId(known.run.lease))
        if told is not None:
            kept = max(told.persistent, known.run.persistent or 0)
            step = max(told.temporary, known.run.temporary or 0)
            known.run = replace(known.run, persistent=kept, temporary=step)
        if (steps := self._steps.get(LeaseId(known.run.lease))) is not None:
            kind = self._kind_of(LeaseId(known.run.lease))
            known.run = replace(
                known.run,
                shapes=None if steps.prediction is None else steps.prediction.shapes,
                kind=kind or known.run.kind,
                seconds=steps.seconds,
                utilisation=steps.utilisation,
            )
        if not known.is_news:
            return
        known.written = known.run
        self._known.put(known.run)
        self._unwritten[known.run.lease] = known.run
        self._spawn(self._write())

    def _kind_of(self, name: LeaseId) -> str | None:
        """The kind of its GPU, if it has one."""
        state = self._manager.state
        parts = state.leases[name].allocations if name in state.leases else ()
        return state.gpus[parts[0].gpu].gpu.name if len(parts) == 1 else None

    async def _write(self) -> None:
        # One at a time, so that an older state of a run is never written over a newer one.
        async with self._writing:
            runs = tuple(self._unwritten.values())
            if not runs:
                return
            try:
                await self._manager.in_ledger(partial(self._manager.ledger.record_runs, runs))
            except LedgerError as error:
                self._trouble.came(f"What runs needed could not be recorded: {error}")
                return  # with the next ones
            self._trouble.is_over()
            for run in runs:
                # It may have grown again while the disk was busy.
                if self._unwritten.get(run.lease) == run:
                    del self._unwritten[run.lease]
