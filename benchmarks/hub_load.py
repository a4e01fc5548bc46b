"""A class begins: 200 people of a JupyterHub with two kernels each on one node manager.

``python benchmarks/hub_load.py --json FILE --markdown FILE`` (``make bench-hub``). The node manager
knows people by their Hub tokens; the Hub itself is a small server of ours with the real one's
answers, as it is not what is measured. Each task is a process of its own, so that identity and
death are what they are in life; most of these processes do nothing but hold a connection, which
one loop here speaks on, and 20 are real kernels in which ``import torch`` runs under the hook.
``--small`` does all of it with 10 people, to see that it works.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from load import HELLO, Client, percentile  # noqa: E402
from run import Figure, cpu_seconds, keep, kept  # noqa: E402
from support.tinyhub import OWN, TinyHub  # noqa: E402

GIB = 2**30
GROUPS = {
    "students": {"gpus": 1, "memory": "4GiB"},
    "research": {"gpus": 2, "memory": "4GiB"},
    "staff": {"gpus": 1, "memory": "4GiB", "weight": 2},
}
#: An hour of one kernel: cells run, seconds between signs of life, times the lease is taken anew.
CELLS_PER_HOUR = 60
HEARTBEAT = 5.0
LEASES_PER_HOUR = 2


@dataclass(frozen=True)
class Size:
    """How much of it."""

    people: int = 200
    kernels: int = 20
    arrive: float = 10.0  # seconds in which everybody comes
    hours: float = 1.0

    @property
    def tasks(self) -> int:
        return 2 * self.people


SMALL = Size(people=10, kernels=1, arrive=1.0, hours=0.05)


class Body:
    """A process that connects when it is told to and hands the connection over.

    To the node manager it is the one who asks: the kernel says so.
    """

    def __init__(self, path: str) -> None:
        mine, other = socket.socketpair()
        self._control = mine
        self.pid = os.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                mine.close()
                self._live(other, path)
            os._exit(0)
        other.close()

    @staticmethod
    def _live(control: socket.socket, path: str) -> None:
        while control.recv(1):
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(path)
                socket.send_fds(control, [b"k"], [connection.fileno()])
            except OSError:
                control.send(b"n")
            connection.close()

    def connect(self) -> socket.socket:
        """A connection of that process. Raises :class:`ConnectionError` if it got none."""
        self._control.send(b"c")
        said, handles, _flags, _from = socket.recv_fds(self._control, 1, 1)
        if said != b"k":
            raise ConnectionError("nobody listens")
        return socket.socket(fileno=handles[0])

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


@dataclass
class Task:
    """One kernel of somebody: its process, its connection, its lease."""

    number: int
    body: Body
    token: str
    client: Client | None = None
    grant: dict[str, Any] | None = None
    hello_took: float = 0.0

    async def come(self) -> None:
        """Connect and say hello; again, if that is cut, as clients do."""
        started = time.perf_counter()
        while True:
            try:
                loop = asyncio.get_running_loop()
                sock = self.body.connect()
                _, client = await loop.create_unix_connection(Client, sock=sock)
                await client.call("hello", {**HELLO, "token": self.token})
            except OSError:
                await asyncio.sleep(0.05)
            else:
                break
        self.client = client
        self.hello_took = time.perf_counter() - started

    def call(self, method: str, **params: Any) -> asyncio.Future[Any]:
        assert self.client is not None
        return self.client.call(method, params)

    async def ask(self) -> float:
        """Seconds from the request to the grant."""
        task = {"name": f"notebook-{self.number}.ipynb", "kind": "kernel"}
        started = time.perf_counter()
        self.grant = await self.call("request", task=task, request_id=f"r{self.number}-{started}")
        return time.perf_counter() - started

    async def beat(self) -> None:
        """Give signs of life for ever, as a client's own thread does."""
        while True:
            await asyncio.sleep(HEARTBEAT * random.uniform(0.8, 1.2))
            if self.grant is not None and self.client is not None:
                with contextlib.suppress(Exception):
                    await self.call("heartbeat", lease=self.grant["lease"])

    @property
    def lease(self) -> str:
        assert self.grant is not None
        return str(self.grant["lease"])


@dataclass
class Node:
    """The node manager as a process, which may be killed and started again."""

    folder: str
    hub: TinyHub
    options: tuple[str, ...] = ()
    process: subprocess.Popen[str] | None = None

    @property
    def socket(self) -> str:
        return f"{self.folder}/node.sock"

    def start(self) -> None:
        own = Path(self.folder, "own-token")
        own.write_text(OWN)
        own.chmod(0o600)
        with open(f"{self.folder}/log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "jupyter_gpushare.node", "--simulate", "16x80GiB"),
                    *("--socket", self.socket, "--ledger", f"{self.folder}/ledger.sqlite"),
                    *("--hub", "--shared", f"--Hub.api_url={self.hub.url}"),
                    *(f"--Hub.api_token_file={own}", "--Connections.calls_per_second=10000"),
                    *("--Connections.burst=10000", "--Connections.recorded_per_second=1e9"),
                    *self.options,
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        if not self.process.stdout.readline().startswith("ready"):
            raise RuntimeError(Path(self.folder, "log").read_text())

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def rss(self) -> int:
        """Bytes in memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * int(status.split("VmRSS:")[1].split()[0])

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def ledger(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in Path(self.folder).glob("ledger.sqlite*"))


class Broken(Exception):
    """Something is wrong that no figure may hide."""


def places(grant: dict[str, Any]) -> list[tuple[str, int]]:
    """What was granted where; with what else of one's own a GPU is shared changes."""
    return [(gpu["uuid"], gpu["memory"]) for gpu in grant["gpus"]]


def check(is_so: bool, what: str) -> None:
    if not is_so:
        raise Broken(what)


@dataclass
class Run:
    """One measurement: who takes part, and what was found."""

    size: Size
    hub: TinyHub
    tasks: list[Task]
    folder: str
    figures: list[Figure] = field(default_factory=list)

    def found(self, name: str, value: float, unit: str, aim: str = "") -> None:
        self.figures.append(Figure(name, value, unit, aim))

    @asynccontextmanager
    async def node(self, *options: str) -> AsyncIterator[Node]:
        """A node manager; everybody's connections end with it."""
        running = Node(self.folder, self.hub, options)
        self.hub.asked.clear()
        await asyncio.to_thread(running.start)
        try:
            yield running
        finally:
            for task in self.tasks:
                if task.client is not None:
                    task.client.close()
                task.client = task.grant = None
            running.kill()
            for path in Path(self.folder).glob("ledger*"):
                path.unlink()

    async def all(self, work: Callable[[Task], Awaitable[Any]]) -> list[Any]:
        return await asyncio.gather(*(work(task) for task in self.tasks))

    async def over_time(self, work: Callable[[Task], Awaitable[Any]]) -> list[Any]:
        """Everybody does it, each at a moment of their own while all arrive."""
        dice = random.Random(1)
        moments = {task.number: dice.uniform(0, self.size.arrive) for task in self.tasks}

        async def later(task: Task) -> Any:
            await asyncio.sleep(moments[task.number])
            return await work(task)

        return await self.all(later)

    async def admin(self, node: Node, method: str, **params: Any) -> dict[str, Any]:
        client = await Client.connect(node.socket, token="token-admin")
        try:
            return dict(await client.call(method, params))
        finally:
            client.close()

    async def held(self, node: Node) -> dict[str, str]:
        """Who holds which lease, as an administrator sees it; nothing is promised twice."""
        status = await self.admin(node, "status")
        for gpu in status["gpus"]:
            check(gpu["reserved"] <= gpu["memory"], f"GPU {gpu['index']} is promised twice")
        return {lease["id"]: lease["environment"] for lease in status["leases"]}


async def measure_storm(run: Run) -> None:
    """Everybody comes within seconds, and there is room for all."""
    async with run.node("--Policy.max_tasks_per_gpu=64") as node:
        cpu, began = cpu_seconds(node.pid), time.perf_counter()
        took: list[float] = []

        async def begin(task: Task) -> None:
            await task.come()
            took.append(await task.ask())

        await run.over_time(begin)
        lasted = time.perf_counter() - began
        cpu = cpu_seconds(node.pid) - cpu
        leases = await run.held(node)
        check(len(leases) == run.size.tasks, f"{len(leases)} leases of {run.size.tasks}")
        asked = run.hub.asked
        names = [name for name in asked if name.startswith("users/")]
        check(asked["user"] <= run.size.people + 1, "tokens were asked about more than once")
        hellos = [task.hello_took for task in run.tasks]
        what = f"{run.size.tasks} tasks of {run.size.people} people in {run.size.arrive:g} s"
        run.found(f"{what}: hello with a token nobody has seen, median", _ms(hellos, 0.5), "ms")
        run.found("the same, p99", _ms(hellos, 0.99), "ms")
        run.found("request to grant, median", _ms(took, 0.5), "ms")
        run.found("request to grant, p99", _ms(took, 0.99), "ms", "≤ 20 ms")
        run.found("node manager's processor while they come", 100 * cpu / lasted, "% of a core")
        questions = (asked["user"] + sum(asked[name] for name in names)) / (run.size.people + 1)
        run.found("questions to the Hub for each person", questions, "", "2")
        calm = []
        for task in run.tasks[:50]:
            await task.call("release", lease=task.lease)
            await asyncio.sleep(0.02)
            calm.append(await task.ask())
        run.found(
            "p99 in the storm / median of one who asks alone",
            percentile(took, 0.99) / percentile(calm, 0.5),
            "times",
        )


async def measure_at_once(run: Run) -> None:
    """Worse than life: all requests in the same instant."""
    async with run.node("--Policy.max_tasks_per_gpu=64"):
        await run.all(Task.come)
        took = await run.all(Task.ask)
        run.found(
            f"all {run.size.tasks} in one instant: request to grant, p99", _ms(took, 0.99), "ms"
        )
        run.found("the same, for each of them", _ms(took, 1.0) / run.size.tasks, "ms")


async def measure_queue(run: Run) -> None:
    """More than there is room for: four tasks on a GPU."""
    async with run.node("--Policy.max_tasks_per_gpu=4") as node:
        await run.all(Task.come)
        granted: list[Task] = []

        async def serve(task: Task) -> None:
            await task.ask()
            granted.append(task)

        began = time.perf_counter()
        asking = [asyncio.ensure_future(serve(task)) for task in run.tasks]
        room = len(granted)
        while not all(one.done() for one in asking):
            await asyncio.sleep(0.005)
            holding = [task for task in granted if task.grant is not None]
            room = max(room, len(holding))
            # Whoever got one works for a moment and gives it back.
            for task in holding:
                lease, task.grant = task.lease, None
                task.call("release", lease=lease)
        lasted = time.perf_counter() - began
        order = [task.number for task in granted]
        check(sorted(order) == sorted(task.number for task in run.tasks), "somebody was lost")
        served = Counter(task.token for task in granted)
        check(set(served.values()) == {2}, "somebody was served more than once for a request")
        run.found(
            f"{run.size.tasks} requests, at most {room} held at once: served",
            len(order),
            "",
            f"{run.size.tasks}",
        )
        run.found("served from the queue", len(order) / lasted, "a second")
        deadline = time.monotonic() + 20
        while await run.held(node):
            check(time.monotonic() < deadline, "leases are left")
            await asyncio.sleep(0.05)


async def measure_restart(run: Run) -> None:
    """``kill -9`` in the middle of the load."""
    async with run.node("--Policy.max_tasks_per_gpu=64") as node:
        await run.all(Task.come)
        await run.all(Task.ask)
        before = await run.held(node)
        held = {task.lease: task.grant for task in run.tasks}
        check(before.keys() == held.keys(), "status and clients disagree")
        node.kill()
        run.hub.asked.clear()
        began = time.perf_counter()
        # Not on this loop, which is the Hub's too.
        await asyncio.to_thread(node.start)
        up = time.perf_counter() - began

        async def back(task: Task) -> None:
            assert task.grant is not None
            await task.come()
            grant = await task.call("attach", lease=task.lease, secret=task.grant["secret"])
            check(places(grant) == places(task.grant), "a lease has other GPUs than before")

        await run.all(back)
        lasted = time.perf_counter() - began
        check(await run.held(node) == before, "a lease was lost or changed hands")
        run.found(f"kill -9 with {run.size.tasks} leases: lost", 0, "", "0")
        run.found("started again and serving", up, "s")
        run.found(f"all {run.size.tasks} back, every token asked about anew", lasted, "s")


async def measure_churn(run: Run) -> None:
    """Hours of everybody's work, as fast as it goes."""
    size = run.size
    cells = max(2, int(CELLS_PER_HOUR * size.hours))
    beats_per_cell = max(1, round(3600 / HEARTBEAT / CELLS_PER_HOUR))
    again = max(1, cells // LEASES_PER_HOUR)
    async with run.node("--Policy.max_tasks_per_gpu=64") as node:
        await run.all(Task.come)
        await run.all(Task.ask)

        async def cell(task: Task, number: int) -> None:
            await task.call("activity", lease=task.lease, state="busy")
            for _ in range(beats_per_cell):
                await task.call("heartbeat", lease=task.lease)
            await task.call("activity", lease=task.lease, state="idle")
            if number % again == again - 1:
                await task.call("release", lease=task.lease)
                await task.ask()

        async def half(first: int) -> None:
            async def work(task: Task) -> None:
                for number in range(first, first + cells // 2):
                    await cell(task, number)

            await run.all(work)

        await half(0)  # warm: caches and the allocator have their size
        start = (node.rss(), node.descriptors(), node.ledger())
        began, cpu = time.perf_counter(), cpu_seconds(node.pid)
        await half(0)
        middle = node.rss()
        await half(cells // 2)
        end = (node.rss(), node.descriptors(), node.ledger())
        lasted = time.perf_counter() - began
        cpu = cpu_seconds(node.pid) - cpu
        calls = size.tasks * cells * (2 + beats_per_cell) + 2 * size.tasks * LEASES_PER_HOUR
        check(len(await run.held(node)) == size.tasks, "leases were lost in the churn")
        run.found(
            f"an hour of {size.tasks} kernels ({calls} calls) times {size.hours:g}, done in",
            lasted,
            "s",
        )
        run.found(
            "processor for it", 100 * cpu / (3600 * size.hours), "% of a core, spread over it"
        )
        run.found("memory after half / before", middle / start[0], "times")
        run.found("memory after all / before", end[0] / start[0], "times", "≤ 1.1")
        run.found("memory", end[0] / 2**20, "MiB")
        run.found("descriptors after / before", end[1] / start[1], "times", "1")
        run.found("ledger's growth for it", (end[2] - start[2]) / 2**20, "MiB")


async def measure_kernels(run: Run) -> None:
    """Real kernels come among the others."""
    from jupyter_client.manager import AsyncKernelManager

    count = run.size.kernels
    async with run.node("--Policy.max_tasks_per_gpu=64") as node:
        managers = []
        for number in range(count):
            manager = AsyncKernelManager(kernel_name="python3")
            environment = {
                **os.environ,
                "JUPYTER_GPUSHARE_SOCKET": node.socket,
                "JUPYTER_GPUSHARE_IDENTITY": "hub",
                "JUPYTERHUB_API_TOKEN": run.tasks[number].token,
            }
            await manager.start_kernel(env=environment)
            managers.append(manager)
        clients = []
        for manager in managers:
            client = manager.client()
            client.start_channels()
            await client.wait_for_ready(timeout=120)
            clients.append(client)
        others = [task for task in run.tasks if task.number >= count]

        async def light() -> list[float]:
            await asyncio.gather(*(task.come() for task in others))
            return list(await asyncio.gather(*(task.ask() for task in others)))

        async def real(client: Any) -> float:
            started = time.perf_counter()
            answer = await client.execute_interactive(
                "import torch, os; assert os.environ['CUDA_VISIBLE_DEVICES'].startswith('GPU-')",
                timeout=300,
                output_hook=lambda message: None,
            )
            check(answer["content"]["status"] == "ok", str(answer["content"]))
            return time.perf_counter() - started

        took, reals = await asyncio.gather(light(), asyncio.gather(*map(real, clients)))
        leases = await run.held(node)
        check(len(leases) == len(others) + count, f"{len(leases)} leases")
        run.found(
            f"with {count} real kernels importing torch on the same cores: p99 of the others",
            _ms(took, 0.99),
            "ms",
        )
        run.found("import torch in one of them, median", percentile(list(reals), 0.5), "s")
        for client, manager in zip(clients, managers, strict=True):
            client.stop_channels()
            await manager.shutdown_kernel(now=True)
        gone = time.monotonic() + 20
        while len(await run.held(node)) > len(others):
            check(time.monotonic() < gone, "a real kernel's lease outlived it")
            await asyncio.sleep(0.05)


def _ms(seconds: list[float], share: float) -> float:
    return 1000 * percentile(seconds, min(share, 0.999999))


def a_hub(size: Size) -> TinyHub:
    """Everybody in one of three groups, each with a token."""
    groups = list(GROUPS)
    names = [f"user-{number}" for number in range(size.people)]
    return TinyHub(
        tokens={**{f"token-{name}": name for name in names}, "token-admin": "admin"},
        users={
            **{name: [groups[number % 3]] for number, name in enumerate(names)},
            "admin": [],
        },
        admins={"admin"},
        properties={name: {"gpushare": quota} for name, quota in GROUPS.items()},
    )


PARTS = (
    measure_storm,
    measure_at_once,
    measure_queue,
    measure_restart,
    measure_churn,
    measure_kernels,
)


async def measure(size: Size, hub: TinyHub, bodies: list[Body], folder: str) -> list[Figure]:
    """All of it. Raises :class:`Broken`."""
    tasks = [
        Task(number, body, f"token-user-{number % size.people}")
        for number, body in enumerate(bodies)
    ]
    run = Run(size, hub, tasks, folder)
    async with hub.served():
        beats = [asyncio.ensure_future(task.beat()) for task in tasks]
        for part in PARTS:
            print(f"{part.__name__} …", file=sys.stderr, flush=True)
            await part(run)
        for beat in beats:
            beat.cancel()
    return run.figures


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="10 people")
    kept(parser)
    arguments = parser.parse_args()
    size = SMALL if arguments.small else Size()
    with tempfile.TemporaryDirectory(prefix="gl-") as folder:
        # Before there are threads: they do not survive a fork.
        bodies = [Body(f"{folder}/node.sock") for _ in range(size.tasks)]
        try:
            figures = asyncio.run(measure(size, a_hub(size), bodies, folder))
        finally:
            for body in bodies:
                body.end()
    keep(figures, arguments, "hub_page.md")


if __name__ == "__main__":
    main()
