"""Whatever fails in the disk, the checks or the system, nothing is told that is not so."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import support.managing
from hypothesis import given, settings, strategies as st
from support.examples import examples
from support.loop import soon
from support.managing import CLOCK
from support.policy_world import plain_config

from jupyter_gpushare.daemon.clock import Clock
from jupyter_gpushare.daemon.fairness import FREE
from jupyter_gpushare.ledger.codec import from_record
from jupyter_gpushare.ledger.ledger import (
    Ledger,
    LedgerFailed,
    LedgerFull,
    Reads,
    Record,
    Use,
    Uses,
)
from jupyter_gpushare.node.host.outcome import Outcome
from jupyter_gpushare.node.host.processes import ProcessError, ProcessWatch, identify
from jupyter_gpushare.node.inventory.base import InventoryError
from jupyter_gpushare.node.inventory.simulated import SimulatedInventory
from jupyter_gpushare.node.manager import NODE, Manager
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.state import Lease, State
from jupyter_gpushare.policy.decide.draft import Refuse
from jupyter_gpushare.policy.measure import stillness
from jupyter_gpushare.policy.say.effects import Signal
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.events import LeaseGranted
from jupyter_gpushare.policy.words.model import (
    Activity,
    Gpu,
    GpuReading,
    HolderAction,
    LeasePhase,
    ProcessId,
    Quota,
    RefusalReason,
    Request,
    Rung,
    Task,
    TaskKind,
    Vitals,
)
from jupyter_gpushare.policy.words.moves import InvariantBroken
from jupyter_gpushare.protocol.hostmemory import Room


class FlakyLedger:
    """A real ledger on a disk that is full at the instants that the test names."""

    def __init__(self, path: Path) -> None:
        self.real = Ledger.open(path, history=1e6, wall=CLOCK.wall())
        self.full: deque[bool] = deque()  # of the next appends; then it is well
        self.flushed: list[tuple[set[str], bool]] = []  # kinds of records, and whether flushed

    def append(
        self, records: Sequence[Record], used: Uses | None = None, *, flush: bool = True
    ) -> int:
        if self.full and self.full.popleft():
            raise LedgerFull("The disk is full.")
        self.flushed.append(({record.kind for record in records}, flush))
        return self.real.append(records, used, flush=flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class Obliging(ProcessWatch):
    """Processes that live until the test says otherwise."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.watched: set[ProcessId] = set()

    def watch(self, process: ProcessId) -> bool:
        self.watched.add(process)
        return True

    def vitals(self, tasks: Sequence[Iterable[ProcessId]]) -> Sequence[Vitals | None]:
        return [None for _ in tasks]


class Forbidding(Obliging):
    """A system that refuses every favour, as to a node manager that is not root."""

    refusals = 0

    def watch(self, process: ProcessId) -> bool:
        if self.refusals < 3:
            self.refusals += 1
            raise ProcessError("Cannot watch.")
        return super().watch(process)

    def signal(self, effect: Signal) -> None:
        raise ProcessError("May not send SIGKILL.")


def managing(folder: Path, **more: Any) -> AbstractAsyncContextManager[Manager]:
    """On a :class:`FlakyLedger`, with two GPUs for one task each."""
    usual = {"config": plain_config(max_tasks_per_gpu=1), "processes": Obliging}
    usual["inventory"] = SimulatedInventory("2x24GiB")
    return support.managing.managing(FlakyLedger(folder / "ledger.sqlite"), **(usual | more))


class Driven(SimulatedInventory):
    """GPUs whose driver answers unless the test says otherwise."""

    fault: Callable[[], object] | None = None

    def read(self) -> tuple[GpuReading, ...]:
        if self.fault is not None:
            self.fault()
        return super().read()


@pytest.mark.parametrize(
    "says", ["Its library and its kernel module differ", "The driver does not answer"]
)
async def test_nothing_is_granted_on_an_old_measurement(tmp_path: Path, says: str) -> None:
    """The driver was updated under way, or hangs: what was measured before says nothing of now."""
    inventory, goes_on = Driven("1x24GiB"), threading.Event()

    def fault() -> None:
        if "differ" in says:
            raise InventoryError(f"{says}.")
        goes_on.wait(60)

    more = {"inventory": inventory, "measure_interval": 0.01, "measured_within": 0.1}
    async with managing(tmp_path, **more) as manager:
        inventory.fault = fault
        (gpu,) = manager.state.gpus
        problem = await soon(lambda: manager.state.gpus[gpu].problem)
        assert problem == f"{says}, and for 0.1 s nothing was measured."
        lease = ask(1)
        assert isinstance(await manager.submit(lease), core.Wait), "it waits, and is not lost"
        inventory.fault = None
        goes_on.set()
        await soon(lambda: manager.state.leases[lease.lease].phase is LeasePhase.HELD)


class Leaping(Clock):
    """What this process reads after it was stopped, as when a batch system suspends its job."""

    stopped_for = 0.0

    def boot(self) -> float:
        return super().boot() + self.stopped_for


@pytest.mark.parametrize("stop", [6.0, 12.0, 100.0])
async def test_what_nobody_could_say_while_all_were_stopped_is_held_against_no_task(
    tmp_path: Path, stop: float
) -> None:
    clock = Leaping()
    config = plain_config(max_tasks_per_gpu=1, heartbeat_timeout=10.0)
    inventory = SimulatedInventory("1x24GiB")
    async with managing(tmp_path, clock=clock, config=config, inventory=inventory) as manager:
        asked = [await manager.submit(ask(n, who)) for n, who in enumerate(("alice", "bob"))]
        clock.stopped_for = stop
        await soon(lambda: min(manager.state.last_seen.values()) > clock.boot() - 4.0)
        leases = [manager.state.leases[decision.lease] for decision in asked]
        assert [lease.phase for lease in leases] == [LeasePhase.HELD, LeasePhase.QUEUED]
        assert not any(lease.stalled for lease in leases)


async def test_who_waits_with_a_stopped_process_is_granted_nothing_at_a_start(
    tmp_path: Path,
) -> None:
    host = {"config": plain_config(max_tasks_per_gpu=1), "inventory": SimulatedInventory("1x24GiB")}
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        try:
            asks = replace(ask(1, "bob"), task=Task(of(sleeper.pid), "t", TaskKind.PROCESS))
            async with managing(tmp_path, **host) as manager:
                await manager.submit(ask(0, "alice"))
                await manager.submit(asks)
            sleeper.send_signal(signal.SIGSTOP)
            await soon(lambda: psutil.Process(sleeper.pid).status() == psutil.STATUS_STOPPED)
            async with managing(tmp_path, **host) as manager:
                assert manager.state.leases[asks.lease].suspended
        finally:
            sleeper.kill()


async def test_a_silent_task_whose_process_is_stopped_is_suspended(tmp_path: Path) -> None:
    config = plain_config(heartbeat_timeout=0.1)
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        try:
            sleeper.send_signal(signal.SIGSTOP)
            await soon(lambda: psutil.Process(sleeper.pid).status() == psutil.STATUS_STOPPED)
            asks = replace(ask(1), task=Task(of(sleeper.pid), "t", TaskKind.PROCESS))
            more = {"config": config, "measure_interval": 0.05, "processes": ProcessWatch}
            async with managing(tmp_path, **more) as manager:
                await manager.submit(asks)
                lease = await soon(lambda: suspended(manager))
                assert lease.phase is LeasePhase.HELD
                sleeper.send_signal(signal.SIGCONT)
                await soon(lambda: asks.lease not in manager.state.leases)
        finally:
            sleeper.kill()


def of(pid: int) -> ProcessId:
    found = identify(pid, CLOCK.boot_id())
    assert found is not None
    return found


def suspended(manager: Manager) -> Lease | None:
    return next((one for one in manager.state.leases.values() if one.suspended), None)


class Still(Obliging):
    """Processes that compute at each look while the test says so."""

    works = False
    cpu = 1.0

    def vitals(self, tasks: Sequence[Iterable[ProcessId]]) -> Sequence[Vitals | None]:
        Still.cpu += Still.works * 9.0
        return [Vitals(Still.cpu, is_held=False) for _ in tasks]


class Seen(SimulatedInventory):
    """GPUs on which work would be seen."""

    def discover(self) -> tuple[Gpu, ...]:
        return tuple(replace(gpu, simulated=False) for gpu in super().discover())


async def test_a_program_is_idle_while_nothing_of_it_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stillness, "RESTS", 0.2)
    monkeypatch.setattr(stillness, "EVERY", 0.02)
    monkeypatch.setattr(Still, "works", False)

    more = {"processes": Still, "inventory": Seen("1x24GiB"), "measure_interval": 0.01}
    async with managing(tmp_path, **more) as manager:
        lease = ask(1)
        await manager.submit(lease)

        async def is_(activity: Activity) -> None:
            await soon(lambda: manager.state.leases[lease.lease].activity is activity)

        await is_(Activity.IDLE)
        Still.works = True
        await is_(Activity.BUSY)
        Still.works = False
        await is_(Activity.IDLE)


def process(pid: int) -> ProcessId:
    return ProcessId(CLOCK.boot_id(), pid, 1)


def ask(number: int, who: str = "alice") -> cmd.RequestLease:
    task = Task(process(10_000 + number), "t", TaskKind.PROCESS)
    return cmd.RequestLease(CLOCK.boot(), f"lease-{number}", who, task, Request())


def durable(manager: Manager) -> tuple[State, set[str]]:
    """The state that a new node manager would find, and all leases ever granted on disk."""
    snapshot, after = manager.ledger.load()
    state, granted = State(), set()
    for record in (*snapshot, *after):
        state = core.evolve(state, from_record(record))
        if record.kind == "LeaseGranted":
            granted.add(str(record.lease))
    return state, granted


def granted_by(manager: Manager) -> list[str]:
    """The leases whose grants listeners hear of from now on."""
    told: list[str] = []
    manager.listeners.append(
        lambda outcome, _: told.extend(
            event.lease for event in outcome.events if isinstance(event, LeaseGranted)
        )
    )
    return told


def books(state: State) -> object:
    """What must not be lost, in comparable form."""
    live = {n: x.phase for n, x in state.leases.items() if x.phase is not LeasePhase.ENDED}
    order = [item.lease for item in state.queue.service_order()]
    return live, order, dict(state.quotas.overrides), set(state.claims)


PEOPLE = ("alice", "bob", "carol")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "release", "gone", "quota", "tick", "observe"]), st.integers(0, 5)
    ),
    min_size=3,
    max_size=14,
)


@settings(max_examples=examples(60))
@given(steps=STEPS, full=st.lists(st.booleans(), max_size=20))
def test_whatever_the_disk_does_nothing_is_told_that_is_not_on_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], full: list[bool]
) -> None:
    async def story() -> None:
        async with managing(tmp_path_factory.mktemp("ledger"), check=True) as manager:
            manager.ledger.full.extend(full)
            told = granted_by(manager)
            for number, (what, which) in enumerate(steps):
                asked = command(manager, number, what, which)
                decision = await manager.submit(asked)
                told += [decision.lease] if isinstance(decision, core.Grant) else []
                state, granted = await manager.in_ledger(lambda: durable(manager))
                assert granted.issuperset(told), "a grant was told that a crash would undo"
                if isinstance(asked, cmd.SetQuota) and isinstance(decision, core.Done):
                    assert state.quotas.overrides[asked.environment].quota == asked.quota
            for _ in range(len(full) + 3):  # the disk is well again; each command tries it
                await manager.submit(cmd.Tick(CLOCK.boot(), CLOCK.boot()))
            assert manager.state.problem is None, "it never grants again"
            state, _ = await manager.in_ledger(lambda: durable(manager))
            assert books(state) == books(manager.state)
            assert not manager.crashed.is_set()

    asyncio.run(story())


def command(manager: Manager, number: int, what: str, which: int) -> cmd.Command:
    at, who = CLOCK.boot(), PEOPLE[which % 3]
    leases = sorted(manager.state.leases)
    lease = manager.state.leases[leases[which % len(leases)]] if leases else None
    if what == "ask" or (lease is None and what in ("release", "gone")):
        return ask(number, who)
    if what == "release":
        return cmd.Release(at, lease.id, lease.environment)
    if what == "gone":
        return cmd.ProcessGone(at, lease.task.process)
    if what == "quota":
        return cmd.SetQuota(at, who, Quota(which, 2**30), "root")
    if what == "observe":
        return cmd.Observe(at, manager.inventory.read())
    return cmd.Tick(at, at)


def orders(manager: Manager) -> list[cmd.Command]:
    """What an administrator can order so that it holds until it is ordered otherwise."""
    at, root = CLOCK.boot(), "root"
    (gpu, *_others), quota = sorted(manager.state.gpus), Quota(1)
    return [
        cmd.SetQuota(at, "alice", quota, root),
        cmd.UnsetQuota(at, "alice", root),
        cmd.SetQuota(at, None, quota, root, group="students"),
        cmd.UnsetQuota(at, None, root, "students"),
        cmd.TakeOut(at, gpu, "It is hot.", root),
        cmd.PutBack(at, gpu, root),
    ]


async def test_an_order_that_cannot_be_written_is_refused_and_nothing_changes(
    tmp_path: Path,
) -> None:
    async with managing(tmp_path, check=True) as manager:
        for order in orders(manager):
            before = manager.state.quotas, manager.state.out
            manager.ledger.full.append(True)
            decision = await manager.submit(order)
            assert isinstance(decision, core.Refuse)
            assert "The disk is full." in decision.message
            assert (manager.state.quotas, manager.state.out) == before
            assert isinstance(await manager.submit(order), core.Done), "the disk is well"
            while manager.state.problem is not None:
                await manager.submit(cmd.Tick(CLOCK.boot(), CLOCK.boot()))
        kept, _ = await manager.in_ledger(lambda: durable(manager))
        assert kept.quotas.overrides == manager.state.quotas.overrides
        assert kept.out == manager.state.out


async def test_orders_outlive_a_loss_of_power_which_no_lease_does(tmp_path: Path) -> None:
    async with managing(tmp_path) as manager:
        assert isinstance(await manager.submit(ask(1)), core.Grant)
        assert ({"LeaseQueued", "LeaseGranted"}, False) in manager.ledger.flushed
        for order in orders(manager):
            del manager.ledger.flushed[:]
            await manager.submit(order)
            assert manager.ledger.flushed[0][1], order


async def test_a_disk_that_is_full_again_at_once_grants_nobody_in_between(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with managing(tmp_path, check=True) as manager:
        told = granted_by(manager)
        for number, who in enumerate(("alice", "bob", "carol")):
            await manager.submit(ask(number, who))
        assert told == ["lease-0", "lease-1"]
        # The release cannot be written; then it can; then granting cannot go on after all.
        manager.ledger.full.extend([True, False, True])
        at = CLOCK.boot()
        await manager.submit(cmd.ProcessGone(at, process(10_000)))
        assert manager.state.problem == "The disk is full."
        await manager.submit(cmd.Tick(at, at))
        await soon(lambda: caplog.text.count("The ledger refused") >= 2, every=0)
        assert told == ["lease-0", "lease-1"]
        assert manager.state.problem == "The disk is full."
        await soon(lambda: "lease-2" in told)  # by itself, at the next tick
        _, granted = await manager.in_ledger(lambda: durable(manager))
        assert "lease-2" in granted


async def test_a_broken_invariant_stops_grants_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with managing(tmp_path, check=True) as manager:
        held = await manager.submit(ask(1))
        assert isinstance(held, core.Grant)

        def broken(state: State) -> None:
            raise InvariantBroken("memory was promised twice")

        with monkeypatch.context() as patch:
            patch.setattr(core, "check", broken)
            refused = await manager.submit(ask(2))
        for decision in (refused, await manager.submit(ask(3))):
            assert isinstance(decision, core.Refuse)
            assert decision.reason is RefusalReason.UNAVAILABLE
            assert "memory was promised twice" in decision.message
        assert manager.state.problem
        beat = cmd.Heartbeat(CLOCK.boot(), held.lease, "alice", process(10_001))
        assert await manager.submit(beat) == core.Done(held.lease)
        assert not manager.crashed.is_set()


async def test_a_process_that_may_not_be_watched_is_tried_again(tmp_path: Path) -> None:
    async with managing(tmp_path, processes=Forbidding, retry_interval=0.01) as manager:
        assert isinstance(await manager.submit(ask(1)), core.Grant)
        await soon(lambda: process(10_001) in manager._processes.watched)
        assert manager._processes.refusals == 3
        assert not manager.crashed.is_set()


async def test_a_process_that_may_not_be_signalled_is_only_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kills = {"stalled_action": HolderAction.KILL, "restart_grace": 0.0}
    config = plain_config(heartbeat_timeout=0.1, **kills)
    async with managing(tmp_path, processes=Forbidding, config=config) as manager:
        assert isinstance(await manager.submit(ask(1)), core.Grant)
        await soon(lambda: "May not send SIGKILL" in caplog.text)
        assert isinstance(await manager.submit(ask(2)), core.Grant)


@pytest.mark.parametrize(("where", "what"), [(core, "step"), (FlakyLedger, "append")])
async def test_a_bug_in_the_loop_is_noticed_and_nobody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, what: str
) -> None:
    """What is not on disk is not told, whatever the ledger died of: it is no observer."""
    told: list[object] = []

    def bug(*_: object, **_more: object) -> None:
        raise ZeroDivisionError("a bug")

    async with managing(tmp_path) as manager:
        monkeypatch.setattr(where, what, bug)
        manager.listeners.append(lambda outcome, state: told.append(outcome))
        manager.ask(ask(1), told.append, owner=NODE)
        async with asyncio.timeout(60):
            await manager.crashed.wait()
        assert isinstance(manager.crash, ZeroDivisionError)
        assert told == []


async def test_who_holds_a_lease_pays_for_the_end_of_its_process(tmp_path: Path) -> None:
    """A thousand processes that end are in their person's line, not in the node manager's own."""
    paid: list[str] = []

    async with managing(tmp_path) as manager:
        manager.charges = SimpleNamespace(
            wrote=lambda owner, size: paid.append(owner), took=FREE.took, owes=FREE.owes
        )
        granted = ask(1, "mallory")
        await manager.submit(granted, owner="mallory")
        paid.clear()
        manager._process_gone(granted.task.process)
        # Until a measurement, where it drains.
        await soon(lambda: "lease-1" not in manager.state.leases)
    assert set(paid) == {"mallory"}


async def test_a_broken_observer_stops_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does it keep what happened from those who come after it."""
    heard: list[str] = []

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    def well(outcome: Outcome, state: State) -> None:
        heard.append(type(outcome.command).__name__)

    async with managing(tmp_path, recorder=broken, measure_interval=0.01) as manager:
        manager.listeners += [broken, well]
        manager.measured.append(broken)
        manager.ask(ask(1), broken, owner=NODE)
        for number in (2, 3):
            assert isinstance(await manager.submit(ask(number)), core.Grant | core.Wait)
        before = manager.readings.at
        await soon(lambda: manager.readings.at != before)
        assert set(manager.state.leases) == {"lease-1", "lease-2", "lease-3"}
        assert heard.count("RequestLease") == 3
        assert not manager.crashed.is_set()
    assert caplog.text.count("broken failed.") == 1
    assert caplog.text.count("ZeroDivisionError: a bug") == 1, "with the story of it"


async def test_who_waits_is_answered_before_those_who_look_on_are_told(tmp_path: Path) -> None:
    told: list[str] = []

    async with managing(tmp_path) as manager:
        manager.listeners.append(lambda outcome, state: told.append("listener"))
        for number in (1, 2):  # decided together
            manager.ask(ask(number), lambda decision: told.append("answer"), owner=NODE)
        await manager.submit(cmd.Tick(CLOCK.boot(), CLOCK.boot()))
    assert told[:4] == ["answer", "answer", "listener", "listener"]


async def test_a_ledger_that_cannot_be_read_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget is no reason for a node manager not to start, or to end."""

    tries: list[object] = []

    def usage(*arguments: object) -> list[Any]:
        tries.append(arguments)
        raise LedgerFailed("The disk is gone.")

    monkeypatch.setattr(Reads, "usage", usage)

    async with managing(tmp_path, budget_interval=0.01) as manager:
        await manager.submit(cmd.SetQuota(CLOCK.boot(), "bob", Quota(1, gpu_hours=5.0), "bob"))
        await soon(lambda: len(tries) >= 3)  # at the start, and then again and again
        assert isinstance(await manager.submit(ask(1)), core.Grant)


class Rounds(asyncio.Event):
    """Counts the rounds of a loop that waits for it, each of which clears it."""

    begun = 0

    def clear(self) -> None:
        self.begun += 1
        super().clear()


async def test_nothing_is_read_while_no_quota_has_a_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads for people has better things to do."""
    calls: list[object] = []
    real = Reads.usage

    def usage(self: Reads, *arguments: Any) -> Any:
        calls.append(arguments)
        return real(self, *arguments)

    monkeypatch.setattr(Reads, "usage", usage)

    async with managing(tmp_path, budget_interval=0.01) as manager:
        rounds = Rounds()
        manager._budgets_wanted = rounds
        await soon(lambda: rounds.begun >= 5)
        assert len(calls) == 1, "once at the start, before the first grant"
        quota = Quota(1, gpu_hours=5.0)
        await manager.submit(cmd.SetQuota(CLOCK.boot(), "alice", quota, "alice"))
        await soon(lambda: len(calls) >= 3)


async def test_half_of_what_is_available_is_for_parking(tmp_path: Path) -> None:
    """What was parked before a restart counts: it is there already, and the budget stays."""
    looked: list[int] = []

    def look() -> Room:
        looked.append(1)
        return Room(40 * 2**30, "the host's memory")

    async with managing(tmp_path, host_memory=look) as manager:
        assert manager.config.parked_memory == 20 * 2**30
        await manager.submit(ask(1))
        told = (CLOCK.boot(), "lease-1", "alice", process(10_001))
        await manager.submit(cmd.SetActivity(*told, Activity.IDLE))
        await manager.submit(cmd.PlanParking(*told, 4 * 2**30))
        done = await manager.submit(cmd.Park(*told, Rung.DRIVER, 4 * 2**30))
        assert not isinstance(done, Refuse), done
    async with managing(tmp_path, host_memory=look) as manager:
        assert manager.state.parked_memory() == 4 * 2**30
        assert manager.config.parked_memory == 22 * 2**30
    said = plain_config(parked_memory=2**30)
    async with managing(tmp_path, host_memory=look, config=said) as manager:
        assert manager.config.parked_memory == 2**30
    assert len(looked) == 2


async def test_budgets_are_charged_the_time_of_turns(tmp_path: Path) -> None:
    """Alice held one GPU for an hour, and had its turn for 20 minutes of it."""
    path, wall = tmp_path / "ledger.sqlite", CLOCK.wall() - 7200.0
    with contextlib.closing(Ledger.open(path, history=1e6, wall=wall)) as ledger:
        parts: Any = {"gpus": [{"gpu": "GPU-0", "memory": 1}], "activity": "busy"}
        ledger.append([Record("LeaseGranted", 1.0, wall, "alice", "L", parts)])
        ledger.append([], Uses(1201.0, wall + 1200.0, (("L", Use(rests=True)),)))
        gone = {"reason": "released"}
        ledger.append([Record("LeaseEnded", 3601.0, wall + 3600.0, "alice", "L", gone)])
        ledger.write_snapshot([])  # the lease itself is history

    async with managing(tmp_path) as manager:
        (row,) = await manager.reads.ask("", lambda reads: reads.usage(0.0, CLOCK.wall(), None))
        assert row.gpu_seconds_held == pytest.approx(3600.0)
        assert manager.state.budget("alice").spent == pytest.approx(1 / 3)
