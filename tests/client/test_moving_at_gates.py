"""A task gives its memory at its gate and has it back before it goes on, interrupted or not.

A broker, and a node manager by a script.
What moves the memory is a stand-in here; `tests/e2e/test_moved_in_mid_cell.py` has a driver.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import pytest
from support.interrupts import Interrupt, at_each_line
from support.node import until
from support.scripted_node import GPU, LEASE, SECRET, Script, Visitor, plays
from support.scripted_process import Process, process

from jupyter_gpushare.client.memory.bystanders import Bystanders
from jupyter_gpushare.client.memory.ladder import Ladder
from jupyter_gpushare.client.session.lease import OwnState
from jupyter_gpushare.client.words.settings import Ask
from jupyter_gpushare.protocol.checkpoint import Ability, Outcome, Result
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method, Notice

GIB = 2**30
GPUS = [
    {**GPU, "uuid": f"GPU-00000000-0000-0000-0000-00000000000{i}", "index": i} for i in range(4)
]
HERE, THERE = GPUS[:2], GPUS[2:]


def uuids(gpus: list[dict[str, Any]]) -> list[str]:
    return [gpu["uuid"] for gpu in gpus]


class Driver:
    """Stands where `DriverCheckpoint` stands, which tests/checkpoint has."""

    def __init__(self, migration: bool, restores: Result) -> None:
        self.log: list[str] = []
        self.migration = migration
        self.restores = restores

    def probe(self, deadline_s: float = 30.0) -> Ability:
        return Ability(True, "", None, self.migration)

    def park(self, deadline_s: float, lock_timeout_s: float = 5.0) -> Outcome:
        self.log.append("park")
        return Outcome(Result.DONE, None, "")

    def resume(self, gpu_map: Mapping[str, str] | None, deadline_s: float) -> Outcome:
        self.log.append(f"resume {dict(gpu_map or {})}")
        return Outcome(self.restores, None, "So the driver said.")


class Task:
    """A broker that has a lease and runs a cell on the test's thread."""

    def __init__(self, process: Process, driver: Driver) -> None:
        self.broker, self.node, self.driver = process.broker, process.node, driver
        self.said, self.environ = process.said, process.environ
        self.broker._memory._ladder = Ladder(
            list,
            driver,  # type: ignore[arg-type]
            self.said.append,
            bystanders=Bystanders,
        )
        self.broker.request(Ask())
        self.broker.set_activity(True)
        self.broker.call(Method.STATUS)  # it is ready for what the node manager wants

    @property
    def is_held(self) -> bool:
        return self.broker.state is OwnState.HELD

    def comes_to_a_gate(self) -> None:
        self.broker.turns.checkpoint()


GATE = {"lease": LEASE, "gate": True, "gpus": [], "message": "It computes sooner elsewhere."}
USED = [{"uuid": uuid, "may_stay": 0, "used": 2 * GIB} for uuid in uuids(HERE)]
MEMORY = {**GATE, "give": "process", "why": "moved", "gpus": USED}
GONE_THERE = ["park", f"resume {dict(zip(uuids(HERE), uuids(THERE), strict=True))}"]


def holding(gpus: list[dict[str, Any]]) -> dict[str, Any]:
    """What the node manager says of a lease."""
    return {"lease": LEASE, "secret": SECRET, "gpus": gpus, "state": "held"}


def begins(visitor: Visitor) -> None:
    """The beginning of all scripts: a lease."""
    visitor.welcome()
    visitor.answer(visitor.expect(Method.REQUEST), holding(HERE))
    visitor.answer(visitor.expect(Method.STATUS), {})


def asks(visitor: Visitor) -> None:
    """It wants this task's memory."""
    visitor.notify(Notice.RECALL, MEMORY)


def agrees(visitor: Visitor) -> None:
    call = visitor.expect(Method.PARKING)
    assert call.params.memory == 4 * GIB
    visitor.answer(call, {"state": "held"})


def takes(visitor: Visitor) -> None:
    """The node manager agrees, sets host memory aside, and hears that it is parked."""
    agrees(visitor)
    agrees(visitor)
    gave = visitor.expect(Method.GAVE)
    assert (gave.params.rung, gave.params.memory) == ("driver", 4 * GIB)
    visitor.answer(gave, {"state": "parked"})


def refuses(reason: Reason, message: str) -> Script:
    return lambda visitor: visitor.refuse(visitor.expect(Method.PARKING), reason, message)


def gives(visitor: Visitor, gpus: list[dict[str, Any]] = THERE) -> None:
    visitor.answer(visitor.expect(Method.RESUME), holding(gpus))


def queues(visitor: Visitor) -> None:
    """No GPU is free; the person presses the button."""
    visitor.expect(Method.RESUME)
    place = {"position": 1, "ahead": {"interactive": 0, "batch": 0}, "waiting": 0.0}
    why = {"reason": "no_resources", "message": "Waiting."}
    visitor.notify(Notice.QUEUED, {"lease": LEASE, "secret": SECRET, **place, **why})
    interrupt()


def lets_compute(visitor: Visitor) -> None:
    visitor.answer(visitor.expect(Method.TURN_ASK), {"state": "held"})
    visitor.notify(Notice.TURN, {"lease": LEASE, "gpus": [], "quantum": None})


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def task(
    *script: Script, asked: Script = asks, migration: bool = True, restores: Result = Result.DONE
) -> Iterator[Task]:
    """A task that was asked by a node manager which then plays this script."""
    with process(plays(begins, asked, *script, Visitor.live)) as here:
        alice = Task(here, Driver(migration, restores))
        until(lambda: alice.broker.turns.is_closed, "it is asked")
        yield alice


def test_it_gives_its_memory_at_its_gate_and_goes_on_elsewhere() -> None:
    def hears(visitor: Visitor) -> None:
        assert visitor.expect(Method.RESTORED).params.lease == LEASE

    with task(takes, gives, hears, lets_compute) as alice:
        alice.comes_to_a_gate()
        assert alice.driver.log == GONE_THERE
        assert alice.environ["CUDA_VISIBLE_DEVICES"] == ",".join(uuids(THERE))
        assert alice.is_held
        assert any("Paused: its memory (4 GiB) waits in host memory" in one for one in alice.said)
        assert alice.node.calls(Method.GAVE)[0].params.movable == "kind"
        alice.comes_to_a_gate()
        assert len(alice.driver.log) == 2, "it is asked once"


def test_who_waits_for_its_turn_gives_it_there() -> None:
    def asks_for_its_turn(visitor: Visitor) -> None:
        visitor.notify(Notice.RECALL, {**GATE, "give": "turn", "why": "quantum"})

    def queues_it(visitor: Visitor) -> None:
        visitor.answer(visitor.expect(Method.TURN_ASK), {"state": "held"})

    script = (queues_it, asks, takes, gives, lets_compute)
    with task(*script, asked=asks_for_its_turn) as alice:
        alice.comes_to_a_gate()
        assert alice.driver.log == GONE_THERE
        count = len(alice.node.calls(Method.TURN_ASK))
        assert count >= 2, "it has no turn where it is now"


def test_what_nobody_wants_any_more_stays() -> None:
    with task(refuses(Reason.BAD_REQUEST, "Nobody asked.")) as alice:
        alice.comes_to_a_gate()
        assert not alice.driver.log
        assert not alice.broker.turns.is_closed
        assert alice.is_held
        assert not alice.node.calls(Method.KEPT)
        assert not alice.node.calls(Method.TURN_ASK), "it was alone, and goes on at once"


def test_another_move_over_the_same_link_is_waited_for() -> None:
    moves = refuses(Reason.RATE_LIMITED, "Another moves.")
    with task(moves, moves, moves, takes, gives, lets_compute) as alice:
        alice.comes_to_a_gate()
        assert len(alice.driver.log) == 2


def test_who_could_only_come_back_to_the_same_gpu_keeps_its_memory_and_says_why() -> None:
    def hears(visitor: Visitor) -> None:
        kept = visitor.expect(Method.KEPT)
        assert "back to the same GPUs only" in kept.params.reason
        visitor.answer(kept, {"state": "held"})

    with task(agrees, hears, lets_compute, migration=False) as alice:
        alice.comes_to_a_gate()
        assert not alice.driver.log
        assert alice.is_held
        assert alice.environ["CUDA_VISIBLE_DEVICES"] == ",".join(uuids(HERE))


def test_for_another_request_it_may_come_back_to_the_same_gpu() -> None:
    def asks_for_another(visitor: Visitor) -> None:
        visitor.notify(Notice.RECALL, {**MEMORY, "why": "served"})

    script = (takes, partial(gives, gpus=HERE), lets_compute)
    with task(*script, asked=asks_for_another, migration=False) as alice:
        alice.comes_to_a_gate()
        assert alice.driver.log == ["park", "resume {}"]
        assert alice.node.calls(Method.GAVE)[0].params.movable == "same"


def test_without_host_memory_for_it_it_stays() -> None:
    with task(refuses(Reason.NO_RESOURCES, "No host memory.")) as alice:
        alice.comes_to_a_gate()
        (kept,) = alice.node.wait_for(Method.KEPT)
        assert kept.params.reason == "No host memory."
        assert not alice.driver.log
        assert not alice.node.calls(Method.TURN_ASK)


def test_an_interrupt_has_the_memory_back_first() -> None:
    """What follows in the program may use the GPU: `except KeyboardInterrupt: save(model)`."""
    with task(takes, queues, gives) as alice:
        with pytest.raises(KeyboardInterrupt):
            alice.comes_to_a_gate()
        assert alice.driver.log == GONE_THERE
        assert alice.is_held
        assert any("comes back first" in one for one in alice.said)


def test_a_second_interrupt_leaves_it_as_a_parked_kernel() -> None:
    with task(takes, queues, queues, gives) as alice:
        with pytest.raises(KeyboardInterrupt):
            alice.comes_to_a_gate()
        assert alice.driver.log == ["park"]
        assert alice.broker.state is OwnState.PARKED
        alice.broker.set_activity(False)
        assert alice.broker.cells.barred is not None, "no cell runs without it"
        alice.broker.set_activity(True)
        alice.broker.cells.before_cell()
        assert alice.driver.log == GONE_THERE
        assert alice.broker.cells.barred is None


def test_what_cannot_be_brought_back_is_tried_again_and_an_interrupt_leaves_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused: list[float] = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 3:
            alice.driver.restores = Result.DONE

    monkeypatch.setattr("jupyter_gpushare.client.memory.moving._pause", pause)
    with task(takes, gives, lets_compute, restores=Result.REFUSED) as alice:
        alice.comes_to_a_gate()
        assert len(paused) == 3
        assert alice.driver.log[-1] == GONE_THERE[-1]
        assert sum("It is tried again." in one for one in alice.said) == 1, "said once"


def test_another_thread_that_asks_for_gpus_is_not_disturbed() -> None:
    with task() as alice:
        has, done = threading.Event(), threading.Event()

        def holds() -> None:
            with alice.broker.own.lock:
                has.set()
                done.wait(60)

        thread = threading.Thread(target=holds)
        thread.start()
        assert has.wait(60)
        alice.comes_to_a_gate()
        done.set()
        thread.join(60)
        assert not alice.node.calls(Method.PARKING)
        assert not alice.driver.log


#: The functions between the node manager's agreement and the end of the move.
MOVES = {"_give", "_paused", "_have_again", "_settle_in", "bring_back", "tell_frameworks"}


def moves(frame: FrameType) -> bool:
    files = ("moving.py", "getting.py", "setaside.py")
    return frame.f_code.co_name in MOVES and frame.f_code.co_filename.endswith(files)


def answers_all(visitor: Visitor) -> None:
    while True:
        call = visitor.read()
        visitor.answer(call, holding(THERE) if call.method is Method.RESUME else {"state": "held"})
        if call.method is Method.TURN_ASK:
            visitor.notify(Notice.TURN, {"lease": LEASE, "gpus": [], "quantum": None})


def test_an_interrupt_at_any_line_leaves_nothing_half_moved() -> None:
    def run(line: Interrupt) -> None:
        told = list[object]()
        with task(answers_all) as alice:
            alice.broker._frameworks.tell = told.append  # type: ignore[assignment,method-assign]
            was_heard = line.during(alice.comes_to_a_gate)
            assert was_heard is bool(line.where), f"{line.where}: an interrupt is not lost"
            assert alice.is_held, line.where
            assert not alice.broker._memory.holds, line.where
            moved = bool(alice.driver.log)
            alice.node.wait_for(Method.RESTORED if moved else Method.KEPT)
            there = ",".join(uuids(THERE if moved else HERE))
            assert alice.environ["CUDA_VISIBLE_DEVICES"] == there, line.where
            assert len(told) == moved, f"{line.where}: the limits are those of the new GPU"

    at_each_line(run, counts=moves)
