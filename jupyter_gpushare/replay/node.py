"""One node with a virtual clock: the product's policy, and tasks that follow a trace.

"How many people could share these GPUs, and would they wait less with turns?" cannot be tried on
people. It can be tried on what they did, because the policy is pure: given the same commands at the
same times it decides as it would have decided. So nothing of the policy is imitated here, and a
figure of a replay is one of the product. Imitated are its surroundings. The node plays the node
manager's shell (command -> step -> effects, one timer), and the world: how long a cell computes,
what parking moves, when a process ends. There everything goes well and at once: a parked or dead
process leaves its GPUs without delay, and no driver fails.

A session's pace is kept: its next cell is sent as long after the end of the last one as in the
trace, so a cell that waits delays the rest of its session. A GPU's time is counted once: tasks that
compute on it at the same time share it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from ..policy import core
from ..policy.books import shares
from ..policy.books.lifts import tasks_on
from ..policy.books.state import State
from ..policy.recall.lifts import REST
from ..policy.recall.offers import due
from ..policy.recall.patience import ANSWER
from ..policy.words import commands as cmd, events as ev
from ..policy.words.model import (
    Activity,
    Allocation,
    Bytes,
    ClaimPhase,
    EnvironmentName,
    Estimate,
    Gpu,
    GpuReading,
    GpuUuid,
    LeaseId,
    ParkWhen,
    PriorityClass,
    ProcessId,
    ProcessReading,
    Quota,
    Request,
    Reserve,
    Rung,
    Task,
    TaskKind,
)
from ..policy.words.promises import WHOLE, Expected, Promise, PromiseState
from ..policy.words.recalls import Give, RecallPhase
from ..policy.words.turns import TurnPhase
from .behaviour import Asks, Behaviour
from .need import need
from .promising import SHARE, SURE
from .tally import Level, Window
from .trace import Session
from .world import RESOLUTION, Open, World

BOOT: Final = "replay"
#: What GPUs are called.
KIND: Final = "virtual"
#: As how many steps a cell counts, and the least seconds between two reports of how far it is.
STEPS: Final = 100
TELLS: Final = 10.0
#: Seconds until a change of what is used is measured: as often as the product measures.
MEASURE: Final = 2.0
GPU_MEMORY: Final = Bytes(80 * 2**30)


class _Phase(Enum):
    """What a session's task is doing."""

    AWAY = "no lease"
    WAITING = "waits for GPUs"
    HOLDING = "has GPUs, no cell runs"
    STARTING = "has GPUs, start-up or resume goes on"
    COMPUTING = "a cell computes"
    PARKING = "its memory is on the way out"
    PARKED = "parked"
    PAUSED = "at a gate, in the midst of a cell"


#: What a task does while its memory is on no GPU.
_NOT_THERE: Final = (_Phase.AWAY, _Phase.WAITING, _Phase.PARKED)


@dataclass(slots=True, eq=False, kw_only=True)
class _Run(Open):
    """A session that is replayed. ``number`` tells it from the others."""

    number: int
    process: ProcessId
    #: Bytes that it keeps on each GPU.
    resident: int = 0
    #: Bytes that its cells have needed on each GPU so far.
    uses: int = 0
    phase: _Phase = _Phase.AWAY
    lease: LeaseId | None = None
    gpus: tuple[Allocation, ...] = ()
    #: How long its cell has still to compute, and since when it does.
    left: float = 0.0
    since: float = 0.0
    #: How fast it computes since then; 1: as fast as alone. Counts how often that changed.
    speed: float = 0.0
    changes: int = 0
    #: Counts what was begun: the end of something that was called off means nothing.
    turn: int = 0
    in_memory: int = 0
    is_batch: bool = False
    #: When its cell is to end, if anybody minds. Whether that was asked for, and granted.
    until: float | None = None
    is_asked: bool = False
    is_promised: bool = False
    serial: int = 0


def _one_of(number: int, share: float) -> bool:
    """Whether a session belongs to a share of them, the same ones in every replay."""
    # Multiples of the golden ratio spread evenly, so that also few sessions have nearly that share.
    return number * 0.6180339887498949 % 1.0 < share


class VirtualNode(World[_Run]):
    """A host's GPUs, policy and sessions; one class, as each session's step slows the others.

    A method is one thing that can happen to a session at a moment of the virtual clock, in the
    order of a session's life.
    """

    def __init__(
        self,
        gpus: int,
        behaviour: Behaviour,
        window: Window,
        memory: Bytes = GPU_MEMORY,
        on_compute: Callable[[float, str], None] | None = None,
    ) -> None:
        """``on_compute`` is told the time and a session's name whenever a cell of it begins to
        compute, or goes on."""
        super().__init__(gpus, window)
        self.behaviour = behaviour
        self.memory = memory
        self.on_compute = on_compute
        self.state = State()
        self._runs: dict[LeaseId, _Run] = {}
        #: How much is used matters only where reservations follow it.
        self._is_measured = self.behaviour.follows is not Reserve.WHOLE
        self._claims = [0] * gpus
        self._computing: list[dict[int, _Run]] = [{} for _ in range(gpus)]
        #: When the last transfer on each GPU's link ends.
        self._link = [0.0] * gpus
        self._bound, self._parked = Level(window), Level(window)
        self._quiet: State | None = None
        self._timed: State | None = None
        self._tick_due = math.inf
        self._tick_at = math.inf
        self._ticked_at = -math.inf
        self._processes = 0
        names = [GpuUuid(f"GPU-{index}") for index in range(gpus)]
        self._index = {name: index for index, name in enumerate(names)}
        devices = tuple(
            Gpu(name, index, KIND, memory, simulated=True) for index, name in enumerate(names)
        )
        self._submit(cmd.Start(0.0, BOOT, devices))
        quota = behaviour.quota or Quota(gpus=gpus)
        self._submit(cmd.ConfigureQuotas(0.0, quota))
        #: Bytes that one task may have on a GPU.
        self._most = min(memory, quota.memory or memory)

    # -- time ---------------------------------------------------------------

    def _opened(self, session: Session) -> _Run:
        self._processes += 1
        run = _Run(session, number=self._processes, process=self._process())
        run.resident = min(self._most, int(session.resident * self.behaviour.resident))
        run.is_batch = self.behaviour.promising.is_batch(session)
        return run

    def _settle(self) -> None:
        super()._settle()
        end, tally = self.window.end, self.tally
        self._bound.settle(end)
        self._parked.settle(end)
        tally.bound = self._bound.integral
        span = end - self.window.begin
        tally.parked_mean = self._parked.integral / span if span else 0.0
        tally.parked_peak = self._parked.peak

    def _delayed(self, run: _Run, seconds: float) -> float:
        self._count_deadline(run, math.inf)
        if run.phase is not _Phase.COMPUTING:
            return math.inf  # what it has waited so far may not be all
        self._computed(run, self.at)
        return self.at - run.sent - (seconds - run.left)

    def _count_deadline(self, run: _Run, ended: float) -> None:
        """Whether a cell kept its deadline, where that could be kept at all."""
        until = run.until
        if until is None or not self.window.begin <= run.sent < until < self.window.end:
            return
        most = self.behaviour.config.promise_share / WHOLE
        if run.session.seconds[run.cell] <= most * (until - run.sent):
            self.tally.deadlines += 1
            self.tally.in_time += ended <= until + RESOLUTION

    def _later(self, seconds: float, call: Callable[[_Run], object], run: _Run) -> None:
        """Call it, unless what goes on now was called off by then."""
        self._after(seconds, self._unless_off, call, run, run.turn)

    def _unless_off(self, call: Callable[[_Run], object], run: _Run, turn: int) -> None:
        if run.turn == turn:
            call(run)

    def _process(self) -> ProcessId:
        self._serial += 1
        return ProcessId(BOOT, self._serial, self._serial)

    # -- the shell ------------------------------------------------------------

    def _submit(self, command: cmd.Command) -> core.Decision:
        step = core.step(self.state, command, self.behaviour.config)
        self.state = step.state
        self.tally.commands += 1
        for event in step.events:
            kind = type(event)
            if kind is ev.LeaseGranted:
                self._granted(event)  # type: ignore[arg-type]
            elif kind is ev.ClaimMoved:
                self._claim_moved(event)  # type: ignore[arg-type]
            # What a session does upon the policy's word comes after this step, as a message does.
            # Within it the state would change below the events that are still to be read.
            elif kind is ev.RecallMoved and event.phase is RecallPhase.TOLD:  # type: ignore[attr-defined]
                self._after(0.0, self._asked, self._runs[event.lease])  # type: ignore[attr-defined]
            elif kind is ev.PromiseMoved:
                self._promise_over(event)  # type: ignore[arg-type]
            elif kind is ev.LimitMoved and event.live is None:  # type: ignore[attr-defined]
                self._after(0.0, self._told, event)
            elif kind is ev.TurnGiven or kind is ev.TurnMoved:
                self._after(0.0, self._turn_moved, self._runs.get(event.lease))  # type: ignore[attr-defined]
        # Measured at once: memory that goes is gone here without delay, and others may wait for it.
        if self.state.draining:
            self._observe(dict.fromkeys(gpu for _lease, gpu in self.state.draining))
        return step.decision

    def _keep_time(self) -> None:
        """One timer, as the node manager has."""
        # A sum of times is not exact: a tick that comes a hair too soon must not come for ever.
        if self.state is not self._timed:
            self._timed, self._tick_due = self.state, self._next_tick()
        at = max(self._tick_due, self._ticked_at + RESOLUTION)
        if at < self._tick_at:
            self._tick_at = at
            self._after(at - self.at, self._tick, at)

    def _next_tick(self) -> float:
        """When a tick is needed. One that can change nothing is left out.

        While nobody waits, charging what is held changes nothing, and it is made up for before
        somebody does. And a look that found nobody to ask finds nobody again until something
        happens or a lease becomes due; the product looks again each second.
        """
        state, config = self.state, self.behaviour.config
        # With turns, or with parking in any case, time itself decides things: no tick is left out.
        always = config.park_when is ParkWhen.ALWAYS and state.idle
        if always or state.turns:
            return max(self.at, core.next_deadline(state, config))
        if not state.queue.waiting:
            return math.inf
        # The last tick has seen another state, so there may be something to do now.
        if state is not self._quiet:
            return max(self.at, core.next_deadline(state, config))
        soon = state.settled_at + config.settle_interval
        for name in state.idle:
            lease = state.leases[name]
            recall = state.memory_recall(name)
            asked = (recall and recall.asked_at) or -math.inf
            for at in (due(state, lease, config), asked + ANSWER):
                if at is not None and self.at < at < soon:
                    soon = at
        return soon

    def _tick(self, meant: float) -> None:
        if meant != self._tick_at:
            return  # an earlier one was set after it
        self._tick_at = math.inf
        self._ticked_at = self.at
        self._timed = None  # the time itself may matter
        self._submit(cmd.Tick(self.at, self.at))
        self._quiet = self.state

    def _of(self, run: _Run, kind: type[cmd.OfTask], *parts: Any) -> cmd.OfTask:
        """What its task says of the lease that it has."""
        assert run.lease is not None
        who = EnvironmentName(run.session.environment)
        return kind(self.at, run.lease, who, run.process, *parts)

    def _says(self, run: _Run, kind: type[cmd.OfTask], *parts: Any) -> core.Decision:
        return self._submit(self._of(run, kind, *parts))

    # -- what the policy said -------------------------------------------------

    def _granted(self, event: ev.LeaseGranted) -> None:
        run = self._runs[event.lease]
        run.gpus = event.gpus
        for part in event.gpus:
            index = self._index[part.gpu]
            self._claims[index] += 1
            if self._claims[index] == 1:
                self._bound.add(1, self.at)
        if self.behaviour.by_turns and event.lease not in self.state.takers:
            if not _one_of(run.number, self.behaviour.movable):
                self._after(0.0, self._submit, self._of(run, cmd.ReportAbility, Rung.NONE))
            self._after(0.0, self._submit, self._of(run, cmd.ReportMemory, (), 0, True))
        self._after(0.0, self._holds, run)

    def _claim_moved(self, event: ev.ClaimMoved) -> None:
        if event.phase is ClaimPhase.GONE:
            index = self._index[event.gpu]
            self._claims[index] -= 1
            if self._claims[index] == 0:
                self._bound.add(-1, self.at)

    # -- what the session does --------------------------------------------------

    def _begin(self, run: _Run) -> None:
        if self.behaviour.asks is Asks.AT_START:
            self._request(run)
        super()._begin(run)

    def _request(self, run: _Run) -> None:
        run.serial += 1
        run.lease = LeaseId(f"{run.number}.{run.serial}")
        if self.behaviour.asks is Asks.EACH_CELL:
            # A batch task is a new process for each cell, and so to the policy another one.
            run.process = self._process()
        run.phase = _Phase.WAITING
        self._runs[run.lease] = run
        task = Task(run.process, run.session.name, TaskKind.KERNEL)
        request = self._requested(run)
        who = EnvironmentName(run.session.environment)
        # The session is known by its lease before: the grant may come within this step.
        decision = self._submit(cmd.RequestLease(self.at, run.lease, who, task, request))
        if isinstance(decision, core.Refuse):
            self._runs.pop(run.lease)
            run.lease = None
            self.tally.refused += 1

    def _requested(self, run: _Run) -> Request:
        """What its client asks for."""
        gpus, memory, behaviour = run.session.gpus, run.session.memory, self.behaviour
        promising = behaviour.promising
        kind = PriorityClass.INTERACTIVE
        if run.is_batch and promising.classed:
            kind = PriorityClass.BATCH
        # Half of them too small and half too large, always the same ones, so that policies compare.
        wrong = 1 / behaviour.wrong if _one_of(run.number, 0.5) else behaviour.wrong
        known = int(run.resident * wrong)
        if memory is None and behaviour.reserve:
            memory = min(self._most, max(1, int(known * behaviour.reserve)))
        if memory is not None or behaviour.follows is Reserve.WHOLE:
            size = None if memory is None else Bytes(memory)
            return Request(gpus, size, kind, expected=self._expected(run, size))
        estimate = Estimate(Bytes(max(1, known)), 2)
        return Request(gpus, reserve=behaviour.follows, live=True, estimate=estimate)

    def _expected(self, run: _Run, memory: Bytes | None) -> tuple[Expected, ...]:
        """What it is predicted to need. A notebook's later cells are other ones than the first."""
        promising = self.behaviour.promising
        if not (promising.part and promising.told):
            return ()
        whole = len(run.session.submits) == 1
        seconds = promising.expected(run.session, 0) if whole else None
        return (Expected(KIND, SHARE, memory or self.memory, seconds, promising.error <= SURE),)

    def _send(self, run: _Run) -> None:
        self._sent(run)
        run.left = run.session.seconds[run.cell]
        deadline = self.behaviour.promising.deadline(run.session, run.cell)
        run.until = None if deadline is None else self.at + deadline
        run.is_asked = run.is_promised = False
        match run.phase:
            case _Phase.AWAY:
                self._request(run)
            case _Phase.HOLDING:
                self._activity(run, Activity.BUSY)
                self._start(run)
            case _Phase.PARKED:
                self._resume(run)
            case _:
                pass  # it waits, or is being parked: the cell runs afterwards

    def _activity(self, run: _Run, activity: Activity) -> None:
        """Only who may be parked need say it: for the others it would change nothing."""
        if self.behaviour.parks and run.lease is not None:
            self._says(run, cmd.SetActivity, activity)

    def _resume(self, run: _Run) -> None:
        run.phase = _Phase.WAITING
        self._says(run, cmd.Resume)

    def _holds(self, run: _Run) -> None:
        """It has its GPUs: move back what was parked, or start up, then compute."""
        if run.lease is None:
            return  # its session is over
        if run.cell < 0:
            run.phase = _Phase.HOLDING
            return
        run.phase = _Phase.STARTING
        wait = self.behaviour.start_up
        if run.in_memory:
            wait += self._transfer(run, self.behaviour.cost.to_resume(run.resident))
        run.turn += 1
        if wait > 0:
            self._later(wait, self._start, run)
        else:
            self._start(run)

    def _transfer(self, run: _Run, seconds: float) -> float:
        """Seconds until its memory is moved: one transfer at a time on the link of a GPU."""
        gpus = [self._index[part.gpu] for part in run.gpus]
        ends = max([self.at, *(self._link[gpu] for gpu in gpus)]) + seconds
        for gpu in gpus:
            self._link[gpu] = ends
        return ends - self.at

    def _start(self, run: _Run) -> None:
        """Compute, or wait for the turn."""
        if run.in_memory and self._is_measured and run.lease is not None:
            self._says(run, cmd.Restored)
        self._keep_in_memory(run, 0)
        self._promise(run)
        if self._has_turn(run):
            self._go_on(run)
        else:
            run.phase = _Phase.PAUSED
            self._says(run, cmd.AskTurn)

    def _go_on(self, run: _Run) -> None:
        run.phase = _Phase.COMPUTING
        run.since, run.speed = self.at, 0.0
        if self.on_compute is not None:
            self.on_compute(self.at, run.session.name)
        if run.first is None:
            run.first = self.at - run.sent
            self._take_memory(run)
        run.turn += 1
        self._compute(run, on=True)
        if run.is_promised:
            self._later(self._tells(run), self._progress, run)
        if self.behaviour.by_turns and self._is_asked(run):  # while it started
            self._later(self.behaviour.turns.step, self._gate, run)

    def _keep_in_memory(self, run: _Run, size: int) -> None:
        """How many bytes of it are parked in the host's memory."""
        self._parked.add(size - run.in_memory, self.at)
        run.in_memory = size

    def _stop(self, run: _Run) -> None:
        self._compute(run, on=False)
        self._computed(run, self.at)
        run.changes += 1

    def _compute(self, run: _Run, *, on: bool) -> None:
        """It begins to compute, or stops; whoever computes on its GPUs gets slower, or faster."""
        touched: dict[int, _Run] = {}
        for part in run.gpus:
            there = self._computing[self._index[part.gpu]]
            was_busy = bool(there)
            if on:
                there[run.number] = run
            else:
                there.pop(run.number, None)
            touched |= there
            self._busy.add(bool(there) - was_busy, self.at)
        for one in touched.values():
            self._set_speed(one)

    def _set_speed(self, run: _Run) -> None:
        """How fast it computes beside the others that do, and when its cell ends by that."""
        # The slowest GPU decides: a cell on several computes in step.
        most = max(len(self._computing[self._index[part.gpu]]) for part in run.gpus)
        speed = 1.0 if most == 1 else self.behaviour.together / most
        if speed != run.speed:
            self._computed(run, self.at)
            run.speed = speed
            run.changes += 1
            self._after(run.left / speed, self._end_cell, run, run.changes)

    def _computed(self, run: _Run, until: float) -> None:
        """Its cell has computed until then."""
        if run.is_batch:
            seconds = self.window.overlap(run.since, until)
            self.tally.batch += run.session.gpus * run.speed * seconds
        run.left -= run.speed * (until - run.since)
        self._had(run, run.session.gpus * run.speed, run.since, until)
        run.since = until

    def _end_cell(self, run: _Run, changes: int) -> None:
        # It was planned for another speed, or the cell stopped meanwhile.
        if run.changes != changes:
            return
        self._stop(run)
        self._ended(run)
        self._count_deadline(run, self.at)
        self._promise_ends(run)
        run.cell, run.phase = -1, _Phase.HOLDING
        if self.behaviour.asks is Asks.EACH_CELL:
            self._leave(run)
        else:
            self._activity(run, Activity.IDLE)
            self._measure_soon(run)
        self._pause(run)

    def _leave(self, run: _Run) -> None:
        """The process ends, and its lease with it."""
        if run.lease is not None:
            run.phase = _Phase.AWAY
            self._submit(cmd.ProcessGone(self.at, run.process))
            del self._runs[run.lease]
            run.lease, run.gpus, run.uses = None, (), 0

    def _close(self, run: _Run) -> None:
        run.turn += 1
        self._leave(run)
        self._keep_in_memory(run, 0)
        super()._close(run)

    # -- promises -----------------------------------------------------------------

    def _promise(self, run: _Run) -> None:
        """Its people name the deadline of its cell when it has its GPUs."""
        if run.until is None or run.is_asked or not self.behaviour.promising.told:
            return
        run.is_asked = True
        left = run.until - self.at
        if left <= 0:
            return
        named = self._says(run, cmd.MakePromise, Promise(left), STEPS)
        run.is_promised = not isinstance(named, core.Refuse)
        self.tally.declined += not run.is_promised

    def _tells(self, run: _Run) -> float:
        """Seconds of computing between two words of how far it is."""
        return max(TELLS, run.session.seconds[run.cell] / STEPS)

    def _progress(self, run: _Run) -> None:
        if run.phase is _Phase.COMPUTING:
            self._tell_progress(run)
            self._later(self._tells(run), self._progress, run)

    def _tell_progress(self, run: _Run) -> None:
        whole = run.session.seconds[run.cell]
        left = max(0.0, run.left - run.speed * (self.at - run.since))
        done = int(STEPS * (1.0 - left / whole) + RESOLUTION)
        self._says(run, cmd.ReportProgress, done, STEPS, whole / STEPS)

    def _promise_over(self, event: ev.PromiseMoved) -> None:
        if event.named and event.seconds is not None:
            self.tally.made += 1
            self.tally.kept += event.state is PromiseState.KEPT

    def _promise_ends(self, run: _Run) -> None:
        """Its cell has ended: was it kept?"""
        if not run.is_promised or run.lease is None or run.lease not in self.state.promises:
            return
        run.is_promised = False
        self._tell_progress(run)
        self._says(run, cmd.MakePromise, None)

    # -- memory -------------------------------------------------------------------

    def _take_memory(self, run: _Run) -> None:
        """Its cell takes the memory that it needs, or gets an out-of-memory error.

        Such an error is counted where all that the quota gives would have been enough. The cell
        computes on all the same.
        """
        assert run.lease is not None
        size = max(run.uses, need(run.session, run.cell, run.resident))
        lease = self.state.leases[run.lease]
        limits = dict(shares.limits(self.state, lease.id))
        may, whole = self.memory, self.memory
        for part in lease.allocations:
            lift = self.state.lift(lease.id, part.gpu)
            limit = limits[part.gpu] if lift is None else lift.memory
            others = 0
            if not lease.request.named:  # its environment's tasks there share what is reserved
                sharing = tasks_on(self.state, (lease.environment, part.gpu))
                mates = [self._runs.get(one.id) for one in sharing if one.id != lease.id]
                others = sum(one.uses for one in mates if one and one.phase not in _NOT_THERE)
            may = Bytes(min(may, max(0, limit - others)))
            whole = Bytes(min(whole, max(0, self.memory - others)))
        # Where the session named a size, that was wrong, and not the policy.
        if size > may and run.session.memory is None:
            is_counted = size <= whole and self.window.holds(run.session.submits[run.cell])
            self.tally.out_of_memory += is_counted
        size = min(size, may)
        if size > run.uses:
            run.uses = size
            self._measure_soon(run)

    def _measure_soon(self, run: _Run) -> None:
        """What it uses is measured; and again when limits may be lifted again, if any are."""
        if self._is_measured:
            gpus = tuple(part.gpu for part in run.gpus)
            self._after(MEASURE, self._observe, gpus)
            self._after(REST + MEASURE, self._observe, gpus)

    def _observe(self, gpus: Iterable[GpuUuid]) -> None:
        self._submit(cmd.Observe(self.at, tuple(self._reading(gpu) for gpu in gpus)))

    def _reading(self, gpu: GpuUuid) -> GpuReading:
        """What is measured on a GPU."""
        if not self._is_measured:
            return GpuReading(gpu, None, Bytes(0))
        runs = [
            self._runs[name]
            for name, uuid in self.state.claims
            if uuid == gpu and name in self._runs
        ]
        there = tuple(
            ProcessReading((run.process,), Bytes(run.uses), float(run.phase is _Phase.COMPUTING))
            for run in runs
            if run.uses and run.phase not in _NOT_THERE
        )
        return GpuReading(gpu, None, Bytes(sum(one.memory or 0 for one in there)), there)

    def _told(self, event: ev.LimitMoved) -> None:
        """Its framework has the limit that it was told; that is measured."""
        run = self._runs.get(event.lease)
        if run is None or run.phase in _NOT_THERE:
            return
        self._says(run, cmd.ConfirmLimit, event.gpus, True)
        self._measure_soon(run)

    # -- turns --------------------------------------------------------------------

    def _has_turn(self, run: _Run) -> bool:
        turn = None if run.lease is None else self.state.turns.get(run.lease)
        return turn is None or turn.phase is TurnPhase.HOLDS

    def _turn_moved(self, run: _Run | None) -> None:
        """It was given a turn, or needs none any more, or needs one from now on."""
        if run is None or run.lease is None or not self.behaviour.by_turns:
            return
        if run.phase is _Phase.PAUSED and self._has_turn(run):
            run.phase = _Phase.STARTING
            run.turn += 1
            wait = self.behaviour.turns.hand_over if run.lease in self.state.turns else 0.0
            self._later(wait, self._start, run)
        elif run.phase is _Phase.COMPUTING and not self._has_turn(run):
            self._later(self.behaviour.turns.step, self._gate, run)

    def _gate(self, run: _Run) -> None:
        """It has come to its gate: it stops if it was asked for its turn or its memory."""
        if run.phase is not _Phase.COMPUTING:
            return
        if not _one_of(run.number, self.behaviour.gated):
            return  # its next gate is the end of its cell
        if self._is_asked(run):
            self._stop(run)
            run.phase = _Phase.PAUSED
            run.turn += 1
            if self._leaves(run):
                self._move_out(run)
            else:
                self._says(run, cmd.AskTurn)

    def _is_asked(self, run: _Run) -> bool:
        """Whether it is to stop at its next gate."""
        assert run.lease is not None
        asked = self.state.recall(run.lease, Give.TURN) is not None
        return asked or not self._has_turn(run) or self._leaves(run)

    def _leaves(self, run: _Run) -> bool:
        """Whether it was asked for its memory."""
        recall = None if run.lease is None else self.state.memory_recall(run.lease)
        return recall is not None and recall.is_out

    # -- parking ----------------------------------------------------------------

    def _asked(self, run: _Run) -> None:
        if run.lease is None:
            return
        if run.phase is _Phase.HOLDING and run.cell < 0:
            self._move_out(run)
        elif self.behaviour.by_turns and run.phase is _Phase.COMPUTING:
            self._later(self.behaviour.turns.step, self._gate, run)
        elif run.phase is _Phase.PAUSED and self._leaves(run):
            self._move_out(run)

    def _move_out(self, run: _Run) -> None:
        run.phase = _Phase.PARKING
        run.turn += 1
        self.tally.moves += run.cell >= 0
        wait = self._transfer(run, self.behaviour.cost.to_park(run.resident))
        self._later(wait, self._moved_out, run)

    def _moved_out(self, run: _Run) -> None:
        self.tally.parks += 1
        self._keep_in_memory(run, run.resident * run.session.gpus)
        run.phase = _Phase.PARKED
        if run.uses and self._is_measured:  # what was seen there must be gone for others to come
            self._says(run, cmd.Park, Rung.DRIVER, run.uses * run.session.gpus)
        else:
            self._says(run, cmd.Park)
        if run.cell >= 0:
            self._resume(run)
