"""A pool and its hosts trust each other and nobody else; a host joins once by its token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from support.livenode import in_process
from support.node import RunningNode, needs_root, open_directory
from support.pool import PoolNode, join

from jupyter_gpushare.daemon.membership import BadMembership, Membership, ask
from jupyter_gpushare.link.dial import Host
from jupyter_gpushare.link.nodelink import NodeLink
from jupyter_gpushare.pool import configuration, joining
from jupyter_gpushare.pool.pki import DAY, Authority, BadRequest, NoAuthority
from jupyter_gpushare.pool.serving import CannotServe, serving
from jupyter_gpushare.pool.words.hosts import Holding
from jupyter_gpushare.protocol.poolcalls import TOKEN_LASTS
from jupyter_gpushare.protocol.secured import (
    POOL,
    Holder,
    NotOfThePool,
    client_context,
    expect,
    holder_of,
    named,
    server_context,
)

NOW = time.time()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", "lab", NOW)


def meet(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """The two ends of a connection, the server's first. Raises ``SSLError``."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    left = server.wrap_bio(to_server, to_client, server_side=True)
    right = client.wrap_bio(to_client, to_server)
    for _ in range(3):
        for end in (right, left):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return left, right


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[Holder | None, Holder | None]:
    """Who the client is to the server, and the server to the client. Raises ``SSLError``."""
    left, right = meet(server, client)
    return holder_of(left), holder_of(right)


def host(authority: Authority, folder: Path, name: str = "b", now: float = NOW) -> Membership:
    return join(authority, folder / name, name, now)


def test_the_pool_and_a_host_know_each_other(authority: Authority, tmp_path: Path) -> None:
    member = host(authority, tmp_path)
    assert shake(member.context(), authority.call_context()) == (POOL, Holder("b"))
    assert shake(authority.join_context(), client_context(authority.authorities)) == (None, POOL)


def test_files_are_their_owner_s_only(authority: Authority, tmp_path: Path) -> None:
    host(authority, tmp_path)
    for folder in (tmp_path / "authority", tmp_path / "b"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for file in folder.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_a_host_s_certificate_does_not_call(authority: Authority, tmp_path: Path) -> None:
    member, _other = host(authority, tmp_path), host(authority, tmp_path, "a")
    taken = client_context(authority.authorities, str(tmp_path / "a" / "host.pem"))
    with pytest.raises(ssl.SSLError):
        shake(member.context(), taken)
    # Nor does it answer in the pool's place.
    context = server_context(str(tmp_path / "a" / "host.pem"), None)
    assert shake(context, client_context(authority.authorities)) == (None, Holder("a"))


def test_a_host_s_certificate_signs_nothing(authority: Authority, tmp_path: Path) -> None:
    """The chain ends where an authority's certificate ends."""
    host(authority, tmp_path, "a")
    text = (tmp_path / "a" / "host.pem").read_bytes()
    key = serialization.load_pem_private_key(text, None)
    own = x509.load_pem_x509_certificates(text)[0]
    forged = (
        x509.CertificateBuilder()
        .subject_name(own.subject)
        .issuer_name(own.subject)
        .public_key(key.public_key())  # type: ignore[arg-type]
        .serial_number(1)
        .not_valid_before(own.not_valid_before_utc)
        .not_valid_after(own.not_valid_after_utc)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(POOL.uri)]), critical=True
        )
        .sign(key, hashes.SHA256())  # type: ignore[arg-type]
    )
    pem = serialization.Encoding.PEM
    (tmp_path / "forged.pem").write_bytes(
        text[: text.index(b"-----BEGIN CERT")] + forged.public_bytes(pem) + own.public_bytes(pem)
    )
    member = host(authority, tmp_path)
    with pytest.raises(ssl.SSLError):
        shake(member.context(), client_context(authority.authorities, str(tmp_path / "forged.pem")))


def test_only_the_key_of_a_request_counts(authority: Authority) -> None:
    for wrong in ("", "no request", ask().csr.replace("MI", "MJ")):
        with pytest.raises(BadRequest):
            authority.sign(wrong, "b", NOW)


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP256K1()),
        ed25519.Ed25519PrivateKey.generate(),
        rsa.generate_private_key(65537, 1024),
        dsa.generate_private_key(1024),
    ],
    ids=lambda key: type(key).__name__,
)
def test_a_key_of_another_kind_is_not_signed(authority: Authority, key: Any) -> None:
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    csr = request.sign(key, algorithm).public_bytes(serialization.Encoding.PEM).decode()
    with pytest.raises(BadRequest):
        authority.sign(csr, "b", NOW)


def test_a_request_names_nobody(authority: Authority, tmp_path: Path) -> None:
    """A host that was taken over may write what it likes into its request."""
    asked = ask()
    names = [x509.UniformResourceIdentifier(one) for one in (POOL.uri, Holder("a").uri)]
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a")]))
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(asked.key, hashes.SHA256())
    )
    csr = request.public_bytes(serialization.Encoding.PEM).decode()
    told = {
        **{"pool": "lab", "name": "b", "address": "127.0.0.1"},
        **{"certificates": authority.sign(csr, "b", NOW), "authorities": authority.authorities},
    }
    member = Membership.keep(tmp_path / "b", asked, told)
    assert shake(member.context(), authority.call_context()) == (POOL, Holder("b"))
    text = (tmp_path / "b" / "host.pem").read_bytes()
    shown = x509.load_pem_x509_certificates(text)[0]
    assert not shown.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_certificates_expire_and_are_due_before(authority: Authority, tmp_path: Path) -> None:
    old = host(authority, tmp_path, now=NOW - 31 * DAY)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake(old.context(), authority.call_context())
    own = (tmp_path / "authority" / "pool.pem").read_bytes()
    assert not authority.renew(NOW + 19 * DAY)
    assert (tmp_path / "authority" / "pool.pem").read_bytes() == own
    assert authority.renew(NOW + 21 * DAY)
    assert (tmp_path / "authority" / "pool.pem").read_bytes() != own


@pytest.mark.parametrize("reopened", [False, True])
def test_the_authority_is_rotated_without_anybody_left_out(
    authority: Authority, tmp_path: Path, reopened: bool
) -> None:
    away, pinned = host(authority, tmp_path, "away"), authority.authorities
    authority.rotate(NOW)
    if reopened:
        authority = Authority.open(tmp_path / "authority", NOW)
    # One that was away knows only the old one, and still knows the pool.
    assert shake(away.context(), authority.call_context()) == (POOL, Holder("away"))
    assert shake(authority.join_context(), client_context(pinned)) == (None, POOL)
    # A new one knows the new one, and is known.
    fresh = host(authority, tmp_path, "fresh")
    assert shake(fresh.context(), authority.call_context()) == (POOL, Holder("fresh"))
    with pytest.raises(BadRequest, match="not over"):
        authority.rotate(NOW + DAY)
    # The one that was away takes the new one.
    csr = away.request()
    away.renew(authority.sign(csr, "away", NOW), authority.authorities)
    later = Authority.open(tmp_path / "authority", NOW + 31 * DAY)
    assert later.authorities.count("BEGIN CERT") == 1
    assert authority.authorities.count("BEGIN CERT") == 2
    assert pinned.strip() not in later.authorities
    later.rotate(NOW + 31 * DAY)


def test_what_the_old_authority_signed_is_not_taken_when_it_is_forgotten(
    authority: Authority, tmp_path: Path
) -> None:
    late = host(authority, tmp_path, now=NOW + 20 * DAY)  # signed by the old one
    authority.rotate(NOW - 31 * DAY)
    authority.renew(NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(late.context(), authority.call_context())


def test_a_certificate_must_be_what_was_asked_for(authority: Authority, tmp_path: Path) -> None:
    member = host(authority, tmp_path)
    before = (tmp_path / "b" / "host.pem").read_bytes()
    other = Authority.create(tmp_path / "other", "lab", NOW)
    csr = member.request()
    good = authority.sign(csr, "b", NOW)
    for wrong, trusted, why in (
        (authority.sign(ask().csr, "b", NOW), authority.authorities, "another key"),
        (authority.sign(csr, "a", NOW), authority.authorities, "not for the host b"),
        (good, other.authorities, "authorities"),
        ("nonsense", authority.authorities, "read"),
        (good, "nonsense", "read"),
    ):
        with pytest.raises(BadMembership, match=why):
            member.renew(wrong, trusted)
    assert (tmp_path / "b" / "host.pem").read_bytes() == before
    member.renew(good, authority.authorities)
    assert Membership.open(tmp_path / "b") is not None


def test_a_directory_that_cannot_be_used_says_so(authority: Authority, tmp_path: Path) -> None:
    assert Membership.open(tmp_path / "nowhere") is None
    host(authority, tmp_path)
    (tmp_path / "b" / "host.pem").unlink()
    with pytest.raises(BadMembership, match=r"has no host\.pem"):
        Membership.open(tmp_path / "b")
    with pytest.raises(NoAuthority):
        Authority.open(tmp_path / "nowhere", NOW)
    (tmp_path / "authority" / "authority.pem").write_text("nonsense")
    with pytest.raises(NoAuthority, match="cannot be used"):
        Authority.open(tmp_path / "authority", NOW)


def test_names_of_holders() -> None:
    assert named("gpushare:pool") == POOL
    assert named("gpushare:host:b.example") == Holder("b.example")
    for wrong in ("", "pool", "gpushare:", "gpushare:host:", "gpushare:host:a b", "gpushare:pool2"):
        assert named(wrong) is None


def test_another_host_in_a_host_s_place(authority: Authority, tmp_path: Path) -> None:
    _left, right = meet(host(authority, tmp_path, "a").context(), authority.call_context())
    expect(right, Holder("a"))
    with pytest.raises(NotOfThePool, match="The host a answers there instead of the host b"):
        expect(right, Holder("b"))


# -- joining ---------------------------------------------------------------------------------------

LOG = logging.getLogger("test")


@dataclass
class Pool:
    """A pool where hosts join, and nothing else."""

    folder: Path
    authority: Authority
    invitations: joining.Invitations
    port: int = 0
    #: Of each host that joined its place, who invited it, and what holds it.
    hosts: dict[str, tuple[str, str, Holding | None]] = field(default_factory=dict)
    #: What writing into its books costs.
    trouble: Exception | None = None
    now: Callable[[], float] = time.time

    def token(self, host: str | None = None) -> joining.Token:
        secret, expires = self.invitations.invite(self.now(), "root", host)
        pinned = self.authority.pinned
        return joining.Token("127.0.0.1", self.port, pinned, secret, expires)

    async def joined(self, host: str, address: str, by: str, held: Holding | None) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.hosts[host] = address, by, held


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
    assert pool.hosts == {"b": ("127.0.0.1:10205", "root", None)}
    with pytest.raises(joining.NotJoined, match="used already, or has expired"):
        await come(token, "c")
    assert list(pool.hosts) == ["b"]


@with_pool
async def test_the_pool_keeps_no_secret(pool: Pool) -> None:
    job = Holding("Slurm", "job 7", 5.0)
    secret, _expires = pool.invitations.invite(time.time(), "root", held=job)
    assert secret not in (pool.folder / "pool" / "tokens.json").read_text()
    # Another process of the pool takes it too, and then it is used up for both.
    again = joining.Invitations(pool.folder / "pool" / "tokens.json")
    assert again.spend(secret, "b", time.time(), is_known=False) == ("root", job)
    reread = joining.Invitations(pool.folder / "pool" / "tokens.json")
    with pytest.raises(joining.NotJoined):
        reread.spend(secret, "b", time.time(), is_known=False)


@with_pool
async def test_of_two_tokens_for_one_job_the_first_that_is_used_counts(pool: Pool) -> None:
    """Who made them was restarted in between, and knew of none."""
    now, invitations = time.time(), pool.invitations
    jobs = [Holding("Slurm", "job 7", 5.0), Holding("Slurm", "job 7"), Holding("Slurm", "job 8")]
    first, again, other = (invitations.invite(now, "root", "b", held=job)[0] for job in jobs)
    free = invitations.invite(now, "root", "b")[0]
    assert invitations.spend(again, "b", now, is_known=False)
    with pytest.raises(joining.NotJoined, match="used already"):
        invitations.spend(first, "b", now, is_known=True)
    assert invitations.spend(other, "b", now, is_known=True)
    assert invitations.spend(free, "b", now, is_known=True)


@with_pool
async def test_by_a_standing_token_any_number_of_new_hosts_join(pool: Pool) -> None:
    """Kubernetes adds nodes by itself."""
    token = replace(pool.token(), secret="stands", expires=time.time() + 3 * TOKEN_LASTS)
    pool.invitations.stand(token, "Kubernetes node")
    for name in ("b", "c"):
        await come(token, name)
    node = Holding("Kubernetes node", "c")
    assert pool.hosts["c"] == ("127.0.0.1:10205", "the join token", node)
    with pytest.raises(joining.NotJoined, match="has a host b already"):
        await come(token, "b")
    # It stands as long as the pool is told of it, and no longer than it says.
    again = joining.Invitations(pool.folder / "pool" / "tokens.json")
    with pytest.raises(joining.NotJoined, match="used already"):
        again.spend("stands", "d", time.time(), is_known=False)
    pool.now = lambda: time.time() + 4 * TOKEN_LASTS
    with pytest.raises(joining.NotJoined, match="has expired"):
        await come(token, "d")


@pytest.mark.parametrize(
    ("setting", "said"),
    [("authority_file", "The authority in .* cannot be used"), ("join_token_file", "no token of")],
)
async def test_a_file_that_a_pool_begins_with_must_hold_what_it_should(
    tmp_path: Path, setting: str, said: str
) -> None:
    (tmp_path / "file").write_text("nothing")
    settings = configuration.Pool(folder=str(tmp_path / "pool"), socket=f"{tmp_path}/s", listen="")
    setattr(settings, setting, str(tmp_path / "file"))
    with pytest.raises(CannotServe, match=said):
        async with serving(settings, LOG):
            pass


async def test_a_new_pool_takes_an_authority_over_and_keeps_its_own_later(tmp_path: Path) -> None:
    given = Authority.create(tmp_path / "given", "lab", time.time())
    settings = configuration.Pool(folder=str(tmp_path / "pool"), socket=f"{tmp_path}/s", listen="")
    settings.authority_file = str(tmp_path / "given" / "authority.pem")
    for _start in range(2):
        async with serving(settings, LOG):
            pass
        assert Authority.open(tmp_path / "pool", time.time()).pinned == given.pinned
        Authority.create(tmp_path / "given", "lab", time.time())


@with_pool
async def test_an_expired_token_is_not_taken(pool: Pool) -> None:
    token = pool.token()
    with pytest.raises(joining.NotJoined, match=r"has expired\. Make a new one"):
        await come(replace(token, expires=time.time() - 1))
    pool.now = lambda: time.time() + TOKEN_LASTS + 1
    with pytest.raises(joining.NotJoined, match=r"used already, or has expired\. Make"):
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
        assert answer["error"]["code"] == -32601
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
        file = tmp_path / "token"
        wrong = in_process("pool", "join", f"--token-file={file}", "--name=b", directory)
        assert "The token in" in wrong.stderr
        both = in_process("pool", "join", token, f"--token-file={file}", "--name=b", directory)
        assert "or where it is: --token-file=FILE" in both.stderr
        file.write_text(f"{token}\n")
        ran = await asyncio.to_thread(_join, f"--token-file={file}", "--name=b", directory)
        assert ran.returncode == 0, ran.stderr
        assert "This host is b in the pool lab now" in ran.stdout
        again = await asyncio.to_thread(_join, token, "--name=b", directory)
        assert "has a host b already" in again.stderr or "used already" in again.stderr
        other = await asyncio.to_thread(_join, str(pool.token()), "--name=c", directory)
        assert "is b in the pool lab already" in other.stderr
        kept = {file.name for file in (tmp_path / "member").iterdir()}
        assert kept == {"pool.json", "ca.pem", "host.pem"}, "a join that failed leaves nothing"

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
