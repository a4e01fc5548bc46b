"""The node manager's one loop: command -> decide -> append -> evolve -> effects.

Whoever gives GPUs away must never say two things, also not before and after being killed. So there
is one state, one loop that changes it, and one order: everything that wants something is a command
(a client's call, a process's death, a measurement, the timer); the policy, which is pure, decides
it and says in events what follows; the events are on the disk before the state moves on, and only
then anybody hears of it. What somebody was told is therefore in the ledger, and what is not in the
ledger was told to nobody. All commands that wait are decided together and written in one
transaction, so that hundreds of requests cost one write.

If the ledger refuses, the tentative state is dropped and the same commands are decided again with
granting stopped: running leases go on, and new ones are refused until the disk is well. Ends of
leases count nevertheless, and are written later: to keep the GPU of a dead process helps nobody,
and after a crash it is found dead again.

Effects (watch this process, measure, tell that client) are not recorded. After a start they are
made again from the state, so each must do no harm when it comes twice.

What may hang is not on the loop. The disk and the driver have a thread each, and their answers come
back as commands. A driver that does not answer makes the GPUs' use unknown, for which the policy
grants nothing; nobody waits for it. Where the policy finds that it has broken its own rules, the
manager grants nothing more and goes on serving: people keep what they have, and can read why.

Nothing is decided here, and nothing is worded for clients: listeners get each
:class:`~.host.outcome.Outcome`, and tell people in their own way.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

from ..daemon.clock import Clock, bounds
from ..daemon.fairness import FREE, Charges, RoundRobin
from ..daemon.onethread import OneThread
from ..daemon.troubles import Trouble
from ..ledger.budget import LedgerBudget, excess
from ..ledger.codec import from_record, size_of, to_record
from ..ledger.ledger import Ledger, LedgerError, Reads, UsageRow, Use, Uses
from ..ledger.reads import LedgerReads
from ..ledger.refusals import RefusalSieve
from ..ledger.uses import LeaseUses
from ..policy import core
from ..policy.books.state import State
from ..policy.measure import stillness
from ..policy.say.effects import Effect, LookAtBudgets, Measure, Signal, WatchProcess
from ..policy.words import commands as cmd
from ..policy.words.config import PolicyConfig
from ..policy.words.events import AboutLease, Event, ProblemChanged
from ..policy.words.model import (
    EnvironmentName,
    Gpu,
    GpuReading,
    GpuUuid,
    LeaseId,
    ProcessId,
    Vitals,
)
from ..policy.words.moves import InvariantBroken
from ..protocol.background import event_or_time
from ..protocol.hostmemory import Room
from .host import walljumps
from .host.observers import Observers
from .host.outcome import Listener, Outcome
from .host.processes import ProcessError, ProcessWatch, is_stopped
from .host.walljumps import Instant
from .host.walls import Walls, WallsDown
from .inventory.base import Inventory, InventoryError, Sensors
from .inventory.readings import Readings

#: The most commands that are decided together and written at once: with more, the first to come
#: would wait for all.
BATCH = 512


#: Commands of one owner that are decided together: the next owner waits for no more.
EACH = 16


#: The owner of the commands that the node manager makes by itself: measurements, the timer, quotas.
#: What somebody's call or process makes is never among them.
NODE = ""


#: Deciding for no longer than this (seconds) is paid with the call itself.
DEAR = 0.0005


#: The most environments with spent GPU-hours that are told when they have some again; waiting ones
#: come first.
MOST_EXPLAINED = 8


#: What is told when these work again.
_WRITTEN, _MEASURED = "The ledger is written again", "The GPUs are measured again"
_WATCHED = "Processes are watched again"
_WALLED = "The walls stand again"


#: Under this name the ledger keeps which wall clock was believed last.
_CLOCKS = "clocks"


T = TypeVar("T")


@dataclass(slots=True)
class _Pending:
    command: cmd.Command
    answer: Callable[[core.Decision], None] | None
    call: str
    since: float
    owner: str


class Manager:
    """Owns the state of one node; one class, as all that it does is a turn of one loop over it.

    Everything runs on one asyncio loop.

    Intervals are in seconds. ``recorder`` gets every command as it is decided, for conformance
    checks. Without ``is_first`` there was a node manager here before, so an empty ledger has lost
    leases. When ``crashed`` is set, ``crash`` is our bug and no
    client is answered any more: end the process.
    """

    def __init__(
        self,
        *,
        config: PolicyConfig,
        clock: Clock,
        charges: Charges = FREE,
        ledger: Ledger,
        inventory: Inventory,
        processes: type[ProcessWatch] = ProcessWatch,
        host_memory: Callable[[], Room | None] = lambda: None,
        walls: Walls | None = None,
        measure_interval: float = 2.0,
        measured_within: float = 30.0,
        discover_interval: float = 60.0,
        tidy_interval: float = 600.0,
        budget_interval: float = 30.0,
        retry_interval: float = 5.0,
        snapshot_every: int = 5000,
        ledger_bytes: int = 2**30,
        check: bool = False,
        recorder: Listener | None = None,
        is_first: bool = True,
        log: logging.Logger | None = None,
    ) -> None:
        self.config = config
        self.clock = clock
        self.ledger = ledger
        self.inventory = inventory
        self.state = State()
        self.readings = Readings()
        #: Called after each measurement with its result. As with ``listeners``, an error of one is
        #: logged and stops nothing.
        self.measured: list[Callable[[Readings], None]] = []
        self.charges = charges
        self.started_wall = clock.wall()
        self.listeners: list[Listener] = []
        self._make_processes = processes
        self._host_memory = host_memory
        self.walls = walls
        # Why granting was stopped for a wall.
        self._without_wall: str | None = None
        self._processes: ProcessWatch | None = None
        self.measure_interval = measure_interval
        self._rests_read = -math.inf
        # One or two late measurements must not stop granting.
        self._measured_within = max(measured_within, 3 * measure_interval)
        self._called_old = 0.0
        self._discover_interval = discover_interval
        self._discover_at = clock.boot() + discover_interval
        self._snapshot_every = snapshot_every
        self._since_snapshot = 0
        self._snapshot_due = False
        self._ledger_budget = LedgerBudget(ledger_bytes)
        # To add up who has how much reads the whole ledger. So it is done again only when the
        # ledger has grown to this size (bytes).
        self._fits_until = self._ledger_budget.grown
        self._used = LeaseUses()
        self._tidy_interval = tidy_interval
        self._budget_interval = budget_interval
        self._retry_interval = retry_interval
        self._retries: dict[ProcessId, asyncio.TimerHandle] = {}
        self._check = check
        self._recorder = recorder
        self._is_first = is_first
        self._log = log or logging.getLogger(__name__)
        #: All observers are called through this.
        self.observers = Observers(clock.boot, self._log)

        #: By what is told when it is over.
        self._trouble = functools.cache(partial(Trouble, self._log, clock.boot))
        self._refusals = RefusalSieve()
        self._queue: RoundRobin[_Pending] = RoundRobin()
        self._asked = asyncio.Event()
        self._backlog: list[Event] = []
        self._is_broken = False
        self._measure_wanted = asyncio.Event()
        self._budgets_wanted = asyncio.Event()
        self.crashed = asyncio.Event()
        self.crash: BaseException | None = None
        self._tasks: list[asyncio.Task[None]] = []
        # One thread each: the ledger has one writer, and a driver call that
        # hangs must not hold up the disk.
        self._ledger_thread = OneThread("gpushare-ledger")
        #: Readings for people, beside the writer.
        self.reads = LedgerReads(ledger, charges)
        #: The same for administrators' copies and checks, which take seconds: neither grants nor
        #: other readings wait for them.
        self.care = LedgerReads(ledger)
        self._inventory_thread = OneThread("gpushare-inventory")

    # -- life ---------------------------------------------------------------

    async def start(
        self, quotas: Callable[[Sequence[Gpu]], Awaitable[cmd.ConfigureQuotas]]
    ) -> None:
        """Recover from the ledger, measure, and begin to serve.

        ``quotas`` gets the GPUs and gives the quotas, all that can be known: by them those
        who waited before a restart are granted, or refused. Raises :class:`LedgerError`
        or :class:`InventoryError` when it cannot.
        """
        snapshot, after = await self.in_ledger(self.ledger.load)
        for record in (*snapshot, *after):
            self.state = core.evolve(self.state, from_record(record))
        gpus = await self._inventory_thread.do(self.inventory.discover)
        self._processes = self._make_processes(asyncio.get_running_loop(), self._process_gone)
        self._begin(self._run(), "gpushare-manager")
        now = self.clock.boot()
        restored = await self.in_ledger(lambda: self.ledger.is_restored)
        forgot = restored or not (snapshot or after or self._is_first)
        stopped = self._stopped(self.state.queue.waiting)
        await self.submit(cmd.Start(now, self.clock.boot_id(), gpus, forgot, stopped))
        if restored:
            # Only now: had we been killed before the start was on disk, the next start must know of
            # it, too.
            await self.in_ledger(self.ledger.was_made_good)
        self._budget_host_memory()
        # Squatters are counted before anything is granted.
        await self._measure_once()
        # Environments that have spent their GPU-hours get no grant either. Quotas with such a
        # budget may come later (JupyterHub's groups), so the budgets are read in any case.
        await self._measure_budgets()
        await self.submit(await quotas(gpus))
        for effect in core.resume(self.state):
            self._carry_out(effect)
        self._begin(self._measure_loop(), "gpushare-measure")
        self._begin(self._tick_loop(), "gpushare-tick")
        self._begin(self._tidy_loop(), "gpushare-tidy")
        self._begin(self._budget_loop(), "gpushare-budgets")

    def _budget_host_memory(self) -> None:
        """Give half of the available host memory to parking, unless configured otherwise."""
        if self.config.parked_memory is None and (room := self._host_memory()) is not None:
            # Memory that was parked before a restart is in use already, and becomes free later.
            budget = (room.memory + self.state.parked_memory()) // 2
            self.config = replace(self.config, parked_memory=budget)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """These loops never end by themselves. One that ended is our bug: stop serving."""
        if task.cancelled():
            return
        self.crash = self.crash or task.exception()
        self.crashed.set()

    async def close(self) -> None:
        """Stop; the state stays in the ledger and the leases stay held."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for retry in self._retries.values():
            retry.cancel()
        if self._processes is not None:
            self._processes.close()
        if self.walls is not None:
            self.walls.close()
        await self.reads.close()
        await self.care.close()
        await self.in_ledger(self.ledger.close)
        self._ledger_thread.close()
        # A call of the driver may hang in that thread for ever, so nobody waits for it.
        self._inventory_thread.do(self.inventory.close)
        self._inventory_thread.close(wait=False)

    # -- commands -----------------------------------------------------------

    async def submit(self, command: cmd.Command, owner: str = NODE) -> core.Decision:
        """Decide ``command``; returns when the decision is on disk. ``owner`` is as for `ask`."""
        future: asyncio.Future[core.Decision] = asyncio.get_running_loop().create_future()

        def answer(decision: core.Decision) -> None:
            if not future.done():
                future.set_result(decision)

        self.ask(command, answer, owner=owner)
        return await future

    def ask(
        self,
        command: cmd.Command,
        answer: Callable[[core.Decision], None] | None = None,
        call: str = "",
        *,
        owner: str,
    ) -> None:
        """Decide ``command`` and call ``answer`` when the decision is on disk.

        ``call`` is the tag of the client's call that asks for it. ``owner`` is the environment that
        made it, or :data:`NODE`: commands of many owners are decided by turns, and each owner pays
        for what its own leave in the ledger. Must be called on the loop.
        No task is made: heart-beats come by the thousand.
        """
        self._queue.put(owner, _Pending(command, answer, call, self.clock.boot(), owner))
        self._asked.set()

    def in_ledger(self, call: Callable[[], T]) -> Awaitable[T]:
        """Run something with the ledger in its own thread."""
        return self._ledger_thread.do(call)

    async def _run(self) -> None:
        while True:
            await self._asked.wait()
            batch = self._queue.take(BATCH, EACH)
            if not self._queue:
                self._asked.clear()
            try:
                await self._handle(batch)
            except InvariantBroken as story:
                await self._broken(batch, story)

    async def _handle(self, batch: Sequence[_Pending]) -> None:
        state, outcomes = self._decide(self.state, [pending.command for pending in batch])
        if self.walls is not None:
            try:
                # Before anybody hears of a grant: whoever was told of a GPU can open it. What
                # nobody has any more is closed after all were told.
                await self.walls.widen(self.state, state)
            except WallsDown as error:
                if not self._is_broken:  # else nothing is granted in any case
                    state, outcomes = self._without_walls(batch, error)
        now = self.clock.boot()
        durable = [
            event
            for outcome in outcomes
            for event in outcome.events
            if event.DURABLE and self._refusals.keeps(event, now)
        ]
        used = self._used.changes(state)
        if durable or self._backlog or used:
            failure = await self._append([*self._backlog, *durable], used, outcomes)
            if failure is None:
                if self._backlog:
                    self._backlog.clear()
                    if not self._is_broken:
                        # The problem is in the ledger by now, so its end has to be written there,
                        # too.
                        self.ask(cmd.SetGranting(self.clock.boot(), None), owner=NODE)
            else:
                state, outcomes = self._without_disk(batch, failure)
                self._refusals.all_are_kept()  # in the backlog
        self.state = state
        told = list(zip(batch, outcomes, strict=True))
        for pending, outcome in told:
            self._answer(pending, outcome)  # somebody waits for it
        for pending, outcome in told:
            self._tell(pending, outcome)
        if self.walls is not None:
            await self._narrow(self.walls)
        # A snapshot is as long as the state: with many leases it is written less often, so that it
        # stays a small part of what is written.
        if self._snapshot_due or self._since_snapshot >= max(
            self._snapshot_every, 4 * len(state.leases)
        ):
            await self._snapshot()

    def _decide(self, state: State, commands: Sequence[cmd.Command]) -> tuple[State, list[Outcome]]:
        outcomes = []
        for command in commands:
            begun = self.clock.boot()
            step = core.step(state, command, self.config)
            state = step.state
            todo = tuple(
                effect
                for event in step.events
                for effect in core.effects(event, state, self.config)
            )
            took = self.clock.boot() - begun
            outcomes.append(Outcome(command, step.decision, step.events, todo, took=took))
        if self._check:
            core.check(state)
        return state, outcomes

    async def _append(
        self,
        events: Sequence[Event],
        used: Mapping[LeaseId, Use],
        outcomes: Sequence[Outcome],
    ) -> LedgerError | None:
        wall = self.clock.wall()
        records = [to_record(event, wall) for event in events]
        at = max((event.at for one in outcomes for event in one.events), default=self.clock.boot())
        uses = Uses(at, wall, tuple(used.items()))
        try:
            # A loss of power ends every lease; what else is recorded has to outlive it.
            flush = not all(isinstance(event, AboutLease) for event in events)
            await self.in_ledger(partial(self.ledger.append, records, uses, flush=flush))
        except LedgerError as error:
            self._trouble(_WRITTEN).came(f"The ledger refused new records: {error}")
            return error
        self._used.are_written(used)
        self._trouble(_WRITTEN).is_over()
        self._since_snapshot += len(records)
        return None

    def _without_walls(
        self, batch: Sequence[_Pending], failure: WallsDown
    ) -> tuple[State, list[Outcome]]:
        """Decide the batch again with granting stopped: nobody could use what it granted."""
        self._trouble(_WALLED).came(str(failure))
        self._without_wall = str(failure)
        stop = cmd.SetGranting(self.clock.boot(), str(failure), may_wait=True)
        again = [pending.command for pending in batch]
        # The walls stood a moment ago, or the disk is back: granting does not go on yet.
        again = [stop if isinstance(one, cmd.SetGranting) else one for one in again]
        state, (stopped, first, *others) = self._decide(self.state, [stop, *again])
        events, effects = stopped.events + first.events, stopped.effects + first.effects
        return state, [replace(first, events=events, effects=effects), *others]

    async def _narrow(self, walls: Walls) -> None:
        """Close what nobody has any more. Granting stops and goes on with the walls."""
        now, problem = self.clock.boot(), self.state.problem
        try:
            await walls.narrow(self.state)
        except WallsDown as error:
            self._trouble(_WALLED).came(str(error))
            if problem is None:
                self._without_wall = str(error)
                self.ask(cmd.SetGranting(now, str(error), may_wait=True), owner=NODE)
        else:
            if problem is None:
                self._trouble(_WALLED).is_over()
            elif problem == self._without_wall:
                self.ask(cmd.SetGranting(now, None), owner=NODE)

    def _without_disk(
        self, batch: Sequence[_Pending], failure: LedgerError
    ) -> tuple[State, list[Outcome]]:
        """Decide the batch again with granting stopped.

        Ends of leases are kept in memory and written when the disk is back. After a crash they are
        found again, since a dead process stays dead.
        """
        stop = cmd.SetGranting(self.clock.boot(), str(failure))
        commands = [pending.command for pending in batch]
        kept = [command for command in commands if not isinstance(command, _NEEDS_DISK)]
        state, (stopped, *outcomes) = self._decide(self.state, [stop, *kept])
        if self._recorder is not None:
            self.observers.call(self._recorder, stopped, state)
        # By identity: two calls may have made equal commands, and each gets its own answer.
        by_command = {id(outcome.command): outcome for outcome in outcomes}
        # The stop itself is history too; and while it waits to be written, the disk is tried.
        self._backlog += [e for o in (stopped, *outcomes) for e in o.events if e.DURABLE]
        if not self._backlog:
            self._backlog.append(ProblemChanged(self.clock.boot(), None, str(failure)))
        refusal = core.unavailable(str(failure))
        return state, [
            by_command.get(id(command)) or Outcome(command, refusal, (), ()) for command in commands
        ]

    async def _broken(self, batch: Sequence[_Pending], story: InvariantBroken) -> None:
        """After a bug of ours: grant nothing more, keep running leases, still serve the status."""
        self._is_broken = True
        self._log.critical("Invariant broken, no more leases are granted: %s", story)
        why = f"an internal check failed ({story})."
        stop = core.step(self.state, cmd.SetGranting(self.clock.boot(), why), self.config)
        self.state = stop.state
        refusal = core.unavailable(why)
        for pending in batch:
            outcome = Outcome(pending.command, refusal, (), ())
            self._answer(pending, outcome)
            self._tell(pending, outcome)

    def _answer(self, pending: _Pending, outcome: Outcome) -> None:
        if self._recorder is not None:
            self.observers.call(self._recorder, outcome, self.state)
        if pending.answer is not None:
            self.observers.call(pending.answer, outcome.decision)

    def _tell(self, pending: _Pending, outcome: Outcome) -> None:
        for effect in outcome.effects:
            self._carry_out(effect)
        if pending.owner != NODE:
            size = sum(size_of(event) for event in outcome.events if event.DURABLE)
            if size:
                self.charges.wrote(pending.owner, size)
            if outcome.took > DEAR:
                self.charges.took(pending.owner, outcome.took)
        seconds = max(0.0, self.clock.boot() - pending.since)
        outcome = replace(outcome, call=pending.call, seconds=seconds)
        for listener in self.listeners:
            self.observers.call(listener, outcome, self.state)

    async def _snapshot(self) -> None:
        self._since_snapshot, self._snapshot_due = 0, False
        wall = self.clock.wall()
        records = [to_record(event, wall) for event in core.summarise(self.state)]
        # Where it fails the history before it is still there, so nothing is lost.
        with self._trouble("Snapshots are written again").about(
            LedgerError, "No snapshot could be written"
        ):
            await self.in_ledger(partial(self.ledger.write_snapshot, records))

    async def _tidy_loop(self) -> None:
        while True:
            await asyncio.sleep(self._tidy_interval)
            if self._since_snapshot:
                self._snapshot_due = True
            with self._trouble("The ledger is tidied again").about(
                LedgerError, "The ledger could not be tidied"
            ):
                await self.tidy()

    async def tidy(self, spare: float = 0.125) -> None:
        """Forget history past its limit, and give room that is free then back to the disk, but
        for a ``spare`` share: in small steps, between which grants are written.
        """
        if await self.in_ledger(self._wall_is_believed):
            while await self.in_ledger(partial(self.ledger.prune, self.clock.wall())):
                pass
        await self._fit()
        while await self.in_ledger(partial(self.ledger.shrink, spare)):
            pass

    async def _fit(self) -> None:
        """Forget the oldest events of environments with more bytes in the ledger than allowed."""
        budget = self._ledger_budget
        _, used = await self.in_ledger(self.ledger.size)
        if used < self._fits_until:
            return
        sizes, beyond = await self.care.ask("", Reads.shares)
        for name in beyond:
            while await self.in_ledger(partial(self.ledger.fold, name)):
                pass
        most = sum(sizes.values()) - (used - budget.used)
        fits = True
        for owner, over in excess(sizes, budget.each, most).items():
            while over > 0:
                gone = await self.in_ledger(partial(self.ledger.trim, owner, over))
                over -= gone
                if not gone:
                    fits = False  # until a snapshot covers more
                    break
        _, used = await self.in_ledger(self.ledger.size)
        if fits:
            self._fits_until = used + budget.grown

    def _wall_is_believed(self) -> bool:
        """Whether history may be forgotten now; on the ledger's thread."""
        before = walljumps.from_json(self.ledger.recollect(_CLOCKS))
        now = Instant(self.clock.boot_id(), self.clock.boot(), self.clock.wall())
        belief = before.after(now)
        if belief != before:
            self.ledger.remember(_CLOCKS, asdict(belief))
        if before.is_sure and not belief.is_sure and belief.known is not None:
            self._log.error(
                "The wall clock went forward by %.1f days since history was tidied, and the time "
                "since boot does not explain it. No history is forgotten until the clock is right, "
                "or has been like this for a day.",
                (now.wall - belief.known.wall) / 86400.0,
            )
        return belief.is_sure

    # -- effects ------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:
        assert self._processes is not None
        if isinstance(effect, WatchProcess):
            self._watch(effect.process)
        elif isinstance(effect, Measure):
            self._measure_wanted.set()
        elif isinstance(effect, LookAtBudgets):
            self._budgets_wanted.set()
        elif isinstance(effect, Signal):
            try:
                self._processes.signal(effect)
            except ProcessError as error:
                self._log.error("%s", error)

    def _watch(self, process: ProcessId) -> None:
        assert self._processes is not None
        try:
            if not self._processes.watch(process):
                self._process_gone(process)
        except ProcessError as error:
            # The lease stands and the heartbeat guards it; descriptors may be free again soon.
            self._trouble(_WATCHED).came(f"{error} It is tried again.")
            loop = asyncio.get_running_loop()
            self._retries[process] = loop.call_later(self._retry_interval, self._watch, process)
        else:
            self._retries.pop(process, None)
            if not self._retries:
                self._trouble(_WATCHED).is_over()

    def _process_gone(self, process: ProcessId) -> None:
        # Its owner waits for it, and nobody else, if ten thousand processes end at once.
        held = next(iter(self.state.by_handle.get(process, ())), None)
        owner = NODE if held is None else self.state.leases[held].environment
        self.ask(cmd.ProcessGone(self.clock.boot(), process), owner=owner)

    async def _measure_loop(self) -> None:
        while True:
            # Not wait_for: before Python 3.12 it can lose a cancellation.
            await event_or_time(self._measure_wanted, self.measure_interval)
            await self._measure_once()
            if self.clock.boot() >= self._discover_at:
                await self._discover()

    async def _discover(self) -> None:
        """List the GPUs again: one may have come back, or been partitioned anew."""
        self._discover_at = self.clock.boot() + self._discover_interval
        with self._trouble("The GPUs are listed again").about(
            InventoryError, "The GPUs could not be listed"
        ):
            gpus = await self._inventory_thread.do(self.inventory.discover)
            known = {uuid: books.gpu for uuid, books in self.state.gpus.items()}
            if {gpu.uuid: gpu for gpu in gpus} != known:
                await self.submit(cmd.Discover(self.clock.boot(), gpus))

    async def _measure_once(self) -> None:
        # Before the reading: whoever wants one while it runs needs another, for it shows what was
        # before.
        self._measure_wanted.clear()
        at = self.clock.boot()
        try:
            reading = self._inventory_thread.do(partial(self._read, self.state))
            readings, sensors, vitals = await reading
            if self.clock.boot() - at > self._measured_within:
                # What it says may be as old as the question.
                raise InventoryError("The driver took too long to answer.")
        except InventoryError as error:
            self._trouble(_MEASURED).came(f"The GPUs could not be measured: {error}")
            self.readings.problem = str(error)
            await self._too_old(str(error).rstrip("."))
            self._tell_measured()
            return
        self._trouble(_MEASURED).is_over()
        by_gpu = {str(reading.uuid): reading for reading in readings}
        left_out = self.inventory.left_out()
        self.readings = Readings(at, by_gpu, sensors=sensors, left_out=left_out)
        if self.walls is not None:
            self.walls.measured(self.state, readings)
        await self.submit(cmd.Observe(at, readings, self.clock.boot(), vitals))
        self._tell_measured()

    async def _too_old(self, why: str) -> None:
        """Grant nothing on GPUs that were not measured lately; until they are, requests wait."""
        now = self.clock.boot()
        # Told once, and not at each tick: each telling is a command.
        if now - self.readings.at <= self._measured_within or now < self._called_old:
            return
        self._called_old = now + self._measured_within
        text = f"{why}, and for {self._measured_within:g} s nothing was measured."
        unknown = [GpuReading(gpu, text, None) for gpu in self.state.gpus]
        await self.submit(cmd.Observe(now, tuple(unknown)))

    def _read(
        self, state: State
    ) -> tuple[
        tuple[GpuReading, ...],
        Mapping[GpuUuid, Sensors],
        tuple[tuple[LeaseId, Vitals | None], ...],
    ]:
        """The GPUs, their sensors, and whether stalled tasks and programs of ``state`` compute."""
        assert self._processes is not None
        readings = self.inventory.read()
        tasks = {name: state.leases[name].members for name in state.stalled}
        now = self.clock.boot()
        if now - self._rests_read >= stillness.EVERY:
            self._rests_read = now
            tasks |= {lease.id: lease.members for lease in stillness.watched(state)}
        vitals = zip(tasks, self._processes.vitals(tuple(tasks.values())), strict=True)
        return readings, self.inventory.sensors(), tuple(vitals)

    def _tell_measured(self) -> None:
        for measured in self.measured:
            self.observers.call(measured, self.readings)

    async def _budget_loop(self) -> None:
        while True:
            await event_or_time(self._budgets_wanted, self._budget_interval)
            self._budgets_wanted.clear()
            if self.state.quotas.has_budgets:
                await self._measure_budgets()

    async def _measure_budgets(self) -> None:
        """Read what every environment is charged for in its period, until now."""
        at, wall, window = self.clock.boot(), self.clock.wall(), self.config.budget_window
        state = self.state
        free_at: list[tuple[EnvironmentName, float]] = []

        def read(ledger: Reads) -> list[UsageRow]:
            found: list[UsageRow] = []
            for per in state.quotas.periods or {None}:
                since, ends = (wall - window, None) if per is None else bounds(per, wall)
                whose = [
                    row
                    for row in ledger.usage(since, wall, None)
                    if state.quotas.resolve(EnvironmentName(row.environment))[0].per == per
                ]
                for name, seconds in _overdrawn(state, whose):
                    wait = (
                        ledger.usage_leaves(since, wall, name, seconds)
                        if per is None
                        else ends and ends - wall
                    )
                    if wait is not None:
                        free_at.append((name, at + wait))
                found += whose
            return found

        what = "What was spent of GPU-hour budgets could not be read"
        with self._trouble("GPU-hour budgets are read again").about(LedgerError, what):
            rows = await self.reads.ask("", read)
            spent = tuple(
                (EnvironmentName(row.environment), row.gpu_seconds_charged / 3600.0)
                for row in rows
                if row.gpu_seconds_charged > 0.0
            )
            await self.submit(cmd.MeasureBudgets(at, spent, tuple(free_at)))

    async def _tick_loop(self) -> None:
        while True:
            before = self.clock.boot()
            # A deadline that has passed already must not let the loop spin.
            due = max(core.next_deadline(self.state, self.config), before + 0.05)
            # At least each second: a full disk may be well again.
            wakes = min(due, before + 1.0)
            await asyncio.sleep(wakes - before)
            now = self.clock.boot()
            slept = now - before > 1.0 + self._measured_within
            await self._too_old("The host slept" if slept else "The driver does not answer")
            # Late where the host slept, or where a batch system has suspended the job that this
            # process runs in: what its tasks could not say meanwhile is not held against them.
            is_late = now - wakes > self.config.heartbeat_timeout / 2
            if now >= due or is_late or self._backlog:
                stopped = self._stopped(core.silent(self.state, self.config, now))
                await self.submit(cmd.Tick(now, min(wakes, now), stopped))

    def _stopped(self, names: Iterable[LeaseId]) -> frozenset[LeaseId]:
        leases = self.state.leases
        return frozenset(name for name in names if is_stopped(leases[name].task.process))


def _overdrawn(state: State, rows: Sequence[UsageRow]) -> list[tuple[EnvironmentName, float]]:
    """GPU-seconds by which budgets are overdrawn, for as many environments as are read at once."""
    waiting = {state.queue.waiting[name].environment for name in state.queue.held_up}
    found = []
    for row in rows:
        name = EnvironmentName(row.environment)
        hours = state.quotas.resolve(name)[0].gpu_hours
        if hours and row.gpu_seconds_charged >= hours * 3600.0:
            found.append((name, row.gpu_seconds_charged - hours * 3600.0))
    return sorted(found, key=lambda entry: entry[0] not in waiting)[:MOST_EXPLAINED]


# Without a disk these commands are refused; all others take GPUs back or change nothing.
_NEEDS_DISK = (
    cmd.RequestLease,
    cmd.Present,
    cmd.Resume,
    cmd.SetQuota,
    cmd.UnsetQuota,
    cmd.TakeOut,
    cmd.PutBack,
    cmd.BelongTo,
    cmd.LendQuotas,
    cmd.SetGranting,
)
