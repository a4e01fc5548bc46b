"""Whom JupyterHub vouched for lately, in a file beside the ledger.

While the Hub is away a node manager lets in those of whose tokens it said yes a short while ago,
also one that was started meanwhile. Times are boot times: after a boot nobody is remembered.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from . import privatefile
from .identity import Principal

#: People in the file at most; those whose yes is oldest are forgotten first.
MOST: Final = 2_000
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

    ``path``: the file; ``None``: only as long as this process lives. ``made_for`` names what else
    must be the same for the file to count: the boot, the Hub, and whom it is asked about. ``key``
    is secret, so that the file tells nobody whether a token is in it.
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
        self._told = ""
        self._is_there = False
        self._known: dict[str, Vouched] = {}
        self._writes = asyncio.Lock()
        self._write_at = 0.0
        self._due: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        if path is not None:
            self._read(path)

    def name_of(self, token: str) -> str:
        """What a token is called here; it cannot be had back from that."""
        return hmac.digest(self._key, token.encode("ascii"), "sha256").hex()

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def keep(self, name: str, uid: int, at: float, who: Principal) -> None:
        """The Hub said yes at ``at``; ``uid`` showed the token."""
        before = self._known.get(name)
        uids = before.uids if before is not None else ()
        if uid not in uids:
            uids = (*uids, uid)[-MOST_USERS:]
        vouched = Vouched(who.environment, who.groups, who.all_servers, uids, at)
        if vouched == before:
            return
        if before is None or at - before.at >= NEWER * self._away or uids != before.uids:
            self._soon()
        self._known[name] = vouched

    def recall(self, name: str, uid: int) -> Principal | None:
        """Whose the token is, as long as the Hub's yes is good. Never an administrator."""
        self._notice()
        known = self._known.get(name)
        if known is None or uid not in known.uids or self._now() >= known.at + self._away:
            return None
        return Principal(known.environment, known.groups, False, known.all_servers)

    async def erase(self, name: str) -> None:
        """The Hub said no: it is forgotten when this returns, over a restart as well."""
        if self._known.pop(name, None) is not None:
            await self._write()

    def close(self) -> None:
        """Write what is not yet written."""
        if self._due is not None and not self._writes.locked():
            self._due.cancel()
            self._put(self._document())

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
            await asyncio.to_thread(self._put, self._document())

    def _document(self) -> dict[str, Any]:
        self._notice()
        since = self._now() - self._away
        good = sorted(
            ((name, known) for name, known in self._known.items() if known.at > since),
            key=lambda entry: entry[1].at,
        )
        self._known = dict(good[-MOST:])
        people = {name: asdict(known) for name, known in self._known.items()}
        return {"version": _VERSION, "made_for": self._made_for, "people": people}

    def _put(self, document: dict[str, Any]) -> None:
        if self._path is None:
            return
        try:
            privatefile.write(self._path, document)
            self._is_there = True
            self._told = ""
        except OSError as error:
            # Rather nobody than somebody to whom the Hub says no.
            self._is_there = False
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._tell(f"Whom JupyterHub vouched for could not be kept: {error}.")

    def _notice(self) -> None:
        """Whoever removes the file wants everybody forgotten."""
        if self._is_there and self._path is not None and not self._path.exists():
            self._is_there = False
            self._known.clear()
            self._log.warning("Whom JupyterHub vouched for is forgotten: %s is gone.", self._path)

    def _read(self, path: Path) -> None:
        try:
            document, _ = privatefile.read(path)
            if not isinstance(document, dict) or document.get("version") != _VERSION:
                raise ValueError("another release wrote it")
            if document["made_for"] == self._made_for:
                self._known = {name: _vouched(it) for name, it in document["people"].items()}
                self._is_there = True
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self._tell(f"{path} is not used: {error}.")

    def _tell(self, sentence: str) -> None:
        if sentence != self._told:
            self._told = sentence
            self._log.error("%s", sentence)


def _vouched(told: dict[str, Any]) -> Vouched:
    return Vouched(
        str(told["environment"]),
        tuple(map(str, told["groups"])),
        told["all_servers"] is True,
        tuple(map(int, told["uids"])),
        float(told["at"]),
    )
