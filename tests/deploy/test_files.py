"""The files for Kubernetes say the same as ``setup(c)``, and as each other.

The lines of the recipes do what the recipes say.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from traitlets.config import Config

from jupyter_gpushare.cli import hubchecks
from jupyter_gpushare.cli.checks import Level
from jupyter_gpushare.hub import setup
from jupyter_gpushare.node.app import NodeManagerApp

FILES = Path(__file__).parents[2] / "etc" / "deploy" / "z2jh"
DOCS = Path(__file__).parents[2] / "docs" / "deploy"
RECIPE = re.compile(r"<!-- recipe -->\n( *)```python\n(.*?)\n *```", re.DOTALL)


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return dict(yaml.safe_load((FILES / "values.yaml").read_text()))


@pytest.fixture(scope="module")
def daemonset() -> dict[str, Any]:
    documents = yaml.safe_load_all((FILES / "daemonset.yaml").read_text())
    return {document["kind"]: document for document in documents}


def as_the_chart_does(values: dict[str, Any]) -> Config:
    """The Hub's configuration that the chart makes of these values."""
    c = Config()
    hub, user = values["hub"], values["singleuser"]
    c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
    c.JupyterHub.services = [
        {"name": name, **service, "api_token": "made-by-the-chart"}
        for name, service in hub["services"].items()
    ]
    c.JupyterHub.load_roles = [{"name": name, **role} for name, role in hub["loadRoles"].items()]
    c.KubeSpawner.environment = user["extraEnv"]
    c.KubeSpawner.volumes = {v["name"]: v for v in user["storage"]["extraVolumes"]}
    c.KubeSpawner.volume_mounts = {v["name"]: v for v in user["storage"]["extraVolumeMounts"]}
    for section, settings in hub["config"].items():
        c[section].update(settings)
    return c


def test_the_values_are_all_that_the_hub_needs(values: dict[str, Any]) -> None:
    c = as_the_chart_does(values)
    # The chart sets what is a spawner's there.
    c.Spawner.environment = c.KubeSpawner.environment
    checks = list(hubchecks.configuration(c))
    assert [check for check in checks if check.level is Level.PROBLEM] == []
    said = {check.name: check.text for check in checks}
    assert "students" in said["group quotas"]
    assert "every container sees /run/jupyter-gpushare" in said["mounts"]


def test_setup_finds_nothing_to_add(values: dict[str, Any]) -> None:
    """Who has our package in the Hub's image may call it, too."""
    c = as_the_chart_does(values)
    before = as_the_chart_does(values)
    setup(c, url=None)
    assert {entry["name"] for entry in c.JupyterHub.services} == {"gpushare", "gpushare-node"}
    assert c.JupyterHub.load_roles == before.JupyterHub.load_roles
    assert c.KubeSpawner.volumes == before.KubeSpawner.volumes
    assert c.KubeSpawner.environment == before.KubeSpawner.environment
    assert c.Spawner.server_token_scopes == before.Spawner.server_token_scopes
    mounts = c.KubeSpawner.volume_mounts
    assert [mounts[name]["mountPath"] for name in mounts] == ["/run/jupyter-gpushare"]


def test_both_files_mean_the_same_socket_and_token(
    values: dict[str, Any], daemonset: dict[str, Any]
) -> None:
    pod = daemonset["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    socket = Path(values["singleuser"]["extraEnv"]["JUPYTER_GPUSHARE_SOCKET"])
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["socket"] == str(socket.parent)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert mounts.keys() == volumes.keys()
    (users,) = values["singleuser"]["storage"]["extraVolumes"]
    assert users["hostPath"]["path"] == volumes["socket"]["hostPath"]["path"]
    token = next(e for e in container["env"] if e["name"] == "JUPYTERHUB_API_TOKEN")
    (node,) = [name for name in values["hub"]["services"] if name.endswith("-node")]
    assert token["valueFrom"]["secretKeyRef"]["key"] == f"hub.services.{node}.apiToken"
    assert pod["hostPID"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not container["securityContext"]["allowPrivilegeEscalation"]


def test_the_config_map_is_a_configuration(tmp_path: Path, daemonset: dict[str, Any]) -> None:
    ((name, text),) = daemonset["ConfigMap"]["data"].items()
    (container,) = daemonset["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == [f"--config=/etc/jupyter-gpushare/{name}"]
    file = tmp_path / name
    file.write_text(text)
    app = NodeManagerApp()
    app.config_file = str(file)
    app.load_config_file()
    assert app.hub
    assert app.shared
    assert app.socket == "/run/jupyter-gpushare/node.sock"
    port = next(port for port in container["ports"] if port["name"] == "metrics")
    assert app.metrics_port == port["containerPort"]
    # It starts with it as far as the Hub's token: a trait that is not there would be said.
    here = text.replace("/run/jupyter-gpushare", str(tmp_path)).replace(
        "/var/lib/jupyter-gpushare", str(tmp_path)
    )
    file.write_text(here.replace("9464", "0"))
    run = subprocess.run(
        [
            *(sys.executable, "-m", "jupyter_gpushare.node", f"--config={file}"),
            "--simulate=1x8GiB",
        ],
        env={k: v for k, v in os.environ.items() if not k.startswith("JUPYTER")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "not recognized" not in run.stderr
    assert "needs the Hub's address and a token of its own" in run.stderr


# -- recipes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["one-host.md", "docker.md"])
def test_a_recipe_leaves_nothing_to_be_set(page: str, tmp_path: Path) -> None:
    ((_, code),) = RECIPE.findall((DOCS / page).read_text())
    c = Config()
    token = tmp_path / "hub-token"
    code = textwrap.dedent(code).replace("/etc/jupyter-gpushare/hub-token", str(token))
    exec(compile(code, page, "exec"), {"c": c})
    checks = list(hubchecks.configuration(c))
    assert [check for check in checks if check.level is not Level.OK] == []
    assert len(token.read_text().strip()) == 64


def test_what_dockerspawner_gets_is_what_it_takes(tmp_path: Path) -> None:
    dockerspawner: Any = pytest.importorskip("dockerspawner")
    ((_, code),) = RECIPE.findall((DOCS / "docker.md").read_text())
    c = Config()
    code = code.replace("/etc/jupyter-gpushare/hub-token", str(tmp_path / "hub-token"))
    exec(compile(code, "docker.md", "exec"), {"c": c})
    alice = SimpleNamespace(name="alice", escaped_name="alice", url="/user/alice/")
    spawner = dockerspawner.DockerSpawner(config=c, user=alice)
    assert spawner.volume_binds["/run/jupyter-gpushare"] == {
        "bind": "/run/jupyter-gpushare",
        "mode": "ro",
    }
    assert spawner.environment["JUPYTER_GPUSHARE_IDENTITY"] == "hub"
    assert spawner.environment["NVIDIA_VISIBLE_DEVICES"] == "all"
