"""A node manager that is away hides no other one from the service's pages."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.hub import HOSTS, RunningHub, needs_hub, xsrf_of
from support.node import GIB, NodeClient

pytestmark = needs_hub
PREFIX = "/services/gpushare/"
NAMES = ("right", "nobody")


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with RunningHub.make(pages=True, external=True, more=HOSTS.format(names=NAMES)) as running:
        yield running


@pytest.fixture(scope="module")
def right(hub: RunningHub) -> Path:
    """The socket of a second host's node manager."""
    return hub.start_other("right")


def row_of(page: httpx.Response, name: str) -> str:
    """The words of a host's row in the table of hosts."""
    match = re.search(rf'<tr[^>]*>\s*<th[^>]*><a id="host-{name}".*?</tr>', page.text, re.DOTALL)
    assert match is not None, f"no row of {name}"
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", match[0])).split())


def test_one_node_that_is_away_hides_no_other(hub: RunningHub, right: Path) -> None:
    alice = hub.person("alice")
    with (
        NodeClient(hub.socket, alice.token) as client,
        contextlib.closing(alice.browser()) as hers,
        contextlib.closing(hub.person("carol").browser()) as carols,
    ):
        client.request(name="here.ipynb", gpus=1, memory=GIB)
        page = hers.get(PREFIX)
        assert page.status_code == 200
        for text in (
            *("here.ipynb", "GPUs of left", "Servers, kernels or programs of yours run on left."),
            "2 hosts with 4 GPUs: 3 are free now, 0 requests wait.",
            "nobody is not in these figures: it cannot be reached.",
        ):
            assert text in page.text
        assert "Cannot be reached" in row_of(page, "nobody")
        away = hers.get(f"{PREFIX}?host=nobody")
        assert away.status_code == 200
        assert "The node manager of nobody cannot be asked" in away.text
        assert hers.get(f"{PREFIX}?host=middle").status_code == 404
        admins = carols.get(f"{PREFIX}admin?host=left")
        assert admins.status_code == 200
        assert "here.ipynb" in admins.text
        there = carols.get(f"{PREFIX}admin?host=right")
        assert "here.ipynb" not in there.text
        wish = {"_xsrf": xsrf_of(there), "node": "right", "reason": "a new driver"}
        out = carols.post(f"{PREFIX}admin/drain", data=wish)
        assert "All GPUs of right are out of service" in out.text
        assert "Out of service a new driver" in row_of(hers.get(PREFIX), "right")
        assert " In service " in row_of(hers.get(PREFIX), "left")
        carols.post(f"{PREFIX}admin/drain", data={**wish, "action": "resume"})
        assert "In service" in row_of(hers.get(PREFIX), "right")
        form = carols.get(f"{PREFIX}admin/quota?node=left&environment=bob")
        assert form.status_code == 200
        assert "This holds on left only" in form.text
        assert carols.get(f"{PREFIX}admin/quota?node=nobody&environment=bob").status_code == 503
        assert carols.get(f"{PREFIX}admin/quota?node=middle").status_code == 404
        # A file with half of the figures would be believed.
        assert hers.get(f"{PREFIX}usage.csv").status_code == 503


def test_rest_asks_which_node(hub: RunningHub, right: Path) -> None:
    with httpx.Client(
        base_url=f"{hub.url}{PREFIX}api/",
        headers={"Authorization": f"token {hub.person('bob').token}"},
        timeout=60,
        trust_env=False,
        verify=False,
    ) as api:
        unsaid = api.get("status")
        assert unsaid.status_code == 400
        assert "right, nobody, left" in unsaid.json()["message"]
        assert api.get("status?node=left").json()["environment"] == "bob"
        assert api.get("status?node=nobody").status_code == 503
        assert api.get("status?node=middle").status_code == 404
        told = {node["name"]: node["connected"] for node in api.get("nodes").json()["nodes"]}
        assert told == {"left": True, "right": True, "nobody": False}
