"""A small world around the pool's core: hosts, clocks that drift, links that lose and double."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from jupyter_gpushare.policy.words.model import Quota
from jupyter_gpushare.pool.decide import step
from jupyter_gpushare.pool.evolve import evolve, reindexed
from jupyter_gpushare.pool.groups import is_beyond
from jupyter_gpushare.pool.state import State
from jupyter_gpushare.pool.words import commands as cmd, effects as eff, events as ev
from jupyter_gpushare.pool.words.config import PoolConfig
from jupyter_gpushare.pool.words.hosts import (
    Accepted,
    HostEnvironment,
    HostGpu,
    HostReport,
    Want,
)
from jupyter_gpushare.protocol.calls import HintParams

CONFIG = PoolConfig(validity=120.0, drift=0.01)
GIB = 2**30


def gpu(host: str, index: int, *, free: bool = True, share: int = 100, **parts: object) -> HostGpu:
    """A GPU of a report."""
    whole = {
        "uuid": f"GPU-{host}-{index}",
        "index": index,
        "kind": "H100",
        "memory": 80 * GIB,
        "free_memory": 80 * GIB if free else 0,
        "free_share": share,
        "out": None,
        "exclusive_free": free,
    }
    return HostGpu(**{**whole, **parts})


def report(name: str, at: float = 1.0, **parts: object) -> HostReport:
    """A host's report, of which only some parts matter."""
    whole = {
        "name": name,
        "boot_id": "boot",
        "at": at,
        "version": "1",
        "seconds": 0.0,
        "draining": None,
        "empty": True,
        "gpus": (gpu(name, 0),),
        "environments": (),
        "wants": (),
        "queue": 0,
        "expected_wait": None,
    }
    return HostReport(**{**whole, **parts})


@dataclass
class Node:
    """The host's side of a sub-budget, as a node manager has it."""

    name: str
    rate: float = 1.0
    boot: int = 1
    clock: float = 10.0
    latest: float = 0.0
    lent: dict[str, tuple[int, float, float | None]] = field(default_factory=dict)
    reclaim: dict[str, int] = field(default_factory=dict)
    whys: dict[str, str] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    spent_at: dict[float, dict[str, float]] = field(default_factory=dict)
    wants: list[tuple[str, int, float]] = field(default_factory=list)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # While it is connected: what is under way to the pool, and to it.
    up: deque[object] | None = None
    down: deque[eff.Lend] = field(default_factory=deque)
    late: list[eff.Lend] = field(default_factory=list)

    def left(self, environment: str) -> float:
        """GPU-hours that may still be spent."""
        until = self.lent.get(environment, (0, 0.0, 0.0))[2]
        return float("inf") if until is None else until - self.spent.get(environment, 0.0)

    def serve(self) -> None:
        """Grant what the sub-budgets allow."""
        for want in list(self.wants):
            environment, gpus, _since = want
            lent, until, _hours = self.lent.get(environment, (0, 0.0, 0.0))
            held = self.held.get(environment, 0)
            if self.clock <= until and held + gpus <= lent and self.left(environment) > 0:
                self.held[environment] = held + gpus
                self.wants.remove(want)

    def report(self) -> HostReport:
        self.clock += 1e-6  # each report has a time of its own
        self.spent_at[self.clock] = dict(self.spent)
        names = {*self.held, *self.lent, *(want[0] for want in self.wants), *self.spent}
        return report(
            self.name,
            self.clock,
            boot_id=f"boot-{self.boot}",
            seconds=max(0.0, *(until - self.clock for _, until, _ in self.lent.values()), 0.0),
            environments=tuple(
                HostEnvironment(
                    one,
                    self.held.get(one, 0),
                    0,
                    0,
                    sum(want[0] == one for want in self.wants),
                    self.spent.get(one, 0.0),
                    self.lent.get(one, (0, 0.0, 0.0))[0],
                )
                for one in sorted(names)
            ),
            wants=tuple(
                Want(one, n, None, "batch", at, self.groups.get(one, ()))
                for one, n, at in self.wants
            ),
        )

    def say(self) -> None:
        """Report a change."""
        if self.up is not None:
            self.up.append(self.report())

    def hear(self, lend: eff.Lend) -> None:
        """Take a loan in. One older than the newest is refused, and so is one of another boot."""
        if lend.boot_id != f"boot-{self.boot}" or lend.as_of < self.latest:
            return
        self.latest = lend.as_of
        until = lend.as_of + lend.seconds * (1 - CONFIG.drift)
        if lend.complete:
            named = {budget.environment for budget in lend.budgets}
            for one in {*self.lent} - named:
                self.lent[one] = (0, until, self.spent.get(one, 0.0))
        told = []
        for budget in lend.budgets:
            one, held = budget.environment, self.held.get(budget.environment, 0)
            hours = budget.gpu_hours
            if hours is not None:
                hours += self.spent_at.get(lend.as_of, {}).get(one, 0.0)
            self.lent[one] = (budget.gpus, until, hours)
            self.reclaim.pop(one, None)
            if budget.reclaim and held > budget.gpus:
                self.reclaim[one] = budget.gpus
            self.whys[one] = budget.why or ""
            # What is held stays; nothing new begins in its place.
            told.append(Accepted(one, max(budget.gpus, held), held))
        self.serve()
        if self.up is not None:
            self.up.append((lend.number, tuple(told)))
            self.say()

    def give_back(self) -> bool:
        """Do what recalls ask; says whether there was any."""
        asked, self.reclaim = self.reclaim, {}
        for one, gpus in asked.items():
            self.held[one] = min(self.held.get(one, 0), gpus)
        if asked:
            self.say()
        return bool(asked)

    def passes(self, seconds: float) -> None:
        self.clock += seconds * self.rate
        for one, gpus in self.held.items():
            use = min(gpus * seconds / 3600, max(0.0, self.left(one)))
            self.spent[one] = self.spent.get(one, 0.0) + use
            if self.left(one) <= 0:
                self.held[one] = 0


class World:
    """The pool, its ledger, and hosts."""

    def __init__(self, *names: str, quota: Quota | None = None) -> None:
        self.time = 1000.0
        self.rate = 1.0
        self.state = State()
        self.ledger: list[ev.Event] = []
        self.hints: dict[str, tuple[HintParams, ...]] = {}
        self.drains: list[eff.Effect] = []
        self.quota = quota or Quota(gpus=1)
        self.nodes: dict[str, Node] = {}
        #: GPUs at hosts that the pool had given up, until all is in order again.
        self.given_up: dict[tuple[str, str], int] = {}
        #: The same, until no group is beyond what it may have.
        self.given_up_of_groups: dict[tuple[str, str], int] = {}
        #: Of what is held, GPUs that were held already when their host was given up.
        self.older: dict[tuple[str, str], int] = {}
        self.do(cmd.Start(self.time, 1_700_000_000.0))
        self.do(cmd.ConfigureQuotas(self.time, self.quota))
        for name in names:
            self.nodes[name] = Node(name)
            self.deed(ev.HostsChanged, name, True)
            self.heal(name)
        self.settle()

    def do(self, command: cmd.Command, *, sent: bool = True) -> str | None:
        """One step of the pool; without ``sent`` it dies before it sends anything. Its refusal."""
        done = step(self.state, command, CONFIG)
        state = self.state
        for event in done.events:
            if isinstance(event, ev.HostSilent) and event.expired:
                for one, out in state.hosts[event.host].out.items():
                    self.given_up[event.host, one] = out.gpus
                    self.given_up_of_groups[event.host, one] = out.gpus
                for who, gpus in self.nodes[event.host].held.items():
                    self.older[event.host, who] = gpus
            state = evolve(state, event)
        assert state == done.state
        self.check_books(done.state)
        self.ledger += [event for event in done.events if event.DURABLE]
        self.state = done.state
        for effect in done.effects if sent else ():
            self.send(effect)
        for host, one in list(self.given_up):
            if self.state.hosts[host].connected and self.state.total(one) <= self.quota.gpus:
                del self.given_up[host, one]
        if not self.is_a_group_beyond():
            for host, one in list(self.given_up_of_groups):
                if self.state.hosts[host].connected:
                    del self.given_up_of_groups[host, one]
        return done.refusal

    def check_books(self, state: State) -> None:
        """What is kept step by step is what hosts have; a group that is beyond is lent nothing."""
        has = {(one, host.name) for host in state.hosts.values() for one in host.everybody}
        assert has == {(one, name) for one, names in state.places.items() for name in names}
        assert all(state.places.values())
        anew, used = reindexed(state), {n: one for n, one in state.used.items() if one.gpus}
        assert not state.groups or (used, state.wanting) == (dict(anew.used), anew.wanting)
        for host in state.hosts.values() if state.groups else ():
            for one, out in host.out.items() if host.connected else ():
                group = state.group(host, one)
                assert not out.asked or group is None or not is_beyond(state, group), self.story()

    def deed(self, kind: Callable[..., ev.Event], *of: object) -> str | None:
        """An administrator decides it."""
        return self.do(cmd.Deed(self.time, kind(self.time, *of, "root")))

    def is_a_group_beyond(self) -> bool:
        """Whether more counts for a group, or for all, than they may have."""
        groups, used = self.state.groups, {n: one.gpus for n, one in self.state.used.items()}
        return sum(used.values()) > sum(group.nominal for group in groups.values()) or any(
            group.borrowing is not None and used.get(name, 0) > group.nominal + group.borrowing
            for name, group in groups.items()
        )

    def send(self, effect: eff.Effect) -> None:
        node = self.nodes.get(effect.host)
        if node is None or node.up is None:
            return
        match effect:
            case eff.Lend():
                node.down.append(effect)
            case eff.Follow():
                node.say()
            case eff.Hint():
                self.hints[effect.host] = effect.hints
            case _:
                self.drains.append(effect)

    # -- what happens ---------------------------------------------------------------------------

    def heal(self, name: str) -> None:
        node = self.nodes[name]
        if node.up is None:
            node.up = deque()
            node.say()

    def cut(self, name: str) -> None:
        """The link breaks: the pool notices, and the host may still read what was sent to it."""
        node = self.nodes[name]
        if node.up is not None:
            node.late += node.down
            node.up, node.down = None, deque()
            self.do(cmd.HostLost(self.time, name))

    def kill(self) -> None:
        """The pool is killed and starts again with its ledger."""
        for node in self.nodes.values():
            node.late += node.down
            node.up, node.down = None, deque()
        self.state = State()
        for event in self.ledger:
            self.state = evolve(self.state, event)
        self.do(cmd.Start(self.time, 1_700_000_000.0 + self.time))
        self.do(cmd.ConfigureQuotas(self.time, self.quota))

    def reboot(self, name: str) -> None:
        self.cut(name)
        old = self.nodes[name]
        self.nodes[name] = Node(name, old.rate, old.boot + 1, late=old.late, groups=old.groups)
        self.nodes[name].spent = dict(old.spent)

    def request(self, name: str, environment: str, gpus: int = 1) -> None:
        node = self.nodes[name]
        node.wants.append((environment, gpus, node.clock))
        node.serve()
        node.say()

    def ask(self, name: str, environment: str, gpus: int = 1) -> None:
        """A request, until all is said of it."""
        self.time += 1.0
        self.request(name, environment, gpus)
        self.settle()

    def give(self, name: str, environment: str) -> None:
        """A release, until all is said of it."""
        self.release(name, environment)
        self.settle()

    def release(self, name: str, environment: str) -> None:
        node = self.nodes[name]
        if node.held.get(environment):
            node.held[environment] -= 1
            older = self.older.get((name, environment), 0)
            self.older[name, environment] = max(0, older - 1)
            node.serve()
            node.say()

    def deliver_up(self, name: str, *, twice: bool = False) -> bool:
        node = self.nodes[name]
        if not node.up:
            return False
        message = node.up.popleft()
        for _ in range(2 if twice else 1):
            if isinstance(message, HostReport):
                self.do(cmd.HostReported(self.time, name, message))
            else:
                number, told = message
                self.do(cmd.LendAnswered(self.time, name, number, told))
        return True

    def deliver_down(self, name: str, *, twice: bool = False) -> bool:
        node = self.nodes[name]
        if not node.down:
            return False
        message = node.down.popleft()
        for _ in range(2 if twice else 1):
            node.hear(message)
        return True

    def passes(self, seconds: float) -> None:
        """Time passes, and the pool ticks."""
        while seconds > 0:
            part = min(seconds, 20.0)
            seconds -= part
            self.time += part * self.rate
            for node in self.nodes.values():
                node.passes(part)
            self.do(cmd.Tick(self.time))

    def settle(self) -> None:
        """Deliver until nothing is under way."""
        for _ in range(1000):
            moved = [self.deliver_up(n) or self.deliver_down(n) for n in sorted(self.nodes)]
            if not any(moved) and not any(node.give_back() for node in self.nodes.values()):
                return
        raise AssertionError("messages go round for ever")

    def story(self) -> str:
        """All hosts, for a failed test."""
        lines = []
        for name, node in self.nodes.items():
            lines.append(f"{name}: holds {node.held}, wants {[w[:2] for w in node.wants]}")
            for one, out in self.state.hosts[name].out.items():
                lines.append(f"   {one}: {out}")
        return "\n".join([*lines, str(dict(self.state.used)), str(dict(self.state.wanting))])

    # -- what must hold --------------------------------------------------------------------------

    def held(self, environment: str) -> int:
        return sum(node.held.get(environment, 0) for node in self.nodes.values())

    def check(self) -> None:
        """What is really held is within the bound."""
        for (host, one), gpus in self.older.items():
            self.older[host, one] = min(gpus, self.nodes[host].held.get(one, 0))
        for one in {name for node in self.nodes.values() for name in node.held}:
            excess = sum(gpus for (_host, name), gpus in self.given_up.items() if name == one)
            assert self.held(one) <= self.quota.gpus + excess, (one, self.given_up)
            older = sum(gpus for (_host, name), gpus in self.older.items() if name == one)
            # The excess ends with what ran: nothing new begins in its place.
            assert self.held(one) - older <= self.quota.gpus, (one, self.older, self.story())
            for name, node in self.nodes.items():
                out = self.state.hosts[name].out.get(one)
                assert node.held.get(one, 0) <= (0 if out is None else out.gpus), (name, one)
            if self.quota.gpu_hours is not None:
                spent = sum(node.spent.get(one, 0.0) for node in self.nodes.values())
                assert spent <= self.quota.gpu_hours + 1e-6, (one, spent)
