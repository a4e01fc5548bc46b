"""What a host has of its pool: a directory with its certificate, and how that is renewed.

``pool.json`` says which pool it is and by what name the host is known there, ``ca.pem`` whom it
trusts, ``host.pem`` has its key and certificate: one file, so that a crash leaves no key without
the certificate. Only the node manager's user may read the directory.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..protocol import secured
from ..protocol.privateplace import replace_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

#: Its name, beside the ledger.
POOL_DIRECTORY: Final = "pool"
_ABOUT, _TRUSTED, _OWN = "pool.json", "ca.pem", "host.pem"
#: From where the pool came, so that it is let in after a restart, whoever else knocks.
_SEEN: Final = "seen.json"
#: What the pool's extra installs; a host of no pool does not need it.
MISSING: Final = (
    "A host of a pool needs the package cryptography: install jupyter_gpushare[pool] where the "
    "node manager is."
)


class BadMembership(Exception):
    """The directory of the pool cannot be used, or what the pool has signed; the text says why."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A new key, and the request for its certificate."""

    key: EllipticCurvePrivateKey
    csr: str


def ask() -> Asked:
    """A new key and its request, PEM. The pool knows the host's name. Raises `BadMembership`."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise BadMembership(MISSING) from None
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    signed = request.sign(key, hashes.SHA256())
    return Asked(key, signed.public_bytes(serialization.Encoding.PEM).decode())


class Membership:
    """A host's place in its pool. Not thread-safe; files are small, and rarely written."""

    def __init__(self, folder: Path, pool: str, name: str) -> None:
        self.pool: Final = pool
        self.name: Final = name
        self._folder = folder
        self._context: ssl.SSLContext | None = None
        self._asked: Asked | None = None

    @classmethod
    def open(cls, folder: Path) -> Membership | None:
        """The membership in a directory, or ``None`` if the host has not joined a pool.

        Raises :class:`BadMembership`.
        """
        try:
            about = json.loads((folder / _ABOUT).read_bytes())
            membership = cls(folder, str(about["pool"]), str(about["name"]))
            membership.context()
        except FileNotFoundError as error:
            if not (folder / _ABOUT).exists():
                return None
            raise BadMembership(
                f"{folder} has no {_OWN} or no {_TRUSTED}: join the pool again."
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadMembership(f"The pool's files in {folder} cannot be used: {error}.") from error
        return membership

    @classmethod
    def keep(cls, folder: Path, asked: Asked, told: Mapping[str, Any]) -> Membership:
        """Write down what the pool said at joining.

        Raises :class:`BadMembership`, :class:`OSError`.
        """
        folder.mkdir(mode=0o700, exist_ok=True)
        os.chmod(folder, 0o700)
        membership = cls(folder, str(told["pool"]), str(told["name"]))
        membership._asked = asked
        # ``pool.json`` is written last: without it the host has not joined, and may try again.
        membership.renew(str(told["certificates"]), str(told["authorities"]))
        about = {name: str(told[name]) for name in ("pool", "name", "address")}
        replace_private(folder / _ABOUT, json.dumps(about).encode())
        return membership

    def seen(self) -> tuple[str, ...]:
        """From where the pool came, the newest last."""
        try:
            return tuple(map(str, json.loads((self._folder / _SEEN).read_bytes())))
        except (OSError, ValueError, TypeError):
            return ()

    def keep_seen(self, places: Iterable[str]) -> None:
        """From where the pool came. Raises :class:`OSError`."""
        replace_private(self._folder / _SEEN, json.dumps([*places]).encode())

    def context(self) -> ssl.SSLContext:
        """For those who call. Raises :class:`OSError`."""
        if self._context is None:
            trusted = (self._folder / _TRUSTED).read_text()
            self._context = secured.server_context(str(self._folder / _OWN), trusted)
        return self._context

    def valid(self) -> tuple[float, float]:
        """The times between which this host's certificate is valid, Unix seconds.

        Raises as :meth:`open` does.
        """
        leaf = self._certificates(_OWN)[0]
        return leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp()

    def is_vouched_for(self) -> bool:
        """Whether one of the pool's authorities has signed it. Raises as :meth:`open` does."""
        leaf, trusted = self._certificates(_OWN)[0], self._certificates(_TRUSTED)
        from cryptography.exceptions import InvalidSignature

        return any(_has_signed(one, leaf, InvalidSignature) for one in trusted)

    def open_to_others(self) -> list[Path]:
        """What others than its owner may read or write. Raises :class:`OSError`."""
        places = (self._folder, self._folder / _OWN)
        return [one for one in places if one.stat().st_mode & 0o077]

    def _certificates(self, name: str) -> list[Any]:
        try:
            from cryptography import x509
        except ImportError:
            raise BadMembership(MISSING) from None
        try:
            return x509.load_pem_x509_certificates((self._folder / name).read_bytes())
        except ValueError as error:
            raise BadMembership(f"{self._folder / name} has no certificate: {error}.") from error

    def request(self) -> str:
        """A request for the next certificate, PEM. Raises :class:`BadMembership`."""
        self._asked = ask()
        return self._asked.csr

    def renew(self, certificates: str, authorities: str) -> None:
        """Take what the pool has signed; connections from now on see it.

        Raises :class:`BadMembership` where it does not belong to the last request, to this host, or
        to these authorities; :class:`OSError`.
        """
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import serialization

        asked = self._asked
        if asked is None:
            raise BadMembership("This host has asked for no certificate.")
        try:
            leaf = x509.load_pem_x509_certificates(certificates.encode())[0]
            trusted = x509.load_pem_x509_certificates(authorities.encode())
            names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            told = names.get_values_for_type(x509.UniformResourceIdentifier)
        except (ValueError, x509.ExtensionNotFound) as error:
            raise BadMembership(f"The pool's certificates cannot be read: {error}.") from error
        if leaf.public_key() != asked.key.public_key():
            raise BadMembership("The certificate belongs to another key than this host's.")
        if told != [secured.Holder(self.name).uri]:
            raise BadMembership(f"The certificate is not for the host {self.name}.")
        if not any(_has_signed(one, leaf, InvalidSignature) for one in trusted):
            raise BadMembership("The certificate is not by one of the pool's authorities.")
        key = asked.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        # The new authorities first: they have those that count now among them.
        replace_private(self._folder / _TRUSTED, authorities.encode())
        replace_private(self._folder / _OWN, key + certificates.encode())
        self._asked = self._context = None


def _has_signed(authority: Any, leaf: Any, wrong: type[Exception]) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, wrong):
        return False
    return True
