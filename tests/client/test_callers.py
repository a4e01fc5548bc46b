"""An import asks for a GPU where it is a wish for one; elsewhere the first use asks, and soon ends.

Nobody who only looks, builds, serves or calls for help takes a lease, or waits without a bound.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.kernel import Kernel, shows
from support.node import RunningNode, token_file, until
from support.program import program
from support.scripted_node import ScriptedNode, Visitor

from jupyter_gpushare.client.adapters import registry
from jupyter_gpushare.client.adapters.importtime import ImportTimeAdapter
from jupyter_gpushare.client.requests.broker import Broker
from jupyter_gpushare.client.session.lease import OwnState
from jupyter_gpushare.client.words.callers import (
    BOUND,
    Caller,
    Doing,
    Facts,
    When,
    caller_of,
    command_words,
    when,
)
from jupyter_gpushare.client.words.grant import Grant
from jupyter_gpushare.client.words.settings import Acquire, Ask
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method

#: Callers whose import is a wish, and those who must never wait. All others wait with a bound.
WISHES = (Caller.CELL, Caller.PROGRAM)
BUSY = (Caller.COMPLETION, Caller.EVENT_LOOP)


# -- who it is -----------------------------------------------------------------------------


def script(*words: str) -> Facts:
    return Facts(words=words)


@pytest.mark.parametrize(
    ("facts", "caller"),
    [
        (Facts(kernel=True, doing=Doing.CELL), Caller.CELL),
        (Facts(kernel=True), Caller.CELL),  # a widget's callback, or a thread that a cell started
        (Facts(kernel=True, in_loop=True, serves=True), Caller.CELL),
        (Facts(kernel=True, doing=Doing.LOOKS), Caller.COMPLETION),
        (Facts(kernel=True, doing=Doing.CELL, silent=True), Caller.FRONT_END),
        (Facts(kernel=True, doing=Doing.CELL, starts=True), Caller.FRONT_END),
        (Facts(doing=Doing.CELL, words=["/usr/bin/ipython"]), Caller.CELL),
        (Facts(doing=Doing.LOOKS, words=["/usr/bin/ipython"]), Caller.COMPLETION),
        (Facts(serves=True, in_loop=True, words=["jupyter-lab"]), Caller.EVENT_LOOP),
        (Facts(serves=True, words=["jupyter-lab"]), Caller.SERVER),
        (Facts(in_loop=True, words=["train.py"]), Caller.PROGRAM),
        (script(), Caller.PROGRAM),
        (script("-"), Caller.PROGRAM),
        (script("train.py", "--epochs", "3"), Caller.PROGRAM),
        (script("train.py", "-h", "128"), Caller.PROGRAM),  # a height
        (script("train.py", "--", "--help"), Caller.PROGRAM),
        (script("-m", "torch.distributed.run", "train.py"), Caller.PROGRAM),
        (script("-m", "pytest", "tests"), Caller.PROGRAM),
        (script("-c", "import torch; train()"), Caller.LOOKER),
        (script("-c", "from multiprocessing.spawn import spawn_main; …"), Caller.PROGRAM),
        (script("-c", "import sys;exec(eval(sys.stdin.readline()))"), Caller.PROGRAM),
        (script("train.py", "--help"), Caller.LOOKER),
        (script("train.py", "-h"), Caller.LOOKER),
        (script("-m", "train", "--version"), Caller.LOOKER),
        (script("setup.py", "bdist_wheel"), Caller.LOOKER),
        (script("/tmp/x/pyproject_hooks/_in_process/_in_process.py", "build_wheel"), Caller.LOOKER),
        (script("-m", "sphinx", "docs", "html"), Caller.LOOKER),
        (script("/venv/bin/pytest", "--collect-only"), Caller.LOOKER),
        (script("-m", "pytest", "--co", "-q"), Caller.LOOKER),
        (script("train.py", "--co"), Caller.PROGRAM),
        (script("-m", "torch.utils.collect_env"), Caller.LOOKER),
        (script("collect_env.py"), Caller.LOOKER),
        (script("-m", "pydoc", "torch"), Caller.LOOKER),
        (script("/venv/bin/pylint", "train"), Caller.LOOKER),
        (
            script("/ext/python_files/unittestadapter/discovery.py", "--udiscovery"),
            Caller.LOOKER,
        ),
        (script("/ext/vscode_pytest/run_pytest_script.py", "--collect-only"), Caller.LOOKER),
        (script("/venv/bin/accelerate", "env"), Caller.LOOKER),
        (script("/venv/bin/accelerate", "launch", "train.py"), Caller.PROGRAM),
    ],
)
def test_who_runs_code(facts: Facts, caller: Caller) -> None:
    assert caller_of(facts) is caller


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python", ""),
        ("python -i -q", ""),
        ("python -u train.py -c x", "train.py -c x"),
        ("python -W error -X dev -OO - a", "- a"),
        ("python -Werror -Xdev train.py", "train.py"),
        ("python -c pass a", "-c pass a"),
        ("python -Isc pass", "-c pass"),
        ("python -uspass -m x y", "-m x y"),
        ("python -um x y", "-m x y"),
        ("python -mx y", "-m x y"),
        ("python --check-hash-based-pycs always train.py", "train.py"),
        ("", ""),
    ],
)
def test_what_python_runs(line: str, words: str) -> None:
    assert " ".join(command_words(line.split())) == words


SERVES = """
import asyncio, json, socket, threading
from jupyter_gpushare.client.session.caller import this_caller
told = []
def tell():
    told.append(this_caller().name)
async def main():
    tell()
    door = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    tell()
    await asyncio.to_thread(tell)
    door.close()
    tell()
tell()
asyncio.run(main())
print(json.dumps(told))
"""


def test_a_loop_that_listens_is_a_server_and_no_other() -> None:
    done = subprocess.run(
        [sys.executable, program(SERVES)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == ["PROGRAM", "PROGRAM", "EVENT_LOOP", "SERVER", "PROGRAM"]
    looks = "from jupyter_gpushare.client.session import caller; print(caller.this_caller().name)"
    done = subprocess.run([sys.executable, "-c", looks], capture_output=True, text=True, check=True)
    assert done.stdout == "LOOKER\n"


# -- the table -----------------------------------------------------------------------------


@pytest.mark.parametrize("acquire", Acquire)
@pytest.mark.parametrize("caller", Caller)
def test_the_table(caller: Caller, acquire: Acquire) -> None:
    late = acquire is Acquire.FIRST_USE or caller not in WISHES
    never = When.IMPORT if caller in WISHES else When.NEVER
    assert when(caller, acquire, shows_use=True) is (When.FIRST_USE if late else When.IMPORT)
    assert when(caller, acquire, shows_use=False) is never
    simulated = when(caller, acquire, shows_use=True, is_simulated=True)
    assert simulated is (never if caller not in WISHES else when(caller, acquire, shows_use=True))


class Framework(ImportTimeAdapter):
    """One that shows its first use, one that does not, or one whose build knows no GPU."""

    name = "Frame"

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.catches_first_use = kind != "shows nothing"
        self.use: Callable[[], Grant | None] = lambda: None

    def first_use(  # type: ignore[override]
        self, module: ModuleType, acquire: Callable[[], Grant | None], expected: Callable[[], int]
    ) -> bool:
        if self.kind == "shows its use":
            self.use = acquire
        return self.kind == "shows its use"


def counted(asked: list[Any], simulated: bool) -> Callable[[Visitor], None]:
    def play(visitor: Visitor) -> None:
        visitor.welcome(simulated=simulated)
        while True:
            call = visitor.read()
            if call.method is Method.REQUEST:
                asked.append(call.params)
                visitor.grant(call)
            else:
                visitor.answer(call, {"state": "held"})

    return play


@pytest.mark.parametrize("simulated", [False, True], ids=["real", "simulated"])
@pytest.mark.parametrize("kind", ["shows its use", "shows nothing", "knows no GPU"])
@pytest.mark.parametrize("caller", Caller)
def test_when_it_asks(
    caller: Caller, kind: str, simulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework, asked, said = Framework(kind), list[Any](), list[str]()
    monkeypatch.setattr(registry, "find", lambda module: framework if module == "frame" else None)
    with ScriptedNode(counted(asked, simulated)) as node:
        environ = {"JUPYTER_GPUSHARE_SOCKET": os.fspath(node.socket)}
        broker = Broker(environ, say=said.append, caller=lambda: caller)
        broker.automatic.before_framework("frame")
        broker.automatic.after_framework("frame", ModuleType("frame"))
        assert len(asked) == (caller in WISHES)
        if caller not in WISHES:
            assert environ["CUDA_VISIBLE_DEVICES"] == "", "nobody's GPU is used unseen"
        framework.use()
        asks = caller in WISHES or (kind == "shows its use" and not simulated)
        assert [call.wait for call in asked] == ([caller not in BUSY] if asks else [])
        assert [f"{caller.value} asks at the first use" in one for one in said] == (
            [] if asks else [True]
        )
        broker.close()


@pytest.mark.parametrize("caller", Caller)
def test_how_long_it_waits(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[Any]()
    broker = Broker({"JUPYTER_GPUSHARE_SOCKET": "/nowhere"}, caller=lambda: caller)
    monkeypatch.setattr(broker.line, "is_simulated", lambda: False)
    monkeypatch.setattr(broker.getting, "request", lambda ask, *wait: waits.append(wait))
    broker.automatic.at_first_use("frame")
    bounds = {**dict.fromkeys(WISHES), **dict.fromkeys(BUSY, 0.0)}
    assert waits == [(caller not in BUSY, bounds.get(caller, BOUND))]
    broker._environ["JUPYTER_GPUSHARE_WAIT_TIMEOUT"] = "5"
    broker.automatic.at_first_use("frame")
    assert waits[1][1] == (None if caller in WISHES else 5.0), "what a person said is stronger"


def refuses(visitor: Visitor) -> None:
    visitor.welcome(simulated=False)
    while True:
        call = visitor.read()
        if call.method is Method.REQUEST:
            visitor.refuse(call, Reason.NO_RESOURCES, "All GPUs are held.")
        else:
            visitor.answer(call, {"state": "held"})


@pytest.mark.parametrize("caller", [Caller.LOOKER, Caller.EVENT_LOOP])
def test_it_goes_on_as_a_refused_one(caller: Caller) -> None:
    said = list[str]()
    with ScriptedNode(refuses) as node:
        environ = {"JUPYTER_GPUSHARE_SOCKET": os.fspath(node.socket)}
        broker = Broker(environ, say=said.append, caller=lambda: caller)
        assert broker.automatic.at_first_use("frame") is None
        assert "`first use of frame` goes on without a GPU" in said[0]
        # Who could not wait may have more luck at the next use.
        tries_again = broker.state is OwnState.FREE
        assert tries_again is (caller is Caller.EVENT_LOOP)
        broker.close()


class Busy:
    """A node manager that grants the first request and has no GPU for anything after it."""

    def __init__(self) -> None:
        self.asked: list[Method] = []

    def __call__(self, visitor: Visitor) -> None:
        visitor.welcome(simulated=False)
        while True:
            call = visitor.read()
            if call.method in (Method.REQUEST, Method.RESUME):
                self.asked.append(call.method)
                if call.method is Method.REQUEST and len(self.asked) == 1:
                    visitor.grant(call)
                else:
                    visitor.queue(call)
            else:
                visitor.answer(call, {"state": "held"})


@pytest.mark.parametrize("kind", ["shows its use", "shows nothing"])
def test_who_looks_brings_back_nothing_that_was_parked(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find", lambda module: Framework(kind))
    caller, busy = Caller.CELL, Busy()
    with ScriptedNode(busy) as node:
        broker = Broker(
            {"JUPYTER_GPUSHARE_SOCKET": os.fspath(node.socket)},
            say=lambda text: None,
            caller=lambda: caller,
        )
        broker.request(Ask())
        broker._parking.step_aside()
        assert broker.state is OwnState.PARKED
        caller = Caller.COMPLETION
        broker.automatic.before_framework("frame")
        broker.automatic.after_framework("frame", ModuleType("frame"))
        assert broker.state is OwnState.PARKED
        assert busy.asked == [Method.REQUEST]
        broker.close()


def test_who_looks_does_not_wait_for_a_thread_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subshell's cell stands in the queue; Tab answers beside it, and even a use of the GPU."""
    framework, busy = Framework("shows its use"), Busy()
    monkeypatch.setattr(registry, "find", lambda module: framework)
    busy.asked.append(Method.REQUEST)  # nothing is granted
    callers = {threading.get_ident(): Caller.COMPLETION}
    with ScriptedNode(busy) as node:
        broker = Broker(
            {"JUPYTER_GPUSHARE_SOCKET": os.fspath(node.socket)},
            say=lambda text: None,
            caller=lambda: callers.get(threading.get_ident(), Caller.CELL),
        )
        ended = threading.Event()
        waits = threading.Thread(
            target=lambda: broker.request(Ask(), cancelled=ended.is_set), daemon=True
        )
        monkeypatch.setattr(threading, "excepthook", lambda told: None)
        waits.start()
        until(lambda: len(busy.asked) == 2, "the thread waits")
        broker.automatic.before_framework("frame")
        broker.automatic.after_framework("frame", ModuleType("frame"))
        assert framework.use() is None
        assert waits.is_alive()
        ended.set()
        waits.join(60)
        broker.close()


# -- a kernel ------------------------------------------------------------------------------

LEASE = "import os; print(os.environ.get('JUPYTER_GPUSHARE_LEASE'))"


@pytest.fixture
def full(tmp_path: Path) -> Iterator[tuple[RunningNode, Callable[[], object]]]:
    """A node whose GPU is somebody else's, and what gives that back."""
    config = "c.Policy.heartbeat_timeout = 600.0\n"
    arguments = [token_file(tmp_path, "mine", "theirs", admin="theirs")]
    running = RunningNode(tmp_path, simulate="1x24GiB", config=config, arguments=arguments)
    with running as node, node.client("theirs") as other:
        lease = other.request(gpus=1)["lease"]
        yield node, lambda: other.call(Method.RELEASE, lease=lease)


def queue(node: RunningNode) -> list[Any]:
    with node.client("theirs") as client:
        waiting: list[Any] = client.call(Method.STATUS)["queue"]
    return waiting


def test_who_only_looks_in_a_kernel_waits_for_nothing(
    full: tuple[RunningNode, Callable[[], object]], tmp_path: Path
) -> None:
    """The kernel's start, Tab and a front end's own code ask for nothing; the next cell does."""
    node, give_back = full
    folder = tmp_path / "light"
    folder.mkdir()
    for name in ("caffe", "cupy", "mxnet"):
        (folder / f"{name}.py").write_text("operator = 1\n")
    kernel = Kernel(
        tmp_path,
        node.socket,
        ("--IPKernelApp.exec_lines=import caffe",),
        JUPYTER_GPUSHARE_TOKEN="mine",
        PYTHONPATH=os.fspath(folder),
    )
    with kernel:
        assert "operator" in kernel.complete("from cupy import op")
        kernel.run("import mxnet", silent=True)
        shown = kernel.ok(
            f"import sys; print({{'caffe', 'cupy', 'mxnet'}} <= {{*sys.modules}}); {LEASE}"
        )
        assert shown.stream() == "True\nNone\n"
        assert queue(node) == []

        cell = kernel.start(f"import cupy; {LEASE}")
        until(lambda: queue(node), "a cell that uses it waits")
        shows(kernel, cell, "Waiting")
        give_back()
        kernel.finish(cell)
        assert cell.stream() not in ("", "None\n")
