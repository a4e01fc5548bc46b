"""Talks to systemd: takes the socket that it opened, reports readiness, answers its watchdog.

It also finds the service's credentials. Without systemd, or without its environment variables,
these functions do nothing. The variables are meant for this process only, so they are taken out of
the environment: a child of ours must not listen on our socket or speak for our service.

The formats are systemd's stable interface: sd_listen_fds(3), sd_notify(3), systemd.exec(5).
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FIRST_FD: Final = 3
# Far more than any service gets; a larger number is a mistake, not a list of descriptors.
_MOST_FDS: Final = 4096
_LISTEN: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")
_NOTIFY: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

_STATUS_EVERY: Final = 5.0  # seconds
# Seconds for which a message that is said once may wait for a busy systemd.
_PATIENCE: Final = 1.0


class InheritedSocketWrong(Exception):
    """systemd did not hand over exactly one usable socket; the text says what to change."""


# -- the socket ---------------------------------------------------------------------------


def handed(environ: Mapping[str, str], pid: int) -> list[str]:
    """The names (``FileDescriptorName=``) of the descriptors handed to the process ``pid``.

    They begin with :data:`FIRST_FD`. There are none if they are for another process.

    Raises :class:`InheritedSocketWrong` when the variables are ours and make no sense.
    """
    if _number(environ.get("LISTEN_PID", "")) != pid:
        return []
    count = _number(environ.get("LISTEN_FDS", ""))
    if count is None or count > _MOST_FDS:
        raise InheritedSocketWrong(
            f"LISTEN_FDS is {environ.get('LISTEN_FDS', '')!r}, and not the number of sockets that "
            "were handed over. Start the node manager from its socket unit."
        )
    names = environ["LISTEN_FDNAMES"].split(":") if environ.get("LISTEN_FDNAMES") else []
    return [*names, *("unknown" for _ in range(count))][:count]


def take_socket(environ: MutableMapping[str, str], pid: int) -> socket.socket | None:
    """The listening socket that systemd handed to us, ``None`` when there is none.

    Takes the variables out of ``environ``, also if they were for another process. Raises
    :class:`InheritedSocketWrong` unless it is exactly one Unix stream socket that listens at a
    path.
    """
    try:
        names = handed(environ, pid)
    finally:
        for name in _LISTEN:
            environ.pop(name, None)
    if not names:
        return None
    try:
        for fd in range(FIRST_FD, FIRST_FD + len(names)):
            # They came through exec; the processes that we start must not get them.
            flags = fcntl.fcntl(fd, fcntl.F_GETFD)
            fcntl.fcntl(fd, fcntl.F_SETFD, flags | fcntl.FD_CLOEXEC)
        first = os.fstat(FIRST_FD)
    except OSError as error:
        raise InheritedSocketWrong(
            f"LISTEN_FDS promises {len(names)} sockets that are not all there: "
            f"{error.strerror}. Start the node manager from its socket unit."
        ) from error
    if len(names) != 1:
        raise InheritedSocketWrong(
            f"{len(names)} sockets were handed over ({', '.join(names)}). The node "
            "manager listens on one: leave one ListenStream= in one socket unit."
        )
    if not stat.S_ISSOCK(first.st_mode):
        raise InheritedSocketWrong(
            f"What was handed over as {names[0]!r} is no socket: use ListenStream= with a path."
        )
    sock = socket.socket(fileno=FIRST_FD)
    try:
        _check(sock, names[0])
    except BaseException:
        sock.close()
        raise
    return sock


def _check(sock: socket.socket, name: str) -> None:
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM:
        wrong = "is no Unix stream socket: use ListenStream= with a path"
    elif not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        wrong = "does not listen: the socket unit needs Accept=no"
    elif not isinstance(sock.getsockname(), str) or not sock.getsockname().startswith("/"):
        # Without a file there are no permissions that say who may connect, and no client finds it.
        wrong = "has no path: use ListenStream= with one, such as /run/jupyter-gpushare/node.sock"
    else:
        return
    raise InheritedSocketWrong(f"The socket that was handed over as {name!r} {wrong}.")


# -- the ear ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ear:
    """The address at which systemd listens.

    ``watchdog``: seconds of silence that it takes for a hang.
    """

    address: str | None = None
    watchdog: float | None = None


def take_ear(environ: MutableMapping[str, str], pid: int) -> Ear:
    """Read the variables and take them out of ``environ``. Nonsense counts as unset."""
    said = {name: environ.pop(name, "") for name in _NOTIFY}
    address = said["NOTIFY_SOCKET"]
    if address[:1] not in ("/", "@") or len(address) < 2:
        return Ear()
    usec = _number(said["WATCHDOG_USEC"])
    for_us = not said["WATCHDOG_PID"] or _number(said["WATCHDOG_PID"]) == pid
    return Ear(address, usec / 1e6 if usec and for_us else None)


class Notifier:
    """Tells systemd how the service is.

    Never raises and hardly ever waits; a failure is logged once.

    Without an ``ear`` its methods do nothing.
    """

    def __init__(self, ear: Ear, log: logging.Logger | None = None) -> None:
        self.ear = ear
        self._log = log or logging.getLogger(__name__)
        self._is_deaf = False

    def ready(self) -> None:
        """Clients are served (again)."""
        self._say("READY=1", patience=_PATIENCE)

    def reloading(self, monotonic: float) -> None:
        """Settings are read again, until :meth:`ready`. ``monotonic``: CLOCK_MONOTONIC seconds."""
        self._say(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic * 1e6)}", patience=_PATIENCE)

    def stopping(self) -> None:
        """The service ends because it wants to."""
        self._say("STOPPING=1", patience=_PATIENCE)

    def status(self, text: str, *, alive: bool = False) -> None:
        """One line for ``systemctl status``, and if ``alive`` a sign of life for the watchdog."""
        line = "STATUS=" + " ".join(text.split())
        # Without waiting: the next beat says it again, and the loop has other work.
        self._say(f"WATCHDOG=1\n{line}" if alive else line)

    def _say(self, message: str, patience: float = 0.0) -> None:
        if self.ear.address is None:
            return
        address = self.ear.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as wire:
                wire.settimeout(patience)
                # An abstract address is written with @ and has a NUL there.
                wire.connect("\0" + address[1:] if address[0] == "@" else address)
                wire.sendall(message.encode("utf-8", "replace"))
        except (OSError, ValueError) as error:
            if not self._is_deaf:
                self._log.warning("systemd cannot be told %s: %s", message.split("\n")[0], error)
            self._is_deaf = True
        else:
            self._is_deaf = False


async def keep_telling(notifier: Notifier, look: Callable[[], Awaitable[str]]) -> None:
    """Tell systemd again and again how the service is, until it is cancelled.

    ``look`` gives one line, and returns only if the service really answers. If it does not, systemd
    is told nothing and its watchdog acts.
    """
    watchdog = notifier.ear.watchdog
    # Half of its patience, so that one late beat does not end the service.
    beat = _STATUS_EVERY if watchdog is None else min(_STATUS_EVERY, watchdog / 2)
    while notifier.ear.address is not None:
        notifier.status(await look(), alive=watchdog is not None)
        await asyncio.sleep(beat)


# -- credentials --------------------------------------------------------------------------


def credential(environ: Mapping[str, str], name: str) -> Path | None:
    """The file of the credential ``name`` (``LoadCredential=``), ``None`` when there is none."""
    folder = environ.get("CREDENTIALS_DIRECTORY", "")
    path = Path(folder, name)
    return path if folder and path.is_file() else None


def read_secret(path: Path, environ: Mapping[str, str]) -> str:
    """A secret's text, from a file that only we may read.

    Raises :class:`ValueError` when others may, :class:`OSError` when we may not.
    """
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        folder = environ.get("CREDENTIALS_DIRECTORY", "")
        # systemd lets our user in by an access list, which shows as the group's right to read.
        others = 0o037 if folder and path.parent == Path(folder) else 0o077
        if mode & others:
            raise ValueError(f"{path} can be read by others: run `chmod 600 {path}`.")
        return file.read().decode("utf-8").strip()


def _number(text: str) -> int | None:
    """A plain decimal number, as systemd writes them."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
