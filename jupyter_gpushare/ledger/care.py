"""Administrators' work on a ledger in use: copy it, check all of it, make its file smaller.

Copies and checks take seconds. They run one after the other on a thread and a connection of their
own, so that neither grants nor other readings wait for them.
"""

from __future__ import annotations

import base64
import os
from dataclasses import asdict
from typing import Any, Final

from .ledger import Ledger, LedgerFailed
from .reads import LedgerReads

#: Bytes of a copy that are told at once: the loop encodes them in a millisecond.
_PART: Final = 128 * 1024


class LedgerCare:
    """All methods belong to one event loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._reads = LedgerReads(ledger)
        #: By connection, the copy that it reads.
        self._copies: dict[int, int] = {}

    async def part(self, conn: int, offset: int) -> dict[str, Any]:
        """Bytes of a copy from ``offset`` on; 0 makes a new one for this connection.

        Raises :class:`LedgerError` and :class:`OSError`.
        """
        if offset == 0:
            draft = self._ledger.place.with_name(f"{self._ledger.place.name}.backup")
            made = await self._reads.ask("", lambda reads: reads.copy(draft))
            self.forget(conn)
            self._copies[conn] = made
        copy = self._copies.get(conn)
        if copy is None:
            raise LedgerFailed("There is no copy to go on with: begin at offset 0.")
        size = os.fstat(copy).st_size
        data = os.pread(copy, _PART, offset)
        if offset + len(data) >= size:
            self.forget(conn)
        return {"bytes": size, "data": base64.b64encode(data).decode("ascii")}

    async def check(self) -> dict[str, Any]:
        """The result of a check of the whole ledger."""
        health = await self._reads.ask("", lambda reads: reads.check())
        return {"path": str(self._ledger.path), **asdict(health)}

    async def shares(self) -> tuple[dict[str | None, int], list[str]]:
        """Bytes of each environment in the ledger; see :meth:`Reads.shares`."""
        return await self._reads.ask("", lambda reads: reads.shares())

    def forget(self, conn: int) -> None:
        """This connection reads no copy any more."""
        copy = self._copies.pop(conn, None)
        if copy is not None:
            os.close(copy)

    async def close(self) -> None:
        """Copy and look no more."""
        await self._reads.close()
        for conn in tuple(self._copies):
            self.forget(conn)
