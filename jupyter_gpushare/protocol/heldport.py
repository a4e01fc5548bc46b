"""Holds a TCP address for one OS user, also while none of the user's programs listens there.

A proxy sends its visitors' cookies to any program that listens at the address of a service. So we
hold the address with a socket that is bound and never listens: with ``SO_REUSEPORT`` the kernel
lets only sockets of the same user share it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

#: The address is not of this host, so it cannot be held.
_ELSEWHERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS: Final = "0A"
_IPV6: Final = 16  # bytes of an address
_KNOCK: Final = 1.0  # seconds; on this host it takes none, unless too many knock


def hold(url: str, uid: int | None = None) -> list[socket.socket]:
    """Keep the host and port of ``url`` until the sockets are closed; for ``uid``, if given.

    None where the host is not this one. Raises :class:`OSError` where somebody else has it.
    """
    held: list[socket.socket] = []
    with contextlib.ExitStack() as unless_all:
        for family, address in _addresses(url):
            keeper = unless_all.enter_context(socket.socket(family, socket.SOCK_STREAM))
            # Before it is bound: by the socket's owner the kernel knows who may join.
            if uid is not None:
                os.fchown(keeper.fileno(), uid, -1)
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                # Else it would have the IPv4 address as well, for which there is a socket of its
                # own.
                keeper.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                keeper.bind(address)
                held.append(keeper)
            except OSError as error:
                if error.errno not in _ELSEWHERE:
                    raise
                keeper.close()
        unless_all.pop_all()
    return held


def listener(url: str) -> int | None:
    """The user id of the process that listens at ``url``'s host and port, if one does.

    While we hold the address this is our user. A socket for all IPv6 addresses may or may not get
    connections to an IPv4 address. The kernel's table does not tell, so we try to connect.
    """
    wanted = {socket.inet_pton(family, str(at[0])) for family, at in _addresses(url)}
    families = {len(at) for at in wanted}
    # The address for all stands for each address of its family.
    wide = {len(at) for at in wanted if not any(at)}
    port = urlsplit(url).port
    both = None
    for table in _TABLES:
        with contextlib.suppress(FileNotFoundError):  # no IPv6 here
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                host, _, number = fields[1].partition(":")
                if fields[3] == _LISTENS and int(number, 16) == port:
                    at, who = _packed(host), int(fields[7])
                    if at in wanted or len(at) in (wide if any(at) else families):
                        return who
                    if not any(at) and len(at) == _IPV6:
                        both = who
    return both if both is not None and _answers(url) else None


def roots_only(port: int) -> bool:
    """Whether only root can listen at ``port``."""
    with contextlib.suppress(OSError, ValueError):
        first = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text(encoding="ascii")
        return port < int(first)
    return False


def _addresses(url: str) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    where = urlsplit(url)
    with contextlib.suppress(socket.gaierror):
        found = socket.getaddrinfo(where.hostname, where.port, type=socket.SOCK_STREAM)
        return [(family, address) for family, _, _, _, address in found]
    return []


def _answers(url: str) -> bool:
    for family, address in _addresses(url):
        with socket.socket(family, socket.SOCK_STREAM) as visitor:
            visitor.settimeout(_KNOCK)
            try:
                visitor.connect(address)
            except TimeoutError:
                return True  # a free port would refuse at once
            except OSError:
                continue
            return True
    return False


def _packed(text: str) -> bytes:
    """An address of the kernel's tables: 32-bit words in hexadecimal, each in the host's order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    return packed.removeprefix(b"\0" * 10 + b"\xff\xff")  # IPv4 by way of IPv6
