"""The service in front of several node managers, one of which is not there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import httpx
import pytest
from support.hub import RunningHub, Spawning, why_not
from support.jupyter import wait_for
from support.node import GIB, NodeClient

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        why_not(Spawning.ONE_USER) is not None, reason=str(why_not(Spawning.ONE_USER))
    ),
]
PREFIX = "/services/gpushare/"
NODES = """
nodes = {"left": HOME + "/node/node.sock", "right": HOME + "/node/nobody.sock"}
c.JupyterHub.services.append({"name": "gpushare", "command": [
    sys.executable, "-m", "jupyter_gpushare.hub", f"--GpuShareHub.nodes={nodes!r}"]})
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    with RunningHub.make(pages=True, more=NODES) as running:
        wait_for(lambda: _is_up(running), 30, "the service")
        yield running


def _is_up(hub: RunningHub) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        answer = httpx.get(f"{hub.url}{PREFIX}health", timeout=30, trust_env=False)
        return answer.status_code == 200
    return False


def test_one_node_that_is_away_hides_no_other(hub: RunningHub) -> None:
    alice = hub.person("alice")
    with (
        NodeClient(hub.socket, alice.token) as client,
        contextlib.closing(alice.browser()) as hers,
        contextlib.closing(hub.person("carol").browser()) as carols,
    ):
        # Whoever looks is no server of theirs; bob has none.
        with contextlib.closing(hub.person("bob").browser()) as bobs:
            assert "does not know which will be yours" in bobs.get(PREFIX).text
        lease = client.request(name="here.ipynb", gpus=1, memory=GIB)["lease"]
        page = hers.get(PREFIX)
        assert page.status_code == 200
        for text in ("here.ipynb", "GPUs of left", "The node manager of right cannot be asked"):
            assert text in page.text
        assert "Servers or programs of yours run on left." in page.text
        assert page.text.count("your server\u2019s node") == 1
        assert "right did not answer: its hours are not in these figures." in page.text
        admins = carols.get(f"{PREFIX}admin")
        assert admins.status_code == 200
        for text in (
            *("here.ipynb", "The node manager of right cannot be asked"),
            '<th scope="col">Node</th>',
        ):
            assert text in admins.text
        form = carols.get(f"{PREFIX}admin/quota?node=left&environment=bob")
        assert form.status_code == 200
        assert "This holds on left only: right has quotas of its own." in form.text
        away = carols.get(f"{PREFIX}admin/quota?node=right&environment=bob")
        assert away.status_code == 503
        assert carols.get(f"{PREFIX}admin/quota?node=middle").status_code == 404
        # A file with half of the figures would be believed.
        assert hers.get(f"{PREFIX}usage.csv").status_code == 503
        assert lease in page.text


def test_rest_asks_which_node(hub: RunningHub) -> None:
    with httpx.Client(
        base_url=f"{hub.url}{PREFIX}api/",
        headers={"Authorization": f"token {hub.person('bob').token}"},
        timeout=30,
        trust_env=False,
    ) as api:
        unsaid = api.get("status")
        assert unsaid.status_code == 400
        assert "left, right" in unsaid.json()["message"]
        assert api.get("status?node=left").json()["environment"] == "bob"
        assert api.get("status?node=right").status_code == 503
        assert api.get("status?node=middle").status_code == 404
        told = {node["name"]: node["connected"] for node in api.get("nodes").json()["nodes"]}
        assert told == {"left": True, "right": False}
