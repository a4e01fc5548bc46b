"""TLS between the hosts of a pool: what each end asks of the other. The standard library only.

There is TLS 1.3 or nothing. Only authorities of the pool count, none of the system's. A certificate
names its holder by a URI: the pool, or one host of it. Nobody resumes a session: every connection
shows its certificate anew.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

#: The port of a node manager for its pool, and the pool's for hosts that join.
HOST_PORT: Final = 10205
JOIN_PORT: Final = 10206
#: A host's name in its pool.
HOST_NAME: Final = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_SCHEME: Final = "gpushare:"


class NotOfThePool(Exception):
    """The other end is not who it must be; the text says why."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose a certificate is: a host's by its name, or the pool's (without one)."""

    host: str | None = None

    @property
    def is_pool(self) -> bool:
        return self.host is None

    @property
    def uri(self) -> str:
        """As it stands in the certificate."""
        return f"{_SCHEME}pool" if self.host is None else f"{_SCHEME}host:{self.host}"

    def __str__(self) -> str:
        return "the pool" if self.host is None else f"the host {self.host}"


POOL: Final = Holder()


def named(uri: str) -> Holder | None:
    """The holder that a URI names; ``None`` for others."""
    if uri == POOL.uri:
        return POOL
    host = uri.removeprefix(f"{_SCHEME}host:")
    return Holder(host) if host != uri and is_host_name(host) else None


def is_host_name(name: str) -> bool:
    """Whether a host of a pool may be named so."""
    return re.fullmatch(HOST_NAME, name) is not None


def holder_of(wire: ssl.SSLObject | ssl.SSLSocket) -> Holder | None:
    """The holder of the other end's certificate; ``None`` if that end has shown none.

    Raises :class:`NotOfThePool` for a certificate that names nobody, or several.
    """
    shown: Mapping[str, Any] | None = wire.getpeercert()
    if not shown:
        return None
    names = [value for kind, value in shown.get("subjectAltName", ()) if kind == "URI"]
    holder = named(str(names[0])) if len(names) == 1 else None
    if holder is None:
        raise NotOfThePool("The certificate names neither the pool nor one host of it.")
    return holder


def until(wire: ssl.SSLObject | ssl.SSLSocket) -> float | None:
    """Until when the other end's certificate is valid, in wall seconds."""
    shown = wire.getpeercert()
    end = shown.get("notAfter") if shown else None
    return ssl.cert_time_to_seconds(end) if isinstance(end, str) else None


def server_context(own: str, authorities: str | None) -> ssl.SSLContext:
    """For those that listen. ``own``: a file with a key and its certificates.

    ``authorities`` (PEM) have signed the certificates that callers may show; ``None``: callers are
    not asked for one. Whether a caller must have shown one is for the code that reads its words.
    Raises :class:`OSError`.
    """
    context = _plain(ssl.PROTOCOL_TLS_SERVER, authorities)
    context.load_cert_chain(own)
    context.verify_mode = ssl.CERT_NONE if authorities is None else ssl.CERT_OPTIONAL
    # A ticket would let a client resume later without showing its certificate.
    context.num_tickets = 0
    return context


def client_context(authorities: str, own: str | None = None) -> ssl.SSLContext:
    """For those that call. The name of the other end is compared by :func:`expect`.

    Raises :class:`OSError`.
    """
    context = _plain(ssl.PROTOCOL_TLS_CLIENT, authorities)
    # Hosts are known by the names that they joined by, whatever their addresses are.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if own is not None:
        context.load_cert_chain(own)
    return context


def expect(wire: ssl.SSLObject | ssl.SSLSocket, holder: Holder) -> None:
    """Raises :class:`NotOfThePool` if another is at the other end."""
    there = holder_of(wire)
    if there != holder:
        who = "nobody of the pool" if there is None else str(there)
        raise NotOfThePool(f"{who[0].upper()}{who[1:]} answers there instead of {holder}.")


#: The other end's alerts that people can do something about, by the end of their names.
_ALERTS: Final = {
    "UNKNOWN_CA": "it knows another pool; let it join this one",
    "CERTIFICATE_EXPIRED": "it says that the pool's certificate has expired; compare the clocks",
    "BAD_CERTIFICATE": "it does not take the pool's certificate; compare the clocks",
}


def in_words(error: OSError | TimeoutError | NotOfThePool) -> str:
    """Why there is no connection, for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why: str = error.verify_message
        return f"its certificate does not count: {why}; let it join the pool again"
    if isinstance(error, ssl.SSLError):
        name = error.reason or ""
        return next((said for end, said in _ALERTS.items() if name.endswith(end)), str(error))
    return getattr(error, "strerror", None) or str(error) or "no answer"


def _plain(kind: int, authorities: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if authorities is not None:
        context.load_verify_locations(cadata=authorities)
    return context
