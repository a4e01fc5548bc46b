"""A client goes to the socket that is configured or there, and never to a planted one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.node import needs_root, open_directory

from jupyter_gpushare.protocol import sockets
from jupyter_gpushare.protocol.address import (
    AWAY_FOR,
    SYSTEM_SOCKET,
    Found,
    Presence,
    configured_socket,
    embedded_socket,
    find_socket,
    host_id,
    is_another_hosts,
    jupyter_runtime_dir,
    presence,
    system_socket,
)
from jupyter_gpushare.protocol.batchjob import came_along, leave_behind, set_here

EMBEDDED = os.path.basename(embedded_socket("", host_id({})))


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose name is short enough for a socket."""
    with open_directory() as path:
        yield path


@pytest.fixture
def listening() -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    yield sockets
    for each in sockets:
        each.close()


def listen(path: Path, listening: list[socket.socket]) -> str:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.append(sock)
    sock.bind(str(path))
    sock.listen()
    return str(path)


def test_a_node_manager_for_all_that_left_its_folder_is_away_and_then_gone(
    place: Path, listening: list[socket.socket]
) -> None:
    """Nobody takes a restart for a host without the product, nor what is left of it for one."""
    environ, folder = {"JUPYTER_RUNTIME_DIR": str(place)}, place / "system"
    system = str(folder / "node.sock")
    found = Found(system, configured=False)
    assert presence(system) is Presence.GONE
    folder.mkdir()
    left = folder.stat().st_mtime

    def soon() -> float:
        return left + AWAY_FOR - 1

    def late() -> float:
        return left + AWAY_FOR + 1

    assert (presence(system, soon), presence(system, late)) == (Presence.AWAY, Presence.GONE)
    assert find_socket(environ, system, soon) == found, "so a script says that it cannot be reached"
    assert find_socket(environ, system, late) is None
    # One that was killed leaves its socket, which it touched while it lived.
    listen(Path(system), listening)
    os.utime(folder, (1.0, 1.0))
    assert presence(system, late) is Presence.THERE
    listening.pop().close()
    left = Path(system).stat().st_mtime
    assert (presence(system, soon), presence(system, late)) == (Presence.AWAY, Presence.GONE)
    assert find_socket(environ, system, late) == found, "it did not end by itself"
    hosted = listen(place / EMBEDDED, listening)
    assert find_socket(environ, system, soon) == found
    assert find_socket(environ, system, late) == Found(hosted, configured=False)


def test_a_name_is_as_long_as_it_is(place: Path) -> None:
    folder = place / ("home-" * 30)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as sock:
        sockets.bind(sock, folder / "s")
        assert not sockets.answers(folder / "s")
        sock.listen()
        assert sockets.answers(folder / "s")
    assert not sockets.answers(folder / "s")
    assert not sockets.answers(folder / "none" / "s")


_PEER = """
import os, socket
from jupyter_gpushare.protocol.sockets import peer
print(peer(socket.socketpair()[0]) == (os.getpid(), os.getuid(), os.getgid()), os.getgid())
"""


@needs_root
def test_the_other_end_is_known_by_its_process_user_and_group() -> None:
    command = [sys.executable, "-c", _PEER]
    said = subprocess.run(command, group=12345, capture_output=True, text=True, check=True).stdout
    assert said == "True 12345\n"


def test_the_order_is_configured_then_system_then_embedded(
    place: Path, listening: list[socket.socket]
) -> None:
    environ = {"JUPYTER_RUNTIME_DIR": str(place), "JUPYTER_GPUSHARE_SOCKET": ""}
    system = str(place / "system.sock")
    assert system_socket() == SYSTEM_SOCKET == "/run/jupyter-gpushare/node.sock"
    assert find_socket(environ, str(place / "none" / "system")) is None
    embedded = listen(place / EMBEDDED, listening)
    assert find_socket(environ, system) == Found(embedded, configured=False)
    listen(Path(system), listening)
    assert find_socket(environ, system) == Found(system, configured=False)
    configured = {**environ, "JUPYTER_GPUSHARE_SOCKET": "/else"}
    assert find_socket(configured, system) == Found("/else", configured=True)


@pytest.mark.parametrize("kind", ["file", "directory", "fifo", "dangling"])
def test_what_is_no_socket_is_no_node_manager(place: Path, kind: str) -> None:
    path = place / EMBEDDED
    if kind == "file":
        path.touch()
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(place / "gone")
    assert find_socket({"JUPYTER_RUNTIME_DIR": str(place)}, str(place / "none" / "system")) is None


@needs_root
def test_a_socket_that_another_user_planted_is_ignored(
    place: Path, listening: list[socket.socket]
) -> None:
    environ = {"JUPYTER_RUNTIME_DIR": str(place)}
    embedded = listen(place / EMBEDDED, listening)
    os.chown(embedded, 12345, 12345)
    assert find_socket(environ, str(place / "none" / "system")) is None
    # Nor behind a link of one's own.
    link = place / "link"
    link.symlink_to(embedded)
    assert find_socket(environ, str(link)) is None


_ASK = """
import os, sys
from jupyter_gpushare.protocol.address import find_socket
os.setgid(12345)
os.setuid(12345)
print(find_socket({"JUPYTER_RUNTIME_DIR": sys.argv[1]}, "/nowhere/node.sock"))
"""


@needs_root
@pytest.mark.parametrize(("owner", "found"), [(0, True), (12345, True), (12346, False)])
def test_a_user_trusts_root_and_itself_only(
    place: Path, listening: list[socket.socket], owner: int, found: bool
) -> None:
    embedded = listen(place / EMBEDDED, listening)
    os.chown(embedded, owner, owner)
    said = subprocess.run(
        [sys.executable, "-c", _ASK, str(place)], capture_output=True, text=True, check=True
    ).stdout
    assert said.strip() == (repr(Found(embedded, configured=False)) if found else "None")


@pytest.mark.parametrize(
    "environ",
    [
        {"HOME": "/home/me"},
        {"HOME": "/home/me", "XDG_DATA_HOME": "/xdg"},
        {"HOME": "/home/me", "JUPYTER_DATA_DIR": "/data"},
        {"HOME": "/home/me", "JUPYTER_DATA_DIR": "/data", "JUPYTER_RUNTIME_DIR": "/runtime"},
        {"HOME": "/home/me", "JUPYTER_RUNTIME_DIR": ""},
    ],
)
def test_the_runtime_directory_is_jupyters_own(environ: dict[str, str]) -> None:
    ask = "import jupyter_core.paths as p; print(p.jupyter_runtime_dir())"
    clean = {**environ, "PATH": os.environ["PATH"], "JUPYTER_PLATFORM_DIRS": "0"}
    theirs = subprocess.run(
        [sys.executable, "-c", ask], env=clean, capture_output=True, text=True, check=True
    )
    assert jupyter_runtime_dir(environ) == theirs.stdout.strip()


def test_a_host_is_known_by_its_machines_id(tmp_path: Path) -> None:
    one, other, empty = tmp_path / "one", tmp_path / "other", tmp_path / "empty"
    one.write_text("0123456789abcdef0123456789abcdef\n")
    other.write_text("0123456789abcdef0123456789abcde0\n")
    empty.write_text("uninitialized\n")
    known = host_id({}, str(one))
    assert len(known) == 8
    assert known == host_id({}, str(one)) != host_id({}, str(other))
    assert "01234567" not in known, "it is not to be shown itself"
    by_name = host_id({}, str(tmp_path / "none"))
    assert by_name == host_id({}, str(empty)) == host_id({"JUPYTER_GPUSHARE_HOST": os.uname()[1]})
    assert host_id({"JUPYTER_GPUSHARE_HOST": "here"}, str(one)) not in (known, by_name)


def test_what_another_host_of_the_home_hosts_is_nothing_here(
    place: Path, listening: list[socket.socket]
) -> None:
    """A batch job takes the variable of the terminal along that it was submitted in."""
    theirs = embedded_socket(str(place), host_id({"JUPYTER_GPUSHARE_HOST": "other"}))
    listen(Path(theirs), listening)
    environ = {"JUPYTER_RUNTIME_DIR": str(place), "JUPYTER_GPUSHARE_SOCKET": theirs}
    assert is_another_hosts(theirs, environ)
    assert configured_socket(environ) is None, "a node manager would listen for another host"
    assert find_socket(environ, str(place / "none" / "system")) is None
    ours = listen(place / EMBEDDED, listening)
    assert find_socket(environ, str(place / "system")) == Found(ours, configured=False)
    for path in (ours, "/srv/gpushare-node-12345678.sock"):
        assert not is_another_hosts(path, environ)
        told = {**environ, "JUPYTER_GPUSHARE_SOCKET": path}
        assert find_socket(told, str(place / "system")) == Found(path, configured=True)


@pytest.mark.parametrize(
    "name", ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "OAR_JOB_ID", "FLUX_JOB_ID"]
)
def test_a_batch_job_has_a_node_manager_of_its_own(
    name: str, place: Path, listening: list[socket.socket]
) -> None:
    """Another job on this host has other GPUs; so has a server outside of jobs."""
    here = {"JUPYTER_RUNTIME_DIR": str(place)}
    one, other = here | {name: "7"}, here | {name: "8"}
    assert len({host_id(environ) for environ in (here, one, other)}) == 3
    assert host_id(one) != host_id(one | {"JUPYTER_GPUSHARE_HOST": "elsewhere"})
    ours = listen(Path(embedded_socket(str(place), host_id(one))), listening)
    system = "/nowhere/system"
    assert find_socket(one, system) == Found(ours, configured=False)
    assert find_socket(other, system) is None
    assert find_socket(here, system) is None
    # It was submitted from a terminal of that job's server.
    assert find_socket(other | {"JUPYTER_GPUSHARE_SOCKET": ours}, system) is None
    assert find_socket(one | {"JUPYTER_GPUSHARE_SOCKET": ours}, system) == Found(ours, True)


#: A notebook's variables, and what Slurm adds for a job that is submitted there.
SOCKET = "/srv/class/n1.sock"
NOTEBOOK = {"JUPYTER_GPUSHARE_SOCKET": SOCKET, "JUPYTER_RUNTIME_DIR": "/none"}
GPUS = {"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0"}
JOB = {"SLURM_JOB_ID": "8", "SLURMD_NODENAME": "n1"}


@pytest.mark.parametrize("set_in", [{}, {"SLURM_JOB_ID": "7"}])
@pytest.mark.parametrize(
    ("more", "used"),
    [
        ({}, SOCKET),
        (JOB | GPUS, None),
        (JOB | GPUS | {"JUPYTER_GPUSHARE_SOCKET": "/srv/other.sock"}, "/srv/other.sock"),
        (JOB | {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, SOCKET),
    ],
)
def test_a_job_with_gpus_of_its_own_does_not_use_the_node_manager_of_who_submitted_it(
    set_in: dict[str, str], more: dict[str, str], used: str | None
) -> None:
    """Its own script may name one; and without GPUs of its own it can use that of its host."""
    notebook = NOTEBOOK | set_in
    notebook["JUPYTER_GPUSHARE_SET_IN"] = set_here(notebook, SOCKET)
    assert configured_socket(notebook | more) == used
    assert came_along(notebook | more) == bool(more)
    environ = notebook | more | {"JUPYTER_GPUSHARE_LEASE": "l", "JPY_SESSION_NAME": "a.ipynb"}
    leave_behind(environ)
    assert environ.get("JUPYTER_GPUSHARE_SOCKET") == used
    left = {"JUPYTER_GPUSHARE_LEASE", "JPY_SESSION_NAME", "JUPYTER_GPUSHARE_SET_IN"}
    assert left & set(environ) == (set() if more else left)


def test_a_step_with_a_part_of_its_jobs_gpus_is_like_a_job(
    place: Path, listening: list[socket.socket]
) -> None:
    """Its server has a node manager of its own; where it has none, its job's is found."""
    job = {"JUPYTER_RUNTIME_DIR": str(place), "SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1"}
    whole = job | {"SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": "0,1"}
    parts = [job | {"SLURM_STEP_ID": str(n), "SLURM_STEP_GPUS": "1"} for n in (1, 2)]
    assert host_id(whole) == host_id(job)
    assert len({host_id(environ) for environ in (job, *parts)}) == 3
    ours = listen(Path(embedded_socket(str(place), host_id(job))), listening)
    system = "/nowhere/system"
    for environ in (whole, *parts):
        assert find_socket(environ, system) == Found(ours, configured=False)
        assert not is_another_hosts(ours, environ)
    own = listen(Path(embedded_socket(str(place), host_id(parts[0]))), listening)
    assert find_socket(parts[0], system) == Found(own, configured=False)
    for environ in (whole, parts[1]):
        assert find_socket(environ, system) == Found(ours, configured=False)
        assert is_another_hosts(own, environ)
