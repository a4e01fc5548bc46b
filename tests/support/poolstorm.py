"""A storm over a pool: real hosts with networks of their own, and many people; from a seed.

Round after round some of the hosts are cut off or their node managers killed, and the pool is
killed; then all is healed, and within ``TRUE_WITHIN`` seconds the pool has to say what is so. In
the end everybody has to get all of their quota again. :mod:`.poolverdict` judges the rest from the
ledgers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from jupyter_gpushare.ledger.ledger import Ledger
from jupyter_gpushare.protocol.connection import ClientConnection
from jupyter_gpushare.protocol.errors import RemoteError
from jupyter_gpushare.protocol.messages import ErrorAnswer, Method, Notification
from jupyter_gpushare.protocol.poolcalls import PoolMethod

from .faults.observed import boot
from .hosts import Host, Hosts
from .node import RunningNode, token_file, tracebacks, until
from .poolverdict import Away, Story, holds_of, judge
from .runningpool import CONFIG, RunningPool, joined

TESTS = Path(__file__).resolve().parents[1]
PORT = 10205
TRUE_WITHIN = 5.0  # seconds; the promise
LOOK = 0.5  # seconds between two looks at a lease
#: Seconds in which all should end well: nobody is there any more to give anything back.
ENDS = 30.0
POOL = "the pool"


@dataclass(frozen=True)
class Fault:
    """``what`` happens to ``whom``, ``begin`` seconds into its round, for ``seconds``."""

    what: str
    whom: str
    begin: float
    seconds: float


@dataclass(frozen=True)
class Plan:
    """What comes of the seed, for how long, and with whom."""

    seed: int
    seconds: float
    names: tuple[str, ...] = ("a", "b", "c", "d", "e")
    gpus: int = 16
    people: int = 200
    think: float = 30.0
    hold: tuple[float, float] = (0.5, 6.0)
    validity: float = 4.0


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


class StormPool(RunningPool):
    """The pool, on the machine that all hosts reach."""

    def __init__(self, directory: Path, plan: Plan, quotas: Mapping[str, int], at: str) -> None:
        users = {who: {"gpus": gpus} for who, gpus in quotas.items()}
        told = {"default": {"gpus": 1}, "users": users}
        super().__init__(directory, told, f"--Pool.validity={plan.validity}")
        self._at = at

    def command(self) -> list[str]:
        return [one.replace("127.0.0.1", self._at) for one in super().command()]


class StormHost(RunningNode):
    """A host's node manager, which has joined the pool."""

    def __init__(self, directory: Path, plan: Plan, host: Host, people: Sequence[str]) -> None:
        directory.mkdir()
        listen = f"--NodeManagerApp.pool_listen=0.0.0.0:{PORT}"
        known = token_file(directory, *people, "root")
        gpus = f"{plan.gpus}x24GiB"
        super().__init__(directory, simulate=gpus, config=CONFIG, arguments=[listen, known])
        self.host = host

    def command(self) -> list[str]:
        return self.host.command(super().command(), TESTS.parent)

    def join(self, pool: StormPool) -> None:
        joined(pool, self.directory / "pool", self.host.name, PORT, address=self.host.address)


class Line:
    """One person's connection, which is made anew whenever it ended."""

    def __init__(self, path: Path, who: str) -> None:
        self._path, self._who = path, who
        self._protocol = ClientConnection()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, method: Method, **params: Any) -> dict[str, Any]:
        """Ask until there is an answer. Raises :class:`RemoteError`."""
        while True:
            try:
                if self._streams is None:
                    self._streams = await asyncio.open_unix_connection(self._path, limit=2**22)
                    self._protocol = ClientConnection()
                    said = {"protocol": 1, "client": {"name": "crowd", "version": "0"}}
                    await self._ask(Method.HELLO, **said, token=self._who)
                return await self._ask(method, **params)
            except (OSError, asyncio.IncompleteReadError):
                self.close()
                await asyncio.sleep(0.1)  # the node manager is away; nobody says when it comes back

    async def _ask(self, method: Method, **params: Any) -> dict[str, Any]:
        reader, writer = self._streams
        call_id, line = self._protocol.call(method, **params)
        writer.write(line)
        while True:
            for message in self._protocol.receive(await reader.readuntil(b"\n")):
                if isinstance(message, Notification) or message.id != call_id:
                    continue
                if isinstance(message, ErrorAnswer):
                    raise message.error
                return dict(message.result)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Crowd:
    """The people on all hosts, each a client of its node manager's socket, in a thread.

    Each asks for GPUs, works on them for a while, gives them back, and thinks. Whatever happens to
    the node manager meanwhile, they go on.
    """

    def __init__(self, plan: Plan, nodes: Mapping[str, StormHost], quotas: dict[str, int]) -> None:
        self._plan, self._nodes, self._quotas = plan, nodes, quotas
        self._requests = count()
        self.granted = 0
        self._stopped = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._lives = {
            f"{who} on {host}": self._begin(self._live(host, who))
            for host in nodes
            for who in quotas
        }

    def stop(self) -> list[str]:
        """End everybody's work; who still waits then."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        return self._late(self._lives)

    def serve(self, where: Mapping[str, str]) -> list[str]:
        """Have each get all GPUs of their quota once, on a host; who did not."""
        works = {
            f"{who} on {host}": self._begin(self._work(host, who, self._quotas[who], 0.0))
            for who, host in where.items()
        }
        return self._late(works)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @staticmethod
    def _late(works: Mapping[str, Future[None]]) -> list[str]:
        """Raises what a node manager refused, and for what it took."""
        done, _late = wait(works.values(), ENDS)
        for one in done:
            one.result()
        return [name for name, one in works.items() if one.cancel()]

    async def _live(self, host: str, who: str) -> None:
        rng = random.Random(f"{self._plan.seed} {host} {who}")
        while not await self._stops(rng.expovariate(1 / self._plan.think)):
            gpus = rng.randint(1, self._quotas[who])
            await self._work(host, who, gpus, rng.uniform(*self._plan.hold))

    async def _work(self, host: str, who: str, gpus: int, seconds: float) -> None:
        """Get GPUs, hold them, and give them back."""
        request, task = f"r{next(self._requests)}", {"name": who, "kind": "process"}
        with contextlib.closing(Line(self._nodes[host].socket, who)) as line:
            result = await line.call(Method.REQUEST, task=task, request_id=request, gpus=gpus)
            lease, end = str(result["lease"]), boot() + seconds
            self.granted += 1
            while (left := end - boot()) > 0 and not await self._stops(min(LOOK, left)):
                state = (await line.call(Method.HEARTBEAT, lease=lease))["state"]
                assert state == "held", f"{who}'s lease {lease} is {state}"
            with contextlib.suppress(RemoteError):  # it was taken; then the answer was lost
                await line.call(Method.RELEASE, lease=lease)

    async def _stops(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        return self._stopped.is_set()


class Storm:
    """One storm; :meth:`run` does it all. ``directory`` keeps what it left."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.directory, self.plan = directory, plan
        self.rng = random.Random(plan.seed)
        self.quotas = {f"p{number}": 1 + (number % 4 == 0) for number in range(plan.people)}
        self.report = Report(plan.seed)
        self.nodes: dict[str, StormHost] = {}
        self.aways: list[Away] = []

    def run(self) -> Report:
        with Hosts(self.plan.names, real=True) as hosts:
            self.pool = StormPool(self.directory / "pool", self.plan, self.quotas, hosts.address)
            try:
                with self.pool:
                    self._start(hosts)
                    with contextlib.closing(Crowd(self.plan, self.nodes, self.quotas)) as crowd:
                        until(lambda: crowd.granted > len(self.quotas), "hosts were lent much")
                        self._blow()
                        self._end(crowd)
            finally:
                for node in self.nodes.values():
                    node.close()
        self._judge()
        return self.report

    def _start(self, hosts: Hosts) -> None:
        for name, host in hosts.items():
            self.nodes[name] = StormHost(self.directory / name, self.plan, host, [*self.quotas])
            self.nodes[name].join(self.pool)
            self.nodes[name].launch()
        for node in self.nodes.values():
            self._serves(node)
        self.pool.sees(*self.nodes)

    @staticmethod
    def _serves(node: RunningNode) -> None:
        process = node.process
        line = process.stdout.readline()
        assert line.startswith("ready "), node.story()

    # -- the storm ---------------------------------------------------------------------------------

    def _blow(self) -> None:
        end = boot() + self.plan.seconds
        while boot() < end:
            aways = self._suffer(self._round())
            self._look(boot())
            self.aways += [replace(away, seen=boot()) for away in aways]
            self.report.rounds += 1
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

    def _suffer(self, faults: tuple[Fault, ...]) -> list[Away]:
        """Let them all begin and end at their times."""
        aways = []
        begun = boot()
        times = [(fault.begin, False, fault) for fault in faults]
        times += [(fault.begin + fault.seconds, True, fault) for fault in faults]
        since: dict[Fault, float] = {}
        started: list[RunningNode] = []
        for at, is_over, fault in sorted(times, key=lambda one: one[:2]):
            time.sleep(max(0.0, begun + at - boot()))
            node = self.pool if fault.whom == POOL else self.nodes[fault.whom]
            is_cut = fault.what == "cut"
            if not is_over:
                since[fault] = boot()
                self.report.faults[f"{'pool' if node is self.pool else 'host'} {fault.what}"] += 1
                self.nodes[fault.whom].host.cut() if is_cut else node.kill9()
                continue
            whom = "" if node is self.pool else fault.whom
            aways.append(Away(whom, since[fault], boot(), boot()))
            if is_cut:
                self.nodes[fault.whom].host.join()
            else:
                node.launch()
                started.append(node)
        for node in started:
            self._serves(node)
        return aways

    def _look(self, healed: float) -> None:
        """The pool knows all hosts, and what it says of each is newer than the storm."""
        rows: list[dict[str, Any]] = []

        def is_fresh() -> bool:
            rows[:] = [one for one in self.pool.ask(PoolMethod.HOSTS)["hosts"] if one["connected"]]
            fresh = [one for one in rows if one["report"]["at"] > healed]
            return len(fresh) == len(self.nodes)

        try:
            until(is_fresh, "the pool sees its hosts", TRUE_WITHIN * _crowding())
            self.report.true_after.append(round(boot() - healed, 2))
        except AssertionError:
            fresh = {one["host"] for one in rows if one["report"]["at"] > healed}
            stale = sorted({*self.nodes} - fresh)
            self.report.wrong.append(f"{TRUE_WITHIN:g} s after healing ({healed:.1f}): {stale}")

    def _end(self, crowd: Crowd) -> None:
        """All is well again: work ends, everybody gets their quota, and quotas are whole."""
        wrong = self.report.wrong
        if late := crowd.stop():
            wrong.append(f"{ENDS:g} s after all others stopped still wait: {late}")
        if late := crowd.serve({who: self.rng.choice(self.plan.names) for who in self.quotas}):
            wrong.append(f"within {ENDS:g} s nothing was granted to {late}")
        try:
            until(lambda: not self._used(), "quotas are whole", TRUE_WITHIN * _crowding())
        except AssertionError:
            wrong.append(f"nobody holds anything, and of quotas are used: {self._used()}")
        lent: Counter[str] = Counter()
        for host in self.pool.verb("hosts")["hosts"]:
            lent.update({who: one["gpus"] for who, one in host["lent"].items()})
        for who, gpus in lent.items():
            if gpus > self.quotas.get(who, 1):
                wrong.append(f"{who} is lent {gpus} GPUs of {self.quotas.get(who, 1)} in the end")

    def _used(self) -> dict[str, int]:
        rows = self.pool.verb("quota")["quotas"]
        return {one["environment"]: one["used_gpus"] for one in rows if one["used_gpus"]}

    # -- the verdict -------------------------------------------------------------------------------

    def _judge(self) -> None:
        holds = [hold for name in self.nodes for hold in holds_of(name, self._records(name))]
        story = Story(self.plan.validity, self.quotas, holds, self.aways)
        self.report.wrong += judge(story)
        self.report.leases = len(holds)
        last: dict[str, str] = {}
        for hold in sorted(holds, key=lambda one: one.start):
            self.report.moved += last.get(hold.who, hold.host) != hold.host
            last[hold.who] = hold.host
        for node in (self.pool, *self.nodes.values()):
            self.report.wrong += tracebacks(node.log)

    def _records(self, name: str) -> list[Any]:
        ledger = Ledger.open(self.nodes[name].ledger, history=1e9, wall=time.time())
        try:
            return [*reversed(ledger.history(None, 10_000_000))]
        finally:
            ledger.close()
