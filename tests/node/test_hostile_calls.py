"""No call about a lease harms anybody, whoever makes it, at whatever time, with whatever values."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from support.leasecalls import CALLS
from support.node import GIB, NodeClient, Puppet, RemoteError, RunningNode, until

from jupyter_gpushare.protocol.calls import PARAMS
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method

CONFIG = """
c.NodeManagerApp.debug_checks = True
c.NodeManagerApp.measure_interval = 0.1
c.Policy.max_leases_per_process = 8
c.Policy.parked_memory = 100 * 2**30
c.Policy.share_mode = "time"
c.Connections.calls_per_second = 100000.0
c.Connections.burst = 100000
"""

#: What any process of an environment may do to its leases; the rest only the task itself.
ANY_OF_MINE = {Method.PIN, Method.RELEASE}
#: What a child that joined the lease may do as well.
CHILDS = ANY_OF_MINE | {Method.HEARTBEAT, Method.ACTIVITY, Method.PROGRESS}
#: What it may say where turns share no memory, and what it says of memory is not believed:
#: tests/policy/test_inherited.py.
TURNS = {Method.MEMORY, Method.TURN_ASK, Method.TURN_DONE}
#: Whoever has the secret, or is an administrator: tests/node/test_access.py.
NOT_ONES_OWN = {Method.ATTACH, Method.LEASE_REVOKE}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    directory = tmp_path_factory.mktemp("node")
    with RunningNode(directory, simulate="2x24GiB", config=CONFIG) as running:
        yield running
        assert "Traceback" not in running.story()
        assert "Invariant" not in running.story()


@pytest.fixture
def client(node: RunningNode) -> Iterator[NodeClient]:
    with node.client() as client:
        yield client
        for lease in client.call(Method.STATUS)["leases"]:
            if lease["mine"] and lease["phase"] != "ended":
                client.call(Method.RELEASE, lease=lease["id"])


def test_the_table_has_every_call_about_a_lease() -> None:
    about = {one for one, params in PARAMS.items() if "lease" in {f.name for f in fields(params)}}
    assert CALLS.keys() == about - NOT_ONES_OWN


EACH = pytest.mark.parametrize("method", CALLS, ids=lambda method: method.value)


@EACH
def test_on_a_lease_that_has_ended(client: NodeClient, method: Method) -> None:
    lease = client.request()["lease"]
    client.call(Method.RELEASE, lease=lease)
    assert client.refused(method, lease=lease, **CALLS[method]).reason is Reason.UNKNOWN_LEASE


@EACH
def test_while_parked_it_moves_nothing_back_by_itself(client: NodeClient, method: Method) -> None:
    lease = client.request(kernel_id="k")["lease"]
    client.call(Method.PARKED, lease=lease, rung="storage", memory=GIB, movable="any")
    with contextlib.suppress(RemoteError):
        client.call(method, lease=lease, **CALLS[method])
    left = {row["id"]: row for row in client.call(Method.STATUS)["leases"]}
    if method is Method.RELEASE:
        assert lease not in left or left[lease]["state"] in ("ended", "draining")
    elif method is not Method.RESUME:
        assert left[lease]["phase"] == "parked"


@pytest.mark.parametrize("joins", [False, True], ids=["sibling", "child"])
@EACH
def test_by_another_process_of_the_same_user(
    node: RunningNode, client: NodeClient, method: Method, joins: bool
) -> None:
    """A sibling knows the lease (the status tells it), and still is not the task.

    Nor is a child that joined with the secret: what its parent computes, parks or waits is not its.
    """
    granted = client.request(kernel_id="k")
    lease, before = granted["lease"], row_of(client, granted["lease"])
    with Puppet() as process:
        other = process.client(node.socket)
        assert other.hello["environment"] == client.hello["environment"]
        if joins:
            other.call(Method.ATTACH, lease=lease, secret=granted["secret"])
        if method in ANY_OF_MINE or (joins and method in CHILDS):
            other.call(method, lease=lease, **CALLS[method])
            return
        if joins and method in TURNS:
            return
        assert other.refused(method, lease=lease, **CALLS[method]).reason is Reason.UNKNOWN_LEASE
    assert row_of(client, lease) == before


def row_of(client: NodeClient, lease: str) -> dict[str, Any]:
    """What a person sees of it, without what goes on by itself."""
    (row,) = (row for row in client.call(Method.STATUS)["leases"] if row["id"] == lease)
    passing = ("age", "since", "requested", "granted", "gpus", "says")
    return {name: value for name, value in row.items() if name not in passing}


ANSWERS = ("bad_request", "unknown_lease", "no_resources", "not_allowed")
#: As JSON.
ABSURD = [str(2**70), str(-(2**70)), "-1", "NaN", "1e400", "-1e400", "true", '"1"', "[]", "{}"]
ABSURD += ['"\\ud800"']


def spoiled(params: Any) -> Iterator[Any]:
    """Each with another number or text replaced."""
    if isinstance(params, dict):
        for key, value in params.items():
            yield from ({**params, key: other} for other in spoiled(value))
    elif isinstance(params, list):
        for at, value in enumerate(params):
            yield from ([*params[:at], other, *params[at + 1 :]] for other in spoiled(value))
    else:
        yield "@here@"


@EACH
def test_absurd_values(node: RunningNode, client: NodeClient, method: Method) -> None:
    """Each gets an answer, and the client goes on; nothing absurd is in a status or in the log."""
    rude = node.client()
    whole = {"lease": rude.request(kernel_id="k")["lease"], **CALLS[method]}
    with rude, rude.socket.makefile("rb") as heard:
        for number, (params, absurd) in enumerate(itertools.product(spoiled(whole), ABSURD)):
            tag = f"a{number}"
            call = {"jsonrpc": "2.0", "id": tag, "method": method.value, "params": params}
            said = json.dumps(call).replace('"@here@"', absurd)
            rude.socket.sendall(said.encode() + b"\n")
            # One that could not be read has no id.
            lines = (line for line in map(json.loads, heard) if "method" not in line)
            line = next(line for line in lines if line.get("id") in (tag, None))
            assert "result" in line or line["error"]["data"]["reason"] in ANSWERS, (said, line)
    assert client.call(Method.STATUS)["gpus"]
    json.dumps(client.call(Method.STATUS), allow_nan=False)


@pytest.mark.parametrize("how", ["parking", "parked"])
def test_one_word_does_not_take_the_hosts_memory_from_everybody(
    client: NodeClient, how: str
) -> None:
    """A task with one GPU of 24 GiB can have moved 24 GiB, whatever it says."""
    lease = client.request(kernel_id="k")["lease"]
    before = client.call(Method.STATUS)["node"]["parked_memory"]
    if how == "parking":
        busy = client.refused(Method.PARKING, lease=lease, memory=1)
        assert busy.reason is Reason.BAD_REQUEST
        client.call(Method.ACTIVITY, lease=lease, state="idle")
        client.call(Method.PARKING, lease=lease, memory=2**53)
    else:
        client.call(Method.PARKED, lease=lease, rung="driver", memory=2**53, movable="any")
    after = client.call(Method.STATUS)["node"]["parked_memory"]
    assert after - before == 24 * GIB


def test_a_process_has_no_more_leases_than_it_may(client: NodeClient) -> None:
    """They share a GPU that it holds already, so no quota would bound them."""
    leases = [client.request()["lease"] for _ in range(8)]
    refused = client.turned_away()
    assert "8 leases already" in refused.message
    assert refused.reason is Reason.RATE_LIMITED
    client.call(Method.PARKED, lease=leases[0])
    assert "8 leases already" in client.turned_away().message
    client.call(Method.RELEASE, lease=leases[1])
    until(lambda: len(client.call(Method.STATUS)["leases"]) < 8, "it has drained")
    assert client.request()["lease"] not in leases


def test_figures_of_gpus_that_it_does_not_hold_are_forgotten(client: NodeClient) -> None:
    lease = client.request(kernel_id="k")["lease"]

    def held() -> set[str]:
        rows = client.call(Method.STATUS)["leases"]
        return {part["uuid"] for row in rows if row["id"] == lease for part in row["gpus"]}

    before = held()
    others = {gpu["uuid"] for gpu in client.call(Method.STATUS)["gpus"]} - before
    figure = {"persistent": 2**53, "temporary": 2**53, "cache": 2**53}
    figures = [{"uuid": uuid, **figure} for uuid in (*others, "GPU-nowhere")]
    client.call(Method.MEMORY, lease=lease, figures=figures, steps=2**53)
    status = client.call(Method.STATUS)
    assert {gpu["persistent"] for gpu in status["gpus"]} <= {0, None}
    assert held() == before


def test_a_flood_about_one_lease_costs_no_memory(tmp_path: Path) -> None:
    """The same ten calls with ever new words: what the node manager keeps is the last of each."""
    config = CONFIG + "c.NodeManagerApp.debug_checks = False\nc.NodeManagerApp.history_days = 0.0\n"
    with RunningNode(tmp_path, config=config) as node, node.client() as client:
        lease = client.request(kernel_id="k")["lease"]

        def flood(count: int) -> None:
            for number in range(count):
                why = f"{number} " + "x" * 200
                client.call(Method.ABILITY, lease=lease, rung="none", why=why)
                client.call(Method.KEPT, lease=lease, reason=why)
                client.call(Method.PIN, lease=lease, seconds=number % 60)
                client.call(Method.TURN_ASK, lease=lease)
                client.call(Method.TURN_DONE, lease=lease)

        flood(100)
        before = resident(node.pid)
        flood(200)
        assert resident(node.pid) - before < 2**20


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * 4096
