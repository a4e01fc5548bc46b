"""``python benchmarks/run.py``: what sharing costs, as one table and one JSON file.

Everything is measured beside its floor in the same run on the same machine, so
that the ratios say something elsewhere too. ``--quick`` does less of it;
``--json FILE`` keeps the figures; ``--markdown FILE`` writes the docs' page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import turn_costs
from load import Client, ask, percentile
from machine import machine, said

#: Seconds between two signs of life of a lease, as clients give them.
HEARTBEAT = 5.0
TOGETHER = 100  # leases that are asked for at once, where only having them counts
HERE = Path(__file__).resolve().parent
PYTHON = sys.executable


@dataclass(frozen=True)
class Figure:
    """One measured figure. ``aim`` is what we want, in words."""

    name: str
    value: float
    unit: str
    aim: str = ""


class Broken(Exception):
    """What was measured is not what was meant: there is no figure."""


def check(is_so: bool, what: str) -> None:
    if not is_so:
        raise Broken(what)


@contextmanager
def serving(command: list[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A server that says ``ready`` on its standard output."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("ready"):
            raise RuntimeError(f"{command} did not start")
        yield process
    finally:
        process.terminate()
        process.wait(20)


def node(folder: str, spec: str = "8x80GiB", *extra: str) -> list[str]:
    """The command of a node manager."""
    return [
        *(PYTHON, "-m", "jupyter_gpushare.node", "--simulate", spec),
        *("--socket", f"{folder}/node.sock", "--ledger", f"{folder}/ledger.sqlite"),
        "--Connections.calls_per_second=100000",
        "--Connections.burst=100000",
        # All are one environment here, and no figure may be what bounds one person.
        "--Connections.most_per_user=20000",
        "--Connections.recorded_per_second=1e9",
        "--Connections.recorded_at_once=2GiB",
        "--Policy.max_leases_per_process=100000",
        "--Policy.max_leases_per_environment=100000",
        *extra,
    ]


def token_file(folder: str, *names: str, admin: str = "administrator") -> list[str]:
    """Options by which each of ``names``, as a token, is a person; and one an administrator."""
    path = Path(folder) / "tokens.json"
    path.touch(0o600)
    entries: list[dict[str, Any]] = [{"token": name, "environment": name} for name in names]
    entries += [{"token": admin, "environment": admin, "admin": True}]
    path.write_text(json.dumps({"tokens": entries}))
    return ["--token-file", str(path)]


def cpu_seconds(pid: int) -> float:
    """Processor time a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def latency(path: str, clients: int, rounds: int, method: str) -> list[float]:
    """Seconds of ``rounds`` calls, one at a time, from a random one of ``clients`` connections."""
    is_node = method == "request"
    connections = [await Client.connect(path, hello=is_node) for _ in range(clients)]
    took = []
    for number in range(rounds):
        client = connections[(number * 7919) % clients]
        started = time.perf_counter()
        result = await client.call(method, ask(number))
        took.append(time.perf_counter() - started)
        if is_node:
            await client.call("release", {"lease": result["lease"]})
            await drained(client)
    for client in connections:
        client.close()
    return took


async def drained(client: Client) -> None:
    """Wait until what was released is measured and written, so that it delays nobody's request."""
    while (await client.call("status", {}))["leases"]:
        await asyncio.sleep(0.001)


def measure_latency(figures: list[Figure], quick: bool) -> None:
    """Request to grant, beside an echo with the same durable write."""
    rounds = 200 if quick else 1000
    for clients in (1, 100) if quick else (1, 100, 1000):
        with tempfile.TemporaryDirectory() as folder:
            command = [PYTHON, str(HERE / "load.py"), "echo", f"{folder}/e", f"{folder}/e.sqlite"]
            with serving(command), serving(node(folder)):
                floor: list[float] = []
                ours: list[float] = []
                # In turns, so that a slow moment of the disk meets both.
                for _ in range(5):
                    each = rounds // 5
                    floor += asyncio.run(latency(f"{folder}/e", clients, each, "echo"))
                    ours += asyncio.run(latency(f"{folder}/node.sock", clients, each, "request"))
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            low, high = percentile(floor, share), percentile(ours, share)
            label = f"request to grant, {clients} clients, {name}"
            figures.append(Figure(label, high * 1e3, "ms", "p99 <= 5 ms at 1,000 clients"))
            figures.append(Figure(f"{label}, echo floor", low * 1e3, "ms"))
            figures.append(
                Figure(f"{label}, ratio", high / low, "x", "p99 <= 1.5 x the floor at 1 client")
            )


_LEASES = """
import sys, time
from jupyter_gpushare.client import lease, status
for name in ("requests.broker", "session.session", "adapters.parkers.base"):
    __import__(f"jupyter_gpushare.client.{name}")
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    with lease(gpus=1):
        print(time.perf_counter() - began)
    # The next one is measured on free GPUs: nothing tells a process that its memory was measured.
    while status()["leases"]:
        time.sleep(0.001)
"""

_ECHOES = """
import json, socket, sys, time
wire = socket.socket(socket.AF_UNIX)
wire.connect(sys.argv[2])
answers = wire.makefile("rb")
for number in range(int(sys.argv[1])):
    began = time.perf_counter()
    call = {"jsonrpc": "2.0", "id": number, "method": "echo", "params": {"gpus": 1}}
    wire.sendall(json.dumps(call).encode() + b"\\n")
    json.loads(answers.readline())
    print(time.perf_counter() - began)
    time.sleep(0.005)  # as far apart as the leases that are measured: back to back, caches are warm
"""


def measure_lease(figures: list[Figure], quick: bool) -> None:
    """``lease(gpus=1)`` in a process: the first one, and those after it."""
    first: list[float] = []
    later: list[float] = []
    floor: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        command = [PYTHON, str(HERE / "load.py"), "echo", f"{folder}/e", f"{folder}/e.sqlite"]
        with serving(command), serving(node(folder)):
            environment = {**os.environ, "JUPYTER_GPUSHARE_SOCKET": f"{folder}/node.sock"}
            environment["JUPYTER_GPUSHARE_FALLBACK"] = "error"
            for _ in range(5 if quick else 20):
                for code, into in ((_ECHOES, floor), (_LEASES, later)):
                    said = subprocess.run(
                        [PYTHON, "-c", code, "25", f"{folder}/e"],
                        check=True,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        env=environment,
                    ).stdout.split()
                    into += map(float, said[1:])
                first.append(float(said[0]))
    label = "lease(gpus=1) from Python"
    low = percentile(floor, 0.5)
    figures.append(Figure(f"{label}, p50, echo floor", low * 1e3, "ms"))
    for name, took in ((f"{label}, first", first), (label, later)):
        value = percentile(took, 0.5)
        figures.append(Figure(f"{name}, p50", value * 1e3, "ms", "<= 1.0 ms"))
        figures.append(Figure(f"{name}, p50, ratio", value / low, "x"))


async def churn(path: str, tokens: list[str], seconds: float) -> float:
    """Grants and releases a second with a client for each of ``tokens`` at it at once."""
    connections = [await Client.connect(path, token=token) for token in tokens]
    stop = time.perf_counter() + seconds
    done = 0

    async def work(client: Client, number: int) -> None:
        nonlocal done
        while time.perf_counter() < stop:
            result = await client.call("request", ask(number))
            await client.call("release", {"lease": result["lease"]})
            done += 2

    started = time.perf_counter()
    await asyncio.gather(*(work(client, n) for n, client in enumerate(connections)))
    return done / (time.perf_counter() - started)


def measure_churn(figures: list[Figure], quick: bool) -> None:
    """How much comes through."""
    with tempfile.TemporaryDirectory() as folder:
        people = [f"t{number}" for number in range(64)]
        tokens = token_file(folder, *people)
        with serving(node(folder, "8x80GiB", *tokens, "--Policy.max_tasks_per_gpu=100")):
            for label, who in (("one person's 64 clients", ["t0"] * 64), ("64 people", people)):
                rate = asyncio.run(churn(f"{folder}/node.sock", who, 2.0 if quick else 10.0))
                figures.append(Figure(f"grants + releases, {label}", rate, "1/s"))


async def beat(path: str, leases: int, seconds: float, pid: int) -> float:
    """Share of one core the node manager uses while ``leases`` give signs of life each 5 s."""
    held: list[tuple[Client, str]] = []
    answered = 0
    failed: list[BaseException] = []

    def told(call: asyncio.Future[Any]) -> None:
        nonlocal answered
        error = call.exception()  # of a lease that has ended it is one
        if error is None:
            answered += 1
        else:
            failed.append(error)

    async def live() -> None:
        """One sign of life after the other, of each lease every 5 s; for ever."""
        began, due, turn = time.perf_counter(), 0.0, 0
        while True:
            now = time.perf_counter()
            due, began = due + (now - began) * len(held) / HEARTBEAT, now
            while due >= 1.0:
                turn = turn + 1 if turn + 1 < len(held) else 0
                client, lease = held[turn]
                client.call("heartbeat", {"lease": lease}).add_done_callback(told)
                due -= 1.0
            await asyncio.sleep(0.005)

    def all_live() -> None:
        check(not failed, f"{len(failed)} signs of life failed: {failed[:1]}")

    async def come(number: int) -> None:
        client = await Client.connect(path)
        held.append((client, (await client.call("request", ask(number)))["lease"]))

    living = asyncio.get_running_loop().create_task(live())
    # Who lives already goes on living while the others come.
    for first in range(0, leases, TOGETHER):
        await asyncio.gather(*map(come, range(first, min(first + TOGETHER, leases))))
        all_live()
    before, used, started = answered, cpu_seconds(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    used, lasted = cpu_seconds(pid) - used, time.perf_counter() - started
    came, meant = answered - before, leases * lasted / HEARTBEAT
    all_live()
    check(came > 0.95 * meant, f"{came} signs of life were answered, of {meant:.0f}")
    check(not living.done(), f"signs of life ended: {living}")
    living.cancel()
    last = [client.call("heartbeat", {"lease": lease}) for client, lease in held]
    said = await asyncio.gather(*last, return_exceptions=True)
    dead = [one for one in said if isinstance(one, BaseException)]
    check(not dead, f"{len(dead)} leases of {leases} have ended: {dead[:1]}")
    for client, _lease in held:
        client.close()
    return used / lasted


def measure_heartbeats(figures: list[Figure], quick: bool) -> None:
    """What living costs."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for leases in (1000,) if quick else (1000, 10_000):
        if leases + 100 > hard:
            print(f"{leases} leases need more open files than allowed: left out", file=sys.stderr)
            continue
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        with tempfile.TemporaryDirectory() as folder, serving(node(folder)) as process:
            share = asyncio.run(
                beat(f"{folder}/node.sock", leases, 5.0 if quick else 20.0, process.pid)
            )
        label = f"CPU with {leases} live leases"
        figures.append(Figure(label, share * 100, "% of a core", "10,000 leases under 25 %"))


async def among_watchers(
    path: str, leases: int, watchers: int, seconds: float, pid: int
) -> tuple[float, list[float]]:
    """Share of one core of the node manager, and seconds from request to grant once a second."""
    for number in range(leases):
        if number % 10 == 0:
            holder = await Client.connect(path, token=f"t{number // 10}")
        task = {"name": f"notebook-{number}.ipynb", "kind": "kernel", "kernel_id": str(number)}
        wish = {"task": task, "gpus": 1, "memory": 2**26, "request_id": str(number)}
        await holder.call("request", wish)
    command = [PYTHON, str(HERE / "load.py"), "watch", path]
    looks = await asyncio.create_subprocess_exec(
        *command,
        *(f"t{number}" for number in range(watchers)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert looks.stdout is not None
    check(await looks.stdout.readline() == b"ready\n", "not all watch")
    client = await Client.connect(path, token="toggler")
    used, began, took = cpu_seconds(pid), time.perf_counter(), []
    while time.perf_counter() - began < seconds:
        started = time.perf_counter()
        result = await client.call("request", {**ask(0), "memory": 2**26})
        took.append(time.perf_counter() - started)
        await asyncio.sleep(0.5)
        await client.call("release", {"lease": result["lease"]})
        await asyncio.sleep(0.5)
    share = (cpu_seconds(pid) - used) / (time.perf_counter() - began)
    news, _ = await looks.communicate(b"")
    check(int(news) > 0, "somebody who watches was told nothing")
    admin = await Client.connect(path, token="admin")
    seen = await admin.call("status", {})
    alive = len(seen["leases"]) + seen["more"]["leases"]
    check(alive >= leases, f"only {alive} leases of {leases} live")
    return share, took


def measure_watchers(figures: list[Figure], quick: bool) -> None:
    """What one pays for many who watch: each Jupyter server does."""
    leases, watchers = (200, 40) if quick else (1000, 200)
    with tempfile.TemporaryDirectory() as folder:
        names = (f"t{number}" for number in range(max(watchers, leases // 10)))
        command = node(
            *(folder, "8x80GiB", *token_file(folder, *names, "toggler", admin="admin")),
            *("--Policy.max_tasks_per_gpu=1000", "--Policy.heartbeat_timeout=3600"),
        )
        with serving(command) as process:
            share, took = asyncio.run(
                among_watchers(
                    f"{folder}/node.sock", leases, watchers, 10 if quick else 60, process.pid
                )
            )
    label = f"{leases} leases, {watchers} who watch"
    figures.append(Figure(f"{label}, CPU", share * 100, "% of a core", "< 30 %"))
    for part, name in ((0.5, "p50"), (0.99, "p99")):
        value = percentile(took, part) * 1e3
        figures.append(Figure(f"{label}, request to grant, {name}", value, "ms", "p99 < 10 ms"))


_HOLDER = """
import sys, time
from jupyter_gpushare.client.session.session import Session
session = Session(sys.argv[1], lambda: sys.argv[2], 10)
session.open()
task = {"name": "holder", "kind": "process"}
session.request({"request_id": "r", "task": task}, lambda n: None, lambda: None, 0)
print("held", flush=True)
time.sleep(3600)
"""


async def reclaim(path: str, rounds: int) -> list[float]:
    """Seconds from ``kill -9`` of a holder to the grant of the one who waits."""
    took = []
    client = await Client.connect(path, token="waiters-token")
    for number in range(rounds):
        holder = await asyncio.create_subprocess_exec(
            PYTHON, "-c", _HOLDER, path, "holders-token", stdout=asyncio.subprocess.PIPE
        )
        assert holder.stdout is not None
        check(await holder.stdout.readline() == b"held\n", "the holder holds nothing")
        waiting = client.call("request", ask(number))
        await client.call("status", {})
        check(not waiting.done(), "nobody waits: the holder's GPU was free")
        started = time.perf_counter()
        holder.send_signal(signal.SIGKILL)
        result = await waiting
        took.append(time.perf_counter() - started)
        await holder.wait()
        await client.call("release", {"lease": result["lease"]})
        while (await client.call("status", {}))["gpus"][0]["tasks"]:
            await asyncio.sleep(0.001)
    return took


def measure_reclaim(figures: list[Figure], quick: bool) -> None:
    """How soon a dead task's GPU is somebody else's."""
    with tempfile.TemporaryDirectory() as folder:
        command = node(folder, "1x80GiB", "--Policy.max_tasks_per_gpu=1")
        # Both are one OS user, so the second would share the first's reservation.
        tokens = token_file(folder, "holders-token", "waiters-token")
        with serving([*command, *tokens]):
            rounds = 20 if quick else 100
            took = asyncio.run(reclaim(f"{folder}/node.sock", rounds))
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        value = percentile(took, share) * 1e3
        figures.append(Figure(f"kill -9 to the next grant, {name}", value, "ms", "p99 <= 100 ms"))


def median_seconds(command: list[str], rounds: int, **environment: str) -> float:
    """The median time of a command, in seconds."""
    took = []
    for _ in range(rounds):
        started = time.perf_counter()
        subprocess.run(
            command, check=True, stderr=subprocess.DEVNULL, env={**os.environ, **environment}
        )
        took.append(time.perf_counter() - started)
    return statistics.median(took)


def compare(
    figures: list[Figure], name: str, command: list[str], rounds: int, socket: str, aim: str
) -> None:
    """A command with us and without, in turns."""
    # What gets no GPU ends with an error, and gives no figure.
    on = {"JUPYTER_GPUSHARE_SOCKET": socket, "JUPYTER_GPUSHARE_FALLBACK": "error"}
    pairs = []
    for _ in range(rounds):
        off = median_seconds(command, 1, JUPYTER_GPUSHARE="off")
        pairs.append((off, median_seconds(command, 1, **on)))
    without = statistics.median(off for off, _on in pairs)
    extra = statistics.median(on - off for off, on in pairs)
    figures.append(Figure(f"{name}, without us", without * 1e3, "ms"))
    figures.append(Figure(f"{name}, what we add", extra * 1e3, "ms", aim))


_KERNEL = """
import os, time
from jupyter_client.manager import KernelManager
manager = KernelManager(kernel_name="python3")
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=60)
client.execute_interactive("1", timeout=60, output_hook=lambda message: None)
client.stop_channels()
manager.shutdown_kernel(now=True)
"""


def measure_start(figures: list[Figure], quick: bool) -> None:
    """What a Python start, a kernel start and ``import torch`` cost with us."""
    rounds = 5 if quick else 20
    with tempfile.TemporaryDirectory() as folder, serving(node(folder)):
        path = f"{folder}/node.sock"
        start = [PYTHON, "-c", "pass"]
        compare(figures, "Python start", start, rounds * 5, path, "< 10 ms")
        compare(figures, "kernel ready", [PYTHON, "-c", _KERNEL], rounds, path, "< 10 ms")
        script = Path(folder) / "imports.py"  # a wish for a GPU, which `-c` is not
        script.write_text("import torch")
        torch = [PYTHON, str(script)]
        try:
            compare(figures, "import torch", torch, rounds, path, "")
        except subprocess.CalledProcessError:
            print("torch is not installed: left out", file=sys.stderr)


_CELLS = """
import os, sys, time
from jupyter_client.manager import KernelManager
manager = KernelManager(kernel_name="python3")
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=60)
quiet = lambda message: None
first = "import jax"
if os.environ["JUPYTER_GPUSHARE"] == "on":
    first += "; import os; assert os.environ['CUDA_VISIBLE_DEVICES'].startswith('GPU-')"
done = client.execute_interactive(first, timeout=60, output_hook=quiet)
if done["content"]["status"] != "ok":
    manager.shutdown_kernel(now=True)
    sys.exit(f"no lease: {done['content']}")
took = []
for _ in range(int(sys.argv[1])):
    started = time.perf_counter()
    client.execute_interactive("sum(range(1000))", timeout=60, output_hook=quiet)
    took.append(time.perf_counter() - started)
print(sorted(took)[len(took) // 2])
client.stop_channels()
manager.shutdown_kernel(now=True)
"""


def measure_cells(figures: list[Figure], quick: bool) -> None:
    """What a cell costs while its kernel holds a lease, beside one without us."""
    cells, rounds = (100, 2) if quick else (300, 5)
    took: dict[str, list[float]] = {"off": [], "on": []}
    with tempfile.TemporaryDirectory() as folder, serving(node(folder)):
        for _ in range(rounds):
            for switch, medians in took.items():
                environment = {
                    **os.environ,
                    "JUPYTER_GPUSHARE": switch,
                    "JUPYTER_GPUSHARE_SOCKET": f"{folder}/node.sock",
                }
                done = subprocess.run(
                    [PYTHON, "-c", _CELLS, str(cells)],
                    check=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                )
                medians.append(float(done.stdout))
    without, ours = (statistics.median(took[switch]) for switch in ("off", "on"))
    figures.append(Figure("a short cell, without us", without * 1e3, "ms"))
    figures.append(Figure("a short cell, ratio", ours / without, "x", "no measurable slow-down"))


def measure_turns(figures: list[Figure], quick: bool) -> None:
    """What turns cost: a lone loop, each hand-over, and a class of 200 on 8 GPUs."""
    by_turns = "--Policy.share_mode=time"
    with tempfile.TemporaryDirectory() as folder, serving(node(folder, "1x24GiB", by_turns)):
        try:
            lone = turn_costs.measure_lone(f"{folder}/node.sock", 100 if quick else 600)
            name = "turns, what they add to a lone loop of 50 ms steps"
            figures.append(Figure(name, lone["share"] * 100, "%", "<= 1 %"))
            figures.append(Figure(f"{name}, median step", lone["median"] * 100, "%"))
        except subprocess.CalledProcessError:
            print("torch is not installed: left out", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        people = ["t0", "t1"]
        # So small that a task is owed its turn again after a fifth of a second.
        short = ("--Policy.quantum=0.01", "--Policy.owed_most=0")
        command = node(folder, "1x24GiB", by_turns, *short)
        with serving([*command, *token_file(folder, *people)]):
            gaps, trip = asyncio.run(
                turn_costs.hand_overs(f"{folder}/node.sock", people, 15.0 if quick else 60.0)
            )
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        value, label = percentile(gaps, share), f"hand-over between two loops, {name}"
        figures.append(Figure(label, value * 1e3, "ms", "p99 <= 20 ms"))
        figures.append(Figure(f"{label}, round trips", value / trip, "x"))
    figures.append(Figure("hand-over between two loops, how many", len(gaps), ""))
    with tempfile.TemporaryDirectory() as folder:
        people = [f"t{number}" for number in range(200)]
        command = node(folder, "8x80GiB", by_turns, "--Policy.max_tasks_per_gpu=32")
        with serving([*command, *token_file(folder, *people)]) as process:
            used, rate = asyncio.run(
                turn_costs.a_class(
                    f"{folder}/node.sock",
                    people,
                    gpus=8,
                    seconds=10.0 if quick else 60.0,
                    cpu=lambda: cpu_seconds(process.pid),
                )
            )
    name = "200 sessions by turns on 8 GPUs"
    figures.append(Figure(f"{name}, CPU", used * 100, "% of a core", "<= 10 %"))
    figures.append(Figure(f"{name}, turns", rate, "1/s"))
    figures.append(Figure(f"{name}, CPU for each turn", used / rate * 1e3, "ms"))


def table(figures: list[Figure]) -> str:
    """The figures as a Markdown table."""
    lines = ["| what | measured | aim |", "|---|---|---|"]
    lines += [f"| {f.name} | {f.value:.4g} {f.unit} | {f.aim} |" for f in figures]
    return "\n".join(lines)


def kept(parser: argparse.ArgumentParser) -> None:
    """The options of :func:`keep`."""
    parser.add_argument("--json", help="keep the figures in this file")
    parser.add_argument("--markdown", help="write the page into this file")


def keep(figures: list[Figure], arguments: argparse.Namespace, frame: str) -> None:
    """Print the figures, and write them and the page that has this ``frame``, if that is wanted."""
    where = machine()
    print(table(figures))
    print(json.dumps(where))
    if arguments.json:
        data = {"machine": where, "figures": [asdict(figure) for figure in figures]}
        Path(arguments.json).write_text(json.dumps(data, indent=2) + "\n")
    if arguments.markdown:
        page = (HERE / frame).read_text()
        page = page.replace("{machine}", said(where)).replace("{table}", table(figures))
        Path(arguments.markdown).write_text(page)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", nargs="*", help="heartbeats, watchers, …")
    kept(parser)
    arguments = parser.parse_args()
    # Compiling modules at each start is not what anybody's Python does.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    figures: list[Figure] = []
    for part in (
        measure_latency,
        measure_lease,
        measure_churn,
        measure_heartbeats,
        measure_watchers,
        measure_reclaim,
        measure_start,
        measure_cells,
        measure_turns,
    ):
        if arguments.only and part.__name__.removeprefix("measure_") not in arguments.only:
            continue
        print(f"{part.__name__} …", file=sys.stderr)
        part(figures, arguments.quick)
    keep(figures, arguments, "page.md")


if __name__ == "__main__":
    main()
