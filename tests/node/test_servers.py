"""A keeper's lease over the socket: its tree parks and goes on, and a successor keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.node import GIB, Puppet, RunningNode, until

from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method

SERVER = {"name": "demo", "kind": "server"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """On which nobody is a member of a group but alice and bob."""
    directory: Path = tmp_path_factory.mktemp("node")
    people = {"root": (), "alice": ("lab",), "bob": ("lab",), "carol": ()}
    with RunningNode(directory, simulate="1x24GiB", people=people) as running:
        yield running
        assert "Traceback" not in running.story()


def test_a_tree_is_parked_by_its_keeper_and_then_by_its_successor(node: RunningNode) -> None:
    with Puppet() as first, Puppet() as root, Puppet() as second:
        keeper = first.client(node.socket, "alice")
        granted = keeper.wait(keeper.send(Method.REQUEST, task=SERVER, keeper=True))
        whose = {"lease": granted["lease"], "secret": granted["secret"]}
        root.client(node.socket, "alice").call(Method.ATTACH, **whose)
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
        again = successor.call(Method.ATTACH, **whose, keeper=True)
        assert again["state"] == "parked"
        assert successor.call(Method.RESUME, lease=whose["lease"])["state"] == "held"
        successor.call(Method.RESTORED, lease=whose["lease"])
        successor.call(Method.RELEASE, lease=whose["lease"])
