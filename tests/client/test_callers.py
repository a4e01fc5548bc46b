"""An import asks for a GPU where it is a wish for one; elsewhere the first use asks, and soon ends.

Nobody who only looks, builds, serves or calls for help takes a lease, or waits without a bound.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.kernel import Kernel, shows
from support.node import RunningNode, until
from support.program import program
from support.scripted_node import Visitor
from support.scripted_process import process

from jupyter_gpushare.client.adapters import registry
from jupyter_gpushare.client.adapters.importtime import ImportTimeAdapter
from jupyter_gpushare.client.requests.broker import Broker
from jupyter_gpushare.client.session.lease import OwnState
from jupyter_gpushare.client.words.callers import (
    BOUND,
    Caller,
    Doing,
    Facts,
    caller_of,
    command_words,
)
from jupyter_gpushare.client.words.grant import Grant
from jupyter_gpushare.client.words.settings import Ask
from jupyter_gpushare.protocol.calls import Call
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method

#: Callers whose import is a wish, and those who must never wait. All others wait with a bound.
WISHES = (Caller.CELL, Caller.PROGRAM)
BUSY = (Caller.COMPLETION, Caller.EVENT_LOOP)


# -- who it is -----------------------------------------------------------------------------


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
    ],
)
def test_who_runs_code(facts: Facts, caller: Caller) -> None:
    assert caller_of(facts) is caller


PROGRAMS = """

-
train.py --epochs 3
train.py -h 128
train.py -- --help
train.py --co
-m torch.distributed.run train.py
-m pytest tests
-c "from multiprocessing.spawn import spawn_main; …"
-c "import sys;exec(eval(sys.stdin.readline()))"
/venv/bin/accelerate launch train.py
"""
LOOKERS = """
-c "import torch; train()"
train.py --help
train.py -h
-m train --version
setup.py bdist_wheel
/tmp/x/pyproject_hooks/_in_process/_in_process.py build_wheel
-m sphinx docs html
/venv/bin/pytest --collect-only
-m pytest --co -q
-m torch.utils.collect_env
collect_env.py
-m pydoc torch
/venv/bin/pylint train
/ext/python_files/unittestadapter/discovery.py --udiscovery
/ext/vscode_pytest/run_pytest_script.py --collect-only
/venv/bin/accelerate env
"""


@pytest.mark.parametrize(
    ("line", "caller"),
    [
        *((line, Caller.PROGRAM) for line in PROGRAMS[1:].splitlines()),
        *((line, Caller.LOOKER) for line in LOOKERS[1:].splitlines()),
    ],
)
def test_programs_and_what_only_looks(line: str, caller: Caller) -> None:
    assert caller_of(Facts(words=shlex.split(line))) is caller


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


class Plays:
    """A node manager that grants so many requests; the others are refused, or wait."""

    def __init__(self, grants: int = 1, *, refuses: bool = False, simulated: bool = False) -> None:
        self._grants, self._refuses, self._simulated = grants, refuses, simulated
        self.asked: list[Call] = []

    def __call__(self, visitor: Visitor) -> None:
        visitor.welcome(simulated=self._simulated)
        while True:
            call = visitor.read()
            if call.method not in (Method.REQUEST, Method.RESUME):
                visitor.answer(call, {"state": "held"})
                continue
            self.asked.append(call)
            if call.method is Method.REQUEST and len(self.asked) <= self._grants:
                visitor.grant(call)
            elif self._refuses:
                visitor.refuse(call, Reason.NO_RESOURCES, "All GPUs are held.")
            else:
                visitor.queue(call)


def imports(broker: Broker) -> None:
    broker.automatic.before_framework("frame")
    broker.automatic.after_framework("frame", ModuleType("frame"))


@pytest.mark.parametrize("simulated", [False, True], ids=["real", "simulated"])
@pytest.mark.parametrize("kind", ["shows its use", "shows nothing", "knows no GPU"])
@pytest.mark.parametrize("caller", Caller)
def test_when_it_asks(
    caller: Caller, kind: str, simulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework, node = Framework(kind), Plays(simulated=simulated)
    monkeypatch.setattr(registry, "find", lambda module: framework if module == "frame" else None)
    with process(node, caller=lambda: caller) as here:
        imports(here.broker)
        assert len(node.asked) == (caller in WISHES)
        if caller not in WISHES:
            assert here.environ["CUDA_VISIBLE_DEVICES"] == "", "nobody's GPU is used unseen"
        framework.use()
        asks = caller in WISHES or (kind == "shows its use" and not simulated)
        assert [call.params.wait for call in node.asked] == ([caller not in BUSY] if asks else [])
        assert [f"{caller.value} asks at the first use" in one for one in here.said] == (
            [] if asks else [True]
        )


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


@pytest.mark.parametrize("caller", [Caller.LOOKER, Caller.EVENT_LOOP])
def test_it_goes_on_as_a_refused_one(caller: Caller) -> None:
    with process(Plays(0, refuses=True), caller=lambda: caller) as here:
        assert here.broker.automatic.at_first_use("frame") is None
        assert "`first use of frame` goes on without a GPU" in here.said[0]
        # Who could not wait may have more luck at the next use.
        tries_again = here.broker.state is OwnState.FREE
        assert tries_again is (caller is Caller.EVENT_LOOP)


@pytest.mark.parametrize("kind", ["shows its use", "shows nothing"])
def test_who_looks_brings_back_nothing_that_was_parked(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find", lambda module: Framework(kind))
    caller, node = Caller.CELL, Plays()
    with process(node, caller=lambda: caller) as here:
        broker = here.broker
        broker.request(Ask())
        broker._parking.step_aside()
        assert broker.state is OwnState.PARKED
        caller = Caller.COMPLETION
        imports(broker)
        assert broker.state is OwnState.PARKED
        assert [call.method for call in node.asked] == [Method.REQUEST]


def test_who_looks_does_not_wait_for_a_thread_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subshell's cell stands in the queue; Tab answers beside it, and even a use of the GPU."""
    framework, node, ended = Framework("shows its use"), Plays(0), threading.Event()
    monkeypatch.setattr(registry, "find", lambda module: framework)
    monkeypatch.setattr(threading, "excepthook", lambda told: None)
    callers = {threading.get_ident(): Caller.COMPLETION}
    whose = lambda: callers.get(threading.get_ident(), Caller.CELL)  # noqa: E731
    with process(node, caller=whose) as here:
        waits = threading.Thread(
            target=lambda: here.broker.request(Ask(), cancelled=ended.is_set), daemon=True
        )
        waits.start()
        until(lambda: node.asked, "the thread waits")
        imports(here.broker)
        assert framework.use() is None
        assert waits.is_alive()
        ended.set()
        waits.join(60)


# -- a kernel ------------------------------------------------------------------------------

LEASE = "import os; print(os.environ.get('JUPYTER_GPUSHARE_LEASE'))"


@pytest.fixture
def full(tmp_path: Path) -> Iterator[tuple[RunningNode, Callable[[], object]]]:
    """A node whose GPU is somebody else's, and what gives that back."""
    config = "c.Policy.heartbeat_timeout = 600.0\n"
    people = ("mine", "theirs", "root")
    running = RunningNode(tmp_path, simulate="1x24GiB", config=config, people=people)
    with running as node, node.client("theirs") as other:
        lease = other.request(gpus=1)["lease"]
        yield node, lambda: other.call(Method.RELEASE, lease=lease)


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
        assert node.status()["queue"] == []

        cell = kernel.start(f"import cupy; {LEASE}")
        until(lambda: node.status()["queue"], "a cell that uses it waits")
        shows(kernel, cell, "Waiting")
        give_back()
        kernel.finish(cell)
        assert cell.stream() not in ("", "None\n")
