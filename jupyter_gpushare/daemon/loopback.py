"""Whose a TCP connection from this host is: the kernel knows the user who made its socket.

Any user of a host can connect from each of millions of loopback addresses, so these say nothing.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from dataclasses import dataclass
from typing import Final

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h
_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_ANY_STATE: Final = 0xFFFFFFFF
_NO_COOKIE: Final = 0xFFFFFFFF
#: Where the user's number is in an answer, and the socket's after it, behind its head.
_HEAD, _UID_AT = 16, 64


def network_of(address: str) -> str:
    """Whose an IP address is, as far as it tells: anybody may have a whole /64 of IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


def neighbours_of(address: str) -> str:
    """The addresses that are as easily had as this one: many of a network may be one attacker's."""
    found = ipaddress.ip_address(network_of(address).partition("/")[0])
    return str(ipaddress.ip_network((found, 24 if found.version == 4 else 48), strict=False))


def is_loopback(address: str) -> bool:
    """Whether an IP address is one of this host's own alone."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)


def maker_of(family: int, there: tuple[str, int], here: tuple[str, int]) -> int | None:
    """The user id of whoever has the other end of a connection between two ends on this host.

    ``None`` if that end is gone, or the kernel does not tell.
    """
    ends = [socket.inet_pton(family, address).ljust(16, b"\0") for address, _port in (there, here)]
    which = struct.pack("!HH", there[1], here[1]) + b"".join(ends)
    which += struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
    asked = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE) + which
    head = struct.pack("=IHHII", _HEAD + len(asked), _BY_FAMILY, _REQUEST, 1, 0)
    with contextlib.suppress(OSError, struct.error):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.setblocking(False)  # it has answered when it was asked
            kernel.send(head + asked)
            answer = kernel.recv(4096)
        # Else it is the kernel's error, such as that there is no such connection.
        if struct.unpack_from("=H", answer, 4) == (_BY_FAMILY,):
            user, number = struct.unpack_from("=II", answer, _HEAD + _UID_AT)
            # One that was closed already has no number, and is said to be root's.
            return int(user) if number else None
    return None


@dataclass(frozen=True, slots=True)
class Whose:
    """Where a connection comes from: the user of this host, or the address; and its network."""

    place: str
    network: str


def whose(sock: socket.socket, peer: tuple[str, int]) -> Whose:
    """Whose a connection is, by what nobody can have many of."""
    if is_loopback(peer[0]):
        user = maker_of(sock.family, peer, sock.getsockname()[:2])
        name = "a user of this host" if user is None else f"user {user} of this host"
        return Whose(name, name)
    return Whose(network_of(peer[0]), neighbours_of(peer[0]))
