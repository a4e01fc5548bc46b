"""On the same trace the simulator grants what a real node manager grants real processes.

The driver here knows nothing of the policy. It plays the sessions in the order of
their own times, waits until the node manager has nothing more to do after each
thing that it does, and looks who has GPUs now.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.node import NodeClient, Puppet, RunningNode, until
from support.replayed import GIB, Checked, session

from jupyter_gpushare.policy.words.model import Bytes
from jupyter_gpushare.protocol.messages import CallId, Method, Notice
from jupyter_gpushare.replay.behaviour import FREE, Options, PolicyName, behaviour
from jupyter_gpushare.replay.tally import Window
from jupyter_gpushare.replay.trace import Session

MEMORY = 24 * GIB
CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    "c.Policy.heartbeat_timeout = 1000.0\nc.Policy.idle_timeout = 0.2\n"
    "c.Policy.notify_before = 0.0\n"
)
Granted = tuple[str, tuple[int, ...]]


def simulated(name: PolicyName, sessions: Sequence[Session], gpus: int) -> list[Granted]:
    options = Options(idle_timeout=0.5, cost=FREE)
    node = Checked(gpus, behaviour(name, options), Window(0.0, 1e5), Bytes(MEMORY))
    node.play(sessions)
    return [(grant.session, grant.gpus) for grant in node.grants]


class Body:
    """A process that the test speaks for, and that follows a session."""

    def __init__(self, node: RunningNode, one: Session) -> None:
        self.one = one
        self.puppet = Puppet()
        self.client: NodeClient = self.puppet.client(node.socket, one.environment)
        self.call: CallId | None = None
        self.lease: str | None = None

    def ask(self) -> None:
        if self.lease is not None:
            self.call = self.client.send(Method.RESUME, lease=self.lease)
            return
        self.call = self.client.ask(name=self.one.name, kernel_id=self.one.name, gpus=self.one.gpus)

    def granted(self) -> bool:
        assert self.call is not None
        if not self.client.answered(self.call):
            return False
        self.lease = self.client.wait(self.call)["lease"]
        return True

    def idle(self) -> None:
        self.client.call(Method.ACTIVITY, lease=self.lease, state="idle")

    def busy(self) -> None:
        self.client.call(Method.ACTIVITY, lease=self.lease, state="busy")

    def parked(self) -> bool:
        self.client.pump(0.0)
        asked = [seen for seen in self.client.notices if seen.notice is Notice.RECALL]
        if not asked:
            return False
        self.client.notices.remove(asked[0])
        self.client.call(Method.PARKED, lease=self.lease)
        return True

    def leave(self) -> None:
        self.puppet.kill9()

    def close(self) -> None:
        self.puppet.close()


class Drive:
    """Plays a trace in the order of its times; what takes real time is waited for."""

    def __init__(self, admin: NodeClient, bodies: dict[str, Body]) -> None:
        self.admin = admin
        self.bodies = bodies
        self.waiting: dict[str, Callable[[float], None]] = {}
        self.holding: set[str] = set()
        self.resting: set[str] = set()
        self.heap: list[tuple[float, int, Callable[[float], None]]] = []
        self.serial = itertools.count()

    def at(self, when: float, do: Callable[[float], None]) -> None:
        heapq.heappush(self.heap, (when, next(self.serial), do))

    def play(self, sessions: Sequence[Session]) -> None:
        """Everything, to the last session's end."""
        for one in sessions:
            gaps = one.gaps()
            self.at(one.start + next(gaps), self.cell(one, gaps, 0))
        while self.heap:
            when, _serial, do = heapq.heappop(self.heap)
            do(when)
            self.settle(when)
        assert not self.waiting

    def cell(self, one: Session, gaps: Any, number: int) -> Callable[[float], None]:
        def run(when: float) -> None:
            self.resting.discard(one.name)
            self.at(when + one.seconds[number], end)

        def begin(when: float) -> None:
            if one.name in self.holding:
                self.bodies[one.name].busy()
                run(when)
                return
            self.bodies[one.name].ask()
            self.waiting[one.name] = run

        def end(when: float) -> None:
            self.bodies[one.name].idle()
            self.resting.add(one.name)
            following = (
                leave if number + 1 == len(one.submits) else self.cell(one, gaps, number + 1)
            )
            self.at(when + next(gaps), following)

        def leave(when: float) -> None:
            self.resting.discard(one.name)
            self.holding.discard(one.name)
            self.bodies[one.name].leave()

        return begin

    def settle(self, when: float) -> None:
        """Wait until nothing more can follow, and take note of who was granted, in order."""
        until(lambda: self.quiet(when), f"quiet at {when}")

    def quiet(self, when: float) -> bool:
        status = self.admin.call(Method.STATUS)
        for name in sorted(self.resting):
            if self.bodies[name].parked():
                self.resting.discard(name)
                self.holding.discard(name)
                return False
        held = [row for row in status["leases"] if row["phase"] == "held"]
        news = [row for row in held if row["environment"] in self.waiting]
        for row in news:
            until(self.bodies[row["environment"]].granted, "a grant is told")
            self.holding.add(row["environment"])
            self.waiting.pop(row["environment"])(when)
        if news:
            return False
        known = {row["environment"] for row in status["leases"] if row["phase"] != "ended"}
        claims = sum(gpu["tasks"] for gpu in status["gpus"])
        waits = {row["environment"] for row in status["leases"] if row["position"] is not None}
        if waits and self.resting & self.holding:
            return False  # who is idle will be asked for its GPUs
        return (
            claims == sum(len(row["gpus"]) for row in held)
            and self.holding == {row["environment"] for row in held}
            and set(self.waiting) == waits
            and self.holding | waits <= known
        )


def granted_by(node: RunningNode, admin: NodeClient) -> list[Granted]:
    """Every grant in its order, as the ledger has it; the node manager ends first."""
    index = {gpu["uuid"]: gpu["index"] for gpu in admin.call(Method.STATUS)["gpus"]}
    node.terminate()
    with contextlib.closing(sqlite3.connect(node.ledger)) as ledger:
        rows = ledger.execute(
            "SELECT environment, data FROM records WHERE kind = 'LeaseGranted' ORDER BY seq"
        )
        return [
            (who, tuple(index[part["gpu"]] for part in json.loads(data)["gpus"]))
            for who, data in rows
        ]


def node_of(directory: Path, sessions: Sequence[Session], gpus: int) -> RunningNode:
    tokens = directory / "tokens.json"
    tokens.touch(0o600)
    people: list[dict[str, Any]] = [
        {"token": one.environment, "environment": one.environment} for one in sessions
    ]
    people.append({"token": "root", "environment": "root", "admin": True})
    tokens.write_text(json.dumps({"tokens": people}))
    return RunningNode(
        directory,
        simulate=f"{gpus}x24GiB",
        config=CONFIG,
        arguments=[f"--token-file={tokens}"],
    )


def played(directory: Path, crowd: Sequence[Session], gpus: int) -> list[Granted]:
    """The grants of a real node manager to real processes that follow these sessions."""
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(node_of(directory, crowd, gpus))
        admin = stack.enter_context(node.client("root"))
        bodies = {}
        for one in crowd:
            body = bodies[one.name] = Body(node, one)
            stack.callback(body.close)
        Drive(admin, bodies).play(crowd)
        return granted_by(node, admin)


@pytest.mark.story
def test_processes_that_are_parked_when_they_are_idle(tmp_path: Path) -> None:
    """Three kernels on one GPU: parked for each other, resumed before their next cell."""
    crowd = [
        session("ann", 0, 400, (0, 10), (100, 10), (200, 10)),
        session("ben", 0, 500, (30, 10), (150, 10)),
        session("cat", 0, 600, (60, 20), (250, 10)),
    ]
    expected = simulated(PolicyName.PARK, crowd, 1)
    assert [name for name, _ in expected] == ["ann", "ben", "cat", "ann", "ben", "ann", "cat"]
    assert played(tmp_path, crowd, 1) == expected
