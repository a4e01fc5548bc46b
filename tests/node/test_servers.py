"""Over the socket: a successor keeps what a keeper kept, and a server is told to its users only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.node import GIB, Puppet, RunningNode, until

from jupyter_gpushare.protocol import said
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method

SERVER = {"name": "demo", "kind": "server"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """On which alice and bob are in one group, and carol is in another."""
    directory: Path = tmp_path_factory.mktemp("node")
    people = {"root": (), "alice": ("lab",), "bob": ("lab",), "carol": ("chem",)}
    with RunningNode(directory, simulate="1x24GiB", people=people) as running:
        yield running
        assert "Traceback" not in running.story()
        assert "sk-1" not in running.story()


def test_a_tree_is_parked_by_its_keeper_and_then_by_its_successor(node: RunningNode) -> None:
    with Puppet() as first, Puppet() as root, Puppet() as second:
        keeper = first.client(node.socket, "alice")
        granted = keeper.wait(keeper.send(Method.REQUEST, task=SERVER, keeper=True))
        whose = {"lease": granted["lease"], "secret": granted["secret"]}
        member = root.client(node.socket, "alice")
        member.call(Method.ATTACH, **whose)
        successor = second.client(node.socket, "alice")
        early = successor.refused(Method.ATTACH, **whose, keeper=True)
        assert early.reason is Reason.NOT_ALLOWED
        keeper.call(Method.ACTIVITY, lease=whose["lease"], state="idle")
        keeper.call(Method.PARKING, lease=whose["lease"], memory=GIB)
        parked = {"rung": "driver", "memory": GIB, "movable": "same"}
        assert keeper.call(Method.PARKED, lease=whose["lease"], **parked)["state"] == "parked"
        first.kill9()
        (row,) = until(
            lambda: [row for row in node.status()["leases"] if row["pid"] == root.pid],
            "the tree goes on",
        )
        assert (row["kind"], row["state"]) == ("server", "parked")
        member.call(Method.HEARTBEAT, lease=whose["lease"])
        assert not member.notices, "it is told of no GPUs, as there are none"
        again = successor.call(Method.ATTACH, **whose, keeper=True)
        assert again["state"] == "parked"
        assert successor.call(Method.RESUME, lease=whose["lease"])["state"] == "held"
        successor.call(Method.RESTORED, lease=whose["lease"])
        successor.call(Method.RELEASE, lease=whose["lease"])


def test_who_may_use_a_server_is_told_how_and_nobody_else(node: RunningNode) -> None:
    """Alice names carol's group, too: she is not in it, and so it is not shared with that."""
    says = {"address": "http://127.0.0.1:8000", "requests": 3, "held": 1, "model": "tiny"}
    secret = {"token": "sk-1", "share": ["group:lab", "group:chem"]}
    with node.client("alice") as alice, Puppet() as other:
        request = alice.send(Method.REQUEST, task=SERVER, keeper=True)
        lease = alice.wait(request)["lease"]
        sibling = other.client(node.socket, "alice")
        assert alice.call(Method.SERVERS) == {"servers": []}, "its keeper has said nothing"
        refused = sibling.refused(Method.SERVING, lease=lease, **says, **secret)
        assert refused.reason is Reason.UNKNOWN_LEASE
        wrong = {**says, "address": "http://alice:pw@evil/"}
        assert alice.refused(Method.SERVING, lease=lease, **wrong).reason is Reason.BAD_REQUEST
        alice.call(Method.SERVING, lease=lease, **says, **secret)
        for who in ("alice", "bob", "carol", "root"):
            with node.client(who) as client:
                found = client.call(Method.SERVERS)["servers"]
                (row,) = client.call(Method.STATUS)["leases"]
            if who in ("alice", "bob"):
                (server,) = found
                assert (server["token"], server["mine"]) == ("sk-1", who == "alice")
                assert "http://127.0.0.1:8000" in server["snippet"]
                assert "sk-1" not in server["snippet"], "a notebook is kept, and shown to others"
            else:
                assert not found
            knows = who in ("alice", "root")
            assert ((row.get("serving") or {}).get("requests") == 3) is knows
            assert "sk-1" not in str(row)
            state = said.first(row, "state", 0.0)
            assert state.startswith("serving 3 requests" if knows else "serving for")
        alice.call(Method.SERVING, lease=lease, **{**says, "model": None}, **secret)
        (server,) = alice.call(Method.SERVERS)["servers"]
        compile(server["snippet"], "a cell", "exec")
        assert "openai" not in server["snippet"], "it lists no model as OpenAI's kind does"
        alice.call(Method.RELEASE, lease=lease)
        assert alice.call(Method.SERVERS) == {"servers": []}


def test_a_program_that_is_no_server_says_nothing_of_one(node: RunningNode) -> None:
    with node.client("alice") as alice:
        lease = alice.request(keeper=True)["lease"]
        refused = alice.refused(Method.SERVING, lease=lease, address="http://127.0.0.1:1")
        assert refused.reason is Reason.UNKNOWN_LEASE
        alice.call(Method.RELEASE, lease=lease)
