"""People of one OS user are told apart by JupyterHub tokens, and keep what they have."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.node import GIB, RunningNode, until
from support.tinyhub import OWN, TinyHub, served

from jupyter_gpushare.protocol.errors import Reason, RemoteError
from jupyter_gpushare.protocol.messages import Method, Notice


@pytest.fixture
def hub() -> Iterator[TinyHub]:
    hub = TinyHub(
        tokens={"token-a": "alice", "token-b": "bob", "token-c": "carol"},
        users={"alice": ["students"], "bob": ["students"], "carol": []},
        admins={"carol"},
        properties={"students": {"gpushare": {"gpus": 1, "memory": "8GiB"}}},
    )
    with served(hub):
        yield hub


@contextmanager
def hub_node(
    folder: Path, hub: TinyHub, believed: float = 3600.0, per_server: bool = False, **more: Any
) -> Iterator[RunningNode]:
    own = folder / "own-token"
    own.touch(0o600)
    own.write_text(OWN)
    arguments = ["--hub", f"--Hub.api_url={hub.url}", f"--Hub.api_token_file={own}"]
    arguments += ["--Hub.refresh=1", f"--Hub.believed={believed}", f"--Hub.per_server={per_server}"]
    with RunningNode(folder, arguments=arguments, **more) as node:
        yield node
        told = node.story().replace("own-token", "")
        assert "token-" not in told
        assert OWN not in told


def test_who_waits_by_a_groups_quota_still_waits_while_the_hub_is_away(
    tmp_path: Path, hub: TinyHub
) -> None:
    """The Hub went with the node manager, and comes back later: its last answer holds."""
    config = 'c.Policy.max_tasks_per_gpu = 1\nc.Quotas.default = {"gpus": 0}\n'
    with hub_node(tmp_path, hub, config=config, simulate="1x24GiB") as node:
        node.arguments.append("--Hub.host_admins=True")
        held = node.client("token-a").request()["lease"]
        bob = node.client("token-b")
        bob.ask(request_id="r")
        queued = bob.wait_notice(Notice.QUEUED)
        hub.broken = 503
        node.restart()
        admin = node.client()

        def bobs() -> dict[str, Any]:
            rows = {row["environment"]: row for row in admin.call(Method.QUOTA_LIST)["quotas"]}
            return rows["bob"]

        status = admin.call(Method.STATUS)
        assert {lease["state"] for lease in status["leases"]} & {"queued"}
        assert status["node"]["quotas_as_of"] <= status["node"]["time"]
        assert (bobs()["gpus"], bobs()["source"]) == (1, "group")
        assert "those of its last answer, 0 minutes ago" in node.story()
        hub.properties["students"]["gpushare"]["gpus"] = 2
        hub.broken = 0
        until(lambda: admin.call(Method.STATUS)["node"]["quotas_as_of"] is None, "it is back")
        until(lambda: bobs()["gpus"] == 2, "what it says now holds")
        bob = node.client("token-b")
        waiting = bob.ask(request_id="r")
        node.client("token-a").call(Method.RELEASE, lease=held)
        assert bob.wait(waiting)["lease"] == queued["lease"]


def test_named_servers_act_for_themselves_and_their_owner_for_all_of_them(
    tmp_path: Path, hub: TinyHub
) -> None:
    hub.tokens |= {"token-gpu": "alice", "token-other": "alicette"}
    hub.scopes["token-gpu"] = ["users:activity!user=alice", "access:servers!server=alice/gpu"]
    hub.users["alicette"] = []
    hub.servers["alice"] = ["", "gpu"]
    with hub_node(tmp_path, hub, per_server=True) as node:
        everybody = ("token-gpu", "token-a", "token-b", "token-other")
        server, alice, bob, other = map(node.client, everybody)
        assert server.hello["environment"] == "alice/gpu"
        assert alice.hello["environment"] == "alice"
        lease = server.request()["lease"]
        own = alice.request()["lease"]
        seen = {row["environment"]: row for row in alice.call(Method.STATUS)["leases"]}
        assert seen.keys() == {"alice", "alice/gpu"}
        assert seen["alice/gpu"]["mine"]
        assert alice.call(Method.HISTORY, limit=9, environment="alice/gpu")["events"]
        # Each has its own quota; the page that shows both shows whose is whose.
        (row,) = alice.call(Method.STATUS)["servers"]
        assert (row["environment"], row["gpus"], row["used_gpus"]) == ("alice/gpu", 1, 1)
        assert sorted(row["mine"]) == [0, 8 * GIB]
        for somebody in (server, bob, other):
            assert "servers" not in somebody.call(Method.STATUS)
        # So with the GPU-hours.
        daily = alice.call(Method.USAGE_DAILY, days=2)
        assert daily["environment"] == "alice"
        assert daily["days"][-1]["leases"] == 1
        (row,) = daily["servers"]
        assert (row["environment"], row["days"][-1]["leases"]) == ("alice/gpu", 1)
        assert "servers" not in alice.call(Method.USAGE_DAILY, days=2, environment="alice/gpu")
        for somebody in (server, bob, other):
            assert not somebody.call(Method.USAGE_DAILY, days=2).get("servers")
        # Her server sees and touches its own; a name that begins like hers is nobody of hers.
        assert [row["id"] for row in server.call(Method.STATUS)["leases"] if row["mine"]] == [lease]
        assert server.refused(Method.RELEASE, lease=own).reason is Reason.UNKNOWN_LEASE
        for somebody in (bob, other):
            assert somebody.refused(Method.RELEASE, lease=lease).reason is Reason.UNKNOWN_LEASE
            assert not any(row["mine"] for row in somebody.call(Method.STATUS)["leases"])
            asked = somebody.call(Method.HISTORY, limit=9, environment="alice/gpu")["events"]
            assert all(event["environment"] == somebody.hello["environment"] for event in asked)
        assert alice.call(Method.RELEASE, lease=lease) == {"state": "ended"}
        assert server.refused(Method.HEARTBEAT, lease=lease).reason is Reason.UNKNOWN_LEASE

        # One that runs and holds nothing has a quota too; one that has ended is not shown.
        # (What was released counts until a measurement shows that it is gone.)
        def of_servers() -> list[tuple[str, int]]:
            rows = alice.call(Method.STATUS)["servers"]
            return [(row["environment"], row["used_gpus"]) for row in rows]

        until(lambda: of_servers() == [("alice/gpu", 0)], "the server holds nothing")
        server.close()
        until(lambda: "servers" not in alice.call(Method.STATUS), "it is gone")


def let_in(node: RunningNode, token: str) -> tuple[str, bool] | None:
    """Who that is to the node manager, and whether an administrator."""
    try:
        hello = node.client(token).hello
    except RemoteError:
        return None
    return hello["environment"], hello["admin"]


def test_a_node_manager_that_starts_while_the_hub_is_away_knows_who_was_vouched_for(
    tmp_path: Path, hub: TinyHub
) -> None:
    alice, carol = ("alice", False), ("carol", True)
    people = tmp_path / "ledger.hub-people.json"
    with hub_node(tmp_path, hub, believed=1.0) as node:
        assert let_in(node, "token-a") == alice
        until(people.exists, "the first one to be written")
        assert let_in(node, "token-c") == carol
        assert node.terminate() == 0
        hub.broken = 503
        node.start()
        assert let_in(node, "token-a") == alice
        assert let_in(node, "token-c") == ("carol", False)
        assert let_in(node, "token-b") is None
        node.restart()
        assert let_in(node, "token-a") == alice

        # The Hub is back and says no to one of them: it stays so.
        hub.broken = 0
        del hub.tokens["token-a"]
        assert let_in(node, "token-a") is None
        hub.broken = 503
        assert let_in(node, "token-a") is None
        node.restart()
        assert let_in(node, "token-a") is None
        assert let_in(node, "token-c") == ("carol", False)

        # An administrator of the host has everybody forgotten.
        forget = [*node.command(), "--forget-hub"]
        done = subprocess.run(forget, env=node.environ, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Forgotten")
        assert let_in(node, "token-c") is None
