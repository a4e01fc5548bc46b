"""The chart fits JupyterHub: its values, its hook, and KubeSpawner with a stand-in of Kubernetes.

No pod runs anything here; test_cluster.py runs what they would.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub.objects import Hub, Server
from kubernetes_asyncio import client
from support import chart
from support.kubeapi import KubeApi, hook_ran, kubernetes, nodes_of
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler
from traitlets.config import Config

from jupyter_gpushare.cli import hubchecks
from jupyter_gpushare.console.check import Level
from jupyter_gpushare.hub import setup
from jupyter_gpushare.node.app import NodeManagerApp
from jupyter_gpushare.pool import pki
from jupyter_gpushare.pool.joining import Token

pytestmark = pytest.mark.skipif(bool(chart.why_no_helm()), reason=chart.why_no_helm())
kubespawner = pytest.importorskip("kubespawner.spawner")
clients = pytest.importorskip("kubespawner.clients")
LABEL = "kubernetes.io/hostname"
PAGE = Path(__file__).parents[2] / "docs/deploy/kubernetes.md"


# -- values for the Hub ----------------------------------------------------------------------------


def as_the_hub_has_it() -> Config:
    c = Config()
    chart.configure_hub(c, chart.hub_values())
    return c


def test_the_values_are_all_that_the_hub_needs() -> None:
    c = as_the_hub_has_it()
    # The chart sets what is a spawner's there.
    c.Spawner.environment = c.KubeSpawner.environment
    checks = list(hubchecks.configuration(c))
    assert [check for check in checks if check.level is Level.PROBLEM] == []
    said = {check.name: check.text for check in checks}
    assert "students" in said["group quotas"]
    assert "every container sees /run/jupyter-gpushare" in said["mounts"]


def test_setup_finds_nothing_to_add() -> None:
    """An administrator whose Hub image has our package may also call ``setup``."""
    c, before = as_the_hub_has_it(), as_the_hub_has_it()
    setup(c, url=None)
    assert {entry["name"] for entry in c.JupyterHub.services} == {"gpushare", "gpushare-node"}
    assert c.JupyterHub.load_roles == before.JupyterHub.load_roles
    assert c.KubeSpawner.volumes == before.KubeSpawner.volumes
    assert c.KubeSpawner.environment == before.KubeSpawner.environment
    assert c.Spawner.server_token_scopes == before.Spawner.server_token_scopes
    mounts = c.KubeSpawner.volume_mounts
    assert [mounts[name]["mountPath"] for name in mounts] == ["/run/jupyter-gpushare"]


def test_hub_and_chart_mean_the_same_socket_tokens_addresses_and_nodes() -> None:
    values, of = chart.hub_values(), chart.objects({})
    user, pods = values["singleuser"], chart.pods(of)
    node, pool = pods["gpushare-node"], pods["gpushare-pool"]
    volumes = {volume["name"]: volume for volume in node["volumes"]}
    (users,) = user["storage"]["extraVolumes"]
    assert users["hostPath"] == volumes["socket"]["hostPath"]
    assert Path(user["extraEnv"]["JUPYTER_GPUSHARE_SOCKET"]).parent == Path(
        users["hostPath"]["path"]
    )
    tokens = {
        pod["containers"][0]["name"]: env["valueFrom"]["secretKeyRef"]
        for pod in (node, pool)
        for env in pod["containers"][0]["env"]
        if env["name"] == "JUPYTERHUB_API_TOKEN"
    }
    assert tokens == {
        part: {"name": "hub", "key": f"hub.services.{service}.apiToken"}
        for part, service in (("node", "gpushare-node"), ("pool", "gpushare"))
    }
    assert {one["key"].split(".")[2] for one in tokens.values()} == set(values["hub"]["services"])
    service = of["Service", "gpushare-pool"]
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    pages = f"http://{service['metadata']['name']}:{ports['pages']}"
    assert values["hub"]["services"]["gpushare"]["url"] == pages
    # Servers start where there are node managers.
    assert user["nodeSelector"] == node["nodeSelector"]
    assert user["extraPodConfig"]["runtimeClassName"] == node["runtimeClassName"]
    assert all(one in node["tolerations"] for one in user["extraTolerations"])


# -- settings --------------------------------------------------------------------------------------


def config_of(of: dict[tuple[str, str], Any], part: str) -> tuple[str, dict[str, Any]]:
    """The name and content of a configuration file."""
    (container,) = chart.pods(of)[part]["containers"]
    ((name, text),) = of["ConfigMap", part]["data"].items()
    assert f"--config=/etc/jupyter-gpushare/{name}" in container["args"]
    return name, json.loads(text)


def test_the_node_managers_file_is_a_configuration(tmp_path: Path) -> None:
    values = {**chart.TAINT, "pool": {"enabled": False}, "node": {"config": {"Quotas": {}}}}
    name, told = config_of(chart.objects(values), "gpushare-node")
    # Without a pool the node manager gives quotas; with one, the pool does.
    assert told["Quotas"] == {"default": {"gpus": 1, "memory": "16GiB"}}
    assert "Quotas" not in config_of(chart.objects({}), "gpushare-node")[1]
    file = tmp_path / name
    file.write_text(json.dumps(told))
    app = NodeManagerApp()
    app.config_file = str(file)
    app.load_config_file()
    assert (app.hub, app.shared, app.gpus) == (True, True, "all")
    assert app.socket == "/run/jupyter-gpushare/node.sock"
    assert app.ledger == "/var/lib/jupyter-gpushare/ledger.sqlite"
    assert (app.metrics_address, app.metrics_port) == ("0.0.0.0", 9464)


# -- the hook that makes the Secrets ---------------------------------------------------------------


def test_the_hook_makes_what_pool_and_nodes_need_and_uses_every_right_it_has(
    tmp_path: Path,
) -> None:
    of = chart.objects({})
    rules = of["Role", "gpushare-credentials"]["rules"]
    (tmp_path / "account").mkdir()
    with kubernetes(tmp_path / "account", rules) as api:
        told = hook_ran(api, tmp_path / "account", of)
        assert told.splitlines() == [
            "made the Secret gpushare-authority",
            "made the Secret gpushare-join",
        ]
        assert set(api.objects["secrets"]) == {"gpushare-authority", "gpushare-join"}
        before = json.dumps(api.objects)
        # An upgrade changes nothing, and a token that was taken away is made anew.
        assert hook_ran(api, tmp_path / "account", of) == ""
        assert json.dumps(api.objects) == before
        taken = api.objects["secrets"].pop("gpushare-join")
        assert hook_ran(api, tmp_path / "account", of) == "made the Secret gpushare-join\n"
        assert api.objects["secrets"]["gpushare-join"]["data"] != taken["data"]
        assert api.used == {
            (number, verb) for number, rule in enumerate(rules) for verb in rule["verbs"]
        }
        assert not api.may("get", "secrets", "hub")
        assert not api.may("list", "secrets", "")
        token = Token.read(api.secret("gpushare-join")["join-token"].decode())
        (tmp_path / "authority.pem").write_bytes(api.secret("gpushare-authority")["authority.pem"])
    authority = pki.Authority.create(tmp_path / "pool", "p", 0.0, tmp_path / "authority.pem")
    assert token.authority == authority.pinned
    assert (token.address, token.port) == ("gpushare-pool.jhub.svc", 10206)


def test_after_a_rotation_the_page_says_how_to_get_a_token_of_the_new_authority(
    tmp_path: Path,
) -> None:
    """The pool's volume has the new authority; the hook knows only the one in its Secret."""
    of, now, account = chart.objects({}), time.time(), tmp_path / "account"
    account.mkdir()
    (page,) = re.findall(r"pool rotate\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    place, secret, key = re.findall(
        r" cat (\S+).* generic (\S+) --from-file=(\S+)=/dev/stdin", page, re.DOTALL
    )[0]
    settings = config_of(of, "gpushare-pool")[1]["Pool"]
    assert Path(place).parent == Path(settings["folder"])
    with kubernetes(account, of["Role", "gpushare-credentials"]["rules"]) as api:
        hook_ran(api, account, of)
        (tmp_path / "given").write_bytes(api.secret("gpushare-authority")["authority.pem"])
        pki.Authority.create(tmp_path / "pool", "p", now, tmp_path / "given").rotate(now)
        tokens = [Token.read(api.secret("gpushare-join")["join-token"].decode())]
        for replaced in (False, True):
            if replaced:
                new = (tmp_path / "pool" / Path(place).name).read_bytes()
                api.objects["secrets"][secret]["data"][key] = base64.b64encode(new).decode()
            del api.objects["secrets"]["gpushare-join"]
            assert hook_ran(api, account, of) == "made the Secret gpushare-join\n"
            tokens.append(Token.read(api.secret("gpushare-join")["join-token"].decode()))
    for days, count in ((29, [True, True, True]), (31, [False, False, True])):
        known = pki.Authority.open(tmp_path / "pool", now + days * pki.DAY).authorities
        assert [token.pinned.strip() in known for token in tokens] == count


# -- the node of a server --------------------------------------------------------------------------


class Where(RequestHandler):
    """The pages' answer to what the Hub asks before it starts a server."""

    def initialize(self, ranking: dict[str, Any]) -> None:
        self.ranking = ranking

    def get(self) -> None:
        query = {name: self.get_query_argument(name) for name in self.request.query_arguments}
        self.ranking["asked"] = (query, self.request.headers["Authorization"])
        self.set_status(self.ranking["code"])
        self.write(self.ranking["body"])


@pytest.fixture
def ranking() -> Iterator[dict[str, Any]]:
    """The pool's answer, served; a test sets it."""
    told: dict[str, Any] = {"code": 200, "body": {"hosts": []}}
    (sock,) = bind_sockets(0, "127.0.0.1")
    told["url"] = f"http://127.0.0.1:{sock.getsockname()[1]}"
    path = "/services/gpushare/api/where"
    server = HTTPServer(Application([(path, Where, {"ranking": told})]))
    told["serve"] = lambda: server.add_sockets([sock])
    yield told
    server.stop()
    sock.close()


def host(name: str, fits_now: bool = True, possible: bool = True) -> dict[str, Any]:
    why = ["It has no GPU of 80 GiB."]
    return {"host": name, "fits_now": fits_now, "possible": possible, "reasons": why}


async def pod_of(
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    options: dict[str, Any],
    before: str = "",
    **more: Any,
) -> dict[str, Any]:
    """The pod that KubeSpawner's own start() sends to Kubernetes, with the values for the Hub."""
    c = Config()
    exec(before, {"c": c})
    chart.configure_hub(c, chart.hub_values(), {"gpushare": url})
    with KubeApi().served() as api:
        told = client.Configuration(host=api.url)
        monkeypatch.setattr(kubespawner, "load_config", lambda **_k: None)
        monkeypatch.setattr(client.Configuration, "_default", told)
        user = SimpleNamespace(
            name="alice",
            escaped_name="alice",
            id=1,
            url="/user/alice",
            server=Server(),
            settings={},
        )
        orm = SimpleNamespace(name="", server=None, state=None, oauth_client_id="of-alice")
        spawner = kubespawner.KubeSpawner(
            config=c, user=user, hub=Hub(), orm_spawner=orm, namespace="jhub", **more
        )
        spawner.api_token = "the-servers-own"
        spawner.user_options = options
        try:
            assert await spawner.start() == "http://10.1.0.7:8888"
        finally:
            for reflector in (spawner.pod_reflector, spawner.event_reflector):
                await reflector.stop()
            await spawner.api.api_client.close()
            # KubeSpawner keeps one for each loop.
            clients._client_cache.clear()
        (pod,) = api.objects["pods"].values()
        return dict(pod)


ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["east"]}]}


@pytest.mark.parametrize(
    ("hosts", "required", "preferred"),
    [
        ([host("b"), host("a"), host("c", False)], ["b", "a"], {"b": 100, "a": 90}),
        # Where it fits nowhere now, the person waits on the best.
        ([host("c", False, False), host("b", False), host("a", False)], ["b"], {"b": 100}),
    ],
)
async def test_a_server_goes_to_the_pools_best_node_and_what_was_required_stays_required(
    monkeypatch: pytest.MonkeyPatch,
    ranking: dict[str, Any],
    hosts: list[Any],
    required: list[str],
    preferred: dict[str, int],
) -> None:
    ranking["serve"]()
    ranking["body"] = {"hosts": hosts}
    options = {"gpus": "2", "gpu_memory": "24GiB", "gpu_kind": "H100"}
    pod = await pod_of(monkeypatch, ranking["url"], options, node_affinity_required=[ZONE])
    assert nodes_of(pod) == ([[("zone", ["east"]), (LABEL, required)]], preferred)
    query = {"gpus": "2", "memory": str(24 << 30), "kind": "H100"}
    assert ranking["asked"] == (query, "token the-servers-own")
    pod = await pod_of(monkeypatch, ranking["url"], {})
    assert nodes_of(pod) == ([[(LABEL, required)]], preferred)
    assert ranking["asked"][0] == {}


async def test_while_the_pool_is_away_kubernetes_chooses_and_an_earlier_hook_is_kept(
    monkeypatch: pytest.MonkeyPatch, ranking: dict[str, Any]
) -> None:
    before = """
async def mine(spawner, pod):
    pod.metadata.labels["mine"] = "yes"
    return pod

c.KubeSpawner.modify_pod_hook = mine
"""
    ranking["serve"]()
    for code, body in ((502, "no gateway"), (200, "no JSON"), (404, {"message": "no pool"})):
        ranking |= {"code": code, "body": body}
        pod = await pod_of(monkeypatch, ranking["url"], {}, before)
        assert nodes_of(pod) == ([], {})
        assert pod["metadata"]["labels"]["mine"] == "yes"
    pod = await pod_of(monkeypatch, "http://127.0.0.1:1", {})
    assert nodes_of(pod) == ([], {})


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (200, {"hosts": [host("a", False, False)]}, "No node .* a: It has no GPU of 80 GiB."),
        (409, {"message": "You may hold one GPU."}, "^You may hold one GPU.$"),
    ],
)
async def test_a_person_reads_why_there_is_no_node(
    monkeypatch: pytest.MonkeyPatch, ranking: dict[str, Any], code: int, body: Any, said: str
) -> None:
    ranking["serve"]()
    ranking |= {"code": code, "body": body}
    with pytest.raises(Exception, match=said) as failed:
        await pod_of(monkeypatch, ranking["url"], {})
    assert failed.value.jupyterhub_message == str(failed.value)
