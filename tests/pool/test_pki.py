"""A pool and its hosts trust each other and nobody else, also while the authority changes."""

from __future__ import annotations

import contextlib
import ssl
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from support.pool import join

from jupyter_gpushare.daemon.membership import BadMembership, Membership, ask
from jupyter_gpushare.pool.pki import DAY, Authority, BadRequest, NoAuthority
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
