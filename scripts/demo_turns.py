"""Three people compute on one GPU: a long training, and short cells that hardly wait for it.

``make demo-turns`` runs it. Each person has a Jupyter server and a kernel of her own, all of one
node manager. Alice's cell trains; meanwhile Bob and Carol send short cells. Each of those begins at
the end of the step that Alice's training is in, and her losses are those of a training that nobody
disturbed. The program exits with 1 if anything of that is not so. ``--svg`` makes a picture of who
computed when.

The GPU is simulated, and torch computes on the CPU, one thread each. Everything else is real.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path

import httpx
import websocket
from demo import Story, Watcher, start_node, wait_until
from turns_picture import Band, Span, paint

from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.replay.behaviour import Options, PolicyName, TurnCost, behaviour
from jupyter_gpushare.replay.node import VirtualNode
from jupyter_gpushare.replay.tally import Window
from jupyter_gpushare.replay.trace import Session

PEOPLE = ("alice", "bob", "carol")
SHORT = ("bob", "carol", "bob", "carol")  # whose cells, one after the other
WITHIN = 1.0  # seconds from sending a short cell to its first step
PATIENCE = 600.0  # seconds for what is no promise: a busy machine may be slow
TOKEN = "demo"

CONFIG = """
c.Policy.share_mode = "time"
c.Policy.quantum = {quantum}
c.Quotas.default = {{"gpus": 1, "memory": "8GiB"}}
"""
#: Torch counts the memory that it uses on a GPU, and not what it uses on a CPU. The kernels run
#: this when they start: a measured step then tells such figures, as on a GPU.
STAND_IN = """
from jupyter_gpushare.client.adapters.parkers.allocator import CudaAllocator, Figures
from jupyter_gpushare.client.adapters.parkers.steps import StepMeter
from jupyter_gpushare.client.adapters.torch import TorchAdapter

class OnCpu(CudaAllocator):
    def devices(self):
        return (self._torch.device("cpu"),)
    def figures(self, device):
        return Figures._make(2**30 for _ in Figures._fields)
    def free(self, device):
        return None
    def capturing(self):
        return False

def watch_steps(adapter, torch):
    if adapter.meter is None:
        adapter.meter = StepMeter(torch, OnCpu(torch))
        adapter.meter.install()

TorchAdapter._watch_steps = watch_steps
"""
#: What everybody has in the notebook: a training loop. It writes down when each step computed.
LOOP = """
import json, os, time, torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
log = open(os.environ["DEMO_STEPS"], "a", buffering=1)

def train(seed, enough):
    torch.manual_seed(seed)
    data = TensorDataset(torch.randn(2048, 256), torch.randint(10, (2048,)))
    net = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Dropout(0.2),
        torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10),
    )
    optimizer = torch.optim.AdamW(net.parameters())
    losses, began = [], [0.0]
    net.register_forward_pre_hook(lambda *_: began.__setitem__(0, time.monotonic()))
    optimizer.register_step_post_hook(lambda *_: log.write(f"{began[0]} {time.monotonic()}\\n"))
    while True:
        for inputs, labels in DataLoader(data, batch_size=512, shuffle=True):
            if enough(losses):
                weights = sum(one.double().sum().item() for one in net.parameters())
                return print(json.dumps([one.hex() for one in (*losses, weights)]))
            loss = torch.nn.functional.cross_entropy(net(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
"""
UNTIL_THERE = "train({}, lambda losses: os.path.exists({!r}))"
BY_STEPS = "train({}, lambda losses: len(losses) >= {})"


@dataclass
class Cell:
    """A cell that was sent: when, and what came of it. Times are monotonic seconds."""

    owner: str
    sent: float
    done: threading.Event = field(default_factory=threading.Event)
    ended: float = 0.0
    printed: str = ""
    error: str = ""

    def result(self) -> str:
        """What it printed. Raises :class:`RuntimeError` when it failed or does not end."""
        if not self.done.wait(PATIENCE) or self.error:
            raise RuntimeError(f"{self.owner}'s cell did not end well: {self.error or 'no answer'}")
        return self.printed


class Person:
    """One person: a Jupyter server, and one notebook in it. ``close`` ends both."""

    def __init__(self, name: str, folder: Path, node: str) -> None:
        self.name = name
        self.log = folder / "steps"
        startup = folder / "ipython" / "profile_default" / "startup"
        startup.mkdir(parents=True)
        (startup / "on_cpu.py").write_text(STAND_IN)
        for part in ("work", "config", "data", "run"):
            (folder / part).mkdir(mode=0o700)
        self.log.touch()
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("JUPYTER", "JPY_", "IPYTHON"))
        }
        environment |= {
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(folder / "run"),
            "IPYTHONDIR": str(folder / "ipython"),
            "JUPYTER_GPUSHARE_SOCKET": node,
            "JUPYTER_GPUSHARE_TOKEN": f"{name}-token",
            "DEMO_STEPS": str(self.log),
        }
        command = [
            *(sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"),
            *("--ServerApp.ip=127.0.0.1", "--ServerApp.port=0", "--ServerApp.port_retries=0"),
            f"--IdentityProvider.token={TOKEN}",
            f"--ServerApp.root_dir={folder / 'work'}",
            "--ServerApp.jpserver_extensions={'jupyter_gpushare': True}",
        ]
        self._said = folder / "server.log"
        with self._said.open("wb") as out:
            self._server = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        self._info = folder / "run" / f"jpserver-{self._server.pid}.json"
        self._sockets: list[websocket.WebSocket] = []

    def open(self) -> None:
        """Open the notebook: its kernel starts, and is ready."""
        url = wait_until(f"{self.name}'s server", self._serving, PATIENCE)
        body = {"path": "n.ipynb", "name": "n.ipynb", "type": "notebook"}
        answer = httpx.post(
            f"{url}api/sessions",
            json={**body, "kernel": {"name": "python3"}},
            headers=self._headers,
            timeout=PATIENCE,
            trust_env=False,
        )
        kernel = answer.raise_for_status().json()["kernel"]["id"]
        channels = f"{url.replace('http', 'ws', 1)}api/kernels/{kernel}/channels"
        self._socket = websocket.create_connection(channels, header=self._headers, timeout=PATIENCE)
        self._sockets.append(self._socket)

    def _serving(self) -> str | None:
        if self._server.poll() is not None:
            raise RuntimeError(f"{self.name}'s server ended: {self._said.read_text()[-2000:]}")
        try:
            url = str(json.loads(self._info.read_text())["url"])
            httpx.get(f"{url}api", timeout=5, trust_env=False)
        except (FileNotFoundError, ValueError, httpx.HTTPError):
            return None  # it has not written all of that file yet, or does not listen
        return url

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"token {TOKEN}"}

    def send(self, code: str) -> Cell:
        """Send a cell. It runs; what comes of it is in the result."""
        number = os.urandom(8).hex()
        message = {
            "channel": "shell",
            "header": {"msg_id": number, "msg_type": "execute_request", "version": "5.3"},
            "parent_header": {},
            "metadata": {},
            "content": {"code": code, "silent": False, "allow_stdin": False},
        }
        message["header"] |= {"session": self.name, "username": self.name}
        cell = Cell(self.name, time.monotonic())
        self._socket.send(json.dumps(message))
        threading.Thread(target=self._receive, args=(cell, number), daemon=True).start()
        return cell

    def _receive(self, cell: Cell, number: str) -> None:
        try:
            while not cell.ended:
                message = json.loads(self._socket.recv())
                content = message["content"]
                if message["parent_header"].get("msg_id") != number:
                    continue
                match message["msg_type"]:
                    case "stream" if content["name"] == "stdout":
                        cell.printed += content["text"]
                    case "error":
                        cell.error = "\n".join(content["traceback"])
                    case "status" if content["execution_state"] == "idle":
                        cell.ended = time.monotonic()
        except (OSError, ValueError, websocket.WebSocketException) as error:
            cell.error = repr(error)
        cell.done.set()

    def steps(self, since: float = 0.0) -> list[Span]:
        """Its steps from then on."""
        return [span for span in read_steps(self.log) if span[0] >= since]

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()
        self._server.terminate()
        try:
            self._server.wait(30)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()


def read_steps(log: Path) -> list[Span]:
    """When each step computed, as the loop wrote it down. A line may be half written yet."""
    lines = log.read_text().split("\n")[:-1]
    return [(float(begin), float(end)) for begin, end in map(str.split, lines)]


def undisturbed(code: str, log: Path) -> list[str]:
    """What a plain Python program prints that does the same without us, and its steps."""
    done = subprocess.run(
        [sys.executable, "-c", LOOP + code],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DEMO_STEPS": str(log), "JUPYTER_GPUSHARE": "off"},
        timeout=PATIENCE,
    )
    return list(json.loads(done.stdout))


def lengths(steps: list[Span]) -> list[float]:
    """Seconds that each step took."""
    return [end - begin for begin, end in steps]


def overlaps(steps: dict[str, list[Span]]) -> list[tuple[str, str]]:
    """Whose steps ran at the same time as somebody else's."""
    every = sorted((begin, end, name) for name, spans in steps.items() for begin, end in spans)
    return [
        (name, other)
        for (_, end, name), (begin, _, other) in pairwise(every)
        if begin < end and name != other
    ]


def turns_had(steps: dict[str, list[Span]]) -> list[tuple[str, Span]]:
    """Who computed after whom, from the first step of a turn to the end of its last."""
    every = sorted((begin, end, name) for name, spans in steps.items() for begin, end in spans)
    groups = [(name, list(group)) for name, group in groupby(every, key=lambda one: one[2])]
    return [(name, (group[0][0], group[-1][1])) for name, group in groups]


def _had(cell: Cell, turns: list[tuple[str, Span]]) -> float:
    """Seconds that a cell had the turn."""
    own = [span for name, span in turns if name == cell.owner]
    return sum(lengths([span for span in own if cell.sent <= span[0] <= cell.ended]))


class Play:
    """The story, on a GPU with this ``quantum``. Every fact in it is checked.

    ``cells`` are those that were sent while Alice's training ran, and hers.
    """

    def __init__(
        self, story: Story, people: dict[str, Person], node: Watcher, quantum: float
    ) -> None:
        self.story, self.people, self.node, self.quantum = story, people, node, quantum
        self.cells: list[Cell] = []

    def opening(self) -> None:
        """Everybody opens a notebook, and trains for some steps: it is known what a step needs."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(Person.open, self.people.values()))
        for code in (LOOP, BY_STEPS.format(0, 3)):
            for cell in [person.send(code) for person in self.people.values()]:
                cell.result()
        leases = self.node.session.call(Method.STATUS)["leases"]
        gpus = [gpu["index"] for lease in leases for gpu in lease["gpus"]]
        known = gpus == [0, 0, 0] and all(lease["turn"] for lease in leases)
        self.story.check(known, "three notebooks are open, and use the one GPU by turns")

    def middle(self, folder: Path) -> None:
        """Alice trains, the others send short cells; then her training once more, undisturbed."""
        alice, tell, check = self.people["alice"], self.story.tell, self.story.check
        answer = max(self._answer(person) for person in self.people.values())
        enough = folder / "enough"
        training = alice.send(UNTIL_THERE.format(1, str(enough)))
        self.cells.append(training)
        tell("alice", "sends a cell that trains until she has enough")
        self._goes_on(training, self.quantum + 1.0)
        for name in SHORT:
            self._is_soon(self._short(name), training, answer)
            self._goes_on(training, self.quantum / 5)
        self._both()
        self._goes_on(training, self.quantum / 5)
        enough.touch()
        curve = json.loads(training.result())
        tell("alice", f"has enough after {len(curve) - 1} steps")
        plain = undisturbed(BY_STEPS.format(1, len(curve) - 1), folder / "plain")
        tell("a program", "trains as many steps, from the same seed, without us and undisturbed")
        check(curve == plain, "all losses and the weights are the same, to the last bit")
        self._sums(training, read_steps(folder / "plain"))

    def _answer(self, person: Person) -> float:
        """Seconds that a cell takes which does nothing."""
        cell = person.send("pass")
        cell.result()
        return cell.ended - cell.sent

    def _goes_on(self, training: Cell, seconds: float) -> None:
        """Alice computes for so long, and for some steps at least."""
        since, alice = time.monotonic(), self.people["alice"]

        def has_gone_on() -> bool:
            if training.done.is_set():
                training.result()
                raise RuntimeError("alice's training ended too early")
            return time.monotonic() >= since + seconds and len(alice.steps(since)) >= 4

        wait_until("steps of alice's", has_gone_on, PATIENCE)

    def _short(self, name: str) -> Cell:
        """Send a cell that trains for about a seventh of a quantum."""
        steps = max(4, round(self.quantum / 7 / self._step))
        cell = self.people[name].send(BY_STEPS.format(len(self.cells) + 1, steps))
        self.cells.append(cell)
        return cell

    @property
    def _step(self) -> float:
        """Seconds that a step of Alice's usually takes."""
        return statistics.median(lengths(self.people["alice"].steps(self.cells[0].sent)))

    def _is_soon(self, cell: Cell, training: Cell, answer: float) -> None:
        cell.result()
        steps = self.people[cell.owner].steps(cell.sent)
        waited = steps[0][0] - cell.sent
        # A step that runs is not broken off, and messages have to arrive; on a busy machine both
        # take long.
        slowest = max(lengths(self.people["alice"].steps(training.sent)))
        bound = max(WITHIN, 5 * (slowest + answer))
        lasted = steps[-1][1] - steps[0][0]
        what = f"{cell.owner}'s cell of {lasted:.1f} s began {waited:.2f} s after it was sent"
        self.story.check(waited <= bound, f"{what} (at most {bound:.1f} s)")

    def _both(self) -> None:
        """Two short cells at once: the second waits for the first, and Alice for both."""
        first = self._short("bob")
        wait_until("bob computes", lambda: self.people["bob"].steps(first.sent), PATIENCE)
        second = self._short("carol")
        first.result()
        second.result()
        waited = self.people["carol"].steps(second.sent)[0][0] - second.sent
        self.story.tell("carol", f"sent one while bob's computed: it began after {waited:.2f} s")

    def _sums(self, training: Cell, plain: list[Span]) -> None:
        steps = {name: one.steps(training.sent) for name, one in self.people.items()}
        clashes = overlaps(steps)
        self.story.check(not clashes, f"at no time did two compute{clashes or ''}")
        turns = turns_had(steps)
        order, replayed = [name for name, _span in turns], self._replayed(training, turns)
        said = f"the replay of these cells has the same order of turns: {', '.join(order)}"
        # A cell that had nearly a quantum might, or might not, have been asked for its turn.
        nearly = [cell for cell in self.cells if 0.6 < _had(cell, turns) / self.quantum < 1.4]
        if order == replayed or not nearly:
            self.story.check(order == replayed, f"{said} (replay: {', '.join(replayed)})")
        else:
            self.story.tell(nearly[0].owner, "had nearly a quantum: a replay may go another way")
        mine = sum(lengths(steps["alice"]))
        others = sum(sum(lengths(steps[name])) for name in ("bob", "carol"))
        took = training.ended - training.sent
        self.story.tell(
            "alice",
            f"took {took:.1f} s: she computed for {mine:.1f} s, the others for {others:.1f} s; "
            f"{took - mine - others:.1f} s went by between steps",
        )
        ours, theirs = self._step * 1000, statistics.median(lengths(plain)) * 1000
        alone = plain[-1][1] - plain[0][0]
        self.story.tell(
            "a program",
            f"took {alone:.1f} s; a step took {theirs:.0f} ms there, {ours:.0f} ms in her notebook",
        )

    def _replayed(self, training: Cell, turns: list[tuple[str, Span]]) -> list[str]:
        """Who computes after whom if the same cells are replayed through the policy."""
        cost = TurnCost(step=self._step, hand_over=0.05)
        kind = behaviour(PolicyName.TURNS, Options(turns=cost, moves=False))
        kind = replace(kind, config=replace(kind.config, quantum=self.quantum))
        end = training.ended - training.sent + 60.0

        def work(cell: Cell) -> float:
            # Alice trains until everybody else is served, however long that takes.
            took = training.ended - training.sent
            return took if cell is training else _had(cell, turns)

        found: list[str] = []
        node = VirtualNode(
            1, kind, Window(0.0, end), on_compute=lambda _at, name: found.append(name)
        )
        for name in PEOPLE:
            cells = [cell for cell in self.cells if cell.owner == name]
            node.add(
                Session(
                    *(name, name, 1, None, 2**30, 0.0, end),
                    array("d", [cell.sent - training.sent for cell in cells]),
                    array("d", [work(cell) for cell in cells]),
                )
            )
        node.finish()
        return [name for name, _group in groupby(found)]

    def closing(self) -> None:
        """Everybody closes the notebook."""
        for person in self.people.values():
            person.close()
        wait_until("everything back", self._is_free, PATIENCE)
        self.story.check(True, "all notebooks are closed, and the GPU is free")

    def _is_free(self) -> bool:
        (gpu,) = self.node.session.call(Method.STATUS)["gpus"]
        return bool(gpu["free"] == gpu["memory"])


def main() -> int:
    """Play it; 0 when all was well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quantum", type=float, default=10.0, help="the setting; all else follows")
    parser.add_argument("--svg", type=Path, help="make this picture (needs matplotlib)")
    options = parser.parse_args()
    story = Story()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpushare-demo-")))
        config = CONFIG.format(quantum=options.quantum)
        process, socket = start_node(folder, config, PEOPLE, "--simulate", "1x24GiB")
        stack.callback(process.wait, 20)
        stack.callback(process.terminate)
        node = Watcher(socket)
        stack.callback(node.session.close)
        people = {}
        for name in PEOPLE:
            people[name] = Person(name, folder / name, socket)
            stack.callback(people[name].close)
        play = Play(story, people, node, options.quantum)
        try:
            play.opening()
            play.middle(folder)
            if options.svg:
                began = play.cells[0].sent
                bands = [
                    Band(
                        name.capitalize(),
                        [(cell.sent, cell.ended) for cell in play.cells if cell.owner == name],
                        people[name].steps(began),
                    )
                    for name in PEOPLE
                ]
                paint(bands, began, options.svg)
                story.tell("a picture", f"of who computed when: {options.svg}")
            play.closing()
        except RuntimeError as error:
            story.check(False, str(error))
    print(f"\n{'Everything as promised.' if not story.wrong else f'{story.wrong} WRONG.'}")
    return 1 if story.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
