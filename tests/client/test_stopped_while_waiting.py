"""A program that is to stop saves and ends while it waits for its turn or in the queue, too.

The node is scripted.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from support.node import until
from support.scripted_node import LEASE, SECRET, ScriptedNode, Visitor, plays

from jupyter_gpushare.client.errors import Preempted
from jupyter_gpushare.client.memory.stopping import Place
from jupyter_gpushare.client.requests.broker import Broker
from jupyter_gpushare.client.words.display import TerminalDisplay
from jupyter_gpushare.client.words.settings import Ask
from jupyter_gpushare.protocol.messages import Method, Notice

ASK = {"lease": LEASE, "gpus": [], "message": ""}
TURN = {**ASK, "give": "turn", "why": "quantum", "gate": True}
STOP = {**ASK, "give": "stop", "why": "contended", "gate": False}


class Program:
    """One that said how its state is saved, and runs on the test's thread."""

    def __init__(self, node: ScriptedNode, environ: dict[str, str]) -> None:
        self.saves = 0
        environ["JUPYTER_GPUSHARE_SOCKET"] = os.fspath(node.socket)
        self.broker = Broker(
            environ, make_display=partial(TerminalDisplay, None), say=lambda _text: None
        )
        self.broker.stops_by(self.save)

    def save(self) -> None:
        self.saves += 1


@contextmanager
def program(
    script: Callable[[Visitor], object], **environ: str
) -> Iterator[tuple[ScriptedNode, Program]]:
    with ScriptedNode(script) as node:
        made = Program(node, environ)
        try:
            yield node, made
        finally:
            made.broker.stops_by(None)
            made.broker.close()


def test_it_stops_where_it_waits_for_its_turn() -> None:
    def script(visitor: Visitor) -> None:
        visitor.welcome()
        request = visitor.expect(Method.REQUEST)
        assert request.params.stops is True
        visitor.grant(request)
        visitor.answer(visitor.expect(Method.STATUS), {})
        visitor.notify(Notice.RECALL, TURN)
        visitor.answer(visitor.expect(Method.TURN_ASK), {"state": "held"})
        visitor.notify(Notice.RECALL, {**STOP, "seconds": 60.0})
        visitor.live()

    with program(script) as (node, alice):
        alice.broker.request(Ask())
        alice.broker.call(Method.STATUS)
        until(lambda: alice.broker.turns.is_closed, "it is asked for its turn")
        with pytest.raises(Preempted):
            alice.broker.turns.checkpoint(Place.NAMED)
        assert alice.saves == 1
        node.wait_for(Method.TURN_DONE)  # nobody waits until it has gone


def test_sigterm_in_the_queue_saves_and_leaves_it() -> None:
    def script(visitor: Visitor) -> None:
        visitor.welcome()
        request = visitor.expect(Method.REQUEST)
        visitor.queue(request)
        os.kill(os.getpid(), signal.SIGTERM)
        released = visitor.expect(Method.RELEASE)
        assert released.params.request_id == request.params.request_id
        visitor.live()

    with program(script) as (node, alice):
        alice.broker.stopping.gate()
        with pytest.raises(Preempted):
            alice.broker.request(Ask())
        assert alice.saves == 1
        node.wait_for(Method.RELEASE)


joins = plays(Visitor.welcome, lambda visitor: visitor.grant(visitor.expect(Method.ATTACH)))


@pytest.mark.parametrize(("run", "says"), [("our parent", True), ("1", False), ("", False)])
def test_what_run_has_started_says_for_its_lease_that_it_can_be_stopped(
    run: str, says: bool
) -> None:
    """It is stopped by a signal; `run` gets the ask."""
    run = str(os.getppid()) if says else run
    joined = {"LEASE": LEASE, "SECRET": SECRET, "RUN": run}
    environ = {f"JUPYTER_GPUSHARE_{name}": value for name, value in joined.items()}
    with program(plays(joins, Visitor.live), **environ) as (node, alice):
        assert alice.broker.getting.ensure("import torch") is not None
        if says:
            (told,) = node.wait_for(Method.STOPPABLE)
            assert (told.params.lease, told.params.can) == (LEASE, True)
        else:
            alice.broker.call(Method.STATUS)  # nothing was said before it
            assert not node.calls(Method.STOPPABLE), "its parent does not pass it on"
