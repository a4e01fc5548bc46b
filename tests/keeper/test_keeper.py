"""A keeper parks its program when it is asked and nothing is under way, and has it again.

A real node manager and a real session; stand-ins move the memory. What the driver does to a real
tree of processes is in tests/checkpoint, and a kept program's whole story in tests/e2e.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.node import NodeClient, RunningNode, until
from support.node_fixtures import running_node
from support.parked import Driver, Tensors

from jupyter_gpushare.client.errors import GpuShareError, LeaseLost
from jupyter_gpushare.client.memory.bystanders import Bystanders
from jupyter_gpushare.client.memory.ladder import Framework, Ladder
from jupyter_gpushare.client.memory.rungs import NotBroughtBack, ProcessLost
from jupyter_gpushare.client.words.recalls import MEMORY, Recall, read_recall
from jupyter_gpushare.keeper.holding import Holding
from jupyter_gpushare.keeper.keeper import Keeper, NobodyWaits, Rest
from jupyter_gpushare.protocol.checkpoint import Cause, Result
from jupyter_gpushare.protocol.errors import RemoteError
from jupyter_gpushare.protocol.messages import Method, Notice, Notification

GIB = 2**30
node = running_node(
    "module",
    simulate="1x24GiB",
    config=(
        "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.2\n"
        "c.Policy.max_tasks_per_gpu = 1\nc.Policy.notify_before = 0.0\n"
        "c.Policy.idle_timeout = 0.2\nc.Policy.heartbeat_timeout = 600.0\n"
    ),
    people=("alice", "bob", "root"),
)


@dataclass
class Program:
    """What is kept. ``log`` says what became of it."""

    restarts: bool = False
    is_damaged: bool = False
    fails: bool = False
    log: list[str] = field(default_factory=list)

    def start(self) -> None:
        if self.fails:
            raise FileNotFoundError("no such program")
        self.log.append("start")
        self.is_damaged = False

    def stop(self) -> None:
        self.log.append("stop")


@dataclass
class Kept:
    """A keeper with all that is around it."""

    keeper: Keeper
    holding: Holding
    program: Program
    driver: Driver
    said: list[str]
    rests: list[Rest]
    recalls: list[Recall]

    def rests_at(self, rest: Rest) -> None:
        until(lambda: self.keeper.rest is rest, f"the keeper is {rest.value}")

    def asleep(self) -> None:
        """It has nothing to do, and somebody waits."""
        self.keeper.set_busy(False)
        self.rests_at(Rest.ASLEEP)


@contextmanager
def kept(
    node: RunningNode, *tensors: Tensors, driver: Driver | None = None, restarts: bool = False
) -> Iterator[Kept]:
    """Alice's program, that has the only GPU."""
    said: list[str] = []
    rests: list[Rest] = []
    recalls: list[Recall] = []
    program, driver = Program(restarts), driver or Driver(usable=True, migration=True)
    keepers: list[Keeper] = []

    def lost(message: str) -> None:
        keepers[0].lost(message)

    def noticed(told: Notification) -> None:
        recall = read_recall(told)
        if recall is not None and recall.give in MEMORY:
            recalls.append(recall)
            keepers[0].asked(recall)

    frameworks = [Framework("the server", one) for one in tensors]
    ladder = Ladder(lambda: frameworks, driver, said.append, bystanders=Bystanders)
    environ = {
        "JUPYTER_GPUSHARE_SOCKET": str(node.socket),
        "JUPYTER_GPUSHARE_TOKEN": "alice",
    }
    holding = Holding(environ, on_lost=lost, on_notice=noticed)
    request = {"task": {"name": "server", "kind": "process"}, "gpus": 1, "keeper": True}
    keepers.append(Keeper(holding, request, ladder, program, on_rest=rests.append, say=said.append))
    try:
        until(lambda: node.status()["gpus"][0]["free"] == 24 * GIB, "the test before left nothing")
        holding.ask(request, 60.0)
        yield Kept(keepers[0], holding, program, driver, said, rests, recalls)
    finally:
        holding.close()


@contextmanager
def bob_waits(node: RunningNode) -> Iterator[tuple[NodeClient, Any]]:
    """He asks for the only GPU; a context may stay on it."""
    with node.client("bob") as bob:
        try:
            yield bob, bob.ask(request_id="bobs", kernel_id="bobs", memory=16 * GIB)
        finally:
            with suppress(RemoteError):  # what waits, or was granted
                bob.call(Method.RELEASE, request_id="bobs")


def test_it_sleeps_while_nothing_is_under_way_and_wakes_with_its_memory(node: RunningNode) -> None:
    with kept(node) as it, bob_waits(node) as (bob, asked):
        assert it.keeper.begins()
        it.keeper.set_busy(False)  # the node manager's word against the keeper's own
        news = bob.wait_notice(Notice.QUEUED)
        assert news
        assert not bob.answered(asked)
        it.keeper.ends()
        it.asleep()
        lease = bob.wait(asked)["lease"]
        assert not it.keeper.begins()
        bob.call(Method.RELEASE, lease=lease)
        it.keeper.wake(timeout=60.0)
        assert it.driver.log == ["park", "resume {}"]
        assert it.keeper.begins()
        assert it.rests == [Rest.GOING, Rest.ASLEEP, Rest.WAKING, Rest.AWAKE]


def test_the_programs_own_sleep_comes_first(node: RunningNode) -> None:
    tensors = Tensors(GIB)  # a busy host lets no node park more
    with kept(node, tensors) as it, bob_waits(node) as (bob, asked):
        it.asleep()
        bob.call(Method.RELEASE, lease=bob.wait(asked)["lease"])
        it.keeper.wake(timeout=60.0)
        assert (tensors.log[-2:], it.driver.log) == (["park", "resume"], []), it.recalls


@pytest.mark.parametrize("restarts", [False, True])
def test_what_cannot_be_parked_is_ended_only_where_its_owner_allows_it(
    node: RunningNode, restarts: bool
) -> None:
    with (
        kept(node, driver=Driver(usable=False), restarts=restarts) as it,
        bob_waits(node) as (bob, asked),
    ):
        it.keeper.set_busy(False)
        if not restarts:
            until(lambda: Rest.AWAKE in it.rests, "it was asked and keeps")
            assert it.program.log == []
            assert not bob.answered(asked)
            return
        it.asleep()
        bob.call(Method.RELEASE, lease=bob.wait(asked)["lease"])
        it.keeper.wake(timeout=60.0)
        assert it.program.log == ["stop", "start"]


def test_who_stops_waiting_leaves_the_queue_and_it_sleeps_on(node: RunningNode) -> None:
    with kept(node) as it, bob_waits(node) as (bob, asked):
        it.asleep()
        bob.wait(asked)
        gone, queued = threading.Event(), threading.Event()
        failed: list[GpuShareError] = []

        def wake() -> None:
            try:
                it.keeper.wake(lambda news: queued.set(), gone.is_set, 60.0)
            except GpuShareError as error:
                failed.append(error)

        waking = threading.Thread(target=wake)
        waking.start()
        assert queued.wait(60.0)
        gone.set()
        waking.join(60.0)
        assert isinstance(failed[0], NobodyWaits)
        assert it.keeper.rest is Rest.ASLEEP
        until(lambda: not node.status()["queue"], "nobody is in the queue")


def test_a_successor_tells_what_its_predecessor_brought_back(node: RunningNode) -> None:
    with kept(node) as it, bob_waits(node) as (bob, asked):
        it.asleep()
        bob.call(Method.RELEASE, lease=bob.wait(asked)["lease"])
        lease = str(it.holding.lease)
        it.holding.session.resume(lease, lambda news: None, lambda: None, 60.0)
        successor = Keeper(
            it.holding, {}, Ladder(None, it.driver, print), it.program, say=it.said.append
        )
        successor.succeeds(holds=True, checkpointed=False)
        rows = lambda: node.status()["leases"]  # noqa: E731
        until(lambda: [one for one in rows() if one["id"] == lease and not one["rung"]], "is told")


def test_what_did_not_wake_leaves_its_gpu_to_others_until_it_is_tried_again(
    node: RunningNode,
) -> None:
    with kept(node) as it, bob_waits(node) as (bob, asked):
        it.asleep()
        bob.call(Method.RELEASE, lease=bob.wait(asked)["lease"])
        it.driver.resumes = Result.INTACT
        with pytest.raises(NotBroughtBack):
            it.keeper.wake(timeout=60.0)
        assert it.keeper.rest is Rest.ASLEEP
        lease = it.holding.lease
        bob.call(Method.RELEASE, lease=bob.request(memory=16 * GIB)["lease"])
        it.driver.resumes = Result.DONE
        it.keeper.wake(timeout=60.0)
        assert it.keeper.begins()
        assert it.holding.lease == lease


@pytest.mark.parametrize("restarts", [False, True])
def test_what_woke_as_something_else_is_started_anew_and_tried_again_if_it_cannot_be(
    node: RunningNode, restarts: bool
) -> None:
    with kept(node, restarts=restarts) as it, bob_waits(node) as (bob, asked):
        it.asleep()
        bob.call(Method.RELEASE, lease=bob.wait(asked)["lease"])
        it.program.is_damaged = it.program.fails = True
        with pytest.raises(GpuShareError, match="cannot be started again"):
            it.keeper.wake(timeout=60.0)
        assert it.program.log == ["stop"]
        assert it.keeper.rest is (Rest.ASLEEP if restarts else Rest.ENDED)
        if not restarts:
            return
        bob.call(Method.RELEASE, lease=bob.request(memory=16 * GIB)["lease"])
        it.program.fails = False
        it.keeper.wake(timeout=60.0)
        assert it.program.log == ["stop", "start"]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("lost", [True, False])
def test_what_cannot_come_back_is_started_again_or_has_ended_if_it_is_lost(
    node: RunningNode, lost: bool, restarts: bool
) -> None:
    with kept(node, restarts=restarts) as it, bob_waits(node) as (bob, asked):
        it.asleep()
        bob.call(Method.RELEASE, lease=bob.wait(asked)["lease"])
        it.driver.resumes = Result.DEAD if lost else Result.INTACT
        it.driver.cause = None if lost else Cause.NOT_PERMITTED
        if restarts:
            it.keeper.wake(timeout=60.0)
            assert it.program.log == ["stop", "start"]
            return
        with pytest.raises(ProcessLost if lost else NotBroughtBack):
            it.keeper.wake(timeout=60.0)
        if not lost:  # its memory is there, should somebody permit it
            assert it.keeper.rest is Rest.ASLEEP
            return
        assert it.keeper.rest is Rest.ENDED
        with pytest.raises(LeaseLost):
            it.keeper.wake(timeout=60.0)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_lease_that_is_taken_ends_the_program(node: RunningNode, restarts: bool) -> None:
    with kept(node, restarts=restarts) as it:
        with node.client("root") as root:
            root.call(Method.LEASE_REVOKE, lease=it.holding.lease, reason="maintenance")
        it.rests_at(Rest.ASLEEP if restarts else Rest.ENDED)
        assert it.program.log == ["stop"]
        if restarts:
            it.keeper.wake(timeout=60.0)  # under another lease
            assert it.program.log == ["stop", "start"]


def test_a_lease_that_is_taken_while_it_sleeps_costs_only_the_place(node: RunningNode) -> None:
    with kept(node) as it, bob_waits(node) as (bob, asked):
        it.asleep()
        with node.client("root") as root:
            root.call(Method.LEASE_REVOKE, lease=it.holding.lease, reason="maintenance")
        until(lambda: it.holding.lease is None, "it has heard of it")
        bob.call(Method.RELEASE, lease=bob.wait(asked)["lease"])
        it.keeper.wake(timeout=60.0)
        assert it.driver.log == ["park", "resume {}"]
        assert it.program.log == []
