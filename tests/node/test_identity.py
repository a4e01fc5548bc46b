"""The kernel or a token tells the node manager who a client is, and the client never does.

With real processes of real users.
"""

from __future__ import annotations

import asyncio
import errno
import grp
import hashlib
import json
import logging
import os
import pwd
import re
import select
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.node import Puppet, needs_root, open_directory, until

from jupyter_gpushare.daemon.loopback import is_loopback, maker_of, neighbours_of, network_of
from jupyter_gpushare.daemon.troubles import Trouble
from jupyter_gpushare.node.host.processes import identify
from jupyter_gpushare.node.people.identity import (
    IdentityRefused,
    Peer,
    PeerIdentity,
    Principal,
    TokenFileIdentity,
    elsewhere,
)
from jupyter_gpushare.node.people.osusers import SubordinateIds
from jupyter_gpushare.node.people.peers import identify_peer
from jupyter_gpushare.node.wire.transport import peer_of
from jupyter_gpushare.protocol.processes import read_boot_id

NOBODY = pwd.getpwnam("nobody")
STRANGER = 54321  # a uid without a name


@pytest.fixture
def door() -> Iterator[socket.socket]:
    """A listening socket that every user may connect to."""
    with open_directory() as place, socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(place / "door"))
        (place / "door").chmod(0o666)
        sock.listen()
        sock.settimeout(20)
        yield sock


@contextmanager
def meeting(door: socket.socket, puppet: Puppet, gone: bool = False) -> Iterator[Peer]:
    """The peer of a new connection of ``puppet``, which has ended if it is ``gone``."""
    with puppet.connect(door.getsockname()):
        if gone:
            puppet.kill9()
        ours, _ = door.accept()
        with ours:
            peer = peer_of(ours)
        try:
            yield peer
        finally:
            if peer.pidfd is not None:
                os.close(peer.pidfd)


def pidfd_of(peer: Peer) -> int:
    if peer.pidfd is None:
        pytest.skip("this kernel has no SO_PEERPIDFD (Linux 6.5)")
    return peer.pidfd


def who(identity: PeerIdentity | TokenFileIdentity, peer: Peer, token: str | None = None) -> Any:
    return asyncio.run(identity.identify(peer, token))


# -- the kernel says ------------------------------------------------------------------


@needs_root
def test_the_peer_is_the_process_that_connected_with_its_own_user(door: socket.socket) -> None:
    """Without a pidfd too, as before Linux 6.5, where the pid may be of another process by now."""
    with Puppet(uid=STRANGER) as puppet, meeting(door, puppet) as peer:
        assert (peer.pid, peer.uid, peer.gid) == (puppet.pid, STRANGER, STRANGER)
        for one in (peer, replace(peer, pidfd=None)):
            assert identify_peer(one, "boot") == identify(puppet.pid, "boot")
        with Puppet(uid=STRANGER + 1) as successor:
            assert identify_peer(Peer(successor.pid, STRANGER, STRANGER), "boot") is None


def test_the_pidfd_is_the_peers_and_tells_of_its_end(door: socket.socket) -> None:
    with Puppet() as puppet, meeting(door, puppet) as peer:
        pidfd, poll = pidfd_of(peer), select.poll()
        poll.register(pidfd, select.POLLIN)
        assert not poll.poll(0)
        assert not os.get_inheritable(pidfd)
        assert identify_peer(peer, read_boot_id()) is not None
        puppet.kill9()
        assert poll.poll(10_000), "the kernel did not tell that it ended"
        assert identify_peer(peer, read_boot_id()) is None


def test_a_peer_that_is_gone_before_we_look_is_nobody(door: socket.socket) -> None:
    with Puppet() as puppet, meeting(door, puppet, gone=True) as peer:
        assert peer.pid == puppet.pid
        assert identify_peer(peer, read_boot_id()) is None


def process_with_pid(pid: int) -> subprocess.Popen[bytes]:
    """A new process that got this very pid, as may happen on a busy host."""
    for _ in range(200):
        try:
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1), encoding="ascii")
        except OSError as error:
            pytest.skip(f"pids cannot be chosen here: {error}")
        child = subprocess.Popen(["sleep", "60"])
        if child.pid == pid:
            return child
        child.kill()
        child.wait()
    pytest.skip("the pid was taken by somebody else each time")


@needs_root
def test_whoever_got_the_pid_of_a_peer_that_is_gone_is_not_the_peer(door: socket.socket) -> None:
    with Puppet() as puppet, meeting(door, puppet) as peer:
        pidfd_of(peer)
        puppet.kill9()
        with process_with_pid(peer.pid) as successor:
            assert identify(peer.pid, "boot") is not None
            assert identify_peer(peer, "boot") is None
            successor.kill()


def test_a_named_user_is_its_environment_with_its_groups() -> None:
    peer = Peer(1, NOBODY.pw_uid, NOBODY.pw_gid)
    group = grp.getgrgid(NOBODY.pw_gid).gr_name
    assert who(PeerIdentity(), peer) == Principal("nobody", (group,), admin=False)
    assert who(PeerIdentity(frozenset({"nobody"})), peer).admin
    assert who(PeerIdentity(admin_groups=frozenset({group})), peer).admin
    assert not who(PeerIdentity(frozenset({"nobodyelse"}), frozenset({"wheel"})), peer).admin
    assert who(PeerIdentity(owner_uid=NOBODY.pw_uid), peer).admin


def test_a_user_without_a_name_is_its_number() -> None:
    with pytest.raises(KeyError):
        pwd.getpwuid(STRANGER)
    peer = Peer(1, STRANGER, STRANGER)
    assert who(PeerIdentity(nameless=True), peer) == Principal(f"uid-{STRANGER}")
    with pytest.raises(IdentityRefused, match=r"no entry .*nameless_users = True"):
        who(PeerIdentity(), peer)
    for nameless in (False, True):
        identity = PeerIdentity(nameless=nameless)
        assert asyncio.run(identity.knows(f"uid-{STRANGER}")) is nameless
    assert who(PeerIdentity(owner_uid=STRANGER), Peer(1, STRANGER, 0)).admin


def test_root_is_an_administrator_whoever_runs_the_node_manager() -> None:
    assert who(PeerIdentity(owner_uid=STRANGER), Peer(1, 0, 0)).admin


def test_a_token_says_nothing_where_the_kernel_does() -> None:
    peer = Peer(1, STRANGER, STRANGER)
    identity = PeerIdentity(nameless=True)
    assert who(identity, peer, "root") == who(identity, peer, None)


def test_a_subordinate_user_is_its_owner_without_the_owners_powers(tmp_path: Path) -> None:
    """Debian gives each user 65,536 further ids: each was somebody with a quota of their own."""
    file = tmp_path / "subuid"
    number = pwd.getpwnam("daemon").pw_uid
    file.write_text(
        "# comment\nroot:100000:1000000\nnobody:165536:65536\nnonsense\n:1:2\n"
        f"{number}:231072:65536\nnosuchuser:2000000:5\n"
    )
    ids = SubordinateIds(file)

    def meet(uid: int, **more: Any) -> Any:
        return who(PeerIdentity(**more), Peer(1, uid, uid, owner=ids.owner(uid)))

    group = grp.getgrgid(NOBODY.pw_gid).gr_name
    for uid in (165536, 165536 + 65535):
        assert meet(uid) == Principal("nobody", (group,))
    assert not meet(165536, admin_users=frozenset({"nobody"})).admin
    assert meet(231072).environment == "daemon"
    assert ids.owner(99999) is ids.owner(1100000) is None
    # An id with an entry of its own is that somebody.
    file.write_text(f"daemon:{NOBODY.pw_uid}:1\n")
    assert ids.owner(NOBODY.pw_uid) == "daemon"
    assert meet(NOBODY.pw_uid).environment == "nobody"
    assert ids.owner(165536) is None
    file.unlink()
    assert ids.owner(NOBODY.pw_uid) is None


def test_containers_of_nobody_in_particular_are_not_one_person(tmp_path: Path) -> None:
    """LXD has its containers' users from root's range: they were root, and one another."""
    file = tmp_path / "subuid"
    file.write_text(
        "root:1000000:1000000000\nnobody:165536:65536\nroot:165540:1\n"
        "containers:2147483647:2147483648\n"
    )
    ids = SubordinateIds(file)

    def peer(uid: int) -> Peer:
        return Peer(1, uid, uid, owner=ids.owner(uid))

    first, other = peer(1000000), peer(1065536)
    assert (first.charged, other.charged) == (1000000, 1065536)
    assert peer(165540).charged == "nobody", "who can become that user"
    for container in (first, other, Peer(1, 1000000, 0, owner="root"), peer(2147483650)):
        found = who(PeerIdentity(nameless=True), container)
        assert found == Principal(f"uid-{container.uid}")
        with pytest.raises(IdentityRefused, match=r"no entry .*nameless_users = True"):
            who(PeerIdentity(), container)
    # The database is asked for that beside the loop, which waits for nobody's name service.
    until(lambda: peer(2147483650).charged == 2147483650, "Podman's containers are one person")


_ASK = """
import asyncio, sys
from jupyter_gpushare.node.people.identity import IdentityRefused, Peer, PeerIdentity
for uid in map(int, sys.argv[1:]):
    identity = PeerIdentity(nameless=True)
    try:
        print(asyncio.run(identity.identify(Peer(1, uid, uid), None)).environment)
    except IdentityRefused as error:
        print(error)
"""


@needs_root
def test_a_name_service_that_fails_is_not_somebody_without_an_entry(tmp_path: Path) -> None:
    """A real one: Hesiod, which comes with glibc and has no server here."""
    switch = tmp_path / "nsswitch.conf"
    switch.write_text("passwd: files hesiod\ngroup: files\n")
    ask = [sys.executable, "-c", _ASK, str(STRANGER), str(NOBODY.pw_uid), "0"]
    line = f"mount --bind {shlex.quote(str(switch))} /etc/nsswitch.conf && {shlex.join(ask)}"
    said = subprocess.run(["unshare", "-m", "sh", "-c", line], capture_output=True, text=True)
    if said.returncode:
        pytest.skip(f"nothing can be mounted here: {said.stderr}")
    stranger, nobody, root = said.stdout.splitlines()
    if stranger == f"uid-{STRANGER}":
        pytest.skip("this C library has no Hesiod")
    assert "does not tell who user 54321 is" in stranger
    assert "Try again" in stranger
    assert (nobody, root) == ("nobody", "root"), "the others are let in"


async def test_nobody_is_guessed_while_the_database_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who was known stays; who owns a subordinate id is not known."""

    def fails(who: int | str) -> None:
        if who != 165536:  # it has no entry, and is carol's if she is anybody
            raise OSError(errno.EIO, "no answer")

    monkeypatch.setattr("jupyter_gpushare.node.people.identity.BELIEVED", 0.0)
    identity = PeerIdentity(nameless=True)
    peer = Peer(1, NOBODY.pw_uid, NOBODY.pw_gid)
    assert (await identity.identify(peer, None)).environment == "nobody"
    for module in ("identity", "osusers"):
        monkeypatch.setattr(f"jupyter_gpushare.node.people.{module}.user_entry", fails)
    assert (await identity.identify(peer, None)).environment == "nobody"
    for unknown in (Peer(1, STRANGER, STRANGER), Peer(1, 165536, 165536, owner="carol")):
        with pytest.raises(IdentityRefused, match="no answer"):
            await identity.identify(unknown, None)
    identity.close()


async def test_a_slow_user_database_does_not_stop_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one thing that is not real here: a directory service that hangs."""
    asked, go_on = [], threading.Event()

    def slow(uid: int) -> pwd.struct_passwd:
        asked.append(uid)
        assert go_on.wait(60)
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", slow)
    identity = PeerIdentity(nameless=True)
    task = asyncio.create_task(identity.identify(Peer(1, STRANGER, STRANGER), None))
    while not asked:
        await asyncio.sleep(0.001)
    assert not task.done()
    go_on.set()
    assert (await task).environment == f"uid-{STRANGER}"
    # Believed for a while.
    assert (await identity.identify(Peer(2, STRANGER, STRANGER), None)).environment
    assert asked == [STRANGER]


# -- a token says ---------------------------------------------------------------------


PEER = Peer(1, STRANGER, STRANGER)


def write(path: Path, content: object, mode: int = 0o600) -> TokenFileIdentity:
    path.touch(mode)
    path.chmod(mode)
    text = content if isinstance(content, bytes | str) else json.dumps(content)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return TokenFileIdentity(path)


def tokens(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": list(entries)}


ALICE = {"token": "a-secret", "environment": "alice", "groups": ["crew"]}
ROOT = {
    "sha256": hashlib.sha256(b"master").hexdigest().upper(),
    "environment": "root",
    "admin": True,
}


def refused(identity: TokenFileIdentity, token: str | None) -> str:
    with pytest.raises(IdentityRefused) as caught:
        who(identity, PEER, token)
    return str(caught.value)


def test_a_known_token_is_its_environment_and_another_one_nobody(tmp_path: Path) -> None:
    identity = write(tmp_path / "tokens", tokens(ALICE, ROOT))
    assert who(identity, PEER, "a-secret") == Principal("alice", ("crew",), admin=False)
    assert who(identity, PEER, "master") == Principal("root", (), admin=True)
    for token in ("A-secret", "a-secret ", "x", ROOT["sha256"], "\ud800", "ä"):
        assert "not known" in refused(identity, str(token))
    for nothing in (None, ""):
        assert "JUPYTER_GPUSHARE_TOKEN" in refused(identity, nothing)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o610])
def test_a_file_that_others_may_read_is_not_believed(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens"
    identity = write(path, tokens(ALICE), mode)
    assert "chmod 600" in refused(identity, "a-secret")
    path.chmod(0o600)
    assert who(identity, PEER, "a-secret").environment == "alice"
    path.chmod(mode)
    assert "chmod 600" in refused(identity, "a-secret"), "not believed any more"
    if os.getuid() == 0:
        path.chmod(0o600)
        os.chown(path, STRANGER, STRANGER)
        assert str(STRANGER) in refused(identity, "a-secret")


def test_a_changed_file_counts_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    identity = write(path, tokens(ALICE))
    assert who(identity, PEER, "a-secret")
    # The same length, so that size tells nothing.
    write(path, tokens({**ALICE, "token": "b-secret"}))
    assert "not known" in refused(identity, "a-secret")
    assert who(identity, PEER, "b-secret").environment == "alice"
    # Replaced by another file, as editors do.
    write(tmp_path / "new", tokens(ROOT))
    (tmp_path / "new").replace(path)
    assert "not known" in refused(identity, "b-secret")
    assert who(identity, PEER, "master").admin


BROKEN: list[object] = [
    "",
    b"\xff\xfe\x00{}",
    "{",
    "[" * 100_000,
    "null",
    [],
    {},
    {"tokens": None},
    {"tokens": {"alice": "x"}},
    tokens("alice"),  # type: ignore[arg-type]
    tokens([]),  # type: ignore[arg-type]
    tokens({"token": "x"}),
    tokens({"environment": "alice"}),
    tokens({"environment": "alice", "token": 5}),
    tokens({"environment": "alice", "token": ""}),
    tokens({"environment": "", "token": "x"}),
    tokens({"environment": ["alice"], "token": "x"}),
    tokens({"environment": "alice", "sha256": "abc"}),
    tokens({"environment": "alice", "sha256": "ü" * 64}),
    tokens({"environment": "alice", "sha256": 7}),
    tokens({"environment": "alice", "token": "x", "groups": "crew"}),
    tokens({"environment": "alice", "token": "x", "groups": [1]}),
    tokens(ALICE, {"token": "x"}),
    tokens({**ALICE, "group": ["crew"]}),
    *(tokens({**ALICE, "admin": admin}) for admin in (1, "true", None, [1])),
]


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_file_lets_nobody_in_and_says_why(tmp_path: Path, content: object) -> None:
    path = tmp_path / "tokens"
    identity = write(path, tokens(ALICE))
    assert who(identity, PEER, "a-secret")
    write(path, content)
    for token in ("a-secret", "x"):
        said = refused(identity, token)
        assert str(path) in said
        assert "cannot be used" in said
    write(path, tokens(ALICE))
    assert who(identity, PEER, "a-secret")
    for there_is_none in (tmp_path / "gone", tmp_path):
        assert "cannot be used" in refused(TokenFileIdentity(there_is_none), "x")


def test_the_file_of_the_docs_can_be_used(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "node-manager.md"
    found = re.search(r"```json\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    identity = write(tmp_path / "tokens", found[1])
    assert who(identity, PEER, "a-secret") == Principal("alice", ("students",), admin=False)
    assert who(identity, PEER, "another-secret") == Principal("ada", (), admin=True)


def test_the_log_says_why_nobody_comes_in_and_when_it_is_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    write(path, "{")
    trouble = Trouble(logging.getLogger("node"), time.monotonic, "It can be used again")
    identity = TokenFileIdentity(path, trouble)
    refused(identity, "a-secret")
    assert f"Nobody is let in: The token file {path} cannot be used: " in caplog.text
    write(path, tokens(ALICE))
    assert who(identity, PEER, "a-secret")
    assert "It can be used again" in caplog.text


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.5", "10.0.0.5"),
        ("::ffff:10.0.0.5", "10.0.0.5"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_address_is_charged_by_who_may_have_it(address: str, network: str) -> None:
    assert network_of(address) == network
    assert elsewhere(address).charged == f"address {network}"


@pytest.mark.parametrize(
    ("one", "near", "far"),
    [
        ("10.0.0.5", "10.0.0.250", "10.0.1.5"),
        ("2001:db8:1:2::9", "2001:db8:1:ffff::9", "2001:db8:2:2::9"),
    ],
)
def test_many_addresses_of_a_network_may_be_one_attackers(one: str, near: str, far: str) -> None:
    assert neighbours_of(one) == neighbours_of(near) != neighbours_of(far)


@needs_root
@pytest.mark.parametrize("source", ["127.0.0.1", "127.9.8.7"])
def test_a_connection_of_this_host_is_its_users_whatever_its_address(source: str) -> None:
    """As another user it is the other user's, and from no address anybody else's."""
    program = (
        "import os, socket, sys\n"
        "os.setuid(54321)\n"  # who may not read this Python's library, perhaps
        "wire = socket.socket()\n"
        f"wire.bind(({source!r}, 0))\n"
        "wire.connect(('127.0.0.1', int(sys.argv[1])))\n"
        "os.read(0, 1)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as door:
        here = door.getsockname()
        door.settimeout(20)
        line = [sys.executable, "-c", program, str(here[1])]
        with subprocess.Popen(line, stdin=subprocess.PIPE) as child:
            wire, there = door.accept()
            with wire:
                assert there[0] == source
                assert is_loopback(there[0])
                assert maker_of(socket.AF_INET, there, here) == 54321
                assert maker_of(socket.AF_INET, ("127.0.0.1", 1), here) is None
                child.communicate()
                # It has ended: the kernel would call what is left of it root's.
                assert maker_of(socket.AF_INET, there, here) is None
    assert not is_loopback("10.0.0.5")
    assert is_loopback("::ffff:127.0.0.1")
