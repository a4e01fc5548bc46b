"""Calls that read the ledger and the measurements for people, and those that care for it."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from typing import Any, Final

from ...daemon.clock import ahead
from ...ledger.ledger import LedgerError, LedgerFailed, Reads
from ...policy.books.state import State
from ...protocol import documents as doc
from ...protocol.calls import Call, DailyUsageParams, HistoryParams, ReadingsParams, UsageParams
from ...protocol.errors import Reason
from ...protocol.framing import Encoded
from ...protocol.messages import Method
from ..inventory.readings import Readings
from ..manager import Manager
from ..views.encoding import encoded
from ..views.history import entry, telling
from ..views.samples import Samples, taken
from .guests import Guest
from .translate import OF_LEDGER

#: Bytes of a copy that are told at once: the loop encodes them in a millisecond.
_PART: Final = 128 * 1024


class LedgerCalls:
    """Answers them. ``spawn`` runs what takes time; ``is_here`` says whether a connection lives."""

    def __init__(
        self,
        manager: Manager,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        is_here: Callable[[int], bool],
    ) -> None:
        self._manager = manager
        self._spawn = spawn
        self._is_here = is_here
        self._samples = Samples(manager.measure_interval)
        self._keeps = False
        #: By connection, the copy of the ledger that it reads.
        self._copies: dict[int, int] = {}
        manager.measured.append(self._measured)
        self.calls: Mapping[Method, Callable[[Guest, Call], None]] = {
            Method.USAGE: self.usage,
            Method.USAGE_DAILY: self.daily,
            Method.READINGS: self.readings,
            Method.HISTORY: self.history,
            **dict.fromkeys(OF_LEDGER, lambda guest, call: spawn(self._take_care(guest, call))),
        }

    def usage(self, guest: Guest, call: Call) -> None:
        """GPU-seconds held, busy and charged since some time, by environment."""
        params: UsageParams = call.params
        until = self._manager.clock.wall()
        since = until - params.since
        mine = self._visible(guest, params.environment)

        def work(ledger: Reads) -> Encoded:
            rows = [
                encoded(
                    {
                        "environment": row.environment,
                        "gpu_seconds_held": row.gpu_seconds_held,
                        "gpu_seconds_busy": row.gpu_seconds_busy,
                        "gpu_seconds_charged": row.gpu_seconds_charged,
                        "resident_gib_seconds": row.resident_gib_seconds,
                        "leases": row.leases,
                    }
                )
                for row in ledger.usage(since, until, mine)
            ]
            return encoded({"since": since, "until": until}, rows=rows)

        self._spawn(self._from_ledger(guest, call, work))

    def daily(self, guest: Guest, call: Call) -> None:
        """The same by day, of one person."""
        params: DailyUsageParams = call.params
        now = self._manager.clock.wall()
        whose = self._visible(guest, params.environment) or guest.who.environment
        gpus = len(self._manager.state.gpus)
        viewer = guest.who.viewer if params.environment is None else None
        offset = ahead(now) if params.utc_offset is None else params.utc_offset

        def of(ledger: Reads, name: str) -> doc.DaysOfServer:
            days = ledger.usage_daily(now, params.days, offset, name, gpus)
            return {"environment": name, "utc_offset": offset, "days": days}

        def work(ledger: Reads) -> Encoded:
            own = of(ledger, whose)
            if viewer is None or not viewer.all_servers:
                return encoded(own)
            used = ledger.usage(own["days"][0]["start"], now, None)
            # Only servers that have used a GPU in these days are looked up: a person may have had
            # many names.
            servers = (row.environment for row in used if viewer.is_mine(row.environment))
            others = [encoded(of(ledger, name)) for name in servers if name != whose]
            return encoded(own, servers=others)

        self._spawn(self._from_ledger(guest, call, work))

    def readings(self, guest: Guest, call: Call) -> None:
        """What was measured on the GPUs lately."""
        params: ReadingsParams = call.params
        state, viewer = self._manager.state, guest.who.viewer
        uuids = sorted(state.gpus, key=lambda uuid: state.gpus[uuid].gpu.order)
        if params.gpu is not None:
            uuids = [uuid for uuid in uuids if uuid == params.gpu]
            if not uuids:
                why = f"There is no GPU {params.gpu} on this node."
                guest.conn.error(call.id, Reason.UNKNOWN_GPU, why)
                return
        rows = self._samples.rows(self._manager.clock.wall(), params.since, params.step, uuids)

        def work(ledger: Reads) -> Encoded:
            gpus = [encoded(rows.of(uuid, viewer)) for uuid in uuids]
            return encoded({"step": rows.step, "times": rows.times}, gpus=gpus)

        self._spawn(self._from_ledger(guest, call, work))

    def _measured(self, readings: Readings) -> None:
        # One sample at a time: a slow one is skipped rather than queued, as nothing is decided by
        # them.
        if readings.problem is None and not self._keeps:
            self._keeps = True
            self._spawn(self._keep(self._manager.clock.wall(), self._manager.state, readings))

    async def _keep(self, wall: float, state: State, readings: Readings) -> None:
        """Keep a sample: on another thread, because with many tasks it takes milliseconds."""
        try:
            await asyncio.to_thread(lambda: self._samples.add(wall, taken(state, readings)))
        finally:
            self._keeps = False

    def history(self, guest: Guest, call: Call) -> None:
        """The newest records."""
        params: HistoryParams = call.params
        mine = self._visible(guest, params.environment)
        gpus = self._manager.state.gpus
        words = telling({uuid: books.gpu.number for uuid, books in gpus.items()})

        def work(ledger: Reads) -> Encoded:
            records = ledger.history(mine, params.limit)
            # A row at a time: a thousand at once would hold up the loop's thread.
            return encoded({}, events=[encoded(entry(record, words)) for record in records])

        self._spawn(self._from_ledger(guest, call, work))

    def _visible(self, guest: Guest, asked: str | None) -> str | None:
        """The environment whose records may be read; only an administrator may read everybody's."""
        who = guest.who
        if who.admin or (asked is not None and who.viewer.is_mine(asked)):
            return asked
        return who.environment

    async def _from_ledger(
        self, guest: Guest, call: Call, work: Callable[[Reads], Encoded]
    ) -> None:
        try:
            answer = await self._manager.reads.ask(guest.who.environment, work)
            guest.conn.reply(call.id, answer)
        except LedgerError as error:
            guest.conn.error(call.id, Reason.UNAVAILABLE, str(error))

    async def _take_care(self, guest: Guest, call: Call) -> None:
        """A copy of the ledger, a look at all of it, or a smaller file."""
        manager, conn = self._manager, guest.conn
        try:
            if call.method is Method.LEDGER_BACKUP:
                answer = await self._part(conn.id, call.params.offset)
            elif call.method is Method.LEDGER_CHECK:
                health = await manager.care.ask("", Reads.check)
                answer = {"path": str(manager.ledger.path), **asdict(health)}
            else:
                before, _ = await manager.in_ledger(manager.ledger.size)
                await manager.tidy(spare=0.0)
                after, _ = await manager.in_ledger(manager.ledger.size)
                answer = {"before": before, "after": after}
        except (LedgerError, OSError) as error:
            conn.error(call.id, Reason.UNAVAILABLE, str(error))
        else:
            conn.reply(call.id, answer)
        # Its copy came after the connection's end had let go of all copies, and nobody would close
        # it.
        if not self._is_here(conn.id):  # it hung up meanwhile
            self.forget(conn.id)

    async def _part(self, conn: int, offset: int) -> dict[str, Any]:
        """Bytes of a copy from ``offset`` on; 0 makes a new one for this connection.

        Raises :class:`LedgerError` and :class:`OSError`.
        """
        if offset == 0:
            place = self._manager.ledger.place
            draft = place.with_name(f"{place.name}.backup")
            made = await self._manager.care.ask("", lambda reads: reads.copy(draft))
            # The one from before is closed only when the new one is there.
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

    def forget(self, conn: int) -> None:
        """This connection reads no copy any more."""
        if (copy := self._copies.pop(conn, None)) is not None:
            os.close(copy)
