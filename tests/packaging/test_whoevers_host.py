"""No host changes what tests say, whatever it has installed, left, running or set.

A part of the suite runs on hosts of its own (``support.hosts``) that have much of all that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support import ownhost
from support.hosts import Host, Hosts

TESTS = Path(__file__).parents[1]
CLI, SERVER = TESTS / "cli", TESTS / "server"
#: Tests that failed on such a host: a server hosts nothing, and clients find somebody.
HOSTS_ITS_OWN = f"{SERVER}/test_hosting.py::test_a_server_that_stops_leaves_nothing_behind"
FINDS_NONE = (
    f"{CLI}/test_doctor.py::test_no_node_manager_is_a_warning",
    f"{CLI}/test_verbs.py::test_without_a_node_manager_every_verb_says_so[status]",
)
#: A server with it hosts no node manager.
SPOILT = json.dumps({"GpuShareExtension": {"embed": "never"}})


@pytest.fixture
def host() -> Iterator[Host]:
    """A host on which a system node manager was tried, and left its empty folders."""
    with Hosts(("host",)) as hosts:
        if not hosts.real:
            pytest.skip(f"no host can be made here: {hosts.why}")
        host = hosts["host"]
        for place in ("/var/lib", "/usr/local/etc"):  # seen by this host only
            host.ask(["mount", "-t", "tmpfs", "gpushare-left", place])
        left = ("/run/jupyter-gpushare", "/var/lib/jupyter-gpushare", "/usr/local/etc/jupyter")
        host.ask(["mkdir", "-m", "755", *left])
        spoilt = host.outside("/usr/local/etc/jupyter/jupyter_server_config.json")
        spoilt.write_text(SPOILT)
        yield host


def runs(
    host: Host, folder: Path, *tests: str, before: Sequence[str] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    """Let pytest run them there, in a way of its own."""
    line = [sys.executable, "-m", "pytest", "-q", "--tb=short"]
    line += ["-p", "no:cacheprovider", "-p", "no:schemathesis"]  # the latter takes a second
    line += [f"--basetemp={folder}/pytest", f"--rootdir={TESTS.parent}", *tests]
    return subprocess.run(
        host.command([*before, *line], TESTS.parent),
        env={name: v for name, v in os.environ.items() if "PYTEST" not in name} | environ,
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_folders_that_were_left_and_what_somebody_has_set(host: Host, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "jupyter_server_config.json").write_text(SPOILT)
    set_by_somebody = {
        "JUPYTER_CONFIG_DIR": str(config),
        "JUPYTER_GPUSHARE_SOCKET": "/run/nowhere.sock",
        "JUPYTER_GPUSHARE": "off",
        "CUDA_VISIBLE_DEVICES": "7",
        "TZ": "Asia/Kathmandu",
        "COLUMNS": "20",
        "PYTHONWARNINGS": "error",
    }
    before = ("sh", "-c", 'umask 077; exec "$@"', "sh")
    done = runs(host, tmp_path, HOSTS_ITS_OWN, before=before, **set_by_somebody)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_a_system_node_manager_that_runs(host: Host, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "jupyter_gpushare.node", "--simulate=2x24GiB"]
    line += ["--socket=/run/jupyter-gpushare/node.sock"]
    line += ["--ledger=/var/lib/jupyter-gpushare/ledger.sqlite"]
    log = tmp_path / "node.log"
    with log.open("w") as said:
        node = host.start(line, stdout=subprocess.PIPE, stderr=said, text=True)
    assert node.stdout.readline().startswith("ready"), log.read_text()
    # In a worker: it inherits what the process that started it has done.
    done = runs(host, tmp_path, "--workers=1", *FINDS_NONE)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    ask = [sys.executable, "-m", "jupyter_gpushare.cli", "status"]
    assert "Simulated GPU" in host.ask(ask), "it runs on, and others find it"


def test_which_variables_are_forgotten(tmp_path: Path) -> None:
    kept = {
        **{"PATH": "/bin", "HOME": "/home/me", "SOAK_SEED": "6", "XDG_CACHE_HOME": "/cache"},
        **{"PYTHONPATH": "/mine", "PYTHONDONTWRITEBYTECODE": "1"},
    }
    forgotten = (
        *("JUPYTER_GPUSHARE_SIMULATE", "JUPYTERHUB_API_TOKEN", "JPY_SESSION_NAME", "IPYTHONDIR"),
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"),
        *("PYTHONUNBUFFERED", "PYTHONWARNINGS", "LC_ALL", "WORLD_SIZE", "NOTIFY_SOCKET"),
        *("LISTEN_FDS", "GIT_DIR", "TF_CONFIG", "COLUMNS"),
    )
    environ = kept | dict.fromkeys(forgotten, "somebody's") | {"TZ": "Asia/Kathmandu"}
    ownhost.environment(environ, tmp_path)
    ours = {"JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"}
    assert {name: v for name, v in environ.items() if name not in ours} == {
        **kept,
        **{"LANG": "C.UTF-8", "TZ": "UTC"},
    }
    assert {Path(environ[name]).parent for name in ours} == {tmp_path}
