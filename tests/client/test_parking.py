"""An idle kernel gives its GPU back, keeps its variables, and has a GPU again when it computes.

Two people, one GPU, real kernels, an editor's among them, which starts without any Jupyter server;
and a broker beside it, for what a kernel shows too seldom.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.driverstage import computes
from support.kernel import Kernel, shows
from support.node import NodeClient, RunningNode, until
from support.node_fixtures import running_node
from support.scripted_node import GPU, LEASE, Script, ScriptedNode, Visitor, plays
from support.scripted_process import Process, grants, process

from jupyter_gpushare.client.memory.driver import Ability, DriverCheckpoint
from jupyter_gpushare.client.requests.broker import Broker
from jupyter_gpushare.client.session.lease import OwnState
from jupyter_gpushare.client.words.grant import Grant
from jupyter_gpushare.client.words.settings import Ask
from jupyter_gpushare.protocol.address import embedded_socket, host_id
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.2\n"
    "c.Policy.max_tasks_per_gpu = 1\nc.Policy.notify_before = 0.0\nc.Policy.idle_timeout = 1.0\n"
    "c.Policy.heartbeat_timeout = 600.0\n"  # bob, where a plain client, gives no sign of life
)
VISIBLE = "import os; print('visible:', os.environ.get('CUDA_VISIBLE_DEVICES'))"


PEOPLE = ("alice", "bob", "root")
node = running_node("function", simulate="1x24GiB", config=CONFIG, people=PEOPLE)


def kernel_of(node: RunningNode, home: Path, who: str, **more: str) -> Kernel:
    home.mkdir()
    return Kernel(home, node.socket, JUPYTER_GPUSHARE_TOKEN=who, **more)


def state_of(root: NodeClient, who: str) -> dict[str, Any] | None:
    leases = root.call(Method.STATUS)["leases"]
    return next((one for one in leases if one["environment"] == who), None)


def is_in(root: NodeClient, who: str, *states: str) -> bool:
    found = state_of(root, who)
    return found is not None and found["state"] in states


def uuid(printed: str) -> str:
    return printed.partition("visible:")[2].strip()


def test_alice_keeps_her_variables_and_gets_a_gpu_again(node: RunningNode, tmp_path: Path) -> None:
    """Hers is started as VS Code does, bob's as a notebook's."""
    runtime = tmp_path / "alice" / "runtime"
    runtime.mkdir(parents=True)
    notebook = str(runtime.parent / "study.ipynb")
    # Nothing tells her kernel where: it looks where node managers are.
    Path(embedded_socket(str(runtime), host_id({}))).symlink_to(node.socket)
    file = runtime / "kernel-v2-7351fh0YlqWZqHqB.json"
    vscode = {"VSCODE_PID": "4711", "TERM_PROGRAM": "vscode", "JUPYTER_GPUSHARE_TOKEN": "alice"}
    with (
        Kernel(runtime.parent, None, file=file, **vscode) as alices,
        kernel_of(node, tmp_path / "bob", "bob") as bobs,
        node.client("root") as root,
    ):
        # The editor says silently what its notebook is called.
        alices.run(f"__vsc_ipynb_file__ = {notebook!r}", silent=True)
        alices.ok("import torch; kept = torch.arange(5)")
        assert uuid(alices.ok(VISIBLE).stream()).startswith("GPU-")
        mine = state_of(root, "alice") or {}
        assert (mine["name"], mine["path"]) == ("study.ipynb", notebook)
        assert "study.ipynb" in alices.ok("%gpushare status").plain(), "in place of the panel"
        waits = bobs.start("import torch")
        until(lambda: is_in(root, "alice", "parked"), "alice is idle for a second and parks")
        shown = bobs.finish(waits)
        assert shown.reply is not None
        assert shown.reply["status"] == "ok"
        assert is_in(root, "bob", "active", "idle")
        assert uuid(bobs.ok(VISIBLE).stream()).startswith("GPU-")
        assert "parked" in alices.ok("%gpushare status").plain(), "our own magics do not wait"

        # bob's kernel may not be asked back while its cell runs, so hers waits, visibly.
        long = bobs.start("import time\nwhile True: time.sleep(0.05)")
        until(lambda: is_in(root, "bob", "active"), "bob computes")
        cell = alices.start(f"{VISIBLE}; print(kept.sum().item())")
        shows(alices, cell, "Waiting for GPUs: number 1 in line")
        assert not cell.stream(), "the cell does not run before it has its GPU"

        # Interrupting the wait runs the cell without a GPU.
        alices.interrupt()
        alices.finish(cell)
        assert cell.reply is not None
        assert cell.reply["status"] == "ok"
        assert cell.stream().splitlines() == ["visible: ", "10"]
        assert "runs without a GPU" in cell.stream("stderr")
        assert is_in(root, "alice", "parked")
        until(lambda: (state_of(root, "alice") or {})["position"] is None, "she left the queue")

        cell = alices.start(f"{VISIBLE}; print(kept.sum().item())")
        shows(alices, cell, "Waiting for GPUs: number 1 in line")
        bobs.interrupt()
        bobs.finish(long)
        bobs.run("%gpushare release")
        alices.finish(cell)
        assert uuid(cell.stream().splitlines()[0]).startswith("GPU-")
        assert cell.stream().splitlines()[1] == "10"
        assert is_in(root, "alice", "active", "idle")
    with node.client("root") as root:
        until(lambda: state_of(root, "alice") is None, "the editor was closed")


# -- while it is paused at a gate its person sees why ----------------------------------------

BY_TURNS = (
    "c.Policy.share_mode = 'time'\nc.Policy.quantum = 0.2\nc.Policy.heartbeat_timeout = 300.0\n"
)
LOOP = (
    "import time, jupyter_gpushare\n"
    "from jupyter_gpushare.client import request\n"
    "request(memory='8GiB')\n"
    "for _ in jupyter_gpushare.steps(iter(int, 1)): time.sleep(0.01)"
)


@pytest.mark.timeout(240)
def test_paused_at_a_gate_status_the_stop_button_and_a_restart_work(tmp_path: Path) -> None:
    with (
        RunningNode(tmp_path, simulate="1x24GiB", config=BY_TURNS, people=PEOPLE) as node,
        Kernel(tmp_path, node.socket, JUPYTER_GPUSHARE_TOKEN="alice") as kernel,
        node.client("bob") as bob,
        node.client("root") as root,
    ):

        def lease(who: str) -> dict[str, Any]:
            leases = root.call(Method.STATUS)["leases"]
            return next((one for one in leases if one["environment"] == who), {})

        def bob_has_the_turn() -> bool:
            """Whoever asks for it and, when he has it, keeps it."""
            turn = lease("bob")["turn"]
            if turn not in ("waits", "holds", "yields"):  # alice took none yet: as a client, again
                bob.call(Method.TURN_ASK, lease=his)
            return turn in ("holds", "yields")

        cell = kernel.start(LOOP)
        until(lambda: kernel.pump() or lease("alice"), "alice computes")
        his, _gpu = computes(bob)
        until(lambda: kernel.pump() or bob_has_the_turn(), "bob has the turn")
        shows(kernel, cell, "Paused while another task computes on GPU 0")
        looks = kernel.finish(kernel.start("%gpushare status", subshell=kernel.new_subshell()))
        assert "by turns" in looks.plain() + looks.stream()
        assert not cell.done
        kernel.interrupt()
        kernel.finish(cell)
        assert cell.error()["ename"] == "KeyboardInterrupt"
        assert "Paused once while others computed" in cell.plain()
        assert kernel.ok("print(1 + 1)").stream() == "2\n"
        assert bob_has_the_turn(), "he goes on"
        cell = kernel.start(LOOP)
        shows(kernel, cell, "Paused while another task computes on GPU 0")
        kernel.manager.shutdown_wait_time = 100.0  # after which it would be killed
        before, began = kernel.pid, time.monotonic()
        kernel.manager.restart_kernel(now=False)
        assert time.monotonic() - began < 50.0
        assert kernel.pid != before
        until(lambda: not lease("alice"), "the lease has ended")


# -- the node manager is away for a moment ---------------------------------------------------

ANSWER = 3.0  # seconds in which it must answer; it is away for longer


def test_what_asks_meanwhile_waits_and_says_so(tmp_path: Path) -> None:
    """A parked kernel's next cell, and the request of a kernel that has nothing yet."""
    config = "c.Policy.heartbeat_interval = 0.2\n"
    more = {"ANSWER_TIMEOUT": str(ANSWER), "OUTAGE_TIMEOUT": "120"}
    environ = {f"JUPYTER_GPUSHARE_{name}": value for name, value in more.items()}
    gpus = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES', '')[:4])"
    with (
        RunningNode(tmp_path, config=config) as node,
        Kernel(tmp_path, node.socket, **environ) as parked,
        Kernel(tmp_path, node.socket, **environ) as new,
    ):
        parked.ok("%gpushare request\n%gpushare park")
        new.ok("%gpushare status")
        (before,) = node.status()["leases"]
        node.kill9()
        begun = time.monotonic()
        cells = [(parked, parked.start(gpus)), (new, new.start(f"%gpushare request\n{gpus}"))]
        for running, cell in cells:
            shows(running, cell, "may be restarting")
        while time.monotonic() - begun < 2 * ANSWER:
            for running, cell in cells:
                running.pump()
                assert not cell.done, cell
        node.start()
        for running, cell in cells:
            assert running.finish(cell).stream() == "GPU-\n", cell
        leases = node.status()["leases"]
        assert len(leases) == 2
        assert before["id"] in [one["id"] for one in leases]


# -- a broker and a node manager that plays by a script ------------------------------------


@contextmanager
def broker_by(script: Script, adapter: Any = None) -> Iterator[Process]:
    """A broker that was granted a lease by this whole script. ``adapter``: that of its torch."""
    with process(script) as made:
        if adapter is not None:
            made.broker._frameworks.add("torch", adapter, ModuleType("torch"))
        made.broker.request(Ask())
        yield made


@contextmanager
def idle_broker(
    script: Script, adapter: Any = None
) -> Iterator[tuple[ScriptedNode, Broker, list[str]]]:
    """One that is idle. The script goes on where it has said so."""
    idles = plays(grants, lambda visitor: visitor.expect(Method.ACTIVITY), script, Visitor.live)
    with broker_by(idles, adapter) as made:
        made.broker.set_activity(False)
        yield made.node, made.broker, made.said


def is_parked(visitor: Visitor) -> None:
    """Asked for its GPUs it gives them."""
    visitor.notify(Notice.RECALL, RECALL)
    visitor.answer(visitor.expect(Method.GAVE), {"state": "parked"})


RECALL = {"lease": LEASE, "give": "tensors", "why": "contended", "message": "Others wait."}


def test_only_between_cells_and_again_whenever_it_is_asked() -> None:
    busy = threading.Event()

    def script(visitor: Visitor) -> None:
        grants(visitor)
        visitor.notify(Notice.RECALL, RECALL)  # before anybody said whether a cell runs
        assert busy.wait(60)
        visitor.notify(Notice.RECALL, RECALL)  # while one runs
        visitor.notify(Notice.BUDGET, {"level": "warned", "message": "Nearly spent."})
        visitor.expect(Method.ACTIVITY)  # idle: a lease begins busy
        visitor.notify(Notice.RECALL, {**RECALL, "lease": "somebody else's"})
        visitor.notify(Notice.RECALL, RECALL)
        visitor.answer(visitor.expect(Method.GAVE), {"state": "held"})  # it knows better
        visitor.notify(Notice.RECALL, RECALL)
        visitor.answer(visitor.expect(Method.GAVE), {"state": "parked"})
        visitor.grant(visitor.expect(Method.RESUME))
        visitor.live()

    with broker_by(script) as made:
        node, broker, said, environ = made.node, made.broker, made.said, made.environ
        shown = environ["CUDA_VISIBLE_DEVICES"]
        broker.set_activity(True)
        busy.set()
        until(lambda: said == ["Nearly spent."], "the budget's warning, and nothing else")
        assert broker.state is OwnState.HELD
        broker.set_activity(False)
        node.wait_for(Method.GAVE, 2)
        assert len(node.calls(Method.KEPT)) == 0
        assert broker.state is OwnState.PARKED
        assert broker.lease == LEASE
        assert environ["CUDA_VISIBLE_DEVICES"] == ""
        assert "JUPYTER_GPUSHARE_LEASE" not in environ
        assert sum("Your variables are kept" in line for line in said) == 1
        broker.set_activity(True)
        broker.cells.before_cell()
        assert broker.state is OwnState.HELD
        assert environ["CUDA_VISIBLE_DEVICES"] == shown
        broker.cells.before_cell()  # nothing to do


def test_a_parked_lease_that_has_ended_is_asked_for_anew() -> None:
    def script(visitor: Visitor) -> None:
        is_parked(visitor)
        visitor.refuse(visitor.expect(Method.RESUME), Reason.UNKNOWN_LEASE, "It has ended.")
        visitor.grant(visitor.expect(Method.REQUEST), "another")

    with idle_broker(script) as (_node, broker, _said):
        until(lambda: broker.state is OwnState.PARKED, "it is idle and asked")
        broker.cells.before_cell()
        assert broker.lease == "another"


def test_a_lease_that_is_resumed_begins_with_what_it_was_granted() -> None:
    """And not with the limit to which it was lifted before it was parked."""
    told: list[int | None] = []

    def after(_module: ModuleType, grant: Grant | None) -> None:
        told.append(None if grant is None else grant.gpus[0].memory)

    limited = SimpleNamespace(name="it", catches_first_use=False, live_limits=True, after=after)
    limited.cuda_started = lambda _module: False
    lifted = {"uuid": GPU["uuid"], "memory": 12 * 2**30}

    def script(visitor: Visitor) -> None:
        visitor.notify(Notice.RECALL, {"lease": LEASE, "give": "lift", "gpus": [lifted]})
        visitor.answer(visitor.expect(Method.GAVE), {"state": "held"})
        is_parked(visitor)
        visitor.grant(visitor.expect(Method.RESUME))

    with idle_broker(script, limited) as (_node, broker, _said):
        until(lambda: broker.state is OwnState.PARKED, "it is idle and asked")
        assert told[-1] == lifted["memory"]
        broker.cells.before_cell()
        assert told[-1] == GPU["memory"]


def test_an_error_of_the_node_manager_leaves_the_cell_alone() -> None:
    def script(visitor: Visitor) -> None:
        is_parked(visitor)
        visitor.refuse(visitor.expect(Method.RESUME), Reason.UNAVAILABLE, "The disk is full.")
        visitor.refuse(visitor.expect(Method.RESUME), Reason.UNAVAILABLE, "The disk is full.")
        visitor.notify(Notice.REVOKED, {"lease": LEASE, "reason": "revoked", "message": "Enough."})

    with idle_broker(script) as (_node, broker, said):
        until(lambda: broker.state is OwnState.PARKED, "it is idle and asked")
        broker.cells.before_cell()
        assert "This cell runs without a GPU: The disk is full." in said[-1]
        assert broker.state is OwnState.PARKED
        assert broker.getting.ensure("import frame") is None
        assert any("`import frame` goes on without a GPU" in line for line in said)
        ended = "The parked GPU lease of this process has ended: Enough."
        # Why it was parked was said between two cells, and is said now.
        until(lambda: f"Others wait. {ended}" in said, "an administrator took it")
        assert broker.state is OwnState.LOST


def test_a_training_thread_keeps_the_gpu() -> None:
    """No cell runs, but steps are made: the task says so, and keeps what it has."""

    class Trains:
        """An adapter whose framework made its last step ``ago`` seconds ago."""

        name, catches_first_use = "a framework", False
        ago = 0.0

        @property
        def meter(self) -> Any:
            at = time.monotonic() - self.ago
            return SimpleNamespace(stepped_at=at, on_step=print)  # it is connected already

        def cuda_started(self, module: ModuleType) -> bool:
            return False

        def after(self, module: ModuleType, grant: Grant | None) -> None:
            """Nothing to limit."""

    def script(visitor: Visitor) -> None:
        visitor.notify(Notice.RECALL, RECALL)
        visitor.answer(visitor.expect(Method.KEPT), {"state": "held"})
        adapter.ago = 60.0
        is_parked(visitor)

    adapter = Trains()
    with idle_broker(script, adapter) as (node, _broker, _said):
        node.wait_for(Method.GAVE, 1)
        (kept,) = node.calls(Method.KEPT)
        assert "It trains in the background: a step ended 0 s ago" in kept.params.reason


def test_it_tells_which_rung_it_could_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each lease, when CUDA runs and idle kernels are asked for their GPUs at all."""
    monkeypatch.setattr("jupyter_gpushare.client.memory.parking.cuda_started", lambda: True)
    too_old = Ability(False, "The driver is too old.")
    monkeypatch.setattr(DriverCheckpoint, "probe", lambda self, deadline_s=30.0: too_old)

    def script(visitor: Visitor) -> None:
        visitor.welcome(parks=True)
        visitor.grant(visitor.expect(Method.REQUEST))
        visitor.expect(Method.ABILITY)
        visitor.live()

    with broker_by(script) as made:
        for busy in (True, False, True, False):
            made.broker.set_activity(busy)
        made.node.wait_for(Method.ABILITY, 1)
        (told,) = made.node.calls(Method.ABILITY)
        assert told.params.rung == "none"
        assert "too old" in told.params.why


def test_without_a_thread_to_park_with_it_keeps_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jupyter_gpushare.client.memory.parking.cuda_started", lambda: True)

    def none_left(_recalls: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("jupyter_gpushare.client.memory.worker.Worker._start", none_left)

    def script(visitor: Visitor) -> None:
        visitor.notify(Notice.RECALL, RECALL)

    with idle_broker(script) as (node, broker, _said):
        node.wait_for(Method.KEPT, 1)
        (kept,) = node.calls(Method.KEPT)
        assert "could not be started" in kept.params.reason
        assert broker.state is OwnState.HELD
        broker.cells.before_cell()  # and no cell waits for a parking that never ends


def test_what_is_measured_after_a_release_is_given_by_the_next_rung(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It said that CUDA never ran; the node manager measured otherwise and asks again."""
    too_old = Ability(False, "The driver is too old.")
    monkeypatch.setattr(DriverCheckpoint, "probe", lambda self, deadline_s=30.0: too_old)
    measured = {"uuid": "GPU-0", "may_stay": 0, "used": 2**30}

    def script(visitor: Visitor) -> None:
        visitor.notify(Notice.RECALL, RECALL)
        parked = visitor.expect(Method.GAVE)
        assert parked.params.rung == "release"
        visitor.answer(parked, {"state": "parked"})
        visitor.notify(Notice.RECALL, {**RECALL, "gpus": [measured]})
        visitor.answer(visitor.expect(Method.KEPT), {"state": "parked"})

    with idle_broker(script) as (node, broker, _said):
        node.wait_for(Method.KEPT, 1)
        (kept,) = node.calls(Method.KEPT)
        assert "The driver is too old." in kept.params.reason
        until(lambda: broker.state is OwnState.PARKED, "it stays parked")


# -- another request beside what is held or parked -----------------------------------------------


def test_another_request_costs_nothing_until_it_is_granted(
    node: RunningNode, tmp_path: Path
) -> None:
    """A GPU for one task only: nothing fits beside what is held."""
    with (
        kernel_of(node, tmp_path / "alice", "alice") as alices,
        node.client("bob") as bob,
        node.client("root") as root,
    ):

        def has(lease: str, state: str) -> bool:
            found = state_of(root, "alice") or {}
            return (found["id"], found["state"]) == (lease, state)

        def other_than(lease: str) -> dict[str, Any]:
            """The only lease that has not ended is another one."""

            def only() -> list[dict[str, Any]]:
                leases = root.call(Method.STATUS)["leases"]
                found = [one for one in leases if one["phase"] != "ended"]
                return found if len(found) == 1 else []

            (found,) = until(only, "one lease is left")
            assert found["id"] != lease
            return dict(found)

        alices.ok("import torch")
        first = (state_of(root, "alice") or {})["id"]
        # Parked: neither a stopped wait nor a refusal costs it.
        bobs = bob.wait(bob.ask())["lease"]
        assert has(first, "parked")
        for line in ("%gpushare request", "%gpushare request --memory 8GiB"):
            asks = alices.start(line)
            shows(alices, asks, "Waiting for GPUs: number 1 in line")
            alices.interrupt()
            error = alices.finish(asks).error()
            assert "stays parked" in "".join(error["traceback"]), line
            until(lambda: not root.call(Method.STATUS)["queue"], "she left the queue")
            assert has(first, "parked"), line
        assert alices.run("%gpushare request --gpus 2").error()["ename"] == "QuotaExceeded"
        assert has(first, "parked")
        bob.call(Method.RELEASE, lease=bobs)
        assert uuid(alices.ok(VISIBLE).stream()).startswith("GPU-"), "the next cell asks again"
        assert (state_of(root, "alice") or {})["id"] == first

        # Held: a refusal costs nothing, and nobody waits for what their own kernel holds.
        assert alices.run("%gpushare request --gpus 2").error()["ename"] == "QuotaExceeded"
        assert (state_of(root, "alice") or {})["id"] == first
        assert "now holds GPU 0" in alices.ok("%gpushare request --memory 8GiB").plain()
        second = other_than(first)

        # Parked, and a request that waits: it ends what was parked when it is granted.
        bobs = bob.wait(bob.ask())["lease"]
        asks = alices.start("%gpushare request --memory 4GiB")
        shows(alices, asks, "Waiting for GPUs: number 1 in line")
        bob.call(Method.RELEASE, lease=bobs)
        assert "4 GiB of 24 GiB" in alices.finish(asks).plain()
        assert other_than(second["id"])["gpus"][0]["memory"] == 4 * 2**30

        # Parked, and released: it is given up.
        bobs = bob.wait(bob.ask())["lease"]
        assert "is given up" in alices.ok("%gpushare release").plain()
        until(lambda: state_of(root, "alice") is None, "given up")
        assert uuid(alices.ok(VISIBLE).stream()) == "", "and nothing waits any more"
        bob.call(Method.RELEASE, lease=bobs)
        alices.ok("%gpushare request")
        assert uuid(alices.ok(VISIBLE).stream()).startswith("GPU-")
