"""A quota that is edited at the Hub holds on all hosts, also while its service is killed.

A real Hub whose service runs the pool; two hosts joined it, one of them the Hub's own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.hub import RunningHub, free_ports, needs_hub
from support.node import NodeClient, until
from support.runningpool import PoolHost, RunningPool

from jupyter_gpushare.protocol.messages import Method

pytestmark = needs_hub
PREFIX = "/services/gpushare/"
CONFIG = """
with open(HOME + "/jupyter_gpushare_hub_config.py", "w") as file:
    file.write("c.Pool.listen = '127.0.0.1:{join}'\\nc.Pool.address = '127.0.0.1'\\n")
"""


@pytest.fixture(scope="module")
def hub(ports: tuple[int, int]) -> Iterator[RunningHub]:
    own, join = ports
    listen = f"--NodeManagerApp.pool_listen=127.0.0.1:{own}"
    more = {"pool": "pool", "simulate": "1x24GiB", "quotas": {"default": {"gpus": 1}}}
    arguments = [listen, "--NodeManagerApp.pool_directory=here"]
    with RunningHub.make(
        pages=True, more=CONFIG.format(join=join), node_arguments=arguments, **more
    ) as running:
        yield running


@pytest.fixture(scope="module")
def ports() -> tuple[int, int]:
    own, join = free_ports(2)
    return own, join


@pytest.fixture(scope="module")
def pool(hub: RunningHub, ports: tuple[int, int], tmp_path_factory: Any) -> Iterator[RunningPool]:
    """The pool of the Hub's service, with its hosts ``here`` and ``there``."""
    running = RunningPool(tmp_path_factory.mktemp("pool"), {})
    running.socket = hub.home / "pool" / "pool.sock"
    command = [sys.executable, "-m", "jupyter_gpushare.cli", "pool", "join"]
    command += [running.verb("token")["token"], "--name=here", f"--port={ports[0]}"]
    subprocess.run([*command, f"--directory={hub.home / 'here'}"], check=True)
    hub.node_process().kill()  # its keeper starts it again
    with PoolHost(tmp_path_factory.mktemp("there"), running, "there", "1x40GiB"):
        running.sees("here", "there")
        yield running


def rows(pool: RunningPool) -> dict[str, dict[str, Any]]:
    return {row["environment"]: row for row in pool.verb("quota")["quotas"]}


def test_the_hubs_groups_are_the_pools(pool: RunningPool) -> None:
    told = pool.verb("quota")
    assert {row["group"]: row["gpus"] for row in told["groups"]} == {"students": 1, "staff": 2}
    assert told["default"]["gpus"] == 1
    alice = rows(pool)["alice"]
    assert (alice["source"], alice["from_groups"]) == ("group", ["students"])


def test_a_quota_is_edited_once_and_holds_everywhere(hub: RunningHub, pool: RunningPool) -> None:
    carol = hub.client(f"{hub.url}{PREFIX}api/", hub.person("carol").token)
    answer = carol.put("quotas/alice?node=there", json={"gpus": 2})
    assert answer.status_code == 200, answer.text
    assert rows(pool)["alice"]["gpus"] == 2
    assert pool.verb("history")["events"][0]["by"] == "carol"
    shown = carol.get("quotas?node=here").json()["quotas"]
    assert {row["environment"]: row["gpus"] for row in shown}["alice"] == 2
    bob = hub.client(f"{hub.url}{PREFIX}api/", hub.person("bob").token)
    known = bob.get("nodes").json()["nodes"]
    assert {one["name"]: one["connected"] for one in known} == {"here": True, "there": True}
    refused = bob.put("quotas/bob?node=there", json={"gpus": 9})
    assert refused.status_code == 403
    assert rows(pool)["bob"]["gpus"] == 1


def test_work_goes_on_while_the_service_and_its_pool_are_killed(
    hub: RunningHub, pool: RunningPool
) -> None:
    with NodeClient(hub.socket, hub.person("alice").token) as alice:
        lease = alice.request(gpus=1)
        _, service = hub.pages_processes()
        service.kill()
        # The loan outlives the pool, and so does what runs.
        until(lambda: _knows(pool) and _beats(alice, lease), "the pool sees its hosts again")
        held = {h["environment"]: h for h in pool.host("here")["report"]["environments"]}
        assert held["alice"]["held"] == 1
        assert _beats(alice, lease)
        alice.call(Method.RELEASE, lease=lease["lease"])


def _beats(client: NodeClient, lease: dict[str, Any]) -> bool:
    return client.call(Method.HEARTBEAT, lease=lease["lease"])["state"] == "held"


def _knows(pool: RunningPool) -> bool:
    try:
        return all(pool.host(name).get("connected") for name in ("here", "there"))
    except OSError:
        return False
