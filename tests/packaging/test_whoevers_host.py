"""No host changes what tests say, whatever it has installed, left, running or set.

A part of the suite runs on hosts of its own (``support.hosts``) that have much of all that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ownhost
from support.hosts import Host, Hosts

TESTS = Path(__file__).parents[1]
#: A test that failed on such a host: a server hosts nothing.
HOSTS_ITS_OWN = f"{TESTS}/server/test_hosting.py::test_the_simulate_variable_is_enough"
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
    line = ["sh", "-c", 'umask 077; exec "$@"', "sh", sys.executable, "-m", "pytest", "-q", "-n0"]
    line += ["-p", "no:cacheprovider", "-p", "no:schemathesis"]  # the latter takes a second
    line += [f"--basetemp={tmp_path}/pytest", f"--rootdir={TESTS.parent}", HOSTS_ITS_OWN]
    done = subprocess.run(
        host.command(line, TESTS.parent),
        env={name: v for name, v in os.environ.items() if "PYTEST" not in name} | set_by_somebody,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


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


def test_a_proxy_is_not_asked_for_what_is_near(tmp_path: Path) -> None:
    environ = {"HTTPS_PROXY": "http://far:3128", "no_proxy": "example.org"}
    ownhost.environment(environ, tmp_path)
    assert environ["HTTPS_PROXY"] == "http://far:3128"
    assert environ["no_proxy"].startswith("example.org,localhost,127.0.0.1")
    assert "localhost" in environ["NO_PROXY"]
