"""A quota that is edited at the Hub holds on all hosts, whose pages are true of each.

A real Hub whose service runs the pool; two hosts joined it, one of them the Hub's own. Work goes on
while that service is killed.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
import websocket
from support.hub import RunningHub, free_ports, needs_hub, xsrf_of
from support.node import NodeClient, until
from support.runningpool import PoolHost, RunningPool

from jupyter_gpushare.protocol.messages import Method

pytestmark = needs_hub
#: `test_poolviews` and `test_views` test what pages say.
STORY = pytest.mark.story(
    *("jupyter_gpushare/pool/", "jupyter_gpushare/link/"),
    *("jupyter_gpushare/hub/", "jupyter_gpushare/pages/"),
    *("tests/hub/", "tests/support/pool", "tests/support/runningpool"),
)
PREFIX = "/services/gpushare/"
OWN = '<section id="own"', "</section>"
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
def pool(hub: RunningHub, ports: tuple[int, int], tmp_path_factory: Any) -> RunningPool:
    """The pool of the Hub's service; the Hub's own node manager joined it as ``here``."""
    running = RunningPool(tmp_path_factory.mktemp("pool"), {})
    running.socket = hub.home / "pool" / "pool.sock"
    command = [sys.executable, "-m", "jupyter_gpushare.cli", "pool", "join"]
    command += [running.verb("token")["token"], "--name=here", f"--port={ports[0]}"]
    subprocess.run([*command, f"--directory={hub.home / 'here'}"], check=True)
    hub.node_process().kill()  # its keeper starts it again
    return running


@pytest.fixture(scope="module")
def there(pool: RunningPool, tmp_path_factory: Any) -> Iterator[PoolHost]:
    """A second host."""
    with PoolHost(tmp_path_factory.mktemp("there"), pool, "there", "1x40GiB") as host:
        pool.sees("here", "there")
        yield host


@pytest.fixture(scope="module")
def alices(hub: RunningHub) -> Iterator[httpx.Client]:
    with closing(hub.person("alice").browser()) as browser:
        yield browser


@pytest.fixture(scope="module")
def carols(hub: RunningHub) -> Iterator[httpx.Client]:
    with closing(hub.person("carol").browser()) as browser:
        yield browser


def rows(pool: RunningPool) -> dict[str, dict[str, Any]]:
    return {row["environment"]: row for row in pool.verb("quota")["quotas"]}


def test_the_hubs_groups_are_the_pools(pool: RunningPool) -> None:
    told = pool.verb("quota")
    assert {row["group"]: row["gpus"] for row in told["groups"]} == {"students": 1, "staff": 2}
    assert told["default"]["gpus"] == 1
    alice = rows(pool)["alice"]
    assert (alice["source"], alice["from_groups"]) == ("group", ["students"])


def test_a_quota_is_edited_once_and_holds_everywhere(
    hub: RunningHub, pool: RunningPool, there: PoolHost
) -> None:
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
    assert carol.delete("quotas/alice?node=here").status_code == 200


# -- pages -----------------------------------------------------------------------------------------


def text_of(page: httpx.Response, start: str, end: str) -> str:
    """The words between two pieces of a page's source."""
    match = re.search(f"{start}.*?{end}", page.text, re.DOTALL)
    assert match is not None, f"no {start}"
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", match[0])).split())


def row_of(page: httpx.Response, name: str) -> str:
    return text_of(page, f'<a id="host-{name}"', "</tr>")


def form(browser: httpx.Client, **fields: str) -> dict[str, str]:
    return {"_xsrf": xsrf_of(browser.get(f"{PREFIX}admin")), **fields}


@STORY
def test_a_person_sees_their_own_host_and_what_they_have_on_all(
    hub: RunningHub, there: PoolHost, alices: httpx.Client
) -> None:
    nowhere = alices.get(PREFIX)
    assert nowhere.status_code == 200
    assert "and you get one" not in nowhere.text
    assert "2 hosts with 2 GPUs: 2 are free now, 0 requests wait." in nowhere.text
    with there.client("alice") as on_there:
        own = until(
            lambda: "your work runs here" in row_of(page := alices.get(PREFIX), "there") and page,
            "the pool knows that she is there",
        )
        # Hers is the one whose details are shown.
        assert "and you get one" in own.text
        assert "GPUs of there" in own.text
        assert "and you get one" not in alices.get(f"{PREFIX}?host=here").text
        with NodeClient(hub.socket, hub.person("alice").token) as here:
            lease = here.request(name="here.ipynb", gpus=1)["lease"]
            waits = on_there.ask(name="there.ipynb", gpus=1)
            said = until(
                lambda: "on host here" in (text := text_of(alices.get(PREFIX), *OWN)) and text,
                "it says that her GPU is in use here",
            )
            assert "GPUs 1 of 1" in said
            assert "here 1 GPU held" in said
            assert "there 1 request waiting" in said
            here.call(Method.RELEASE, lease=lease)
            on_there.call(Method.RELEASE, lease=on_there.wait(waits)["lease"])


@STORY
def test_a_host_is_out_of_service_also_if_it_was_away(
    pool: RunningPool, there: PoolHost, alices: httpx.Client, carols: httpx.Client
) -> None:
    there.kill9()
    until(lambda: "Cannot be reached" in row_of(alices.get(PREFIX), "there"), "it is missed")
    assert "there is not in these figures" in alices.get(PREFIX).text
    assert carols.get(f"{PREFIX}admin?host=there").status_code == 200
    assert "Take there out of service" in carols.get(f"{PREFIX}admin/drain?node=there").text
    out = carols.post(f"{PREFIX}admin/drain", data=form(carols, node="there", reason="new fans"))
    assert "All GPUs of there are out of service" in out.text
    there.start()
    until(lambda: "Out of service new fans" in row_of(alices.get(PREFIX), "there"), "it is drained")
    until(lambda: pool.host("there")["report"]["draining"] == "new fans", "it knows it")
    refused = alices.post(f"{PREFIX}admin/drain", data=form(carols, node="there", reason="mine"))
    assert refused.status_code == 403
    carols.post(f"{PREFIX}admin/drain", data=form(carols, node="there", action="resume"))
    until(lambda: "In service" in row_of(alices.get(PREFIX), "there"), "it serves")
    deeds = text_of(carols.get(f"{PREFIX}admin"), '<section id="deeds"', "</section>")
    assert "carol took the host there out of service: new fans" in deeds
    assert "carol put the host there back into service" in deeds


@STORY
def test_a_page_is_true_within_five_seconds_after_a_host_is_back(
    hub: RunningHub, there: PoolHost, alices: httpx.Client
) -> None:
    token = hub.person("alice").token
    live = websocket.create_connection(
        f"{hub.url.replace('http', 'ws', 1)}{PREFIX}live?host=here",
        header={"Authorization": f"token {token}"},
        timeout=60,
    )
    try:

        def told(state: str) -> float:
            while True:
                live.recv()
                if state in row_of(alices.get(f"{PREFIX}?part=hosts"), "there"):
                    return time.monotonic()

        there.kill9()
        told("Cannot be reached")
        there.start()
        back = time.monotonic()
        assert told("In service") - back < 5.0
    finally:
        live.close()


# -- without the pool ------------------------------------------------------------------------------


def test_work_goes_on_while_the_service_and_its_pool_are_killed(
    hub: RunningHub, pool: RunningPool, there: PoolHost
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
