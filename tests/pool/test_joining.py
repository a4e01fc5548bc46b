"""A host joins a pool once by its token, and nobody takes its name or hears a secret.

Real TLS on this machine; and a node manager that then answers its pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.node import RunningNode, needs_root, open_directory
from support.pool import PoolNode

from jupyter_gpushare.daemon.membership import ask
from jupyter_gpushare.link.dial import Host
from jupyter_gpushare.link.nodelink import NodeLink
from jupyter_gpushare.pool import joining
from jupyter_gpushare.pool.pki import DAY, Authority
from jupyter_gpushare.protocol.secured import client_context

LOG = logging.getLogger("test")


@dataclass
class Pool:
    """A pool where hosts join, and nothing else."""

    folder: Path
    authority: Authority
    invitations: joining.Invitations
    port: int = 0
    #: Of each host that joined its place, and who invited it.
    hosts: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: What writing into its books costs.
    trouble: Exception | None = None
    now: Callable[[], float] = time.time

    def token(self, host: str | None = None) -> joining.Token:
        secret, expires = self.invitations.invite(self.now(), "root", host)
        pinned = self.authority.pinned
        return joining.Token("127.0.0.1", self.port, pinned, secret, expires)

    async def joined(self, host: str, address: str, by: str) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.hosts[host] = address, by


@asynccontextmanager
async def pool_in(folder: Path) -> AsyncIterator[Pool]:
    authority = Authority.create(folder / "pool", "lab", time.time())
    pool = Pool(folder, authority, joining.Invitations(folder / "pool" / "tokens.json"))
    endpoint = joining.JoinEndpoint(
        authority,
        pool.invitations,
        is_known=lambda name: name in pool.hosts,
        joined=pool.joined,
        wall=lambda: pool.now(),
        log=LOG,
    )
    pool.port = await endpoint.start("127.0.0.1", 0)
    try:
        yield pool
    finally:
        await endpoint.close()


def with_pool(test: Callable[[Pool], Awaitable[None]]) -> Callable[[Path], Awaitable[None]]:
    async def run(tmp_path: Path) -> None:
        async with asyncio.timeout(60), pool_in(tmp_path) as pool:
            await test(pool)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def come(token: joining.Token, name: str = "b", **more: Any) -> dict[str, Any]:
    said = {"name": name, "port": 10205, "csr": ask().csr, "version": "1", **more}
    return await joining.ask(token, said, time.time())


@with_pool
async def test_a_host_joins_once_by_a_token(pool: Pool) -> None:
    token = joining.Token.read(f" {pool.token()}\n")
    told = await come(token)
    assert (told["pool"], told["name"], told["address"]) == ("lab", "b", "127.0.0.1")
    assert pool.hosts == {"b": ("127.0.0.1:10205", "root")}
    with pytest.raises(joining.NotJoined, match="used already, or has expired"):
        await come(token, "c")
    assert list(pool.hosts) == ["b"]


@with_pool
async def test_the_pool_keeps_no_secret(pool: Pool) -> None:
    token = pool.token()
    assert token.secret not in (pool.folder / "pool" / "tokens.json").read_text()
    # Another process of the pool takes it too, and then it is used up for both.
    again = joining.Invitations(pool.folder / "pool" / "tokens.json")
    assert again.spend(token.secret, "b", time.time(), is_known=False) == "root"
    reread = joining.Invitations(pool.folder / "pool" / "tokens.json")
    with pytest.raises(joining.NotJoined):
        reread.spend(token.secret, "b", time.time(), is_known=False)


@with_pool
async def test_an_expired_token_is_not_taken(pool: Pool) -> None:
    token = pool.token()
    with pytest.raises(joining.NotJoined, match="has expired"):
        await come(replace(token, expires=time.time() - 1))
    pool.now = lambda: time.time() + joining.LASTS + 1
    with pytest.raises(joining.NotJoined, match="used already, or has expired"):
        await come(replace(token, expires=time.time() + DAY))
    assert not pool.hosts


@with_pool
async def test_nobody_takes_the_name_of_a_host(pool: Pool) -> None:
    """One that was taken over, say, and got hold of a token for something else."""
    await come(pool.token(), "b")
    token = pool.token()
    with pytest.raises(joining.NotJoined, match="has a host b already"):
        await come(token, "b")
    with pytest.raises(joining.NotJoined, match="is for the host b, and this one says"):
        await come(pool.token("b"), "c")
    # The token was not used up by that.
    await come(token, "c", address="10.0.0.9")
    assert pool.hosts["c"][0] == "10.0.0.9:10205"
    # Of a host that comes again an administrator knows.
    await come(pool.token("b"), "b", address="10.0.0.7")
    assert pool.hosts["b"][0] == "10.0.0.7:10205"


@with_pool
async def test_another_in_the_pool_s_place_hears_no_secret(pool: Pool) -> None:
    other = Authority.create(pool.folder / "other", "lab", time.time())
    token = replace(pool.token(), authority=other.pinned)
    with pytest.raises(joining.NotJoined, match="not the pool that made this token"):
        await come(token)
    assert not pool.hosts
    # The same token is still good.
    await come(replace(token, authority=pool.authority.pinned))


@with_pool
async def test_what_is_wrong_costs_no_token(pool: Pool) -> None:
    token = pool.token()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"csr": "nonsense"}, "."),
        ({"port": 0}, "port"),
        ({"name": "../b"}, "a host's name: up to 63 letters"),
        ({"name": "a b"}, "a host's name"),
    ]
    for more, said in wrong:
        with pytest.raises(joining.NotJoined, match=said):
            await come(token, **{"name": "b", **more})
    await come(token)


@with_pool
async def test_a_pool_that_cannot_write_lets_nobody_in(pool: Pool) -> None:
    pool.trouble = OSError("disk full")
    with pytest.raises(joining.NotJoined, match="Make a new token"):
        await come(pool.token())
    pool.trouble = None
    await come(pool.token())


@with_pool
async def test_a_host_may_ask_for_nothing_else_at_the_pool(pool: Pool) -> None:
    """Whatever certificate it has: there only hosts join."""
    context = client_context(pool.authority.authorities)
    for method in ("hello", "status", "pool.follow", "quota.set", "pool.lend", "pool.token"):
        reader, writer = await asyncio.open_connection("127.0.0.1", pool.port, ssl=context)
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"protocol": 1}}
        writer.write(json.dumps(call).encode() + b"\n")
        answer = json.loads(await reader.readline())
        assert "there is no other call" in answer["error"]["message"]
        assert await reader.read() == b""
        writer.transport.abort()


@with_pool
async def test_there_is_no_plain_tcp_and_nothing_below_tls_1_3(pool: Pool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", pool.port)
    writer.write(b'{"jsonrpc":"2.0","id":1,"method":"join","params":{}}\n')
    with contextlib.suppress(ConnectionError):
        assert b"jsonrpc" not in await reader.read()
    writer.transport.abort()
    context = client_context(pool.authority.authorities)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", pool.port, ssl=context)


@with_pool
async def test_silent_ones_do_not_keep_a_host_from_joining(pool: Pool) -> None:
    silent = [socket.create_connection(("127.0.0.1", pool.port)) for _ in range(100)]
    try:
        await come(pool.token())
    finally:
        for one in silent:
            one.close()


def test_a_part_of_a_token_is_none() -> None:
    whole = str(joining.Token("10.0.0.1", 1, b"der", "secret", 1.5))
    assert joining.Token.read(whole) == joining.Token("10.0.0.1", 1, b"der", "secret", 1.5)
    for wrong in ("", "x", whole[:-9], whole[9:], "ä", "e30"):
        with pytest.raises(joining.NotJoined, match="no token of a pool"):
            joining.Token.read(wrong)


# -- with node managers ----------------------------------------------------------------------------


def _join(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "jupyter_gpushare.cli", "pool", "join", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


@needs_root
def test_root_writes_as_the_node_manager_s_user(tmp_path: Path) -> None:
    """That user could have put a link where root would write."""

    async def whole() -> None:
        async with pool_in(tmp_path / "lab") as pool:
            with open_directory() as home, open_directory() as roots:
                os.chown(home, 54321, 54321)
                ran = await asyncio.to_thread(
                    _join, str(pool.token()), "--name=b", f"--directory={home / 'pool'}"
                )
                assert ran.returncode == 0, ran.stderr
                for file in (home / "pool", *(home / "pool").iterdir()):
                    assert file.stat().st_uid == 54321, file
                (home / "other").symlink_to(roots)
                ran = await asyncio.to_thread(
                    _join, str(pool.token()), "--name=c", f"--directory={home / 'other'}"
                )
                assert "cannot be written" in ran.stderr
                assert not list(roots.iterdir())
                assert roots.stat().st_uid == 0
                # Nothing was asked for that could not be kept.
                assert list(pool.hosts) == ["b"]

    (tmp_path / "lab").mkdir()
    asyncio.run(whole())


async def test_a_node_manager_that_joined_answers_its_pool(tmp_path: Path) -> None:
    """The command, and what is said of those whose certificate does not count there."""

    async with pool_in(tmp_path) as pool:
        node = RunningNode(tmp_path, arguments=["--NodeManagerApp.pool_listen=127.0.0.1:0"])
        # Never an own port of this machine's: the node manager takes any.
        token, directory = str(pool.token()), f"--directory={tmp_path / 'member'}"
        ran = await asyncio.to_thread(_join, token, "--name=b", directory)
        assert ran.returncode == 0, ran.stderr
        assert "This host is b in the pool lab now" in ran.stdout
        again = await asyncio.to_thread(_join, token, "--name=b", directory)
        assert "has a host b already" in again.stderr or "used already" in again.stderr
        other = await asyncio.to_thread(_join, str(pool.token()), "--name=c", directory)
        assert "is b in the pool lab already" in other.stderr

        node.arguments.append(f"--NodeManagerApp.pool_directory={tmp_path / 'member'}")
        with node:
            port = PoolNode.port.fget(node)  # type: ignore[attr-defined]
            # Words, and no number, where others answer or ask. What counts is in `test_pki`.
            other = Authority.create(pool.folder / "stranger", "lab", time.time())
            late = Authority.create(pool.folder / "late", "lab", time.time() - 31 * DAY)
            trusted, elsewhere = pool.authority.authorities, "it knows another pool; let it join"
            for name, context, said in (
                ("c", pool.authority.call_context(), "The host b answers there instead of"),
                ("b", other.call_context(), "its certificate does not count"),
                *(
                    ("b", client_context(trusted, str(one._folder / "pool.pem")), elsewhere)
                    for one in (other, late)
                ),
            ):
                host = Host(name, "127.0.0.1", lambda told=context: told, port)
                link = NodeLink(find=lambda there=host: there, why=lambda: None, log=LOG)
                told = asyncio.Event()
                link.subscribe(told.set)
                link.start()
                async with asyncio.timeout(60):
                    await told.wait()
                assert said in link.state.message
                assert not link.state.connected
                await link.close()
