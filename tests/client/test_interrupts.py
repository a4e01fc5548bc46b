"""Ctrl-C at lines of ours that a person may wait in leaves nothing half done.

The lines are counted by a trace of the main thread, and a real SIGINT comes at one of them:
every seventh, or each with INTERRUPT_STRIDE=1.
"""

from __future__ import annotations

import gc
import linecache
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.node import RunningNode, until
from support.scripted_node import ScriptedNode, Visitor

from jupyter_gpushare.client.errors import NodeUnavailable
from jupyter_gpushare.client.requests.broker import Broker
from jupyter_gpushare.client.session.interrupts import deaf_to_interrupts
from jupyter_gpushare.client.session.lease import OwnState
from jupyter_gpushare.client.session.session import Greeting, _Waiting
from jupyter_gpushare.client.words.display import TerminalDisplay
from jupyter_gpushare.client.words.settings import Ask
from jupyter_gpushare.protocol import names
from jupyter_gpushare.protocol.messages import Method

pytestmark = pytest.mark.timeout(600)

STRIDE = int(os.environ.get("INTERRUPT_STRIDE", "7"))  # lines from one interrupt to the next
OURS = os.path.join("jupyter_gpushare", "client")


class Interrupt:
    """Sends SIGINT when line ``at`` of ours is reached in this thread; counts them."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.lines = 0
        self.where = ""
        self._withs: set[tuple[FrameType, int]] = set()

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if OURS not in frame.f_code.co_filename:
            return None
        if event == "line" and not self._leaves_with(frame):
            self.lines += 1
            if self.lines == self._at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self._trace

    def _leaves_with(self, frame: FrameType) -> bool:
        """Whether the line is a ``with`` that ends: Python hears no signal before its end.

        Nor does it at a ``try:``, which does nothing and which an outer ``with`` does not guard.
        """
        place = (frame, frame.f_lineno)
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if text.strip() == "try:":
            return True
        if not text.lstrip().startswith("with "):
            return False
        if place in self._withs:
            return True
        self._withs.add(place)
        return False

    def during(self, call: Callable[[], object]) -> bool:
        """Whether ``call`` was left by the interrupt."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    config = "c.Policy.heartbeat_timeout = 600.0\n"  # what is not given back stays
    folder = tmp_path_factory.mktemp("node")
    with RunningNode(folder, simulate="1x24GiB", config=config) as running:
        yield running


def make(node: RunningNode) -> tuple[Broker, dict[str, str]]:
    environ = {names.SOCKET: os.fspath(Path(node.socket))}
    return Broker(
        environ, make_display=partial(TerminalDisplay, None), say=lambda text: None
    ), environ


def leases(node: RunningNode) -> list[str]:
    live = [one for one in node.status()["leases"] if one["phase"] in ("held", "queued", "parked")]
    return [one["id"] for one in live]


def agree(node: RunningNode, broker: Broker, environ: Mapping[str, str], where: str) -> None:
    """What the process believes, what it shows, and what the node manager knows are the same."""
    known = [] if broker.lease is None else [broker.lease]
    until(lambda: leases(node) == known, f"the same is known after {where}")
    assert environ.get(names.LEASE) == (None if broker.grant is None else broker.grant.lease)
    assert (broker.state is OwnState.HELD) == (broker.grant is not None), where


def at_each_line(run: Callable[[Interrupt], None]) -> None:
    """From the first line on, until ``run`` comes to its end before the interrupt."""
    at = 1
    with warnings.catch_warnings():
        # A socket that an interrupt left between two lines is closed when Python collects it.
        warnings.simplefilter("ignore", ResourceWarning)
        while True:
            interrupt = Interrupt(at)
            run(interrupt)
            if not interrupt.where:
                break
            at += STRIDE
        gc.collect()
    assert at > 50, "there was something to interrupt"


@pytest.fixture
def sigint() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint")
def test_a_programs_own_handler_hears_it_afterwards() -> None:
    """As a training loop has one that saves and stops after this step."""
    heard: list[str] = []
    signal.signal(signal.SIGINT, lambda *_told: heard.append("interrupt"))
    with deaf_to_interrupts():
        with deaf_to_interrupts():
            signal.raise_signal(signal.SIGINT)
        heard.append("the outer one goes on")
    assert heard == ["the outer one goes on", "interrupt"]


@pytest.mark.usefixtures("sigint")
def test_where_interrupts_are_ignored_they_stay_so() -> None:
    """As of a program that a shell script has started with ``&``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with deaf_to_interrupts():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_a_failure_does_not_lose_it() -> None:
    def fails() -> None:
        with deaf_to_interrupts():
            signal.raise_signal(signal.SIGINT)
            raise OSError("no")

    with pytest.raises(KeyboardInterrupt) as told:
        fails()
    assert isinstance(told.value.__context__, OSError)


def test_in_a_request(node: RunningNode) -> None:
    def run(interrupt: Interrupt) -> None:
        broker, environ = make(node)
        interrupt.during(lambda: broker.request(Ask()))
        agree(node, broker, environ, interrupt.where)
        broker.request(Ask())
        agree(node, broker, environ, interrupt.where)
        broker.close()
        until(lambda: not leases(node), f"all is given back after {interrupt.where}")

    at_each_line(run)


def test_a_release_right_behind_its_request_finds_it(node: RunningNode) -> None:
    """The request is not decided yet when the node manager reads that nobody waits for it."""
    with node.client() as client:
        asked = client.ask(request_id="one")
        released = client.send(Method.RELEASE, request_id="one")
        assert client.wait(asked)["state"] == "held"
        client.wait(released)
        assert leases(node) == []


def test_a_lease_that_comes_back_while_a_session_opens_is_parked_again() -> None:
    with ScriptedNode(Visitor.hang) as scripted:
        resumes = _Waiting(Method.RESUME, {"lease": "L", "wait": True}, True)
        with pytest.raises(NodeUnavailable):
            Greeting(os.fspath(scripted.socket), None, 0.2, resumes)
        (parked,) = scripted.wait_for(Method.PARKED)
    assert parked.params.lease == "L"
