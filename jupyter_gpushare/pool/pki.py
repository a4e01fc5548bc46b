"""The pool's own certificate authority: who is a host of it, and who is the pool.

Certificates last 30 days and are renewed at two thirds. An authority lasts ten years; after
:meth:`Authority.rotate` it vouches for the next one, so that a host which was away meanwhile still
knows the pool, and takes the new authority from it. When all certificates that the old one signed
have expired, it is forgotten.

One file holds what belongs together, and is replaced as a whole: a crash never leaves a key
without its certificate.
"""

from __future__ import annotations

import datetime
import json
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..protocol.privateplace import replace_private
from ..protocol.secured import POOL, Holder, client_context, server_context

DAY: Final = 86400.0
LASTS: Final = 30 * DAY
#: Part of a certificate's time after which it is renewed.
RENEWED_AT: Final = 2 / 3
_AUTHORITY_LASTS: Final = 3652 * DAY
#: Clocks of hosts differ: a new certificate is valid from a little earlier on.
_EARLIER: Final = 300.0
_AUTHORITY, _OWN, _ABOUT = "authority.pem", "pool.pem", "pool.json"


class NoAuthority(Exception):
    """There is no authority in this directory, or it cannot be used; the text says why."""


class BadRequest(Exception):
    """A host wants something signed that we do not sign; the text says why."""


@dataclass(frozen=True, slots=True)
class _Signer:
    """The authority that signs, with its key. The one before it vouches for ``crossed``."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    crossed: x509.Certificate | None = None
    before: x509.Certificate | None = None


class Authority:
    """The certificate authority of one pool. ``now`` is wall time in seconds, in all methods."""

    def __init__(self, folder: Path, pool: str, signer: _Signer) -> None:
        self.pool: Final = pool
        self._folder = folder
        self._signer = signer
        # Made once for many connections, until a certificate changes.
        self._joins: ssl.SSLContext | None = None
        self._calls: ssl.SSLContext | None = None

    @classmethod
    def create(cls, folder: Path, pool: str, now: float, begins: Path | None = None) -> Authority:
        """A new pool in a new directory, for its owner only.

        ``begins``: a file with the authority that it takes over, with its key. Raises
        :class:`NoAuthority` if that has none.
        """
        signer = _new_signer(pool, now) if begins is None else _read_signer(begins)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(folder, 0o700)
        replace_private(folder / _ABOUT, json.dumps({"pool": pool}).encode())
        authority = cls(folder, pool, signer)
        authority._keep()
        authority.renew(now)
        return authority

    @classmethod
    def open(cls, folder: Path, now: float) -> Authority:
        """The pool in a directory; what is due is renewed. Raises :class:`NoAuthority`."""
        try:
            pool = str(json.loads((folder / _ABOUT).read_bytes())["pool"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NoAuthority(f"The pool in {folder} cannot be used: {error}.") from error
        authority = cls(folder, pool, _read_signer(folder / _AUTHORITY))
        authority.renew(now)
        return authority

    # -- what others trust ----------------------------------------------------------------------

    @property
    def authorities(self) -> str:
        """All authorities that count now, PEM; the one that signs is the first."""
        known = (self._signer.certificate, self._signer.before)
        return _pem(one for one in known if one is not None)

    @property
    def pinned(self) -> bytes:
        """The authority that signs, DER: what a host is given to know the pool by."""
        return self._signer.certificate.public_bytes(serialization.Encoding.DER)

    def join_context(self) -> ssl.SSLContext:
        """For hosts that join: they know us, and have no certificate yet. Raises `OSError`."""
        if self._joins is None:
            self._joins = server_context(str(self._folder / _OWN), None)
        return self._joins

    def call_context(self) -> ssl.SSLContext:
        """For calls to hosts. Raises :class:`OSError`."""
        if self._calls is None:
            self._calls = client_context(self.authorities, str(self._folder / _OWN))
        return self._calls

    # -- signing --------------------------------------------------------------------------------

    def sign(self, csr: str, host: str, now: float) -> str:
        """A host's certificate, and what stands between it and the root; PEM.

        Of the request only the key counts: the name is the one that the caller knows the host by.
        Raises :class:`BadRequest`.
        """
        try:
            request = x509.load_pem_x509_csr(csr.encode())
            right = request.is_signature_valid
            key = request.public_key()
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as error:
            raise BadRequest(f"The request cannot be read: {error}.") from error
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
            raise BadRequest("The request must have a key on the curve P-256.")
        if not right:
            raise BadRequest("The request is not signed by its own key.")
        return self._leaf(key, Holder(host), now)

    def renew(self, now: float) -> bool:
        """Renew the pool's own certificate if that is due. Returns whether it was.

        To be called once an hour or so.
        """
        self._tidy(now)
        own = self._folder / _OWN
        if own.exists():
            shown = x509.load_pem_x509_certificates(own.read_bytes())[0]
            if self.is_current(shown.public_bytes(serialization.Encoding.DER), now):
                return False
        key = new_key()
        replace_private(own, key_pem(key) + self._leaf(key.public_key(), POOL, now).encode())
        self._joins = self._calls = None
        return True

    def is_current(self, certificate: bytes, now: float) -> bool:
        """Whether a certificate (DER) is by the authority that signs, and not due."""
        shown = x509.load_der_x509_certificate(certificate)
        return shown.issuer == self._signer.certificate.subject and not _is_due(shown, now)

    def rotate(self, now: float) -> None:
        """Let a new authority sign from now on; hosts come to know it with their renewal.

        Raises :class:`BadRequest` while there are two already.
        """
        self._tidy(now)
        old = self._signer
        if old.before is not None:
            raise BadRequest(
                "The last rotation is not over: hosts that were away since then still need the "
                "old authority, for 30 days at most."
            )
        new = _new_signer(self.pool, now)
        crossed = _sign_authority(new.key, new.certificate.subject, old.key, old.certificate, now)
        self._signer = _Signer(new.key, new.certificate, crossed, old.certificate)
        self._keep()
        self.renew(now)

    def _tidy(self, now: float) -> None:
        """Forget the authority before this one when all that it signed has expired."""
        signer = self._signer
        begun = signer.certificate.not_valid_before_utc.timestamp() + _EARLIER
        if signer.before is not None and now >= begun + LASTS:
            self._signer = _Signer(signer.key, signer.certificate)
            self._keep()

    def _leaf(self, key: ec.EllipticCurvePublicKey, holder: Holder, now: float) -> str:
        signer = self._signer
        usages = [ExtendedKeyUsageOID.SERVER_AUTH]
        if holder.is_pool:
            usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
        leaf = (
            _builder(_name(holder.host or self.pool), signer.certificate.subject, key, now, LASTS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(holder.uri)]),
                critical=True,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()),
                critical=False,
            )
            .sign(signer.key, hashes.SHA256())
        )
        return _pem((leaf, signer.crossed) if signer.crossed is not None else (leaf,))

    def _keep(self) -> None:
        signer = self._signer
        told = (signer.certificate, signer.crossed, signer.before)
        text = key_pem(signer.key) + _pem(one for one in told if one is not None).encode()
        replace_private(self._folder / _AUTHORITY, text)
        self._joins = self._calls = None


def exists(folder: Path) -> bool:
    """Whether there is a pool in this directory."""
    return (folder / _AUTHORITY).exists()


def new_key() -> ec.EllipticCurvePrivateKey:
    """A new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as it stands in a file."""
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _is_due(shown: x509.Certificate, now: float) -> bool:
    """Whether two thirds of a certificate's time are over."""
    begun, ends = shown.not_valid_before_utc.timestamp(), shown.not_valid_after_utc.timestamp()
    return now >= begun + (ends - begun) * RENEWED_AT


def _read_signer(file: Path) -> _Signer:
    """Raises :class:`NoAuthority`."""
    try:
        text = file.read_bytes()
        key = serialization.load_pem_private_key(text, None)
        first, *rest = x509.load_pem_x509_certificates(text)
    except (OSError, ValueError, TypeError) as error:
        raise NoAuthority(f"The authority in {file} cannot be used: {error}.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise NoAuthority(f"The authority in {file} has a key of another kind.")
    return _Signer(key, first, *rest[:2])


def _new_signer(pool: str, now: float) -> _Signer:
    key = new_key()
    # Two authorities of one pool must not have the same name: chains are found by it.
    subject = _name(f"{pool} {x509.random_serial_number():x}"[:64])
    return _Signer(key, _sign_authority(key, subject, key, None, now))


def _sign_authority(
    key: ec.EllipticCurvePrivateKey,
    subject: x509.Name,
    by: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    now: float,
) -> x509.Certificate:
    """An authority's certificate, by itself or by the one before it."""
    # The one before vouches only until the last certificate that it has signed itself has expired.
    lasts = _AUTHORITY_LASTS if issuer is None else LASTS + DAY
    told = subject if issuer is None else issuer.subject
    return (
        _builder(subject, told, key.public_key(), now, lasts)
        .add_extension(
            x509.BasicConstraints(ca=True, path_length=1 if issuer is None else 0), critical=True
        )
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False
        )
        .sign(by, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: float, lasts: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now - _EARLIER))
        .not_valid_after(_time(now + lasts))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _pem(certificates: Iterable[x509.Certificate]) -> str:
    form = serialization.Encoding.PEM
    return "".join(one.public_bytes(form).decode() for one in certificates)


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
