"""``jupyter gpushare doctor --hub`` says what JupyterHub's configuration lacks, and no secret."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from support.hub import OS_USERS, free_ports
from support.jupyter import wait_for
from support.livenode import LiveNode
from support.thief import thief

from jupyter_gpushare.cli.hubchecks import hubs_file


def setup(**given: str) -> str:
    """What a configuration has to say."""
    return f"from jupyter_gpushare.hub import setup\nsetup(c, **{given!r})\n"


def doctor(folder: Path, config: str | None, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the checks by name, of a Hub with this configuration."""
    path = folder / "jupyterhub_config.py"
    if config is not None:
        path.write_text("c = get_config()\n" + textwrap.dedent(config))
    with contextlib.chdir(folder):
        done = LiveNode(folder).here("doctor", "--json", *(arguments or (f"--hub-config={path}",)))
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_one_line_is_all_it_needs(tmp_path: Path) -> None:
    code, checks = doctor(tmp_path, setup(socket=str(tmp_path / "node.sock")))
    assert code == 0, checks
    assert {check["level"] for check in checks.values()} == {"ok", "warning"}
    assert "No node manager answers" in checks["identity"]["text"]
    assert str(tmp_path / "node.sock") in checks["servers' environment"]["text"]
    assert "gpushare-node" in checks["service"]["text"]


def test_looking_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "jupyterhub_config.py"
    given = setup(node="external", token_file=str(tmp_path / "token"))
    path.write_text("c = get_config()\n" + given)
    before = {*tmp_path.rglob("*"), tmp_path / "node_config.py"}  # `LiveNode` writes that
    code, checks = doctor(tmp_path, None, f"--hub-config={path}")
    assert code == 0, checks
    assert "token of its own" in checks["service"]["text"]
    made = {one for one in set(tmp_path.rglob("*")) - before if one.is_file()}
    assert not made


def test_the_configuration_is_found_where_it_usually_is(tmp_path: Path) -> None:
    code, checks = doctor(tmp_path, setup(), "--hub")
    assert checks["hub configuration"]["text"] == str(tmp_path / "jupyterhub_config.py")
    assert code == 0
    code, checks = doctor(tmp_path, None, f"--hub-config={tmp_path}/none.py")
    assert (code, "There is none" in checks["hub configuration"]["text"]) == (1, True)


@pytest.mark.parametrize(
    ("config", "check", "said"),
    [
        ("", "service", "No service is registered"),
        ("1 / 0", "hub configuration", "ZeroDivisionError"),
        (
            setup() + "c.JupyterHub.load_roles = []\n",
            *("role", "lacks the scopes read:users:name"),
        ),
        (
            setup() + "c.JupyterHub.extra_user_scopes = set()\n",
            *("users", "Users may not access:services!service=gpushare"),
        ),
        (
            setup() + "c.Spawner.server_token_scopes = ['self']\n",
            *("server tokens", "does not give servers"),
        ),
        (
            setup() + "c.Spawner.environment = {'A': '1'}\n",
            *("servers' environment", "lacks JUPYTER_GPUSHARE_SOCKET"),
        ),
        (
            setup() + "c.JupyterHub.spawner_class = 'dockerspawner.DockerSpawner'\n",
            *("mounts", "Containers do not see /"),
        ),
        (
            "c.JupyterHub.load_groups = {'g': {'properties': {'gpushare': {'gpus': 0.5}}}}\n"
            + setup(),
            *("group quota", "group 'g': gpus: it must be a whole number"),
        ),
        (
            "c.JupyterHub.services = [{'name': 'gpushare-node'}]\n",
            *("service", "neither a command nor an api_token"),
        ),
    ],
)
def test_what_is_missing_is_said_with_what_to_do(
    tmp_path: Path, config: str, check: str, said: str
) -> None:
    code, checks = doctor(tmp_path, config)
    assert code == 1
    assert checks[check]["level"] == "problem"
    assert said in checks[check]["text"]
    assert checks[check]["fix"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_who_has_the_pages_port_is_said(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    code, checks = doctor(tmp_path, setup(url=url))
    assert (code, checks["pages' port"]["level"]) == (0, "warning")
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", port))
        ours.listen()
        _, checks = doctor(tmp_path, setup(url=url))
        assert checks["pages' port"]["level"] == "ok"
    with thief(port, tmp_path / "thief") as robber:
        wait_for(robber.said, what="the thief")
        code, checks = doctor(tmp_path, setup(url=url))
        assert (code, checks["pages' port"]["level"]) == (1, "problem")
        assert f"User {OS_USERS['bob']} listens at {url}" in checks["pages' port"]["text"]


_HUB = """
import subprocess, sys
listens = (
    "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen();"
    "print(s.getsockname()[1], flush=True); input()"
)
subprocess.run([sys.executable, "-c", listens])
"""


def test_another_hubs_pages_at_the_port_are_a_problem(tmp_path: Path) -> None:
    (tmp_path / "jupyterhub").write_text(_HUB)
    theirs = tmp_path / "theirs.py"
    command = [sys.executable, str(tmp_path / "jupyterhub"), f"--config={theirs}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hub:
        assert hub.stdout is not None
        url = f"http://127.0.0.1:{int(hub.stdout.readline())}"
        code, checks = doctor(tmp_path, setup(url=url))
        hub.communicate(b"\n")
    assert (code, checks["pages' port"]["level"]) == (1, "problem")
    assert f"The Hub with {theirs} has its pages at {url}." in checks["pages' port"]["text"]


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (["/x/bin/python", "/x/bin/jupyterhub"], "/srv/jupyterhub_config.py"),
        (["/x/bin/python", "-m", "jupyterhub.app", "-f", "/a/c.py"], "/a/c.py"),
        (["python", "-m", "jupyterhub", "--config", "c.py", "--debug"], "/srv/c.py"),
        (["jupyterhub", "--JupyterHub.config_file=/a/c.py"], "/a/c.py"),
        (["python", "-m", "jupyter_gpushare.hub"], None),
        (["/x/jupyterhub-singleuser"], None),
        ([], None),
    ],
)
def test_a_hubs_configuration_is_known_by_its_command(command: list[str], file: str | None) -> None:
    assert hubs_file(command, "/srv") == (None if file is None else Path(file))


def test_no_secret_is_printed(tmp_path: Path) -> None:
    config = (
        "c.JupyterHub.services = [{'name': 'gpushare-node', 'api_token': 'very-secret'}]\n"
        "c.Spawner.environment = {'JUPYTER_GPUSHARE_TOKEN': 'very-secret'}\n"
    ) + setup(node="external")
    _, checks = doctor(tmp_path, config)
    assert checks["service"]["text"].endswith("with a token of its own")
    assert "very-secret" not in json.dumps(checks)


def test_a_node_manager_that_knows_os_users_only_is_noticed(node: LiveNode, tmp_path: Path) -> None:
    _, checks = doctor(tmp_path, setup(socket=str(node.socket)))
    assert checks["identity"]["level"] == "warning"
    assert "by their OS user" in checks["identity"]["text"]
