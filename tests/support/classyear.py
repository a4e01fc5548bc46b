"""The ledger of a class, lived through as fast as can be: a real manager, and a clock by hand."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

from jupyter_gpushare.ledger.ledger import Ledger
from jupyter_gpushare.node.host.processes import ProcessWatch
from jupyter_gpushare.node.inventory.simulated import SimulatedInventory
from jupyter_gpushare.node.manager import Manager
from jupyter_gpushare.policy.say.effects import Signal
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import (
    Activity,
    EnvironmentName,
    Gpu,
    LeaseId,
    ProcessId,
    Quota,
    Request,
    Task,
    TaskKind,
    Vitals,
)

from .clock import FakeClock
from .policy_world import plain_config

DAY = 86400.0
GIB = 2**30


class Immortal(ProcessWatch):
    """Processes that live until their lease is given back."""

    def watch(self, process: ProcessId) -> bool:
        return True

    def signal(self, effect: Signal) -> None:
        raise AssertionError(effect)

    def vitals(self, tasks: Sequence[Iterable[ProcessId]]) -> Sequence[Vitals | None]:
        return [None for _ in tasks]


class Classroom:
    """Students who run cells, and the node manager that records it."""

    def __init__(self, manager: Manager, clock: FakeClock) -> None:
        self.manager, self.clock = manager, clock
        self.rng = random.Random(7)
        self.toggles = self.leases = 0
        self._undecided = 0
        self._whose: dict[LeaseId, tuple[EnvironmentName, ProcessId]] = {}

    async def day(self, students: int, lessons: int, cells: int) -> None:
        """One day from midnight to midnight; a lesson is a notebook of each student.

        Everybody runs so many ``cells`` in it, and is parked once in the middle.
        """
        begun = self.clock.boot()
        for _ in range(lessons):
            self.clock.advance(3 * 3600.0)
            held = [self.ask(f"student-{number:02}") for number in range(students)]
            await self.settle()
            for cell in range(cells):
                if cell == cells // 2:
                    await self.lunch(held)
                for state in (Activity.BUSY, Activity.IDLE):
                    for lease in held:
                        self.turn(lease, state)
                    await self.settle()
                    self.clock.advance(self.rng.choice((1.0, 3.0, 20.0, 60.0)))
                if cell % 25 == 0:
                    await self.manager.tidy()
            for lease in held:
                self.give_back(lease)
            await self.settle()
        self.clock.advance(begun + DAY - self.clock.boot())
        await self.manager.tidy()

    async def lunch(self, held: Sequence[LeaseId]) -> None:
        """All are parked, and go on."""
        for lease in held:
            whose = self._whose[lease]
            self.manager.ask(cmd.Park(self.clock.boot(), lease, *whose), owner=whose[0])
        await self.settle()
        self.clock.advance(1800.0)
        for lease in held:
            whose = self._whose[lease]
            self.manager.ask(cmd.Resume(self.clock.boot(), lease, *whose), owner=whose[0])
        await self.settle()

    def ask(self, who: str, path: str = "/home/class/course/week 7/Exercise 3.ipynb") -> LeaseId:
        """Somebody opens a notebook."""
        self.leases += 1
        lease, environment = f"{self.leases:032x}", who
        process = ProcessId(self.clock.boot_id(), 10_000 + self.leases, 1)
        self._whose[lease] = environment, process
        task = Task(process, path[-250:], TaskKind.KERNEL, str(lease), path)
        at = self.clock.boot()
        self._say(cmd.RequestLease(at, lease, environment, task, Request()), environment)
        return lease

    def turn(self, lease: LeaseId, state: Activity) -> None:
        """A cell begins or ends."""
        self.toggles += 1
        whose = self._whose[lease]
        self._say(cmd.SetActivity(self.clock.boot(), lease, *whose, state), whose[0])

    def give_back(self, lease: LeaseId) -> None:
        """A notebook is closed."""
        environment, _process = self._whose.pop(lease)
        self._say(cmd.Release(self.clock.boot(), lease, environment), environment)

    def _say(self, command: cmd.Command, owner: EnvironmentName) -> None:
        def decided(_decision: object) -> None:
            self._undecided -= 1

        self._undecided += 1
        self.manager.ask(command, decided, owner=owner)

    async def settle(self) -> None:
        """All that was asked is decided, and what was given back is measured."""
        while self._undecided:
            await asyncio.sleep(0)
        at = self.clock.boot()
        for _ in range(2):
            await self.manager.submit(cmd.Observe(at, self.manager.inventory.read()))


def size_of(path: Path) -> int:
    """Bytes of the ledger with its log."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


@contextlib.asynccontextmanager
async def classroom(
    path: Path, *, ledger_bytes: int = GIB, snapshot_every: int = 5000
) -> AsyncIterator[Classroom]:
    """A manager of eight GPUs whose loops leave the time alone."""
    clock = FakeClock()
    never = 1e12
    manager = Manager(
        config=plain_config(max_tasks_per_gpu=40, heartbeat_timeout=never),
        clock=clock,
        ledger=Ledger.open(path, history=90 * DAY, wall=clock.wall()),
        inventory=SimulatedInventory("8x80GiB"),
        processes=Immortal,
        measure_interval=never,
        tidy_interval=never,
        budget_interval=never,
        snapshot_every=snapshot_every,
        ledger_bytes=ledger_bytes,
    )

    async def quotas(gpus: Sequence[Gpu]) -> cmd.ConfigureQuotas:
        return cmd.ConfigureQuotas(clock.boot(), Quota(1, 8 * GIB))

    try:
        await manager.start(quotas)
        yield Classroom(manager, clock)
    finally:
        await manager.close()
