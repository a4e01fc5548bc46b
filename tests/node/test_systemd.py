"""As a systemd service the node manager loses nobody over restarts, and needs no right."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st
from support.node import (
    GIB,
    NodeClient,
    Puppet,
    RemoteError,
    RunningNode,
    needs_root,
    open_directory,
    until,
)
from support.nvml import NvmlWorld
from support.systemd import ActivatedNode, Ear, UnprivilegedNode, handing_over
from support.tinyhub import OWN, TinyHub, served

from jupyter_gpushare.cli.systemd import shipped, units
from jupyter_gpushare.node.configuration import Hub
from jupyter_gpushare.node.host import systemd
from jupyter_gpushare.node.people.identity import Peer
from jupyter_gpushare.node.wire.transport import peer_of
from jupyter_gpushare.protocol.errors import RemoteProtocolError
from jupyter_gpushare.protocol.messages import Method, Notice

SYSTEMD = {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_USEC"}


@pytest.fixture
def place() -> Iterator[Path]:
    with open_directory() as path:
        yield path


# -- what the variables say -------------------------------------------------------------


@pytest.mark.parametrize("whose", ["", "8", "77", "-7", "7 ", "seven", "0x7", "7" * 40, "\u0667"])
def test_what_is_for_another_process_is_ignored_and_goes_no_further(whose: str) -> None:
    environ = {"LISTEN_PID": whose, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "node.socket", "A": "b"}
    for _ in range(2):  # with the variables, and without
        assert systemd.take_socket(environ, 7) is None
        assert environ == {"A": "b"}


@pytest.mark.parametrize("count", ["", "-1", "one", "1.0", "99999999999", "9" * 30])
def test_a_number_of_sockets_that_is_none_is_an_error_and_goes_no_further(count: str) -> None:
    environ = {"LISTEN_PID": "7", "LISTEN_FDS": count}
    with pytest.raises(systemd.InheritedSocketWrong, match="LISTEN_FDS is"):
        systemd.take_socket(environ, 7)
    assert environ == {}


def test_names_of_what_is_handed_over() -> None:
    def names(count: str, said: str) -> list[str]:
        environ = {"LISTEN_PID": "7", "LISTEN_FDS": count, "LISTEN_FDNAMES": said}
        return systemd.handed(environ, 7)

    assert names("2", "a:b") == ["a", "b"]
    assert names("3", "a") == ["a", "unknown", "unknown"]
    assert names("1", "a:b:c") == ["a"]
    assert names("0", "a") == []


@given(st.dictionaries(st.sampled_from(sorted(SYSTEMD)), st.text()), st.integers(1, 99))
def test_no_nonsense_raises_anything_else(environ: dict[str, str], pid: int) -> None:
    with contextlib.suppress(systemd.InheritedSocketWrong):
        assert len(systemd.handed(environ, pid)) <= 4096
    ear = systemd.take_ear(environ, pid)
    assert ear.address is not None or ear.watchdog is None
    assert not environ.keys() & {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}


@pytest.mark.parametrize(
    ("said", "ear"),
    [
        ({"NOTIFY_SOCKET": "/run/s"}, systemd.Ear("/run/s")),
        ({"NOTIFY_SOCKET": "@s", "WATCHDOG_USEC": "3000000"}, systemd.Ear("@s", 3.0)),
        ({"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "8"}, systemd.Ear("/s")),
        ({"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "0"}, systemd.Ear("/s")),
        ({"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "soon"}, systemd.Ear("/s")),
        ({"NOTIFY_SOCKET": "vsock:2:9999"}, systemd.Ear()),
        ({"NOTIFY_SOCKET": "@"}, systemd.Ear()),
        ({"WATCHDOG_USEC": "3000000"}, systemd.Ear()),
        ({}, systemd.Ear()),
    ],
)
def test_where_systemd_listens(said: dict[str, str], ear: systemd.Ear) -> None:
    assert systemd.take_ear(said, 7) == ear


# -- the socket -------------------------------------------------------------------------

TAKE = [
    sys.executable,
    "-c",
    "import os, fcntl\n"
    "from jupyter_gpushare.node.host.systemd import take_socket, InheritedSocketWrong\n"
    "try:\n    sock = take_socket(os.environ, os.getpid())\n"
    "except InheritedSocketWrong as error:\n    print('wrong', error)\n"
    "else:\n    print('right', sock.getsockname(), fcntl.fcntl(3, fcntl.F_GETFD))\n"
    "print(sorted(name for name in os.environ if name.startswith('LISTEN')))",
]


def taken(*files: Any) -> str:
    """What a real process says that gets these as systemd hands them over."""
    fds = [file.fileno() for file in files]
    told = subprocess.run(
        handing_over(fds, TAKE), pass_fds=fds, capture_output=True, text=True, check=True
    )
    answer, left = told.stdout.splitlines()
    assert left == "[]"
    return answer


def listening(path: Path | str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind(str(path))
    if kind != socket.SOCK_DGRAM:
        sock.listen()
    return sock


def test_one_listening_unix_socket_is_taken_and_not_inherited_further(place: Path) -> None:
    with listening(place / "s") as sock:
        assert taken(sock) == f"right {place / 's'} {1}"  # FD_CLOEXEC


def test_anything_else_is_refused_with_a_sentence(place: Path) -> None:
    environ = {"LISTEN_PID": "7", "LISTEN_FDS": "4096"}
    with pytest.raises(systemd.InheritedSocketWrong, match="promises 4096 sockets that are not"):
        systemd.take_socket(environ, 7)
    with listening(place / "s") as good, listening(place / "t") as other:
        assert "2 sockets were handed over (a, b)" in taken(good, other)
        with socket.socket(socket.AF_UNIX) as wire:
            wire.connect(str(place / "s"))
            assert "'a' does not listen: the socket unit needs Accept=no" in taken(wire)
    with socket.create_server(("127.0.0.1", 0)) as tcp:
        assert "is no Unix stream socket" in taken(tcp)
    for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        with listening(place / f"k{kind}", kind) as wrong:
            assert "is no Unix stream socket" in taken(wrong)
    with listening(f"\0{place}") as abstract:
        assert "has no path" in taken(abstract)
    with (place / "file").open("w") as file:
        assert "is no socket" in taken(file)


def test_the_socket_stays_as_it_was_made_over_starts_and_ends(place: Path) -> None:
    def made() -> tuple[int, ...]:
        there = (place / "node.sock").stat()
        return there.st_ino, there.st_mode, there.st_uid, there.st_mtime_ns, there.st_ctime_ns

    node = ActivatedNode(place, mode=0o640)
    before = made()
    with node:
        assert node.status()["gpus"]
        assert node.terminate() == 0
        assert made() == before, "it belongs to systemd"
        node.start()
        assert node.status()["gpus"]
        node.restart()
        assert node.status()["gpus"]
    assert made() == before
    assert stat.S_IMODE(before[1]) == 0o640


def test_the_shipped_command_serves(place: Path) -> None:
    """With the socket, the watchdog and the ear that the shipped units give it."""
    service = units(shipped(), sys.executable)["systemd/system/jupyter-gpushare.service"]
    (line,) = re.findall(r"(?m)^ExecStart=(.+)$", service)
    (place / "config.py").write_text('c.NodeManagerApp.simulate = "3x8GiB"\n')
    command = []
    for part in shlex.split(line):
        name, _, path = part.partition("=")
        if name == "--ledger":
            part = f"{name}={place}/{Path(path).name}"
        elif name == "--config":
            part = f"{name}={place}/config.py"
        command.append(part)
    with listening(place / "s") as sock, Ear(f"@{place}/notify") as ear:
        fd = sock.fileno()
        environ = {**os.environ, "NOTIFY_SOCKET": ear.address, "WATCHDOG_USEC": "120000000"}
        with subprocess.Popen(
            handing_over([fd], command), pass_fds=[fd], env=environ, stdout=subprocess.DEVNULL
        ) as process:
            try:
                assert ear.wait("READY=1") == ["READY=1"]
                assert "STATUS=3 GPUs, 0 leases, 0 waiting" in ear.wait("WATCHDOG=1")
                with NodeClient(place / "s") as client:
                    assert len(client.call(Method.STATUS)["gpus"]) == 3
                process.terminate()
                ear.wait("STOPPING=1")
                assert process.wait(60) == 0
            finally:
                process.kill()


@needs_root
@pytest.mark.parametrize("shared", [False, True])
def test_shared_says_who_may_come_in_whatever_the_mode(place: Path, shared: bool) -> None:
    with ActivatedNode(place, shared=shared) as node, Puppet(uid=54321) as puppet:
        if shared:
            assert puppet.client(node.socket).hello["environment"] == "uid-54321"
        else:
            with (
                NodeClient(connected=puppet.connect(node.socket), hello=False) as client,
                pytest.raises(RemoteProtocolError, match="--shared"),
            ):
                client.pump(10.0)
        assert node.status()["gpus"]


def test_who_connects_while_it_restarts_waits_instead_of_failing(place: Path) -> None:
    with ActivatedNode(place) as node, contextlib.ExitStack() as stack:
        node.kill9()
        waiting = []
        for _ in range(200):
            client = stack.enter_context(NodeClient(node.socket, hello=False))
            hello = client.send(Method.HELLO, protocol=1, client={"name": "n", "version": "0"})
            waiting.append((client, hello))
        assert not waiting[0][0].answered(waiting[0][1])
        node.start()
        for client, hello in waiting:
            assert client.wait(hello)["node"]


def test_who_died_while_it_waited_gets_nothing(place: Path) -> None:
    """Its request is there, and its pid may be another's by the time that it is read."""
    with ActivatedNode(place, simulate="1x24GiB") as node:
        node.kill9()
        with Puppet() as puppet:
            wire = puppet.connect(node.socket)
            puppet.kill9()
        with NodeClient(connected=wire, hello=False) as client:
            hello = client.send(Method.HELLO, protocol=1, client={"name": "n", "version": "0"})
            client.ask()
            node.start()
            with pytest.raises(RemoteError, match="has ended"):
                client.wait(hello)
        assert not node.status()["leases"]


@pytest.mark.parametrize(
    ("number", "pid"),
    [(errno.ESRCH, 0), (errno.EINVAL, 0), (errno.ENODATA, 0), (errno.ENOPROTOOPT, 6)],
)
def test_a_kernel_that_says_that_the_peer_ended_is_believed(number: int, pid: int) -> None:
    """One without pidfds of peers is taken at its word."""

    class Told:
        def getsockopt(self, level: int, option: int, size: int = 0) -> bytes:
            if option == socket.SO_PEERCRED:
                return struct.pack("3i", 6, 7, 8)
            raise OSError(number, os.strerror(number))

    assert peer_of(cast(socket.socket, Told())) == Peer(pid, 7, 8)


# -- what it tells ----------------------------------------------------------------------


def test_the_watchdog_hears_it_twice_in_its_time(place: Path) -> None:
    with Ear(f"{place}/notify") as ear:
        node = RunningNode(place)
        node.environ |= {"NOTIFY_SOCKET": ear.address, "WATCHDOG_USEC": "4000000"}
        with node:
            ear.wait("WATCHDOG=1")
            for _ in range(2):
                before = time.monotonic()
                ear.wait("WATCHDOG=1")
                assert time.monotonic() - before < 4.0
                # Nobody speaks for it: so a node manager that stands still says nothing.
                assert ear.speaker == node.pid


async def test_a_node_manager_that_does_not_answer_gives_no_sign_of_life(place: Path) -> None:
    async def telling(to: Ear, answers: asyncio.Event) -> None:
        async def look() -> str:
            await answers.wait()
            return "fine,\nthank you"

        await systemd.keep_telling(systemd.Notifier(systemd.Ear(to.address, 0.02)), look)

    late, at_once = asyncio.Event(), asyncio.Event()
    at_once.set()
    with Ear(f"{place}/notify") as ear, Ear(f"{place}/others") as others:
        tasks = [asyncio.create_task(telling(*one)) for one in ((ear, late), (others, at_once))]
        for _ in range(5):  # what another one says meanwhile shows that its time has passed
            await asyncio.to_thread(others.wait, "WATCHDOG=1")
        assert ear.next(0.0) is None
        late.set()
        said = await asyncio.to_thread(ear.wait, "WATCHDOG=1")
        assert said == ["WATCHDOG=1", "STATUS=fine, thank you"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_a_deaf_systemd_is_logged_once_and_again_when_it_was_heard(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = systemd.Notifier(systemd.Ear(f"{place}/notify"))
    with caplog.at_level(logging.WARNING):
        notifier.ready()
        notifier.stopping()
        assert len(caplog.records) == 1
        with Ear(f"{place}/notify"):
            notifier.ready()
        notifier.status("x")
        assert len(caplog.records) == 2
    long = systemd.Notifier(systemd.Ear("/" + "x" * 300))
    long.ready()


def test_a_reload_ends_no_service(place: Path) -> None:
    with Ear(f"{place}/notify") as ear:
        node = RunningNode(place)
        node.environ["NOTIFY_SOCKET"] = ear.address
        with node:
            ear.wait("READY=1")
            assert ear.wait("STATUS=") == ["STATUS=2 GPUs, 0 leases, 0 waiting"], "no WATCHDOG=1"
            os.kill(node.pid, signal.SIGHUP)
            until(lambda: "nothing is read again at SIGHUP" in node.story(), "it says so")
            assert node.status()["gpus"]


def test_a_reload_lasts_until_the_hubs_groups_are_looked_at(place: Path) -> None:
    hub = TinyHub(
        tokens={"token-a": "alice"},
        users={"alice": ["students"]},
        properties={"students": {"gpushare": {"gpus": 1}}},
    )
    own = place / "own-token"
    own.write_text(OWN)
    own.chmod(0o600)
    with served(hub), Ear(f"{place}/notify") as ear:
        where = [f"--Hub.api_url={hub.url}", f"--Hub.api_token_file={own}"]
        node = RunningNode(place, arguments=["--hub", *where, "--Hub.refresh=3600"])
        node.environ["NOTIFY_SOCKET"] = ear.address
        with node, node.client("token-a") as alice:
            ear.wait("READY=1")
            assert alice.call(Method.STATUS)["quota"]["gpus"] == 1
            hub.properties["students"] = {"gpushare": {"gpus": 2}}
            before = time.clock_gettime(time.CLOCK_MONOTONIC)
            os.kill(node.pid, signal.SIGHUP)
            lines = ear.wait("RELOADING=1")
            usec = int(lines[1].removeprefix("MONOTONIC_USEC="))
            assert before <= usec / 1e6 <= time.clock_gettime(time.CLOCK_MONOTONIC)
            ear.wait("READY=1")
            assert alice.call(Method.STATUS)["quota"]["gpus"] == 2


# -- secrets ----------------------------------------------------------------------------


def test_a_credential_is_found_by_its_name(place: Path) -> None:
    (place / "hub-token").write_text("secret\n")
    environ = {"CREDENTIALS_DIRECTORY": str(place)}
    assert systemd.credential(environ, "hub-token") == place / "hub-token"
    assert systemd.credential(environ, "other") is None
    assert systemd.credential({}, "hub-token") is None


@pytest.mark.parametrize(
    ("folder", "good", "bad"),
    [
        ("", (0o600, 0o400), (0o640, 0o604)),
        # So systemd's access list shows itself: by the group's right to read.
        ("CREDENTIALS_DIRECTORY", (0o400, 0o440), (0o444, 0o460, 0o450)),
    ],
)
def test_a_secret_is_read_only_when_no_other_can(
    place: Path, folder: str, good: tuple[int, ...], bad: tuple[int, ...]
) -> None:
    file, environ = place / "hub-token", {folder: str(place)}
    file.write_text(" secret\n")
    for mode in good:
        file.chmod(mode)
        assert systemd.read_secret(file, environ) == "secret"
    for mode in bad:
        file.chmod(mode)
        with pytest.raises(ValueError, match="can be read by others"):
            systemd.read_secret(file, environ)


def test_the_hubs_token_may_be_a_credential(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "hub-token").write_text("from systemd\n")
    (place / "hub-token").chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(place))
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "from the environment")
    hub = Hub(api_url="http://127.0.0.1:1")
    assert hub.own_token() == "from systemd"
    (place / "mine").write_text("from the file")
    (place / "mine").chmod(0o600)
    hub.api_token_file = str(place / "mine")
    assert hub.own_token() == "from the file"
    hub.api_token_file = str(place / "hub-token")
    assert hub.own_token() == "from systemd"
    hub.api_token_file = ""
    # The shipped unit hands over an empty one where nobody made a token.
    (place / "hub-token").chmod(0o600)
    (place / "hub-token").write_text("")
    assert hub.own_token() == "from the environment"


# -- rights -----------------------------------------------------------------------------

MANAGER, ALICE, BOB = 54320, 54321, 54322
CAP_KILL = 5
ONE_EACH = (
    "c.Policy.max_tasks_per_gpu = 1\nc.NodeManagerApp.measure_interval = 0.2\n"
    "c.Policy.heartbeat_timeout = 60.0\n"
    'c.Quotas.default = {"gpus": 1}\n'
)


def rights(pid: int) -> dict[str, str]:
    """What ``/proc`` says of a process's user and capabilities."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    names = ("Uid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")
    return {name: found[name].strip() for name in names}


@needs_root
def test_it_does_its_work_without_any_right(place: Path) -> None:
    """Grants, death and identity, for two OS users, by a third one who may nothing."""
    with (
        UnprivilegedNode(place, MANAGER, simulate="1x24GiB", config=ONE_EACH) as node,
        Puppet(uid=ALICE) as a,
        Puppet(uid=BOB) as b,
    ):
        may = rights(node.pid)
        assert may.pop("Uid").split() == [str(MANAGER)] * 4
        assert (may.pop("Groups"), may.pop("NoNewPrivs")) == ("", "1")
        assert set(may.values()) == {"0" * 16}, may
        assert stat.S_IMODE(node.socket.stat().st_mode) == 0o666
        assert node.socket.stat().st_uid == MANAGER
        assert stat.S_IMODE((place / "ledger.sqlite").stat().st_mode) == 0o600

        alice, bob = a.client(node.socket), b.client(node.socket)
        assert alice.hello["environment"] == f"uid-{ALICE}"
        assert bob.hello["environment"] == f"uid-{BOB}"
        assert not alice.hello["admin"]
        assert not bob.hello["admin"]
        lease = alice.request()["lease"]
        (seen,) = bob.call(Method.STATUS)["leases"]
        assert (seen["environment"], seen["name"], seen["pid"]) == (None, None, None)
        bob.refused(Method.RELEASE, lease=lease)
        call = bob.ask()
        queued = bob.wait_notice(Notice.QUEUED)["lease"]
        a.kill9()
        at = time.monotonic()
        assert bob.wait(call)["lease"] == queued
        assert time.monotonic() - at < 50.0, "its death was seen, not its silence"
        # Over its own death, too.
        node.restart()
        with b.client(node.socket) as again:
            assert [x["state"] for x in again.call(Method.STATUS)["leases"]] == ["active"]
        b.kill9()
        until(lambda: not node.status()["leases"], "bob's lease is over")


@needs_root
@pytest.mark.parametrize("capabilities", [(), (CAP_KILL,)])
def test_only_with_one_capability_it_kills_others_processes(
    place: Path, nvml_stub: Path, capabilities: tuple[int, ...]
) -> None:
    library = place / "lib"
    shutil.copytree(nvml_stub, library)  # where the other user can read it
    library.chmod(0o755)
    world = NvmlWorld(library, place / "nvml.state")
    gpu = world.add_gpu(memory=24 * GIB, reserved=0)
    config = ONE_EACH + 'c.Policy.audit_action = "kill"\nc.Policy.audit_grace = 0.5\n'
    (place / "node").mkdir()
    node = UnprivilegedNode(
        place / "node",
        MANAGER,
        capabilities=capabilities,
        simulate="",
        config=config,
        environ=world.environ(),
    )
    with node, Puppet(uid=ALICE) as thief, Puppet(uid=BOB) as b:
        assert int(rights(node.pid)["CapEff"], 16) == sum(1 << one for one in capabilities)
        world.add_process(gpu, thief.pid, 12 * GIB)
        if capabilities:
            assert thief.process.wait(60) == -signal.SIGKILL
            assert "may not send" not in node.story()
        else:
            until(lambda: "may not send SIGKILL" in node.story(), "it says that it may not")
            assert "needs the capability CAP_KILL" in node.story()
            with node.client() as root:
                for _ in range(5):  # it goes on, and says it once
                    (seen,) = root.call(Method.STATUS)["gpus"]
                    assert seen["squatters"][0]["pid"] == thief.pid
                    root.pump(0.2)
            assert thief.process.poll() is None
            assert node.story().count("may not send") == 1
            assert b.client(node.socket).hello["environment"] == f"uid-{BOB}"


CAP_SYS_PTRACE = 19


@needs_root
@pytest.mark.parametrize(
    ("options", "capabilities", "sees"),
    [
        ("hidepid=2", (), False),
        (f"hidepid=2,gid={MANAGER}", (), True),
        ("hidepid=2", (CAP_SYS_PTRACE,), True),
    ],
)
def test_a_proc_that_hides_processes_is_said(
    place: Path, options: str, capabilities: tuple[int, ...], sees: bool
) -> None:
    mount = f'mount -t proc -o {options} proc /proc && exec "$@"'
    prefix = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    tried = subprocess.run([*prefix, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no /proc of our own can be mounted here: {tried.stderr.strip()}")
    node = UnprivilegedNode(place, MANAGER, simulate="1x24GiB", capabilities=capabilities)
    node.prefix = prefix
    with node, Puppet(uid=ALICE) as a:
        assert ("mounted with hidepid" in node.story()) is not sees
        if sees:
            assert a.client(node.socket).request()["state"] == "held"
        else:
            with pytest.raises(RemoteError, match="hidepid"):
                a.client(node.socket)
