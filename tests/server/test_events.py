"""A server's event bus and live WebSocket tell each change to those who may hear it only.

A real server, and the pure comparison behind the events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import websocket
from hypothesis import given, strategies as st
from prometheus_client.utils import floatToGoString
from support.jupyter import TOKEN, Home, Server, wait_for
from support.node import NodeClient, RunningNode, open_directory

from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.server.leaseevents import SCHEMA_ID, changes


class Subscriber:
    """Listens to a server's event bus and keeps our events."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.events: list[dict[str, Any]] = []

    def until(self, action: str, **members: Any) -> dict[str, Any]:
        """Return the next event of ``action`` whose members are these."""
        while True:
            event = json.loads(self.socket.recv())
            if event["schema_id"] != SCHEMA_ID:
                continue
            self.events.append(event)
            if event["action"] == action and members.items() <= event.items():
                return event


@pytest.fixture(scope="module")
def shared_node() -> Iterator[RunningNode]:
    """A node manager of one GPU, with two people and an administrator, told apart by tokens."""
    # These clients give no signs of life.
    config = "c.Policy.max_tasks_per_gpu = 1\nc.Policy.heartbeat_timeout = 600.0\n"
    with open_directory() as place:
        people = ("alice", "bob", "root")
        with RunningNode(place, simulate="1x24GiB", config=config, people=people) as node:
            yield node


@pytest.fixture(scope="module")
def servers(shared_node: RunningNode) -> Iterator[dict[str, Server]]:
    """A server of each of them."""
    with Home.make() as home:
        yield {name: home.serve_as(name, shared_node) for name in ("alice", "root")}


def test_events_tell_the_life_of_a_lease(
    servers: dict[str, Server], shared_node: RunningNode
) -> None:
    server = servers["alice"]
    subscriber = Subscriber(server.websocket("api/events/subscribe"))
    try:
        with shared_node.client("bob") as bob, shared_node.client("alice") as alice:
            bobs = bob.request(name="bobs")
            waiting = alice.ask(name="late", priority_class="batch")
            queued = subscriber.until("queued", task="late")
            assert queued["priority_class"] == "batch"
            bob.call(Method.RELEASE, lease=bobs["lease"])
            granted = alice.wait(waiting)
            event = subscriber.until("granted", task="late")
            assert event["lease"] == granted["lease"] == queued["lease"]
            assert event["gpus"] == [gpu["uuid"] for gpu in granted["gpus"]]
            alice.call(Method.RELEASE, lease=granted["lease"])
            ended = subscriber.until("ended", lease=granted["lease"])
            assert "released" in ended["message"]
            bob.turned_away(gpus=5)
            alice.turned_away(gpus=7)
            refused = subscriber.until("refused")
            assert "7 GPUs" in refused["message"]
        told = json.dumps(subscriber.events)
        assert granted["secret"] not in told
        assert str(shared_node.directory) not in told
        assert "bob" not in told
    finally:
        subscriber.socket.close()
    wait_for(lambda: 'lease_events_total{action="refused"} 1.0' in metrics(server), what="counting")


def test_events_tell_of_a_promise_that_is_late_and_of_its_end(
    servers: dict[str, Server], shared_node: RunningNode
) -> None:
    subscriber = Subscriber(servers["alice"].websocket("api/events/subscribe"))
    try:
        with shared_node.client("alice") as alice:
            lease = alice.request(name="to be ready")["lease"]
            subscriber.until("granted", task="to be ready")
            alice.call(Method.PROMISE, lease=lease, deadline=5)
            alice.call(Method.PROGRESS, lease=lease, done=2, total=100, seconds=1.0)
            late = subscriber.until("late", lease=lease)
            assert late["reason"] == "slow"
            assert late["expected_end"] > late["deadline"] + 90
            alice.call(Method.PROMISE, lease=lease)
            over = subscriber.until("promise", lease=lease)
            assert "nobody can tell whether its promise was kept" in over["message"]
            alice.call(Method.RELEASE, lease=lease)
    finally:
        subscriber.socket.close()


def test_a_revoked_lease_says_why_to_its_owner_and_to_nobody_else(
    servers: dict[str, Server], shared_node: RunningNode
) -> None:
    heard = {
        name: Subscriber(server.websocket("api/events/subscribe"))
        for name, server in servers.items()
    }
    words = "Needed for the \u00abdemo\u00bb at 3 pm."
    try:
        with shared_node.client("alice") as alice:
            lease = alice.request(name="long run")["lease"]
            heard["alice"].until("granted", lease=lease)
            revoke = f"gpushare/api/leases/{lease}/revoke"
            answer = servers["root"].api.post(revoke, json={"reason": words})
            assert answer.status_code == 200, answer.text
            ended = heard["alice"].until("ended", lease=lease)
            assert (ended["reason"], ended["detail"]) == ("revoked", words)
            assert words in ended["message"]
            assert ended["task"] == "long run"
            # A lease that its owner gives back has a reason too, and nobody's words.
            second = alice.request(name="short run")["lease"]
            heard["alice"].until("granted", lease=second)  # a shorter one is in no status
            alice.call(Method.RELEASE, lease=second)
            released = heard["alice"].until("ended", lease=second)
            assert released["reason"] == "released"
            assert "detail" not in released
        # What the administrator's server tells next is its own: nothing came before it.
        with shared_node.client("root") as client:
            own = client.request(name="own")["lease"]
            heard["root"].until("granted", lease=own)
            client.call(Method.RELEASE, lease=own)
            heard["root"].until("ended", lease=own)
        assert {event["environment"] for event in heard["root"].events} == {"root"}
    finally:
        for subscriber in heard.values():
            subscriber.socket.close()


def metrics(server: Any) -> str:
    answer = server.api.get("metrics")
    assert answer.status_code == 200
    return answer.text


def test_metrics_tell_no_names(servers: dict[str, Server], shared_node: RunningNode) -> None:
    server = servers["alice"]
    with shared_node.client("alice") as client:
        granted = client.request(memory=4 * 2**30)

        def shown() -> bool:
            return 'jupyter_gpushare_leases{state="active"} 1.0' in metrics(server)

        wait_for(shown, what="the lease in the metrics")
        text = metrics(server)
        (gpu,) = client.call(Method.STATUS)["gpus"]
        memory = floatToGoString(gpu["memory"])
        for line in (
            *("jupyter_gpushare_up 1.0", 'jupyter_gpushare_gpus{health="ok"} 1.0'),
            f'jupyter_gpushare_gpu_memory_bytes{{gpu="{gpu["uuid"]}"}} {memory}',
            "jupyter_gpushare_quota_used_gpus 1.0",
        ):
            assert line in text
        assert granted["lease"] not in text
        assert '"alice"' not in text
    with server.anonymous() as nobody:
        assert nobody.get("metrics").status_code in (302, 403)


states = st.sampled_from(["queued", "active", "idle", "stalled", "over_limit", "parked"])
views = st.dictionaries(st.sampled_from("abcd"), states)


@given(st.lists(views, max_size=8))
def test_events_tell_each_life_once(seen: list[dict[str, str]]) -> None:
    """Replaying the events gives back which leases wait and which hold."""
    waiting: set[str] = set()
    holding: set[str] = set()
    before: dict[str, dict[str, str]] = {}
    for view in seen:
        after = {name: {"id": name, "state": state} for name, state in view.items()}
        for action, lease in changes(before, after):
            name = lease["id"]
            match action:
                case "queued":
                    assert name not in waiting
                    waiting.add(name)
                    holding.discard(name)
                case "granted":
                    assert name not in holding
                    waiting.discard(name)
                    holding.add(name)
                case "ended":
                    assert name in waiting | holding
                    waiting.discard(name)
                    holding.discard(name)
                case "stalled":
                    assert name in holding
        assert waiting == {name for name, state in view.items() if state == "queued"}
        assert holding == set(view) - waiting
        before = after


# -- live ------------------------------------------------------------------------------------------

LIVE = "gpushare/api/live"


def next_status(socket: Any) -> dict[str, Any]:
    message = json.loads(socket.recv())
    assert message["type"] == "status", message
    return message["status"]


def test_each_change_is_told(home: Home) -> None:
    server = home.serve()
    server.wait_connected()
    socket = server.websocket(LIVE)
    raw = socket.sock  # websocket-client forgets to close it when the server ends first
    try:
        first = next_status(socket)
        assert len(first["gpus"]) == 2
        assert first["leases"] == []
        with NodeClient(home.socket) as client:
            granted = client.request(gpus=1)
            status = next_status(socket)
            while not status["leases"]:
                status = next_status(socket)
            assert status["leases"][0]["id"] == granted["lease"]
            assert granted["secret"] not in json.dumps(status)
        # What listeners say is no matter, unless it is long.
        socket.send("hello")
        socket.ping()
        socket.send("x" * 5000)
        while socket.recv_data()[0] != websocket.ABNF.OPCODE_CLOSE:
            pass
    finally:
        socket.close()
        raw.close()


@pytest.fixture(scope="module")
def alone() -> Iterator[Server]:
    """A server without a node manager, for two listeners."""
    options = ("--GpuShareExtension.embed=never", "--GpuShareExtension.live_limit=2")
    with Home.make() as home:
        yield home.serve(*options, simulate=None)


def test_another_site_cannot_listen_with_a_browsers_cookie(alone: Server) -> None:
    with alone.anonymous() as browser:
        browser.get(f"api/contents?token={TOKEN}")
        assert browser.get("api/kernels").status_code == 200  # the cookie logs in
        cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    own = alone.url.rstrip("/")
    connect(alone, {"Cookie": cookie, "Origin": own})
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        connect(alone, {"Cookie": cookie, "Origin": "http://elsewhere.example"})
    assert refused.value.status_code == 403


def test_without_a_node_manager_it_says_so_and_listeners_are_counted(alone: Server) -> None:
    sockets: list[Any] = []

    def crowd() -> None:
        while len(sockets) < 9:
            sockets.append(alone.websocket(LIVE))

    try:
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            crowd()
        assert refused.value.status_code == 503
        assert 1 <= len(sockets) <= 2, "the one before may not have gone yet"
        for socket in sockets:
            message = json.loads(socket.recv())
            assert message["type"] == "unavailable"
            assert message["message"].endswith(".")
    finally:
        for socket in sockets:
            socket.close()


def connect(server: Server, headers: dict[str, str]) -> None:
    """Try to listen with ``headers`` only."""
    given = dict(headers)
    origin = given.pop("Origin", None)
    url = server.url.replace("http", "ws", 1) + LIVE
    socket = websocket.create_connection(
        url, header=given, timeout=60, origin=origin, suppress_origin=origin is None
    )
    socket.close()
