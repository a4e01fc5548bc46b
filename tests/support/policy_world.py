"""A small physical world for the policy: processes that live, hold GPU memory and die.

The world knows the truth; the policy only learns it through commands. So a
test can compare what the policy promised with what was really there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from jupyter_gpushare.policy import commands as cmd
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy import events as ev
from jupyter_gpushare.policy.config import PolicyConfig
from jupyter_gpushare.policy.model import (
    Bytes,
    EnvironmentName,
    Gpu,
    GpuReading,
    GpuUuid,
    LeaseId,
    ProcessId,
    ProcessReading,
    Quota,
    Request,
    Task,
    TaskKind,
)
from jupyter_gpushare.policy.state import State

GIB = 1024**3
BOOT = "boot-1"


def gpu(index: int, gib: int = 24) -> Gpu:
    return Gpu(GpuUuid(f"GPU-{index}"), index, "Pretend GPU", Bytes(gib * GIB), simulated=True)


def process(pid: int) -> ProcessId:
    return ProcessId(BOOT, pid, pid * 10)


def task(pid: int, kernel_id: str | None = None) -> Task:
    return Task(process(pid), f"task-{pid}", TaskKind.KERNEL, kernel_id)


@dataclass
class World:
    """Runs commands through the policy, checks the state after each, keeps the history."""

    config: PolicyConfig = field(default_factory=PolicyConfig)
    state: State = field(default_factory=State)
    at: float = 100.0
    history: list[ev.Event] = field(default_factory=list)
    commands: list[cmd.Command] = field(default_factory=list)
    memory: dict[tuple[int, GpuUuid], int] = field(default_factory=dict)
    entitled: dict[tuple[int, GpuUuid], int] = field(default_factory=dict)
    serial: int = 0

    def start(self, gpus: Iterable[Gpu], default: Quota, **users: Quota) -> World:
        self.run(cmd.Start(self.at, BOOT, tuple(gpus)))
        named = tuple((EnvironmentName(name), quota) for name, quota in users.items())
        self.run(cmd.ConfigureQuotas(self.at, default, users=named))
        return self

    def run(self, command: cmd.Command) -> core.Decision:
        before = self.state
        result = core.step(before, command, self.config)
        replayed = before
        for event in result.events:
            if isinstance(event, ev.LeaseGranted):
                self.fair_to_the_urgent(replayed, event)
            earlier, replayed = replayed, core.evolve(replayed, event)
            if isinstance(event, ev.LeaseGranted):
                self.within_capacity(earlier, replayed, event)
                self.really_free(earlier, replayed, event)
        assert replayed == result.state, "events and state disagree"
        assert core.step(before, command, self.config) == result, "not deterministic"
        core.check(result.state)
        self.state = result.state
        self.history.extend(result.events)
        self.commands.append(command)
        return result.decision

    @staticmethod
    def within_capacity(before: State, after: State, event: ev.LeaseGranted) -> None:
        """Promise 1: a grant that takes memory leaves reserved + unleased <= capacity."""
        for part in event.gpus:
            if after.gpus[part.gpu].reserved > before.gpus[part.gpu].reserved:
                assert after.gpus[part.gpu].free >= 0, "memory was promised twice"

    def really_free(self, before: State, after: State, event: ev.LeaseGranted) -> None:
        """Promise 1 against the truth: what an earlier holder still has is given to nobody.

        Memory beyond what it was entitled to is the audit's to find first.
        """
        for part in event.gpus:
            left = 0
            for (pid, gpu), size in self.memory.items():
                owners = after.by_process.get(process(pid), ())
                owned = any((owner, gpu) in after.claims for owner in owners)
                if gpu == part.gpu and not owned:
                    left += min(size, self.entitled.get((pid, gpu), 0))
            grew = after.gpus[part.gpu].reserved > before.gpus[part.gpu].reserved
            taken = after.gpus[part.gpu].reserved + left
            capacity = after.gpus[part.gpu].gpu.memory
            assert not grew or taken <= capacity, "memory that is still in use was given away"
            pid = after.leases[event.lease].task.process.pid
            self.entitled[(pid, part.gpu)] = part.memory

    @staticmethod
    def fair_to_the_urgent(before: State, event: ev.LeaseGranted) -> None:
        """The stated bound: nobody passes a request that has been passed often enough."""
        waiting = before.queue.waiting
        mine = (waiting[event.lease].urgent_at, waiting[event.lease].order)
        for item in waiting.values():
            if item.urgent_at <= before.grants:
                assert mine <= (item.urgent_at, item.order), "an urgent request was passed"

    def request(
        self,
        who: str,
        pid: int,
        request: Request | None = None,
        *,
        wait: bool = True,
        kernel_id: str | None = None,
    ) -> core.Decision:
        self.serial += 1
        return self.run(
            cmd.RequestLease(
                self.at,
                LeaseId(f"L{self.serial}"),
                EnvironmentName(who),
                task(pid, kernel_id),
                request or Request(),
                wait,
            )
        )

    def release(self, lease: str, who: str, *, admin: bool = False) -> core.Decision:
        return self.run(cmd.Release(self.at, LeaseId(lease), EnvironmentName(who), admin))

    def die(self, pid: int) -> None:
        """The process dies: its memory goes first, then the policy is told."""
        self.memory = {key: size for key, size in self.memory.items() if key[0] != pid}
        self.run(cmd.ProcessGone(self.at, process(pid)))

    def readings(self) -> tuple[GpuReading, ...]:
        result = []
        for uuid, books in self.state.gpus.items():
            here = {pid: size for (pid, where), size in self.memory.items() if where == uuid}
            result.append(
                GpuReading(
                    uuid,
                    None,
                    Bytes(sum(here.values())),
                    tuple(
                        ProcessReading((process(pid),), Bytes(size)) for pid, size in here.items()
                    ),
                )
            )
            assert books.gpu.uuid == uuid
        return tuple(result)

    def observe(self) -> None:
        self.run(cmd.Observe(self.at, self.readings()))

    def measured(self) -> State:
        """The state as it would be if somebody measured now; the world itself goes on."""
        # Twice: a grant that the first makes possible can turn excess into reservation.
        state = self.state
        for _ in range(2):
            state = core.step(state, cmd.Observe(self.at, self.readings()), self.config).state
            core.check(state)
        return state

    def tick(self, seconds: float) -> None:
        self.at += seconds
        self.run(cmd.Tick(self.at, self.at))

    def gpus_of(self, lease: str) -> list[int]:
        held = self.state.leases[LeaseId(lease)]
        return [self.state.gpus[part.gpu].gpu.index for part in held.allocations]
