"""A process lets itself be locked for another's turn only where nothing forbids it."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.node import until
from support.taking_turns import turns_of

from jupyter_gpushare.client.memory import locking
from jupyter_gpushare.client.memory.locking import Locking
from jupyter_gpushare.client.session.lease import OwnState
from jupyter_gpushare.client.session.session import Link
from jupyter_gpushare.node.checkpoint.supervisor import IDLE_SECONDS
from jupyter_gpushare.protocol.checkpoint import Cause, Outcome, Result
from jupyter_gpushare.protocol.connection import ClientConnection
from jupyter_gpushare.protocol.messages import Method


class Node:
    """A session, and what the node manager was told in it; ``seconds``: what ``turn.lock`` says."""

    def __init__(self) -> None:
        self.path = "/nowhere"
        self.link = Link.UP
        self.hello: dict[str, Any] = {"turn_lock": 10.0}
        self.told: list[tuple[Method, dict[str, Any]]] = []
        self.seconds: float | None = 7.0
        self.greeted = 0
        self.ends: list[socket.socket] = []

    def tell(self, method: Method, **params: Any) -> Callable[[], Any]:
        self.told.append((method, params))
        return lambda: None

    def greet_again(self) -> Any:
        """A connection on which the answer to the first call is there already."""
        self.greeted += 1
        ours, theirs = socket.socketpair()
        result = {"state": "active"}
        if self.seconds is not None:
            result["seconds"] = cast(Any, self.seconds)
        self.ends.append(theirs)
        answer = SimpleNamespace(result=result)
        return SimpleNamespace(
            socket=ours,
            protocol=ClientConnection(),
            answer=lambda _call, _deadline: answer,
        )


class Scene:
    def __init__(self) -> None:
        self.node = Node()
        self.said: list[str] = []
        self.locks: list[tuple[float, str]] = []
        self.outcome = Outcome(Result.DONE)
        self.against: str | None = None
        self.has_gates = False
        self.busy = True
        self.has_cuda = True
        self.asked: list[float] = []
        self.grant: Any = SimpleNamespace(lease="L1", gpus=())
        self.state = OwnState.HELD
        self.line: Any = SimpleNamespace(session=self.node)
        self.parked: Any = SimpleNamespace(
            lock=self.lock, against_lock=lambda: self.against, uses_cuda=self.uses_cuda
        )
        has_gates = lambda: self.has_gates  # noqa: E731
        here = cast(Any, self)  # what it holds, and whether it is busy
        self.locking = Locking(self.line, here, self.parked, here, has_gates, self.said.append)

    def lock(self, seconds: float, wire: socket.socket, line: str) -> Outcome:
        self.locks.append((seconds, line))
        if self.outcome.result is Result.DONE:
            self.locking.given()  # its turn came
        return self.outcome

    def uses_cuda(self) -> bool:
        self.asked.append(time.monotonic())
        return self.has_cuda

    def offered(self) -> None:
        self.locking.offer()
        until(lambda: self.node.told, "it says that it can be locked")

    def is_idle(self) -> None:
        """No cell runs, and its thread has looked at that ten times."""
        looks: list[bool] = []
        self.locking._is_busy = lambda: bool(looks.append(True))  # type: ignore[method-assign]
        until(lambda: len(looks) > 10, "it looks on")


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(locking, "PATIENCE", 0.0)
    monkeypatch.setattr(locking, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(locking, "AGAIN", 0.01)
    monkeypatch.setattr(locking, "cuda_loaded", lambda: True)
    made = Scene()
    yield made
    made.grant = None  # its thread ends
    thread = made.locking._thread
    if thread is not None:
        thread.join(60)
    for end in made.node.ends:
        end.close()


def test_it_is_locked_when_it_is_asked_for_its_turn(scene: Scene) -> None:
    scene.offered()
    assert scene.node.told == [
        (
            Method.MEMORY,
            {"lease": "L1", "figures": [], "steps": 0, "can_take_turns": True, "by_lock": True},
        )
    ]
    assert scene.locking.stands
    scene.locking.recalled()
    until(lambda: scene.locks, "it is locked")
    ((seconds, line),) = scene.locks
    assert seconds == 7.0
    assert Method.TURN_LOCKED.value in line
    assert line.endswith("\n")


def test_an_idle_one_is_locked_when_its_next_cell_begins_and_is_not_soon_over(
    scene: Scene,
) -> None:
    scene.offered()
    scene.busy = False
    scene.locking.recalled()
    scene.locking.cell_begins()  # and it is over
    scene.is_idle()
    assert not scene.node.greeted
    assert not scene.locks
    del scene.locking._is_busy  # type: ignore[attr-defined]
    scene.busy = True
    scene.locking.cell_begins()
    until(lambda: scene.locks, "it is locked")


def test_the_driver_is_not_asked_about_a_process_without_cuda(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question costs a helper, which it starts."""
    looks: list[bool] = []
    monkeypatch.setattr(locking, "cuda_loaded", lambda: bool(looks.append(True)))
    scene.locking.offer()
    until(lambda: len(looks) > 10, "it looks on")
    assert not scene.asked
    monkeypatch.setattr(locking, "cuda_loaded", lambda: True)
    until(lambda: scene.node.told, "it says that it can be locked")


def test_a_driver_that_knows_of_no_cuda_here_is_asked_more_and_more_rarely(scene: Scene) -> None:
    scene.has_cuda = False
    scene.locking.offer()
    until(lambda: len(scene.asked) == 4, "it is asked four times")
    pauses = [after - before for before, after in itertools.pairwise(scene.asked)]
    assert pauses[0] >= 0.04, "twice the time between two looks"
    assert pauses[2] >= 0.16
    scene.has_cuda = True
    until(lambda: scene.node.told, "it says that it can be locked")


def test_the_helper_hears_of_it_while_it_computes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper that hears nothing ends, and to start another takes seconds."""
    assert locking.KEEP_EVERY < IDLE_SECONDS
    monkeypatch.setattr(locking, "KEEP_EVERY", 0.01)
    scene.offered()
    before = len(scene.asked)
    until(lambda: len(scene.asked) > before + 2, "it hears of it again and again")
    scene.is_idle()
    before = len(scene.asked)
    scene.is_idle()
    assert len(scene.asked) == before, "an idle one needs no helper"


def test_one_that_may_compute_is_not_locked(scene: Scene) -> None:
    scene.node.seconds = None
    scene.offered()
    scene.locking.recalled()
    until(lambda: scene.node.greeted, "it asks")
    scene.locking.given()
    assert not scene.locks
    assert not scene.said


def test_what_forbids_it_is_looked_at_before_each_lock(scene: Scene) -> None:
    scene.offered()
    scene.against = "NCCL runs in this process."
    scene.locking.recalled()
    until(lambda: scene.said, "it says why not")
    assert scene.against in scene.said[0]
    assert not scene.locks
    assert not scene.node.greeted, "the node manager is not even asked"


def test_it_is_not_offered_where_it_is_forbidden_or_not_allowed(scene: Scene) -> None:
    scene.node.hello = {}
    scene.locking.offer()
    assert scene.locking._thread is None
    scene.node.hello = {"turn_lock": 10.0}
    scene.has_gates = True
    scene.locking.offer()
    until(lambda: scene.locking._thread is None, "it has a gate, and needs no lock")
    assert not scene.node.told


def test_gpu_work_that_goes_on_is_tried_again_and_other_failures_a_few_times(scene: Scene) -> None:
    scene.outcome = Outcome(Result.INTACT, Cause.GPU_WORK, "It works.")
    scene.offered()
    scene.locking.recalled()
    until(lambda: len(scene.locks) > 8, "it tries on")
    assert not scene.said
    scene.outcome = Outcome(Result.REFUSED, Cause.NO_HELPER, "There is no helper.")
    until(lambda: scene.said, "it gives up")
    assert "There is no helper." in scene.said[0]


def test_it_stays_its_gate_over_a_restart_of_the_node_manager(scene: Scene) -> None:
    """The recall may come before it is told again: the ledger knows."""
    scene.offered()
    scene.node.hello = {"turn_lock": 10.0}
    assert scene.locking.stands
    until(lambda: len(scene.node.told) == 2, "it is told again")


def test_a_gate_of_its_own_goes_before_it_for_ever(scene: Scene) -> None:
    scene.offered()
    scene.has_gates = True
    assert not scene.locking.stands
    scene.has_gates = False  # as after a reconnect, before the next step
    assert not scene.locking.stands


def test_it_is_offered_again_after_it_held_nothing_for_a_while(scene: Scene) -> None:
    """As after a parking: whoever starts the thread must not meet one that is about to end."""
    for _ in range(20):
        scene.offered()
        held, scene.grant = scene.grant, None
        until(lambda: scene.locking._thread is None, "nothing is held")
        scene.grant, scene.node.hello = held, dict(scene.node.hello)
        scene.node.told.clear()


def test_a_bug_of_ours_is_no_traceback_for_the_user(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.offered()

    def fails() -> None:
        raise ZeroDivisionError

    scene.parked.against_lock = fails
    scene.locking.recalled()
    until(lambda: "no more" in caplog.text, "it is logged")
    scene.locking.offer()
    assert scene.locking._barred
    assert not scene.locks


def test_its_gate_never_closes(scene: Scene) -> None:
    """There is no place at which it could stop."""
    turns = turns_of(scene.line, scene.grant, say=scene.said.append)
    turns._lock = scene.locking
    scene.offered()
    turns.recalled({})
    assert turns.is_gated
    assert not turns.is_closed
    until(lambda: scene.locks, "it is locked")
    turns.rest()
    assert not turns.is_closed
