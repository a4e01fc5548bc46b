"""The main job, headless: two people, three notebooks, two GPUs, real kernels, real torch.

``make demo`` runs it. It prints the time line and exits with 1 if anything on
it is not as it should be. The GPUs are simulated; everything else is real.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.protocol.messages import Method

IMPORT = "import os, torch; print(torch.__version__, os.environ.get('CUDA_VISIBLE_DEVICES'))"
WORK = "print(torch.randn(64, 64).matmul(torch.randn(64, 64)).shape)"
CONFIG = """
c.Policy.heartbeat_interval = 1.0
c.Quotas.users = {"alice": {"gpus": 2}, "bob": {"gpus": 2}}
"""


class Story:
    """Prints what happens when, and keeps count of what went wrong."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.wrong = 0
        self.lock = threading.Lock()

    def tell(self, who: str, what: str) -> None:
        with self.lock:
            print(f"{time.monotonic() - self.began:7.2f} s  {who:16} {what}", flush=True)

    def check(self, fact: bool, what: str) -> None:
        with self.lock:
            print(f"{'':11}{'ok' if fact else 'WRONG':>5}  {what}", flush=True)
            self.wrong += not fact


class Notebook:
    """One real kernel of one person. ``run`` starts a cell, ``result`` waits for it.

    ``before`` is put before the kernel's command, to start it on another host.
    """

    def __init__(
        self,
        story: Story,
        owner: str,
        name: str,
        socket: str,
        more: dict[str, str],
        before: Sequence[str] = (),
    ) -> None:
        self.story, self.owner, self.name = story, owner, name
        self.manager = KernelManager(kernel_name="python3")
        if before:
            # Over Unix sockets: that host has a network of its own.
            self.manager.transport = "ipc"
            self.manager.ip = f"{socket}-{name}"
            assert self.manager.kernel_spec is not None
            self.manager.kernel_spec.argv[:1] = [*before, sys.executable]
        environment = {
            **os.environ,
            "JUPYTER_GPUSHARE_SOCKET": socket,
            "JUPYTER_GPUSHARE_TOKEN": f"{owner}-token",
            "JPY_SESSION_NAME": f"{name}.ipynb",
            **more,
        }
        self.manager.start_kernel(env=environment, stderr=subprocess.DEVNULL)
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.thread: threading.Thread | None = None
        self.outcome: list[str] = []
        #: What the cell showed as a text besides what it printed, and the names of its errors.
        self.shown = ""

    @property
    def who(self) -> str:
        return f"{self.owner}/{self.name}"

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)

    def run(self, code: str) -> None:
        self.outcome, self.shown = [], ""
        self.thread = threading.Thread(target=self._work, args=(code,), daemon=True)
        self.thread.start()

    def _work(self, code: str) -> None:
        printed: list[str] = []

        def output(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream" and content["name"] == "stdout":
                printed.append(content["text"])
            elif message["msg_type"] == "error":
                self.shown += f"{content['ename']}: {content['evalue']}\n"
            else:
                self.shown += content.get("data", {}).get("text/plain", "")

        reply = self.client.execute_interactive(code, timeout=90, output_hook=output)
        self.outcome = [reply["content"]["status"], "".join(printed).strip()]

    def result(self, within: float = 60.0) -> str:
        """What the cell printed. Raises :class:`RuntimeError` when it failed or takes too long, or
        its kernel ends."""
        assert self.thread is not None
        deadline = time.monotonic() + within
        while self.thread.is_alive() and time.monotonic() < deadline:
            self.thread.join(0.2)
            if not self.manager.is_alive():
                raise RuntimeError(f"{self.who}: the kernel ended while its cell ran")
            nobody_died()
        if not self.outcome or self.outcome[0] != "ok":
            came = f"{self.outcome} {self.shown}"
            raise RuntimeError(f"{self.who}: the cell did not end well: {came}")
        return self.outcome[1]

    def die(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Shut the kernel down; twice does no harm."""
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)


class Watcher:
    """Looks at the node as an administrator does."""

    def __init__(self, socket: str) -> None:
        self.session = Session(socket, lambda: "admin-token", 10.0)
        self.session.open()

    def leases(self, owner: str) -> list[dict[str, Any]]:
        everybody = self.session.call(Method.STATUS)["leases"]
        return [lease for lease in everybody if lease["environment"] == owner]

    def history(self) -> list[dict[str, Any]]:
        return list(reversed(self.session.call(Method.HISTORY, limit=200)["events"]))


def wait_until(what: str, fact: Callable[[], Any], within: float = 30.0) -> Any:
    """The first true answer. Raises :class:`RuntimeError` when none comes, or as soon as a program
    of the demo has died, for then none will come."""
    deadline = time.monotonic() + within
    while not (answer := fact()):
        nobody_died()
        if time.monotonic() > deadline:
            raise RuntimeError(f"this did not come about: {what}")
        time.sleep(0.02)
    return answer


@dataclass(frozen=True)
class Program:
    """A program of a demo. ``log``: the file that it writes into; ``None``: it writes where we do.

    ``lasts``: the demo needs it until its end. Otherwise it may end by itself, if it ends well.
    """

    name: str
    process: subprocess.Popen[Any]
    log: Path | None
    lasts: bool


#: Those that run, or should; `end` takes them out.
RUNNING: list[Program] = []


def nobody_died() -> None:
    """Raises :class:`RuntimeError` with the last line of a program that has ended as it should not.

    Whatever waits calls this, so that a demo does not wait minutes for somebody who is dead.
    """
    for program in list(RUNNING):
        code = program.process.poll()
        if code is None or (code == 0 and not program.lasts):
            continue
        text = program.log.read_text(errors="replace").strip() if program.log else ""
        said = text.rpartition("\n")[2] if text else "what it said, if anything, is above"
        raise RuntimeError(f"{program.name} has ended (exit code {code}): {said}")


def started(
    stack: ExitStack,
    name: str,
    line: Sequence[str],
    *,
    log: Path | None = None,
    lasts: bool = True,
    **options: Any,
) -> subprocess.Popen[Any]:
    """A program that ends with the stack, and is missed before: see `Program`."""
    with ExitStack() as closing:
        if log is not None:
            options |= dict.fromkeys(("stdout", "stderr"), closing.enter_context(log.open("wb")))
        process = subprocess.Popen(line, **options)
    RUNNING.append(Program(name, process, log, lasts))
    stack.callback(end, process)
    return process


def ended(process: subprocess.Popen[Any], what: str, within: float) -> int:
    """Wait until a program ends by itself; its exit code. Raises as `wait_until`."""
    wait_until(what, lambda: process.poll() is not None, within)
    assert process.returncode is not None
    return int(process.returncode)


def end(process: subprocess.Popen[Any]) -> None:
    """End it, if it runs."""
    RUNNING[:] = [program for program in RUNNING if program.process is not process]
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def start_node(
    stack: ExitStack,
    folder: Path,
    config: str,
    people: Iterable[str],
    *which: str,
    environ: Mapping[str, str] = MappingProxyType({}),
    there: Callable[[list[str]], list[str]] = list,
) -> str:
    """A node manager that tells people apart by their tokens; return its socket.

    ``which`` are arguments for its GPUs. It sees ``environ``, too. ``there`` makes a command run
    on another host.
    """
    tokens = folder / "tokens.json"
    tokens.touch(0o600)
    known = [{"token": f"{name}-token", "environment": name} for name in people]
    admin = {"token": "admin-token", "environment": "admin", "admin": True}
    tokens.write_text(json.dumps({"tokens": [*known, admin]}))
    (folder / "node_config.py").write_text(config)
    socket = str(folder / "node.sock")
    command = [
        *(sys.executable, "-m", "jupyter_gpushare.node", *which),
        *("--socket", socket, "--ledger", str(folder / "ledger.sqlite")),
        *("--token-file", str(tokens), f"--config={folder / 'node_config.py'}"),
        "--log-level=WARN",
    ]
    environ = {**os.environ, **environ}
    process = started(
        *(stack, "a node manager", there(command)), stdout=subprocess.PIPE, text=True, env=environ
    )
    assert process.stdout is not None
    if not process.stdout.readline().startswith("ready"):
        raise RuntimeError("the node manager did not start")
    return socket


def told(
    play: Callable[[Story, ExitStack, Path], None], outcome: str = "Everything as promised."
) -> int:
    """Play a story in a folder of its own, and say how it ended. Return the exit status.

    What the story puts on the stack is closed at its end, whatever came.
    """
    story = Story()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpushare-"))
        try:
            play(story, stack, Path(folder))
        except RuntimeError as error:
            story.check(False, str(error))
    print(f"\n{f'{story.wrong} WRONG.' if story.wrong else outcome}")
    return 1 if story.wrong else 0


def where_to_paint(description: str | None, **numbers: float) -> argparse.Namespace:
    """What the command line says: ``svg``, a path or None, and ``numbers``, which have defaults."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--svg", type=Path, help="make this picture (needs matplotlib)")
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=float, default=value, help="(default: %(default)s)")
    return parser.parse_args()


def play(story: Story, stack: ExitStack, folder: Path) -> None:
    """The story. Every fact in it is checked."""
    socket = start_node(stack, folder, CONFIG, ("alice", "bob"), "--simulate", "2x24GiB")
    node = Watcher(socket)
    notebooks: list[Notebook] = []

    def opened(owner: str, name: str, **environment: str) -> Notebook:
        notebook = Notebook(story, owner, name, socket, environment)
        stack.callback(notebook.close)
        notebooks.append(notebook)
        story.tell(notebook.who, "opened; holds no GPU")
        return notebook

    explore = opened("alice", "explore")
    train = opened("bob", "train")
    compare = opened("alice", "compare", JUPYTER_GPUSHARE_GPUS="2")
    story.check(not node.leases("alice") + node.leases("bob"), "open notebooks hold nothing")

    explore.run(IMPORT)
    torch, first = explore.result().split()
    story.tell(explore.who, f"import torch (really {torch}) got {first}")
    train.run(IMPORT)
    second = train.result().split()[1]
    story.tell(train.who, f"import torch got {second}")
    story.check(first != second, "two people have two different GPUs")

    compare.run(IMPORT)
    story.tell(compare.who, "import torch asks for 2 GPUs")
    place = wait_until("a place in the queue", lambda: place_of(node, "alice"))
    story.tell(compare.who, f"waits, position {place['position']}")
    story.check(compare.outcome == [], "the cell waits")
    explore.run(WORK)
    story.check("64, 64" in explore.result(), "the other notebook goes on computing")

    killed = time.monotonic()
    train.die()
    story.tell(train.who, "its kernel dies (kill -9)")
    both = compare.result().split()[1]
    took = time.monotonic() - killed
    story.tell(compare.who, f"got {both}, {took * 1000:.0f} ms after the death (torch imported)")
    story.check(set(both.split(",")) == {first, second}, "it has bob's GPU, and shares alice's")
    granted = [e for e in node.history() if e["kind"] == "LeaseGranted"][-1]["at"]
    ended = [e for e in node.history() if e["kind"] == "LeaseEnded"][-1]["at"]
    story.check(granted - ended < 1.0, "the dead task's GPU was somebody's within a second")

    again = opened("bob", "train again")
    again.run(IMPORT)
    wait_until("bob's place in the queue", lambda: place_of(node, "bob"))
    story.tell(again.who, "waits: both GPUs are alice's")
    compare.run("%gpushare release")
    compare.result()
    story.tell(compare.who, "%gpushare release")
    back = again.result().split()[1]
    story.tell(again.who, f"got {back}")
    story.check(back == second, "the GPU that only alice's second notebook held is bob's now")
    compare.run(WORK)
    wait_until("alice's place in the queue", lambda: place_of(node, "alice"))
    story.tell(compare.who, "its next cell uses torch, and asks again")
    again.run("%gpushare release")
    again.result()
    story.tell(again.who, "%gpushare release")
    story.check("64, 64" in compare.result(), "the notebook that released kept its variables")

    for notebook in notebooks:
        notebook.close()
        story.tell(notebook.who, "closed")
    wait_until("everything back", lambda: not node.leases("alice") + node.leases("bob"))
    status = node.session.call(Method.STATUS)
    free = all(gpu["free"] == gpu["memory"] for gpu in status["gpus"])
    story.check(free, "every GPU is free again")
    print("\nWhat the node manager wrote down:")
    for event in node.history():
        if event["environment"] in ("alice", "bob"):
            at = time.strftime("%H:%M:%S", time.localtime(event["at"]))
            lease = (event["lease"] or "")[:6]
            print(f"  {at}  {event['environment']:6} {lease:6}  {event['text']}")
    node.session.close()


def place_of(node: Watcher, owner: str) -> dict[str, Any] | None:
    """The owner's waiting request, if there is one."""
    waiting = [lease for lease in node.leases(owner) if lease["state"] == "queued"]
    return waiting[0] if waiting else None


if __name__ == "__main__":
    sys.exit(told(play))
