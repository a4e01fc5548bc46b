"""On the same trace the simulator grants what a real node manager grants real processes.

What processes do here knows nothing of the policy: they compute in turn, and give what they are
asked for.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.node import NodeClient, Puppet, RunningNode, token_file
from support.replayed import GIB, Checked, session

from jupyter_gpushare.policy.words.model import Bytes
from jupyter_gpushare.protocol.messages import CallId, Method, Notice
from jupyter_gpushare.replay.behaviour import FREE, Options, PolicyName, behaviour
from jupyter_gpushare.replay.tally import Window

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    "c.Policy.heartbeat_timeout = 1000.0\nc.Policy.idle_timeout = 0.2\n"
    "c.Policy.notify_before = 0.0\n"
)
Granted = tuple[str, tuple[int, ...]]


class Body:
    """A process that the test speaks for, as a session's kernel."""

    def __init__(self, node: RunningNode, name: str) -> None:
        self.name, self.puppet = name, Puppet()
        self.client: NodeClient = self.puppet.client(node.socket, name)
        self.lease: str | None = None

    def ask(self) -> CallId:
        if self.lease is not None:
            return self.client.send(Method.RESUME, lease=self.lease)
        return self.client.ask(name=self.name, kernel_id=self.name, gpus=1)

    def computed(self, call: CallId) -> None:
        self.lease = self.client.wait(call)["lease"]
        self.client.call(Method.ACTIVITY, lease=self.lease, state="idle")

    def park(self) -> None:
        """As it is asked to, once."""
        self.client.wait_notice(Notice.RECALL)
        self.client.call(Method.PARKED, lease=self.lease)


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


def played(directory: Path, cells: Sequence[str]) -> list[Granted]:
    """The grants of a real node manager to real processes that compute in this order.

    Each is idle, and asked for the one GPU, when the next one comes.
    """
    people = token_file(directory, *{*cells}, "root")
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(
            RunningNode(directory, simulate="1x24GiB", config=CONFIG, arguments=[people])
        )
        admin = stack.enter_context(node.client("root"))
        bodies = {name: Body(node, name) for name in {*cells}}
        for body in bodies.values():
            stack.callback(body.puppet.close)
        before: Body | None = None
        for name in cells:
            call = bodies[name].ask()
            if before is not None:
                before.park()
            before = bodies[name]
            before.computed(call)
        return granted_by(node, admin)


@pytest.mark.story
def test_processes_that_are_parked_when_they_are_idle(tmp_path: Path) -> None:
    """Three kernels on one GPU: parked for each other, resumed before their next cell."""
    crowd = [
        session("ann", 0, 400, (0, 10), (100, 10), (200, 10)),
        session("ben", 0, 500, (30, 10), (150, 10)),
        session("cat", 0, 600, (60, 20), (250, 10)),
    ]
    how = behaviour(PolicyName.PARK, Options(idle_timeout=0.5, cost=FREE))
    simulated = Checked(1, how, Window(0.0, 1e5), Bytes(24 * GIB))
    simulated.play(crowd)
    in_turn = ["ann", "ben", "cat", "ann", "ben", "ann", "cat"]
    assert [(one.session, one.gpus) for one in simulated.grants] == [(who, (0,)) for who in in_turn]
    assert played(tmp_path, in_turn) == [(who, (0,)) for who in in_turn]
