"""The pages of a pool are true of all its hosts, and what is edited there holds for each.

A real JupyterHub whose service runs the pool, and real hosts over TLS.
"""

from __future__ import annotations

import contextlib
import html
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import websocket
from support.hub import RunningHub, free_ports, needs_hub
from support.jupyter import wait_for
from support.node import until
from support.runningpool import PoolHost, RunningPool

from jupyter_gpushare.protocol.messages import Method

pytestmark = [
    needs_hub,
    # `test_poolviews` and `test_views` test what pages say, `test_pool` the whole of it.
    pytest.mark.story(
        *("jupyter_gpushare/pool/", "jupyter_gpushare/link/"),
        *("jupyter_gpushare/hub/", "jupyter_gpushare/pages/"),
        *("tests/hub/", "tests/support/pool", "tests/support/runningpool"),
    ),
]
PREFIX = "/services/gpushare/"
SERVICE = """
c.JupyterHub.services.append({{"name": "gpushare",
    "environment": {{"JUPYTER_GPUSHARE_QUOTAS": '{{"default": {{"gpus": 1}}}}'}},
    "command": [sys.executable, "-m", "jupyter_gpushare.hub", "--GpuShareHub.pool=True",
    f"--Pool.folder={{HOME}}/lab", f"--Pool.socket={{HOME}}/pool.sock", "--Pool.title=lab",
    "--Pool.listen=127.0.0.1:{port}", "--Pool.address=127.0.0.1",
    "--Pool.answer_timeout=1.0", "--Pool.silence=1.0"]}})
c.JupyterHub.load_roles.append({{"name": "pool", "services": ["gpushare"],
    "scopes": ["list:groups", "read:groups"]}})
"""


class ServicesPool:
    """The pool that the Hub's service runs, by its socket."""

    verb, ask, host, sees = RunningPool.verb, RunningPool.ask, RunningPool.host, RunningPool.sees

    def __init__(self, socket: Path) -> None:
        self.socket = socket


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with RunningHub.make(pages=True, more=SERVICE.format(port=free_ports(1)[0])) as running:
        yield running


@pytest.fixture(scope="module")
def pool(hub: RunningHub) -> ServicesPool:
    pool = ServicesPool(hub.home / "pool.sock")
    wait_for(pool.socket.exists, 60, "the pool")
    return pool


@pytest.fixture(scope="module")
def hosts(
    pool: ServicesPool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, PoolHost]]:
    """Two hosts with a GPU each."""
    folder = tmp_path_factory.mktemp("hosts")
    made = {name: PoolHost(folder / name, pool, name, "1x24GiB") for name in ("a", "b")}  # type: ignore[arg-type]
    for node in made.values():
        node.start()
    pool.sees(*made)
    yield made
    for node in made.values():
        node.close()


@pytest.fixture(scope="module")
def alices(hub: RunningHub) -> Iterator[httpx.Client]:
    with contextlib.closing(hub.person("alice").browser()) as browser:
        yield browser


@pytest.fixture(scope="module")
def carols(hub: RunningHub) -> Iterator[httpx.Client]:
    with contextlib.closing(hub.person("carol").browser()) as browser:
        yield browser


def text_of(page: httpx.Response, start: str, end: str) -> str:
    """The words between two pieces of a page's source."""
    match = re.search(f"{start}.*?{end}", page.text, re.DOTALL)
    assert match is not None, f"no {start}"
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", match[0])).split())


def row_of(page: httpx.Response, name: str) -> str:
    return text_of(page, f'<a id="host-{name}"', "</tr>")


def own_of(page: httpx.Response) -> str:
    return text_of(page, '<section id="own"', "</section>")


def form(browser: httpx.Client, **fields: str) -> dict[str, str]:
    match = re.search(r'data-xsrf="([^"]+)"', browser.get(f"{PREFIX}admin").text)
    assert match is not None
    return {"_xsrf": match[1], **fields}


def test_a_person_sees_their_own_host_and_what_they_have_on_all(
    hosts: dict[str, PoolHost], alices: httpx.Client
) -> None:
    nowhere = alices.get(PREFIX)
    assert nowhere.status_code == 200
    assert "and you get one" not in nowhere.text
    assert "2 hosts with 2 GPUs: 2 are free now, 0 requests wait." in nowhere.text
    with hosts["b"].client("alice") as there:
        own = until(
            lambda: "your work runs here" in row_of(page := alices.get(PREFIX), "b") and page,
            "the pool knows that she is on b",
        )
        # Hers is the one whose details are shown.
        assert "and you get one" in own.text
        assert "GPUs of b" in own.text
        assert "and you get one" not in alices.get(f"{PREFIX}?host=a").text
        with hosts["a"].client("alice") as here:
            lease = here.request(name="here.ipynb", gpus=1)["lease"]
            waits = there.ask(name="there.ipynb", gpus=1)
            said = until(
                lambda: "on host a" in (text := own_of(alices.get(PREFIX))) and text,
                "it says that her GPU is in use on a",
            )
            assert "GPUs 1 of 1" in said
            assert "a 1 GPU held" in said
            assert "b 1 request waiting" in said
            here.call(Method.RELEASE, lease=lease)
            there.call(Method.RELEASE, lease=there.wait(waits)["lease"])


def test_a_host_is_out_of_service_also_if_it_was_away(
    hosts: dict[str, PoolHost], pool: ServicesPool, alices: httpx.Client, carols: httpx.Client
) -> None:
    node = hosts["b"]
    node.kill9()
    until(lambda: "Cannot be reached" in row_of(alices.get(PREFIX), "b"), "b is missed")
    assert "b is not in these figures" in alices.get(PREFIX).text
    assert carols.get(f"{PREFIX}admin?host=b").status_code == 200
    assert "Take b out of service" in carols.get(f"{PREFIX}admin/drain?node=b").text
    out = carols.post(f"{PREFIX}admin/drain", data=form(carols, node="b", reason="new fans"))
    assert "All GPUs of b are out of service" in out.text
    node.start()
    until(lambda: "Out of service new fans" in row_of(alices.get(PREFIX), "b"), "b is drained")
    until(lambda: pool.host("b")["report"]["draining"] == "new fans", "b knows it")
    refused = alices.post(f"{PREFIX}admin/drain", data=form(carols, node="b", reason="mine"))
    assert refused.status_code == 403
    carols.post(f"{PREFIX}admin/drain", data=form(carols, node="b", action="resume"))
    until(lambda: "In service" in row_of(alices.get(PREFIX), "b"), "b serves")
    deeds = text_of(carols.get(f"{PREFIX}admin"), '<section id="deeds"', "</section>")
    assert "carol took the host b out of service: new fans" in deeds
    assert "carol put the host b back into service" in deeds


def test_a_page_is_true_within_five_seconds_after_a_host_is_back(
    hub: RunningHub, hosts: dict[str, PoolHost], alices: httpx.Client
) -> None:
    token = hub.person("alice").token
    live = websocket.create_connection(
        f"{hub.url.replace('http', 'ws', 1)}{PREFIX}live?host=a",
        header={"Authorization": f"token {token}"},
        timeout=60,
    )
    try:

        def told(state: str) -> float:
            while True:
                live.recv()
                if state in row_of(alices.get(f"{PREFIX}?part=hosts"), "b"):
                    return time.monotonic()

        hosts["b"].kill9()
        told("Cannot be reached")
        hosts["b"].start()
        back = time.monotonic()
        assert told("In service") - back < 5.0
    finally:
        live.close()
