"""``setup(c)`` sets all that is needed, keeps what was written, and refuses what cannot be."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.hub import OS_USERS, as_os_user, free_ports
from support.jupyter import wait_for
from support.thief import thief
from traitlets.config import Config

from jupyter_gpushare.hub import SetupError, setup
from jupyter_gpushare.hub.configuration import SpawnerKind, spawner_kind
from jupyter_gpushare.hub.setup import _let_users_in
from jupyter_gpushare.protocol import heldport

ACCESS = "access:services!service=gpushare"
SOCKET = "/run/jupyter-gpushare/node.sock"


@pytest.fixture(autouse=True)
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Hubs are run, whoever runs the tests."""
    monkeypatch.setattr("os.geteuid", lambda: 0)


def named(entries: Any, name: str) -> dict[str, Any]:
    (found,) = [entry for entry in entries if entry["name"] == name]
    return dict(found)


def test_an_empty_configuration_gets_all_that_is_needed() -> None:
    c = Config()
    plan = setup(c, simulate="2x24GiB", quotas={"default": {"gpus": 1, "memory": "8GiB"}})
    pages = named(c.JupyterHub.services, "gpushare")
    assert pages["url"].startswith("http://127.0.0.1:")
    node = named(c.JupyterHub.services, "gpushare-node")
    kept = [sys.executable, "-m", "jupyter_gpushare.protocol.keeper"]
    assert node["command"][:5] == [*kept, "jupyter_gpushare.cli", "node"]
    assert pages["command"] == [*kept, "jupyter_gpushare.hub"]
    assert "--hub" in node["command"]
    assert "--simulate=2x24GiB" in node["command"]
    # Not the ledger of the person who runs the Hub, which their own JupyterLab uses.
    assert "--ledger=/var/lib/jupyter-gpushare/ledger.sqlite" in node["command"]
    # Everybody may read a command.
    assert not any("8GiB" in part for part in node["command"])
    assert json.loads(node["environment"]["JUPYTER_GPUSHARE_QUOTAS"]) == {
        "default": {"gpus": 1, "memory": "8GiB"}
    }
    assert set(named(c.JupyterHub.load_roles, "gpushare-node")["scopes"]) == {
        "read:users:name",
        "read:users:groups",
        "read:roles:users",
        "list:groups",
        "read:groups",
    }
    assert c.JupyterHub.extra_user_scopes == {ACCESS}
    assert set(c.Spawner.server_token_scopes) == {
        "users:activity!user",
        "access:servers!server",
        ACCESS,
    }
    assert c.Spawner.environment == {
        "JUPYTER_GPUSHARE_SOCKET": SOCKET,
        "JUPYTER_GPUSHARE_IDENTITY": "hub",
        "JUPYTER_GPUSHARE_FALLBACK": "cpu",
    }
    assert "DockerSpawner" not in c
    assert any(SOCKET in line for line in plan.lines())


def full() -> Config:
    """A configuration that says something everywhere."""
    c = Config()
    c.JupyterHub.services = [{"name": "cull", "command": ["cull"]}]
    c.JupyterHub.load_roles = [
        {"name": "cull", "services": ["cull"], "scopes": ["list:users"]},
        {"name": "user", "scopes": ["self", "read:hub"]},
        {"name": "server", "scopes": ["users:activity!user"]},
    ]
    c.JupyterHub.spawner_class = "dockerspawner.DockerSpawner"
    c.Spawner.environment.update({"A": "1"})
    c.DockerSpawner.environment = {"B": "2", "JUPYTER_GPUSHARE_FALLBACK": "error"}
    c.DockerSpawner.volumes = {"home-{username}": "/home/jovyan"}
    return c


def test_nothing_that_was_written_is_replaced() -> None:
    c = full()
    setup(c)
    assert [service["name"] for service in c.JupyterHub.services] == [
        "cull",
        "gpushare",
        "gpushare-node",
    ]
    # A "user" role that was overridden wins over extra_user_scopes, so it is extended.
    assert named(c.JupyterHub.load_roles, "user")["scopes"] == ["self", "read:hub", ACCESS]
    assert "extra_user_scopes" not in c.JupyterHub
    assert c.Spawner.server_token_scopes == ["users:activity!user", ACCESS]
    assert c.Spawner.environment["A"] == "1"
    assert c.DockerSpawner.environment["B"] == "2"
    assert c.DockerSpawner.environment["JUPYTER_GPUSHARE_SOCKET"] == SOCKET
    assert c.DockerSpawner.environment["JUPYTER_GPUSHARE_FALLBACK"] == "error"
    assert c.DockerSpawner.volumes == {
        "home-{username}": "/home/jovyan",
        "/run/jupyter-gpushare": {"bind": "/run/jupyter-gpushare", "mode": "ro"},
    }


def test_twice_is_once() -> None:
    once, twice = full(), full()
    setup(once)
    setup(twice)
    setup(twice)
    assert once == twice


def test_scopes_that_a_function_gives_are_extended() -> None:
    async def scopes(spawner: Any) -> list[str]:
        return [f"access:servers!server={spawner}"]

    c = Config()
    c.Spawner.server_token_scopes = scopes
    setup(c)
    first = c.Spawner.server_token_scopes
    setup(c)
    assert c.Spawner.server_token_scopes is first
    assert asyncio.run(first("x")) == ["access:servers!server=x", ACCESS]


@pytest.mark.parametrize(
    ("spawner", "kind"),
    [
        (None, SpawnerKind.PROCESS),
        ("simple", SpawnerKind.PROCESS),
        ("systemdspawner.SystemdSpawner", SpawnerKind.PROCESS),
        ("sudospawner.SudoSpawner", SpawnerKind.PROCESS),
        ("docker", SpawnerKind.DOCKER),
        ("dockerspawner.SystemUserSpawner", SpawnerKind.DOCKER),
        ("kubespawner.KubeSpawner", SpawnerKind.KUBE),
        (type("Ours", (type("DockerSpawner", (), {}),), {}), SpawnerKind.DOCKER),
    ],
)
def test_spawners_are_known_by_name_or_bases(spawner: Any, kind: SpawnerKind) -> None:
    assert spawner_kind(spawner) is kind


@pytest.mark.parametrize("by_name", [False, True])
def test_pods_see_the_sockets_directory(by_name: bool) -> None:
    c = Config()
    c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
    c.JupyterHub.services = [{"name": "gpushare-node", "api_token": "t" * 64}]
    home = {"name": "home", "emptyDir": {}}
    c.KubeSpawner.volumes = {"home": home} if by_name else [home]
    setup(c)
    setup(c)
    volumes = c.KubeSpawner.volumes
    listed = list(volumes.values()) if by_name else volumes
    assert sorted(volume["name"] for volume in listed) == ["home", "jupyter-gpushare"]
    (mount,) = c.KubeSpawner.volume_mounts
    assert (mount["mountPath"], mount["readOnly"]) == ("/run/jupyter-gpushare", True)
    # The Hub runs none: its pod has no GPUs.
    assert "command" not in named(c.JupyterHub.services, "gpushare-node")


def test_the_token_of_a_node_manager_run_by_somebody_else_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "hub-token"
    tokens = []
    for _ in range(2):
        c = Config()
        plan = setup(c, node="external", token_file=str(path))
        tokens.append(named(c.JupyterHub.services, "gpushare-node")["api_token"])
    assert tokens[0] == tokens[1] == path.read_text().strip()
    assert len(tokens[0]) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert tokens[0] not in repr(plan) + "".join(plan.lines())


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hub-token"
    path.write_text("t" * 64)
    path.chmod(0o644)
    with pytest.raises(SetupError, match="chmod 600"):
        setup(Config(), node="external", token_file=str(path))


def test_a_token_that_cannot_be_made_stops_no_hub_unless_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "nowhere" / "hub-token")
    plan = setup(Config(), node="external", token_file=path)
    (warning,) = plan.warnings
    assert path in warning
    assert warning in capsys.readouterr().err
    with pytest.raises(SetupError, match="hub-token"):
        setup(Config(), node="external", token_file=path, failover_open=False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"node": "external", "ledger": "/x"}, "ledger"),
        ({"node": "elsewhere"}, '"managed" or "external"'),
        ({"node": "external"}, "token of its own"),
        ({"node": "external", "quotas": {"default": {"gpus": 1}}}, "configuration of yours"),
        ({"quotas": {"user": {}}}, "unknown 'user'"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_do(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SetupError, match=said):
        setup(Config(), **given)


def test_the_hub_of_a_pod_runs_no_node_manager() -> None:
    c = Config()
    c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
    with pytest.raises(SetupError, match="DaemonSet"):
        setup(c, node="managed")


def test_before_jupyterhub_6_users_get_in_by_their_role() -> None:
    roles: list[dict[str, Any]] = []
    c = Config()
    _let_users_in(c, roles, ACCESS, 5)
    assert roles == [{"name": "user", "scopes": ["self", ACCESS]}]


def test_a_hub_that_is_not_roots_has_all_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    c = Config()
    setup(c)
    command = named(c.JupyterHub.services, "gpushare-node")["command"]
    assert f"--socket={tmp_path}/jupyter-gpushare/node.sock" in command
    assert f"--ledger={tmp_path}/jupyter-gpushare.sqlite" in command
    assert c.Spawner.environment["JUPYTER_GPUSHARE_SOCKET"] == (
        f"{tmp_path}/jupyter-gpushare/node.sock"
    )
    # One that somebody else runs is the host's.
    c = Config()
    setup(c, node="external", token_file=str(tmp_path / "token"))
    assert c.Spawner.environment["JUPYTER_GPUSHARE_SOCKET"] == SOCKET


def holds(url: str, *user: str) -> bool:
    """Whether a program of root's, or of who runs it by ``user``, can listen there."""
    listen = (
        "import socket, sys; s = socket.socket(); "
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); "
        "s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen()"
    )
    command = [*user, sys.executable, "-c", listen, url.rpartition(":")[2]]
    return not subprocess.run(command, check=False, capture_output=True).returncode


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")


@needs_root
def test_the_pages_port_is_one_that_only_root_can_have_or_one_that_is_held() -> None:
    c = Config()
    url = str(setup(c).services[0]["url"])
    assert heldport.roots_only(int(url.rpartition(":")[2]))
    assert holds(url)
    assert not holds(url, *as_os_user("alice"))
    # Pages that run as another user are that user's, and of nobody else.
    c = Config()
    c.JupyterHub.services = [{"name": "gpushare", "user": OS_USERS["alice"]}]
    setup(c)
    url = named(c.JupyterHub.services, "gpushare")["url"]
    assert holds(url, *as_os_user("alice"))
    assert not holds(url, *as_os_user("bob"))


@needs_root
def test_a_port_that_another_user_has_is_left_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (port,) = free_ports(1)
    monkeypatch.setattr(sys.modules["jupyter_gpushare.hub.setup"], "PORT", port)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with thief(port, tmp_path / "thief") as robber:
        wait_for(robber.said, what="the thief")
        url = str(setup(Config()).services[0]["url"])
        assert not url.endswith((f":{port}", ":0"))
        said = capsys.readouterr().err
        assert f"user {pwd.getpwnam(OS_USERS['bob']).pw_uid} listens there" in said
        # One that was asked for by its number is not changed for another.
        with pytest.raises(SetupError, match="visitors' cookies"):
            setup(Config(), url=f"http://127.0.0.1:{port}")
        assert "cookies" not in robber.said()


@pytest.fixture
def another_hubs(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A listener of this user at the port that a Hub's pages would have."""
    module = sys.modules["jupyter_gpushare.hub.setup"]
    with socket.socket() as pages:
        pages.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        pages.bind(("127.0.0.1", 0))
        pages.listen()
        monkeypatch.setattr(module, "PORT", pages.getsockname()[1])
        monkeypatch.setattr(module, "_ENDS_WITHIN", 0.3)
        monkeypatch.setattr(heldport, "roots_only", lambda port: False)
        yield pages


def test_another_hubs_pages_keep_their_port(
    another_hubs: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel lets two programs of one user share it, and visitors would come to either."""
    theirs = f"http://127.0.0.1:{another_hubs.getsockname()[1]}"
    url = str(setup(Config()).services[0]["url"])
    assert url != theirs
    assert not url.endswith(":0")
    said = capsys.readouterr().err
    assert f"Another program of this user listens at {theirs}" in said
    assert "The pages are served at another port." in said
    # One that was asked for by its number is not changed for another.
    assert str(setup(Config(), url=theirs).services[0]["url"]) == theirs
    assert "Leave the port out of url" in capsys.readouterr().err


def test_a_hub_that_was_restarted_has_its_port_again(
    another_hubs: socket.socket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pages of the one before end a moment after it."""
    port = another_hubs.getsockname()[1]
    looks = []

    def listener(url: str) -> int | None:
        looks.append(url)
        return os.geteuid() if len(looks) < 3 else None

    monkeypatch.setattr(heldport, "listener", listener)
    assert str(setup(Config()).services[0]["url"]).endswith(f":{port}")
    assert len(looks) == 3
    assert not capsys.readouterr().err


def test_another_hubs_node_manager_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules["jupyter_gpushare.hub.setup"], "_ENDS_WITHIN", 0.3)
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as node:
        node.bind(path)
        node.listen()
        setup(Config(), socket=path, url=None)
    assert f"A node manager answers at {path} already" in capsys.readouterr().err
    setup(Config(), socket=path, url=None)
    assert not capsys.readouterr().err


def test_without_pages_tokens_are_still_for_the_service() -> None:
    c = Config()
    setup(c, url=None)
    assert named(c.JupyterHub.services, "gpushare") == {"name": "gpushare", "display": False}
    assert c.JupyterHub.extra_user_scopes == {ACCESS}


def test_named_servers_and_failing_closed_are_settings() -> None:
    c = Config()
    setup(c, per_server=True, failover_open=False)
    assert "read:servers" in named(c.JupyterHub.load_roles, "gpushare-node")["scopes"]
    assert "--Hub.per_server=True" in named(c.JupyterHub.services, "gpushare-node")["command"]
    assert c.Spawner.environment["JUPYTER_GPUSHARE_FALLBACK"] == "error"
