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
from typing import Any

import pytest
from support import ownhost
from support.hosts import Host, Hosts
from support.hub import as_os_user

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


def test_what_cannot_be_hidden_is_said_at_once(host: Host, tmp_path: Path) -> None:
    powerless = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    done = runs(host, tmp_path, "--collect-only", HOSTS_ITS_OWN, before=powerless)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert "This host has /run/jupyter-gpushare, /var/lib/jupyter-gpushare, /usr/" in done.stderr
    assert "Move it away while the tests run" in done.stderr


_SEEN = """
import json, os, socket, sys
sys.path.insert(0, sys.argv[1])
from support import ownhost
found = ownhost.left()
try:
    ownhost.enter(found)
except ownhost.NotOurs as error:
    sys.exit(str(error))
calling = socket.socket(socket.AF_UNIX)
calling.connect("/run/socket")
here = lambda path: open(path).read()
status = here("/proc/self/status")
print(json.dumps({
    "found": [found.hidden, found.emptied],
    "left": [place for place in found.hidden if os.path.lexists(place)],
    "all": sorted(os.listdir("/usr/local/etc/jupyter")),
    "kept": [here("/run/file"), os.readlink("/run/link"), here("/var/run/folder/below/file")],
    "may": int(status.split("CapEff:")[1].split()[0], 16) >> 21 & 1,
    "user": os.getuid(),
}))
"""


@pytest.mark.parametrize("user", ["root", "bob"])
def test_all_else_is_still_there(host: Host, tmp_path: Path, user: str) -> None:
    """For root, and for somebody who may make namespaces only as the root of their own."""
    host.ask(["mkdir", "-p", "/run/folder/below"])
    host.ask(["mount", "-t", "tmpfs", "gpushare-left", "/run/folder/below"])
    host.ask(["sh", "-c", "echo one >/run/file; echo two >/run/folder/below/file"])
    host.ask(["ln", "-s", "nowhere", "/run/link"])
    listen = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind('/run/socket')\n"
    listen += "import os; os.chmod('/run/socket', 0o666); s.listen(); print('up', flush=True)\n"
    listen += "sys.stdin.read()"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    listener = host.start([sys.executable, "-c", listen], **pipes)
    assert listener.stdout.readline() == b"up\n"
    became = () if user == "root" else as_os_user(user)
    line = host.command([*became, sys.executable, "-c", _SEEN, str(TESTS)], "/")
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    if user != "root" and "in a mount namespace, but none can be made" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    hidden = ["/run/jupyter-gpushare", "/var/lib/jupyter-gpushare"]
    assert seen["found"] == [hidden, ["/usr/local/etc/jupyter"]]
    assert (seen["left"], seen["all"]) == ([], [])
    assert seen["kept"] == ["one\n", "nowhere", "two\n"]
    assert (seen["user"] == 0, seen["may"] == 1) == (user == "root", user == "root")
    assert host.outside("/run/jupyter-gpushare").is_dir(), "the host still has it"


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
