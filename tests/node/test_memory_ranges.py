"""Leases that ask for a range of memory share the GPU, and the ledger has their shares."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support.node import GIB, NodeClient, Puppet, RemoteError, RunningNode, token_file, until

from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    'c.Quotas.default = {"gpus": 2}\n'
)


def ask(client: NodeClient, least: int, most: int, gpus: int = 1) -> dict[str, Any]:
    return client.request(gpus=gpus, memory=least * GIB, memory_most=most * GIB)


def shares(result: dict[str, Any]) -> list[float]:
    """GiB that a lease may use on each GPU, as its grant says."""
    return [gpu["limit"] / GIB for gpu in result["gpus"]]


def falls(client: NodeClient, notice: Notice = Notice.RECALL) -> list[float]:
    """GiB on each GPU of the next lower limit; the client says that it has it now."""
    told = client.wait_notice(notice)
    size = "may_stay" if notice is Notice.RECALL else "memory"
    limits = [{"uuid": gpu["uuid"], "memory": gpu[size]} for gpu in told["gpus"]]
    client.call(Method.GAVE, lease=told["lease"], give="lift", limits=limits)
    return [limit["memory"] / GIB for limit in limits]


def rises(client: NodeClient) -> list[float]:
    """The same of the next higher limit."""
    return falls(client, Notice.LIMIT)


def fits_at_every_event(ledger: Path, capacity: int) -> list[tuple[str, dict[str, Any]]]:
    """All records. After each of them what is reserved is no more than there is on each GPU."""
    connection = sqlite3.connect(ledger)
    try:
        rows = connection.execute(
            "SELECT kind, data, environment, lease FROM records ORDER BY seq"
        ).fetchall()
    finally:
        connection.close()
    records = [
        (str(kind), {"environment": environment, "lease": lease, **json.loads(data)})
        for kind, data, environment, lease in rows
    ]
    reserved: dict[tuple[str, str], int] = {}
    claims: dict[tuple[str, str], str] = {}
    for kind, data in records:
        if kind == "LeaseGranted":
            for part in data["gpus"]:
                reserved[(data["environment"], part["gpu"])] = part["memory"]
                claims[(data["lease"], part["gpu"])] = data["environment"]
        elif kind == "ReservationResized":
            reserved[(data["environment"], data["gpu"])] = data["memory"]
        elif kind == "ClaimMoved" and data["phase"] == "gone":
            reserved.pop((claims.pop((data["lease"], data["gpu"])), data["gpu"]), None)
        for uuid in {gpu for _name, gpu in reserved}:
            held = sum(size for (_name, gpu), size in reserved.items() if gpu == uuid)
            assert held <= capacity, (kind, data)
    return records


def test_shares_fall_on_all_gpus_of_a_lease(tmp_path: Path) -> None:
    names = ("alice", "bob", "carol", "root")
    with (
        RunningNode(
            tmp_path,
            simulate="2x24GiB",
            config=CONFIG,
            arguments=[token_file(tmp_path, *names)],
        ) as running,
        Puppet() as a,
        Puppet() as b,
        Puppet() as c,
    ):
        alice, bob = a.client(running.socket, "alice"), b.client(running.socket, "bob")
        carol = c.client(running.socket, "carol")
        first = ask(alice, 8, 40, gpus=2)
        assert shares(first) == [24, 24], "all that there is"
        assert first["memory_most"] == 40 * GIB

        assert rises(alice) == [24, 24], "told to those who did not read it in the grant"
        second = bob.ask(gpus=1, memory=8 * GIB, memory_most=40 * GIB)
        assert falls(alice) == [16, 16], "the same on both, though he needs one"
        granted = bob.wait(second)
        assert shares(granted) == [8]

        third = carol.ask(gpus=2, memory=8 * GIB)
        assert falls(alice) == [8, 8]
        carol.wait(third)
        (row,) = (one for one in alice.call(Method.STATUS)["leases"] if one["mine"])
        assert row["memory_most"] == 40 * GIB
        assert [gpu["limit"] / GIB for gpu in row["gpus"]] == [8, 8]

        with pytest.raises(RemoteError) as error:
            carol.request(gpus=1, memory=9 * GIB, memory_most=8 * GIB)
        assert "must not be less" in str(error.value)
        texts = [event["text"] for event in alice.call(Method.HISTORY)["events"]]
        assert any("may use 16 GiB" in text for text in texts)
        running.terminate()
        records = fits_at_every_event(running.ledger, 24 * GIB)
    told = [data for kind, data in records if kind == "LimitTold"]
    sizes = [{part["memory"] // GIB for part in data["gpus"]} for data in told]
    assert sizes == [{24}, {16}, {8}]


@pytest.mark.long  # nothing rises for 30 s after a fall
def test_shares_rise_again(tmp_path: Path) -> None:
    token = token_file(tmp_path, "alice", "bob")
    node = RunningNode(tmp_path, simulate="1x24GiB", config=CONFIG, arguments=[token])
    with node as running, Puppet() as a, Puppet() as b:
        alice, bob = a.client(running.socket, "alice"), b.client(running.socket, "bob")
        lease = ask(alice, 8, 40)["lease"]
        assert rises(alice) == [24]
        waiting = bob.ask(gpus=1, memory=16 * GIB)
        assert falls(alice) == [8]
        bob.wait(waiting)
        b.kill9()

        def risen() -> bool:
            """Who gives no sign of life is not lifted."""
            alice.call(Method.HEARTBEAT, lease=lease)
            alice.pump(0.5)
            return any(told.notice is Notice.LIMIT for told in alice.notices)

        until(risen, "it may use all of it again")
        assert rises(alice) == [24]
        running.terminate()
        fits_at_every_event(running.ledger, 24 * GIB)
