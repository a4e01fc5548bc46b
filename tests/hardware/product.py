"""The product itself on a GPU: a node manager that reads NVML, real kernels, and what they say.

Each function is a section of ``run.py``. They need what a notebook needs: ipykernel,
jupyter_client and what the node manager rests on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hardware.bench import Bench, Nvml, Skipped, Wrong

#: A notebook of each person: a model with AdamW's state of about so many GiB, and its digest.
MODEL = """
import json, time, torch
torch.manual_seed(5)
net = torch.nn.Sequential(*[torch.nn.Linear(8192, 8192) for _ in range({gib})]).cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5)
def step():
    optimizer.zero_grad()
    loss = net(torch.randn(64, 8192, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
losses = [step() for _ in range(3)]
def digest():
    tensors = list(net.parameters())
    for state in optimizer.state.values():
        tensors += [one for one in state.values() if torch.is_tensor(one)]
    return [one.double().sum().item().hex() for one in tensors]
"""
READ = "print(json.dumps(digest()))"
STEP = "print(step())"
#: A training of many steps, and a cell that computes without any.
TRAIN = "began = time.time()\nlosses = [step() for _ in range({steps})]\nprint(time.time() - began)"
ENDLESS = """
x = torch.randn(8192, 8192, device="cuda") * 1e-4
until = time.time() + {seconds}
rounds = 0
while time.time() < until:
    for _ in range(20):
        y = x @ x
    torch.cuda.synchronize()
    rounds += 20
print(rounds)
"""
#: A short cell: when its first step was done.
SHORT = "step()\ndone = time.time()\nfor _ in range(20):\n    step()\nprint(done)"
SCRIPT = """
import os, torch
x = torch.randn(4096, 4096, device="cuda")
print("sum", float((x @ x).sum()))
print("visible", os.environ["CUDA_VISIBLE_DEVICES"])
"""


class House:
    """A node manager, and kernels of people."""

    def __init__(self, bench: Bench, folder: Path, config: str) -> None:
        from support.node import RunningNode, token_file

        self.folder = folder
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith("JUPYTER")}
        people = token_file(folder, "alice", "bob", "root")
        self.node = RunningNode(
            folder, simulate="", config=config, arguments=[people], environ=self._environ
        )
        self.bench = bench

    @contextmanager
    def kernel(self, who: str) -> Iterator[Any]:
        from support.kernel import Kernel

        home = self.folder / who
        home.mkdir(exist_ok=True)
        names = ("LD_", "NVML_") if self.bench.orders.rehearse else ()
        world = {k: v for k, v in self._environ.items() if names and k.startswith(names)}
        runtime = self.folder / "run"
        runtime.mkdir(mode=0o700, exist_ok=True)
        with Kernel(
            home,
            self.node.socket,
            JUPYTER_GPUSHARE_TOKEN=who,
            XDG_RUNTIME_DIR=str(runtime),
            **world,
        ) as kernel:
            yield kernel

    def environ(self, who: str) -> dict[str, str]:
        """The environment of a program of somebody's."""
        runtime = self.folder / "run"
        runtime.mkdir(mode=0o700, exist_ok=True)
        return {
            **self._environ,
            "JUPYTER_GPUSHARE_SOCKET": os.fspath(self.node.socket),
            "JUPYTER_GPUSHARE_TOKEN": who,
            "JUPYTER_DATA_DIR": os.fspath(self.folder / "data"),
            "XDG_RUNTIME_DIR": os.fspath(runtime),
        }

    def said_by(self, *words: str, token: str = "root", within: float = 60.0) -> str:
        """What a verb of ``jupyter gpushare`` prints, its exit status first."""
        done = subprocess.run(
            [sys.executable, "-m", "jupyter_gpushare.cli", *words],
            env=self.environ(token),
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )
        return f"exit {done.returncode}\n{done.stdout}{done.stderr}"

    def status(self) -> dict[str, Any]:
        from jupyter_gpushare.protocol.messages import Method

        with self.node.client("root") as root:
            return dict(root.call(Method.STATUS))

    def lease(self, who: str) -> dict[str, Any]:
        leases = [one for one in self.status()["leases"] if one["environment"] == who]
        return leases[0] if leases else {}

    def until(self, look: Callable[[], Any], what: str) -> float:
        """Seconds until it is so."""
        from support.node import until

        began = time.monotonic()
        until(look, what)
        return time.monotonic() - began


@contextmanager
def house(bench: Bench, config: str) -> Iterator[House]:
    """A running one. Its log goes to the report."""
    try:
        import ipykernel  # noqa: F401 - whether it is there
        import jupyter_client  # noqa: F401
        import tornado  # noqa: F401
    except ImportError as error:
        raise Skipped(f"it needs what a notebook needs: {error}") from error
    from support.node import open_directory

    with open_directory() as folder:
        made = House(bench, folder, config)
        made.node.start()
        try:
            yield made
        finally:
            bench.note("log", made.node.story()[-8000:])
            made.node.terminate()


def timed(kernel: Any, code: str) -> tuple[float, str]:
    """Seconds of a cell that must not fail, and what it printed."""
    began = time.monotonic()
    shown = kernel.run(code)
    took = time.monotonic() - began
    if shown.reply is None or shown.reply["status"] != "ok":
        raise Wrong(f"a cell has failed: {shown.reply}; it said {shown.stream('stderr')[-1500:]}")
    return took, shown.stream().strip()


def request(kernel: Any, size: int) -> float:
    """Seconds in which a notebook has a GPU, with so many bytes of it."""
    return timed(kernel, f"%gpushare request --memory {size // 2**20}MiB")[0]


def cells(bench: Bench) -> tuple[str, str]:
    """The cell that fills a GPU, and the one that looks whether all is there."""
    if bench.orders.rehearse:
        from support.driverstage import FILL, READ as LOOK

        return FILL.replace("1 * 2**30", "24 * 2**20"), LOOK
    return MODEL.format(gib=8), READ


def notebooks(bench: Bench) -> None:
    """Two people, one GPU: one is parked when the other computes, and comes back whole."""
    config = (
        "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.2\n"
        "c.Policy.max_tasks_per_gpu = 1\nc.Policy.idle_timeout = 1.0\n"
        "c.Policy.notify_before = 0.0\nc.Policy.parked_memory = 64 * 1024**3\n"
    )
    fill, read = cells(bench)
    nvml = Nvml()
    with house(bench, config) as place, ExitStack() as stack:
        bench.note("inventory", place.status()["gpus"])
        alice, bob = (stack.enter_context(place.kernel(who)) for who in ("alice", "bob"))
        seconds: dict[str, float] = {}
        if bench.orders.rehearse:  # no import asks for a pretended GPU
            timed(alice, "%gpushare request")
        seconds["alice's first cell, with the import"], _ = timed(alice, fill)
        _, before = timed(alice, read)
        bench.note("alice_on_gpu", nvml.of(alice.pid))
        # Only what is measured of hers is known to be there when she is asked for it.
        place.until(lambda: place.lease("alice")["gpus"][0]["measured"], "it is measured")
        bench.note("status", place.said_by("status"))
        seconds["bob's request"], _ = timed(bob, "%gpushare request")
        parked = place.lease("alice")
        bench.note(
            "alice_parked",
            {name: parked.get(name) for name in ("state", "rung", "parked_memory", "kept")},
        )
        bench.note("alice_on_gpu_while_parked", nvml.of(alice.pid))
        bench.note("status_while_parked", place.said_by("status"))
        if parked.get("state") != "parked":
            raise Wrong(f"bob has a GPU, and alice is {parked}")
        seconds["bob's first cell, with the import"], _ = timed(bob, fill)
        _, bobs = timed(bob, read)
        seconds["alice comes back"], after = timed(alice, read)
        if after != before:
            raise Wrong(f"alice's digest is {after[:300]}; {before[:300]} before")
        if not bench.orders.rehearse:
            seconds["alice's next step"], _ = timed(alice, STEP)
        seconds["bob comes back"], again = timed(bob, read)
        if again != bobs:
            raise Wrong("bob's digest has changed")
        bench.note("seconds", seconds)
        bench.note("said", alice.run("%gpushare status").plain())
        alice.manager.provisioner.process.kill()
        seconds["a killed kernel's lease is gone"] = place.until(
            lambda: not place.lease("alice"), "its lease is gone"
        )
        bench.note("seconds", seconds)
        bench.note("doctor", place.said_by("doctor"))


def quota(bench: Bench) -> None:
    """A notebook's limit of memory: what is said to a cell that wants more than it reserved."""
    bench.only_on_a_gpu()
    config = (
        "c.NodeManagerApp.debug_checks = True\nc.Quotas.default = {'gpus': 1, 'memory': '8GiB'}\n"
    )
    with house(bench, config) as place, place.kernel("alice") as alice:
        timed(alice, "%gpushare request --memory 4GiB")
        timed(alice, "import torch\nx = torch.empty(2 * 2**30, dtype=torch.uint8, device='cuda')")
        shown = alice.run("y = torch.empty(6 * 2**30, dtype=torch.uint8, device='cuda')")
        if shown.reply["status"] == "ok":
            raise Wrong("a cell had 6 GiB more with 4 GiB reserved")
        bench.note("error", shown.reply["ename"])
        bench.note("said", shown.stream("stderr")[-2000:] + shown.plain()[-2000:])
        bench.note("value", str(shown.reply["evalue"])[:2000])
        bench.note("traceback", "\n".join(shown.reply["traceback"])[-2500:])
        script = place.folder / "train.py"
        script.write_text(SCRIPT)
        told = place.said_by("run", "--", sys.executable, os.fspath(script), token="bob")
        bench.note("run", told)
        if f"visible {Nvml().uuid}" not in told:
            raise Wrong("a program under run does not see its GPU by its UUID")


def two_compute(bench: Bench) -> None:
    """Two people compute on one GPU by turns; then one of them in a cell that has no steps."""
    bench.only_on_a_gpu()
    config = (
        "c.NodeManagerApp.debug_checks = True\nc.Policy.max_tasks_per_gpu = 4\n"
        "c.Policy.idle_timeout = 600.0\nc.Policy.share_mode = 'time'\nc.Policy.quantum = 2.0\n"
        "c.Policy.turn_lock = 1.0\n"
        "c.Quotas.default = {'gpus': 1, 'memory': '30GiB'}\n"
    )
    with house(bench, config) as place, ExitStack() as stack:
        alice, bob = (stack.enter_context(place.kernel(who)) for who in ("alice", "bob"))
        for kernel in (alice, bob):
            timed(kernel, "%gpushare request --memory 30GiB")
            timed(kernel, MODEL.format(gib=8))
        steps = 300
        alone = float(timed(alice, TRAIN.format(steps=steps))[1])
        bench.note("alone", {"steps": steps, "seconds": alone})
        began = time.monotonic()
        first, second = (one.start(TRAIN.format(steps=steps)) for one in (alice, bob))
        place.until(lambda: alice.pump() or bob.pump() or place.lease("bob").get("turn"), "turns")
        bench.note("status", place.said_by("status"))
        alice.finish(first)
        bob.finish(second)
        both = time.monotonic() - began
        bench.note("both", {"seconds": both, "of_twice_alone": both / (2 * alone)})
        for shown in (first, second):
            if shown.reply["status"] != "ok":
                raise Wrong(f"a training has failed: {shown.reply}")
        waits = []
        long = alice.start(TRAIN.format(steps=steps * 4))
        for _ in range(5):
            alice.pump(0.5)
            sent = time.time()
            waits.append(float(timed(bob, SHORT)[1]) - sent)
        alice.finish(long)
        bench.note("short_cells_beside_steps_wait", waits)
        locked = []
        long = alice.start(ENDLESS.format(seconds=15.0))
        for _ in range(4):
            alice.pump(1.0)
            sent = time.time()
            locked.append(float(timed(bob, SHORT)[1]) - sent)
            bench.note("short_cells_beside_a_cell_without_steps_wait", locked)
        bench.note("status_with_a_lock", place.said_by("status"))
        alice.finish(long)
        if long.reply["status"] != "ok":
            raise Wrong(f"the cell without steps has failed: {long.reply}")
        bench.note("rounds", long.stream().strip())
