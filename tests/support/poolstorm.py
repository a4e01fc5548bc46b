"""A storm over a pool: real hosts with networks of their own, and many people; from a seed.

Round after round some of the hosts are cut off or their node managers killed, and the pool is
killed; then all is healed, and within ``TRUE_WITHIN`` seconds the pool has to say what is so. In
the end everybody has to get all of their quota again. :mod:`.poolverdict` judges the rest from the
ledgers and from what people saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jupyter_gpushare.node.host.membership import Membership, ask
from jupyter_gpushare.node.ledger.ledger import Ledger
from jupyter_gpushare.pool import joining
from jupyter_gpushare.protocol.poolcalls import PoolMethod

from .faults.observed import boot, read_log
from .hosts import Host, Hosts
from .kernel import Kernel
from .node import RunningNode, token_file, until
from .poolcrowd import ENDS, Spec
from .poolverdict import Away, Story, Told, holds_of, judge, spans_of
from .runningpool import CONFIG, RunningPool

TESTS = Path(__file__).resolve().parents[1]
PORT = 10205
TRUE_WITHIN = 5.0  # seconds; the promise
POOL = "the pool"
#: Beside what the pool says of a host: what the Hub's page would show of it at that moment. And the
#: pool writes down whom it gives up, and when it heard of them again.
_WATCHED = """
import json, time
from jupyter_gpushare.pool import core
step, words = core.step, ("HostExpired", "HostSpoke", "PoolStarted")
lost = {{}}
def noted(state, command, config):
    # Of the hosts' clock, not of the pool's own; before anything is sent.
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    done = step(state, command, config)
    with open({file!r}, "a") as file:
        for event in done.events:
            kind, host = type(event).__name__, getattr(event, "host", "")
            if kind in words and (kind != "HostSpoke" or lost.pop(host, None)):
                file.write(json.dumps([kind, host, now]) + "\\n")
            if kind == "HostExpired":
                lost[host] = True
    return done
core.step = noted
"""
_PAGES = """
from jupyter_gpushare.hub.pooling import HubPool
from jupyter_gpushare.pool.answers import PoolAnswers
plain, hubs = PoolAnswers._host, {}
def with_page(self, host):
    hub = hubs.setdefault(self._manager, None) or HubPool(self._manager)
    hubs[self._manager] = hub
    told = hub._look(host)
    held = {who: own.held for who, own in told.owners.items() if own.held}
    page = {"problem": told.host.problem, "waiting": told.host.waiting, "held": held}
    return plain(self, host) | {"page": page}
PoolAnswers._host = with_page
"""


@dataclass(frozen=True)
class Fault:
    """``what`` happens to ``whom``, ``begin`` seconds into its round, for ``seconds``."""

    what: str
    whom: str
    begin: float
    seconds: float


@dataclass(frozen=True)
class Plan:
    """``rounds``: these, instead of made-up ones until the time is over."""

    seed: int
    seconds: float
    names: tuple[str, ...] = ("a", "b", "c", "d", "e")
    gpus: int = 16
    people: int = 200
    #: Notebooks, each of one more person, on the first hosts: they hold a GPU all the time.
    kernels: int = 2
    think: float = 30.0
    hold: tuple[float, float] = (0.5, 6.0)
    validity: float = 4.0
    rounds: tuple[tuple[Fault, ...], ...] = ()
    #: Python that runs in the pool, or in node managers, before they do.
    in_pool: str = ""
    in_nodes: str = ""


@dataclass
class Report:
    """What came of it."""

    seed: int
    wrong: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    leases: int = 0
    moved: int = 0
    rounds: int = 0
    #: Seconds from healing until the pool's view was true.
    true_after: list[float] = field(default_factory=list)


def _crowding() -> float:
    """How many want each processor: then all takes so much longer."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _planted(code: str, module: str, line: list[str]) -> list[str]:
    """``python -m module …``, after ``code``."""
    if not code:
        return line
    run = f"import runpy\n{code}\nrunpy.run_module({module!r}, run_name='__main__')"
    return [sys.executable, "-c", run, *line[3:]]


class StormPool(RunningPool):
    """The pool, on the machine that all hosts reach."""

    def __init__(self, directory: Path, plan: Plan, quotas: Mapping[str, int], at: str) -> None:
        users = {who: {"gpus": gpus} for who, gpus in quotas.items()}
        told = {"default": {"gpus": 1}, "users": users}
        super().__init__(directory, told, f"--Pool.validity={plan.validity}")
        self.watched = directory / "given-up.jsonl"
        watched = _WATCHED.format(file=str(self.watched))
        self._at, self._code = at, watched + _PAGES + plan.in_pool

    def command(self) -> list[str]:
        line = [one.replace("127.0.0.1", self._at) for one in super().command()]
        return _planted(self._code, "jupyter_gpushare.cli", line)


class StormHost(RunningNode):
    """A host's node manager, which has joined the pool."""

    def __init__(self, directory: Path, plan: Plan, host: Host, people: Sequence[str]) -> None:
        directory.mkdir()
        listen = f"--NodeManagerApp.pool_listen=0.0.0.0:{PORT}"
        known = token_file(directory, *people, "root")
        super().__init__(
            directory,
            simulate=f"{plan.gpus}x24GiB",
            config=CONFIG,
            arguments=[listen, known],
        )
        self.host, self._code = host, plan.in_nodes

    def command(self) -> list[str]:
        return self.host.command(
            _planted(self._code, "jupyter_gpushare.node", super().command()), TESTS.parent
        )

    def join(self, pool: StormPool) -> None:
        asked, token = ask(), joining.Token.read(pool.ask(PoolMethod.TOKEN)["token"])
        said = {"name": self.host.name, "port": PORT, "csr": asked.csr, "version": "1"}
        said["address"] = self.host.address
        told = asyncio.run(joining.ask(token, said, time.time()))
        Membership.keep(self.directory / "pool", asked, told)


class Storm:
    """One storm; :meth:`run` does it all. ``directory`` keeps what it left."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.directory, self.plan = directory, plan
        self.rng = random.Random(plan.seed)
        people = [f"p{number}" for number in range(plan.people)]
        self.quotas = {who: 2 if number % 4 == 0 else 1 for number, who in enumerate(people)}
        self.users = [f"k{number}" for number in range(plan.kernels)]
        self.kernels: list[Kernel] = []
        self.report = Report(plan.seed)
        self.nodes: dict[str, StormHost] = {}
        self.crowds: dict[str, subprocess.Popen[str]] = {}
        self.aways: list[Away] = []
        self.told: list[Told] = []

    def run(self) -> Report:
        with Hosts(self.plan.names, real=True) as hosts:
            self.pool = StormPool(self.directory / "pool", self.plan, self.quotas, hosts.address)
            try:
                with self.pool, contextlib.ExitStack() as notebooks:
                    self._start(hosts)
                    self._open(hosts, notebooks)
                    self._blow()
                    self._end()
            finally:
                for crowd in self.crowds.values():
                    self._hang_up(crowd)
                for node in self.nodes.values():
                    node.close()
        self._judge()
        return self.report

    # -- people ------------------------------------------------------------------------------------

    def _start(self, hosts: Hosts) -> None:
        for name, host in hosts.items():
            known = [*self.quotas, *self.users]
            self.nodes[name] = StormHost(self.directory / name, self.plan, host, known)
            self.nodes[name].join(self.pool)
            self.nodes[name].launch()
        for name, node in self.nodes.items():
            self._serves(node)
            self.crowds[name] = self._crowd(name, node)
        self.pool.sees(*self.nodes)

    def _open(self, hosts: Hosts, notebooks: contextlib.ExitStack) -> None:
        """Real kernels on the hosts, which work through it all."""
        for who, name in zip(self.users, self.plan.names, strict=False):
            home = self.directory / who
            home.mkdir()
            kernel = Kernel(home, self.nodes[name].socket, JUPYTER_GPUSHARE_TOKEN=who)
            # Over Unix sockets: a host has a network of its own.
            kernel.manager.transport = "ipc"
            kernel.manager.ip = str(hosts.folder / who)
            spec = kernel.manager.kernel_spec
            assert spec is not None
            spec.argv[:1] = [*hosts[name].prefix, sys.executable]
            self.kernels.append(notebooks.enter_context(kernel))
            kernel.ok(f"import os; assert os.uname().nodename == {name!r}")
            kernel.ok("%gpushare request\ncells = 0")

    @staticmethod
    def _serves(node: RunningNode) -> None:
        process = node.process
        assert process is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), node.story()

    def _crowd(self, name: str, node: StormHost) -> subprocess.Popen[str]:
        plan = self.plan
        seed, log = f"{plan.seed} {name}", str(self.directory / f"{name}.log")
        spec = Spec(str(node.socket), log, seed, self.quotas, plan.think, plan.hold)
        line = [sys.executable, "-m", "support.poolcrowd", json.dumps(asdict(spec))]
        pipe = subprocess.PIPE
        own = {**os.environ, "PYTHONPATH": str(TESTS)}
        command = node.host.command(line, TESTS.parent)
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=own)

    def _say(self, words: Mapping[str, str]) -> dict[str, str]:
        """Tell each host's crowd something; what each answers. Its people work at once."""
        for name, text in words.items():
            self._ask(self.crowds[name], text)
        return {name: self._hear(self.crowds[name]) for name in words}

    @staticmethod
    def _ask(crowd: subprocess.Popen[str], text: str) -> None:
        assert crowd.stdin is not None
        crowd.stdin.write(f"{text}\n")
        crowd.stdin.flush()

    @staticmethod
    def _hear(crowd: subprocess.Popen[str]) -> str:
        assert crowd.stdout is not None
        line = crowd.stdout.readline()
        assert line, "a crowd died; its reason is above"
        return line.strip()

    @staticmethod
    def _hang_up(crowd: subprocess.Popen[str]) -> None:
        for stream in (crowd.stdin, crowd.stdout):
            if stream is not None:
                stream.close()
        try:
            crowd.wait(ENDS)
        except subprocess.TimeoutExpired:
            crowd.kill()
            crowd.wait()

    # -- the storm ---------------------------------------------------------------------------------

    def _blow(self) -> None:
        for crowd in self.crowds.values():
            assert self._hear(crowd) == "ready"
        end = boot() + self.plan.seconds
        made_up = iter(self.plan.rounds or iter(self._round, None))
        while boot() < end and (faults := next(made_up, None)):
            self._suffer(faults)
            healed = boot()
            self._look(healed)
            self.report.rounds += 1
            for kernel in self.kernels:
                kernel.ok("cells += 1")
            time.sleep(self.rng.uniform(0.2, 1.5))  # a rest; nothing is awaited

    def _round(self) -> tuple[Fault, ...]:
        """One to three faults, of which each may outlast what the host was lent."""
        rng = self.rng
        longest = self.plan.validity
        whom = rng.sample([POOL, *self.nodes], rng.choice((1, 2, 2, 3)))
        return tuple(
            Fault(
                "killed" if one == POOL else rng.choice(("killed", "cut")),
                one,
                rng.uniform(0.0, 1.0),
                rng.choice((rng.uniform(0.1, 1.0), rng.uniform(1.0, longest), 1.75 * longest)),
            )
            for one in whom
        )

    def _suffer(self, faults: tuple[Fault, ...]) -> None:
        """Let them all begin and end at their times."""
        begun = boot()
        times = [(fault.begin, False, fault) for fault in faults]
        times += [(fault.begin + fault.seconds, True, fault) for fault in faults]
        since: dict[Fault, float] = {}
        started: list[RunningNode] = []
        for at, is_over, fault in sorted(times, key=lambda one: one[:2]):
            time.sleep(max(0.0, begun + at - boot()))
            if is_over:
                self.aways.append(
                    Away("" if fault.whom == POOL else fault.whom, since[fault], boot())
                )
                started += self._heal(fault)
            else:
                since[fault] = boot()
                self.report.faults[f"{'pool' if fault.whom == POOL else 'host'} {fault.what}"] += 1
                self._hurt(fault)
        for node in started:
            self._serves(node)

    def _hurt(self, fault: Fault) -> None:
        if fault.what == "cut":
            self.nodes[fault.whom].host.cut()
        else:
            (self.pool if fault.whom == POOL else self.nodes[fault.whom]).kill9()

    def _heal(self, fault: Fault) -> list[RunningNode]:
        """What was started and does not serve yet."""
        if fault.what == "cut":
            self.nodes[fault.whom].host.join()
            return []
        node = self.pool if fault.whom == POOL else self.nodes[fault.whom]
        node.launch()
        return [node]

    def _look(self, healed: float) -> None:
        """The pool knows all hosts, and what it says of each is newer than the storm."""
        rows: list[dict[str, Any]] = []

        def is_fresh() -> bool:
            rows[:] = self.pool.ask(PoolMethod.HOSTS)["hosts"]
            reports = [one["report"] for one in rows if one["connected"]]
            return len(reports) == len(self.nodes) and all(one["at"] > healed for one in reports)

        try:
            until(is_fresh, "the pool sees its hosts", TRUE_WITHIN * _crowding())
            self.report.true_after.append(round(boot() - healed, 2))
        except AssertionError:
            stale = {
                one["host"]: one["problem"] or f"{healed - one['report']['at']:.1f} s old"
                for one in rows
                if not one["connected"] or one["report"]["at"] <= healed
            }
            self.report.wrong.append(f"{TRUE_WITHIN:g} s after healing ({healed:.1f}): {stale}")
        for one in rows:
            if one["connected"]:
                report, page = one["report"], one["page"]
                held = {row["environment"]: row["held"] for row in report["environments"]}
                self.told.append(Told(one["host"], report["at"], held))
                self.told.append(Told(one["host"], report["at"], page["held"]))
                if page["problem"] or page["waiting"] != report["queue"]:
                    self.report.wrong.append(f"the page says {page}, {one['host']} says {report}")

    def _end(self) -> None:
        """All is well again: work ends, everybody gets their quota, and quotas are whole."""
        wrong = self.report.wrong
        for kernel in self.kernels:
            kernel.ok(f"assert cells == {self.report.rounds}")
            kernel.ok("%gpushare release")
        for name, late in self._say(dict.fromkeys(self.crowds, "stop")).items():
            if late:
                wrong.append(f"{ENDS:g} s after all others stopped, on {name} still wait: {late}")
        where: dict[str, list[str]] = {name: ["serve"] for name in self.crowds}
        for who in self.quotas:
            where[self.rng.choice(self.plan.names)].append(who)
        for name, late in self._say({name: " ".join(one) for name, one in where.items()}).items():
            if late:
                wrong.append(f"within {ENDS:g} s nothing was granted on {name} to {late}")
        try:
            until(lambda: not self._used(), "quotas are whole", TRUE_WITHIN * _crowding())
        except AssertionError:
            wrong.append(f"nobody holds anything, and of quotas are used: {self._used()}")
        for who, lent in self._lent().items():
            if lent > self.quotas.get(who, 1):
                wrong.append(f"{who} is lent {lent} GPUs of {self.quotas.get(who, 1)} in the end")

    def _used(self) -> dict[str, int]:
        rows = self.pool.verb("quota")["quotas"]
        return {one["environment"]: one["used_gpus"] for one in rows if one["used_gpus"]}

    def _lent(self) -> Counter[str]:
        lent: Counter[str] = Counter()
        for host in self.pool.verb("hosts")["hosts"]:
            lent.update({who: one["gpus"] for who, one in host["lent"].items()})
        return lent

    # -- the verdict -------------------------------------------------------------------------------

    def _judge(self) -> None:
        holds = [hold for name in self.nodes for hold in holds_of(name, self._records(name))]
        seen = {name: read_log(self.directory / f"{name}.log") for name in self.nodes}
        quotas = self.quotas | dict.fromkeys(self.users, 1)
        if len([hold for hold in holds if hold.who in self.users]) != len(self.users):
            self.report.wrong.append("a kernel did not hold one lease from its begin to its end")
        given_up = spans_of(map(json.loads, self.pool.watched.read_text().splitlines()))
        story = Story(self.plan.validity, quotas, holds, seen, self.aways, given_up, self.told)
        self.report.wrong += judge(story)
        self.report.leases = len(holds)
        last: dict[str, str] = {}
        for hold in sorted(holds, key=lambda one: one.start):
            self.report.moved += last.get(hold.who, hold.host) != hold.host
            last[hold.who] = hold.host
        for node in (self.pool, *self.nodes.values()):
            if "Traceback" in node.story():
                self.report.wrong.append(f"a traceback in {node.log}")

    def _records(self, name: str) -> list[Any]:
        ledger = Ledger.open(self.nodes[name].ledger, history=1e9, wall=time.time())
        try:
            return [*reversed(ledger.history(None, 10_000_000))]
        finally:
            ledger.close()
