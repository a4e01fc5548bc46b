"""Remembers in a file beside the ledger whose tokens JupyterHub confirmed lately.

While the Hub is away the node manager accepts tokens that the Hub confirmed a short while ago, also
if the node manager was restarted meanwhile. Times are boot times: a boot forgets all.

To forget everybody, change the mark beside the file (`forget`). Entries made under another mark do
not count, whether they are in the file or in a running node manager that may still write it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from ...daemon import privatefile
from ...daemon.fairness import RoundRobin
from ...daemon.troubles import Trouble
from ...protocol.privateplace import replace_private
from .identity import Principal

#: Tokens in the file at most, in turn of those whose they are, and of one environment's; those
#: whose yes is oldest are forgotten first.
MOST: Final = 2_000
MOST_OF_ONE: Final = 16
#: OS users, at most, that may show one token: a server's, and the Hub's pages'.
MOST_USERS: Final = 4
#: Seconds between two writes of what is new; what is erased is written at once.
WRITE_EACH: Final = 10.0
#: A yes that is newer by this share of the time that it is good for is written.
NEWER: Final = 0.1
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Vouched:
    """The Hub's last yes to a token, and which OS users have shown it since. No administrators."""

    environment: str
    groups: tuple[str, ...]
    all_servers: bool
    uids: tuple[int, ...]
    at: float


class HubMemory:
    """Remembers for ``away`` seconds from the Hub's yes; ``now`` gives seconds since boot.

    Without a ``path`` it lasts as long as this process. The file counts only if
    ``made_for`` is the same: the boot, the Hub, and the settings that its answers depend on.
    ``key`` is secret, so that the file does not show whether a token is in it.
    """

    def __init__(
        self,
        away: float,
        *,
        now: Callable[[], float],
        key: bytes,
        path: Path | None = None,
        made_for: str = "",
        log: logging.Logger | None = None,
    ) -> None:
        self._away = away
        self._now = now
        self._key = hmac.digest(key, b"tokens that JupyterHub vouched for", "sha256")
        self._path = path
        self._made_for = made_for
        self._log = log or logging.getLogger(__name__)
        self._trouble = Trouble(self._log, now, "Whom JupyterHub vouched for is kept again")
        self._is_there = False
        self._known: dict[str, Vouched] = {}
        self._mark = ""
        # How many changes there were that must be written, and how many of them are.
        self._changes = self._written = 0
        self._writes = asyncio.Lock()
        # A thread may still write when the loop no longer waits for it.
        self._disk = threading.Lock()
        self._write_at = 0.0
        self._due: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        if path is not None:
            self._mark = _mark_of(path)
            self._read(path)

    def name_of(self, token: str) -> str:
        """The name of a token here; the token cannot be computed from it."""
        return hmac.digest(self._key, token.encode("ascii"), "sha256").hex()

    def environment(self, name: str) -> str | None:
        """The environment of the token, if that is known."""
        known = self._known.get(name)
        return None if known is None else known.environment

    def keep(self, name: str, uid: int, at: float, who: Principal) -> None:
        """The Hub said yes at ``at``; ``uid`` showed the token."""
        before = self._known.get(name)
        uids = before.uids if before is not None else ()
        if uid not in uids:
            uids = (*uids, uid)[-MOST_USERS:]
        vouched = Vouched(who.environment, who.groups, who.all_servers, uids, at)
        if vouched == before:
            return
        # Each look of each connection renews the yes: a write for each would keep the disk busy.
        if before is None or at - before.at >= NEWER * self._away or uids != before.uids:
            self._changes += 1
            self._soon()
        self._known[name] = vouched

    def recall(self, name: str, uid: int) -> Principal | None:
        """The owner of the token while the Hub's confirmation counts. Never an administrator."""
        self._notice()
        known = self._known.get(name)
        # Another user who got hold of the token is not let in by it while the Hub cannot be asked.
        if known is None or uid not in known.uids or self._now() >= known.at + self._away:
            return None
        return Principal(known.environment, known.groups, False, known.all_servers)

    async def erase(self, name: str) -> None:
        """The Hub said no: it is forgotten when this returns, over a restart as well."""
        # Here it counts no more at once; the wait is only for the file, which a restart would
        # believe.
        if self._known.pop(name, None) is not None:
            self._changes += 1
            await self._write()

    def close(self) -> None:
        """Write what is not yet written; a no whose write was cut short too."""
        if self._due is not None:
            self._due.cancel()
        with self._disk:
            is_written = self._written == self._changes
        if not is_written:
            self._put(self._changes, self._document())

    # -- the file --------------------------------------------------------------------------------

    def _soon(self) -> None:
        if self._path is None or self._due is not None:
            return
        loop = asyncio.get_running_loop()
        self._due = loop.call_later(max(0.0, self._write_at - self._now()), self._begin)

    def _begin(self) -> None:
        self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        async with self._writes:
            self._due = None
            self._write_at = self._now() + WRITE_EACH
            # A copy: more may come while a slow disk writes.
            await asyncio.to_thread(self._put, self._changes, self._document())

    def _document(self) -> dict[str, Any]:
        self._notice()
        since = self._now() - self._away
        self._known = fair_part({n: known for n, known in self._known.items() if known.at > since})
        people = {name: asdict(known) for name, known in self._known.items()}
        return {
            "version": _VERSION,
            "made_for": self._made_for,
            "mark": self._mark,
            "people": people,
        }

    def _put(self, changes: int, document: dict[str, Any]) -> None:
        """Write the document as of this many ``changes``; of two threads' the newer stays."""
        if self._path is None:
            return
        with self._disk:
            # An older copy must not bring back a token that was refused meanwhile.
            if changes < self._written:
                return
            try:
                privatefile.write(self._path, document)
                if document["mark"] != _mark_of(self._path):
                    self._path.unlink(missing_ok=True)  # forgotten meanwhile: it counts no more
                self._is_there = True
                self._trouble.is_over()
                self._written = changes
            except OSError as error:
                # It is safer to forget all than to accept a token that the Hub refuses.
                self._is_there = False
                with contextlib.suppress(OSError):
                    self._path.unlink(missing_ok=True)
                self._trouble.came(f"Whom JupyterHub vouched for could not be kept: {error}.")

    def _notice(self) -> None:
        """Forget everybody if the mark was changed or the file removed."""
        if self._path is None:
            return
        mark = _mark_of(self._path)
        if mark != self._mark or (self._is_there and not self._path.exists()):
            self._mark = mark
            self._is_there = False
            self._known.clear()
            self._changes += 1
            self._log.warning("Whom JupyterHub vouched for is forgotten, as somebody asked.")

    def _read(self, path: Path) -> None:
        try:
            document, _ = privatefile.read(path)
            if not isinstance(document, dict) or document.get("version") != _VERSION:
                raise ValueError("another release wrote it")
            if document["made_for"] == self._made_for and document.get("mark", "") == self._mark:
                self._known = msgspec.convert(document["people"], dict[str, Vouched])
                self._is_there = True
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self._trouble.came(f"{path} is not used: {error}.")


def forget(path: Path) -> None:
    """Forget everybody in ``path``; a running node manager forgets them, too.

    The mark stays: without it a node manager that is just writing would bring them back. The mark
    is an empty file, because that fits on a full disk. Raises :class:`OSError`.
    """
    replace_private(_mark_file(path), b"")
    path.unlink(missing_ok=True)
    privatefile.settle(path.parent)


def _mark_file(path: Path) -> Path:
    return path.with_suffix(".forgotten")


def _mark_of(path: Path) -> str:
    """The mark's identity. We need not be allowed to read it: root may have made it."""
    try:
        there = os.lstat(_mark_file(path))
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"not known: {error.strerror}"
    return f"{there.st_ino} {there.st_mtime_ns}"


def fair_part(known: dict[str, Vouched]) -> dict[str, Vouched]:
    """The newest of each environment, as far as there is room, in turn of people. Pure."""
    turns: RoundRobin[tuple[str, Vouched]] = RoundRobin()
    count: Counter[str] = Counter()
    for name, one in sorted(known.items(), key=lambda entry: entry[1].at, reverse=True):
        count[one.environment] += 1
        if count[one.environment] <= MOST_OF_ONE:
            # A named server is its owner's, who may have any number.
            turns.put(one.environment.partition("/")[0], (name, one))
    return dict(turns.take(MOST, MOST))
