"""Ctrl-C at lines of ours that a person may wait in leaves nothing half done.

The lines are counted by a trace of the main thread, and a real SIGINT comes at one of them:
every seventh, or each with INTERRUPT_STRIDE=1.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from support.interrupts import Interrupt, at_each_line
from support.node import RunningNode, until
from support.node_fixtures import running_node
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


CONFIG = "c.Policy.heartbeat_timeout = 600.0\n"  # what is not given back stays
node = running_node(simulate="1x24GiB", config=CONFIG)


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

    at_each_line(run, STRIDE, 50)


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
