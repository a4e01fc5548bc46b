"""What the chart starts works together: a Hub, its servers' nodes, the pool, and an upgrade.

Commands, settings and probes are the chart's. Real are the Hub with KubeSpawner, its proxy, the
pool with its pages, node managers and the hook's program. Pretended are GPUs, and Kubernetes: the
test starts what a pod would, and a server's pod runs nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import chart
from support.hub import RunningHub, free_ports, why_not
from support.jupyter import end, wait_for
from support.kubeapi import KubeApi, hook_ran, kubernetes, nodes_of
from support.node import NodeClient, open_directory

from jupyter_gpushare.protocol.messages import Method

WHY_NOT = why_not() or chart.why_no_helm()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.story("etc/deploy/", "tests/deploy/", "jupyter_gpushare/pool/"),
]
BIN = str(Path(sys.executable).parent)
#: The ConfigMap of the two files that were there before the chart.
BEFORE = """
c.NodeManagerApp.hub = True
c.NodeManagerApp.shared = True
c.NodeManagerApp.socket = "/run/jupyter-gpushare/node.sock"
c.NodeManagerApp.ledger = "/var/lib/jupyter-gpushare/ledger.sqlite"
c.NodeManagerApp.metrics_port = 9464
c.NodeManagerApp.metrics_address = "0.0.0.0"
c.NodeManagerApp.gpus = "all"
c.Hub.service = "gpushare"
c.Quotas.default = {"gpus": 1, "memory": "16GiB"}
"""
MORE = """
sys.path.insert(0, {tests!r})
from support import chart

ours = [list(c.JupyterHub[name]) for name in ("services", "load_roles")]
c.KubeSpawner.namespace = "jhub"
chart.configure_hub(c, chart.hub_values(), {{"gpushare": {pages!r}}})
c.JupyterHub.services += ours[0]
c.JupyterHub.load_roles += ours[1]
c.JupyterHub.cleanup_servers = False
"""
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "here",
    "contexts": [{"name": "here", "context": {"cluster": "here", "user": "hub"}}],
    "users": [{"name": "hub", "user": {"token": "of-the-hub"}}],
}


class ChartsHub(RunningHub):
    """Its node managers are the chart's."""

    def start_node(self) -> None:
        """None here."""

    def _listens(self, path: Path | None = None) -> bool:
        return True


@dataclass
class Machine:
    """Where a pod's containers run: its folders and ports stand for those in the chart."""

    folder: Path
    hub: RunningHub
    secrets: Mapping[str, bytes]
    ports: Mapping[int, int]
    address: str = "127.0.0.1"
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, content in self.secrets.items():
            place = self.folder / name
            place.parent.mkdir(parents=True)
            place.write_bytes(content)
        for name in ("config", "volume", "state", "run"):
            (self.folder / name).mkdir(mode=0o755)

    def here(self, text: str) -> str:
        """What the chart says, with this machine's folders and ports."""
        for place, ours in {
            "/etc/jupyter-gpushare-authority": "authority",
            "/etc/jupyter-gpushare-join": "join",
            "/etc/jupyter-gpushare": "config",
            "/var/lib/jupyter-gpushare-pool": "volume",
            "/var/lib/jupyter-gpushare": "state",
            "/run/jupyter-gpushare": "run",
        }.items():
            text = text.replace(place, str(self.folder / ours))
        for port, ours in self.ports.items():
            text = text.replace(str(port), str(ours))
        return text

    def configure(self, name: str, text: str) -> None:
        (self.folder / "config" / name).write_text(self.here(text))

    def environ(self, container: dict[str, Any], name: str) -> dict[str, str]:
        told = {
            "HOME": str(self.folder),
            "PATH": f"{BIN}:/usr/bin:/bin",
            "JUPYTER_PREFER_ENV_PATH": "0",
        }
        for one in container["env"]:
            place = one.get("valueFrom", {})
            if "secretKeyRef" in place:
                service = place["secretKeyRef"]["key"].split(".")[2]
                told[one["name"]] = f"made-by-the-chart-for-{service}"
            elif "fieldRef" in place:
                fields = {"spec.nodeName": name, "status.hostIP": self.address}
                told[one["name"]] = fields[place["fieldRef"]["fieldPath"]]
            else:
                told[one["name"]] = one["value"]
        return told | {"JUPYTERHUB_API_URL": f"{self.hub.url}/hub/api"}

    def run(self, container: dict[str, Any], name: str) -> str:
        """Run a container to its end; what it printed."""
        line = [self.here(word) for word in container["command"]]
        environ = self.environ(container, name)
        done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, container: dict[str, Any], name: str) -> None:
        """Start a container, and wait until its probes let traffic come."""
        line = [self.here(word) for word in (*container["command"], *container["args"])]
        with (self.folder / "log").open("ab") as log:
            self.running.append(
                subprocess.Popen(line, env=self.environ(container, name), stdout=log, stderr=log)
            )
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container[kind]["httpGet"]
            where = f"http://127.0.0.1:{self.ports[ports[probe['port']]]}{probe['path']}"
            wait_for(lambda where=where: self._answers(where), 60, f"{where}\n{self.log}")

    def _answers(self, where: str) -> bool:
        assert self.running[-1].poll() is None, self.log
        with contextlib.suppress(OSError), urllib.request.urlopen(where, timeout=10) as answer:
            return bool(answer.status == 200)
        return False

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def stop(self) -> None:
        for process in self.running:
            end(process)
        self.running.clear()


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_directory() as path:
        yield path


def test_nodes_join_servers_go_where_gpus_are_and_an_upgrade_keeps_leases(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join, pages, *more = free_ports(8)
    pool_ports = {10206: join, 10204: pages, 9465: more[0]}
    node_ports = {
        "small": {10205: more[1], 9464: more[2]},
        "large": {10205: more[3], 9464: more[4]},
    }
    of = {
        gpus: chart.objects(
            {
                "quotas": {"default": {"gpus": 2}},
                "node": {"config": {"NodeManagerApp": {"simulate": gpus}}},
                "pool": {"config": {"Pool": {"listen": "127.0.0.1:10206", "address": "127.0.0.1"}}},
            }
        )
        for gpus in ("1x24GiB", "2x40GiB")
    }
    some = of["1x24GiB"]
    (tmp_path / "account").mkdir()
    with kubernetes(tmp_path / "account", some["Role", "gpushare-credentials"]["rules"]) as api:
        ports = {"10206": str(join), "gpushare-pool.jhub.svc": "127.0.0.1"}
        hook_ran(api, tmp_path / "account", some, ports)
        secrets = {
            f"{name.removeprefix('gpushare-')}/{key}": content
            for name in api.objects["secrets"]
            for key, content in api.secret(name).items()
        }
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(KubeApi().served())
        config = {**KUBECONFIG, "clusters": [{"name": "here", "cluster": {"server": api.url}}]}
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        tests = str(Path(__file__).parents[1])
        text = MORE.format(tests=tests, pages=f"http://127.0.0.1:{pages}")
        hub = stack.enter_context(ChartsHub.make(external=True, more=text))
        machines = {}
        for name, its in {"pool": pool_ports, **node_ports}.items():
            machines[name] = Machine(folder / name, hub, secrets, its)
            stack.callback(machines[name].stop)

        # A node of the recipe before the chart, with somebody at work.
        small, pods = machines["small"], chart.pods(some)
        (node,) = pods["gpushare-node"]["containers"]
        small.configure("before.py", BEFORE + 'c.NodeManagerApp.simulate = "1x24GiB"\n')
        small.start({**node, "args": ["--config=/etc/jupyter-gpushare/before.py"]}, "small")
        alice = hub.person("alice")
        socket = small.folder / "run" / "node.sock"
        with NodeClient(socket, alice.token) as client:
            lease = client.request(gpus=1)["lease"]

        # The chart is installed in its place.
        small.stop()
        (pool,) = pods["gpushare-pool"]["containers"]
        ((file, text),) = some["ConfigMap", "gpushare-pool"]["data"].items()
        machines["pool"].configure(file, text)
        machines["pool"].start(pool, "pool")
        for name, gpus in (("small", "1x24GiB"), ("large", "2x40GiB")):
            pod = chart.pods(of[gpus])["gpushare-node"]
            ((file, text),) = of[gpus]["ConfigMap", "gpushare-node"]["data"].items()
            machines[name].configure(file, text)
            told = machines[name].run(pod["initContainers"][0], name)
            assert f"This host is {name} in the pool gpushare now" in told
            machines[name].start(pod["containers"][0], name)

        def reached() -> dict[str, str]:
            at = f"--socket={machines['pool'].folder / 'run' / 'pool.sock'}"
            line = ["jupyter", "gpushare", "pool", "hosts", "--json", at]
            environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
            done = subprocess.run(line, env=environ, capture_output=True, text=True, check=True)
            hosts = json.loads(done.stdout)["hosts"]
            return {one["host"]: one["held"]["text"] for one in hosts if one["connected"]}

        both = {name: f"Kubernetes node {name}" for name in node_ports}
        wait_for(lambda: reached() == both, 60, "both nodes")
        with NodeClient(socket, alice.token) as client:
            assert lease in {one["id"] for one in client.call(Method.STATUS)["leases"]}

        # A server that wishes for two GPUs goes to the node that has them.
        answer = hub.api.post("users/carol/server", json={"gpus": 2})
        assert answer.status_code in (201, 202), f"{answer.text}\n{hub.tail()}"
        wait_for(lambda: api.objects.get("pods"), 60, f"carol's pod; log:\n{hub.tail()}")
        (made,) = api.objects["pods"].values()
        place = "kubernetes.io/hostname"
        assert nodes_of(made) == ([[(place, ["large"])]], {"large": 100}), hub.tail()

        # The pages, behind the Hub's own login.
        with contextlib.closing(alice.browser()) as browser:
            shown = browser.get("/services/gpushare/").text
        assert "small" in shown
        assert "large" in shown

        # The next version: the pod is replaced, its address is not, and nothing joins again.
        small.stop()
        pod = chart.pods(some)["gpushare-node"]
        assert small.run(pod["initContainers"][0], "small") == ""
        small.start(pod["containers"][0], "small")
        with NodeClient(socket, alice.token) as client:
            assert lease in {one["id"] for one in client.call(Method.STATUS)["leases"]}
        wait_for(lambda: reached() == both, 60, "both nodes again")
