"""Hands out statuses.

Each row is encoded once for all viewers who may see it, in small slices of work.

The status of a large node takes long to make, and a whole class may watch it. So the loop does
everything else between two slices of the work, and the pause before the next status grows with the
time that the last one took.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from ...protocol.framing import Encoded
from .encoding import encoded
from .status import Sheet
from .viewer import Viewer

#: Seconds of work at once, and how many times as long the loop is left alone then.
SLICE: Final = 0.001
REST: Final = 2.0

#: A viewer who wants a status, the page that an administrator wants, and the function that gets it.
Wanted = tuple[Viewer, int, Callable[[Encoded], object]]
#: A function that is told the environment a status was made for and its seconds of processor time.
Took = Callable[[str, float], object]


class Slices:
    """Cuts work into slices."""

    def __init__(self) -> None:
        self._before = 0.0
        self._begin()

    @property
    def spent(self) -> float:
        """Seconds of processor time that the work took until now."""
        return self._before + time.thread_time() - self._used

    def _begin(self) -> None:
        # The clock is cheap to ask; the other one knows what another process took.
        self._begun, self._used = time.monotonic(), time.thread_time()

    async def rest(self) -> None:
        """To be called between any two small things; returns at once until a slice is over."""
        if time.monotonic() - self._begun >= SLICE:
            took = time.thread_time() - self._used
            self._before += took
            await asyncio.sleep(took * REST)
            self._begin()


async def hand_out(
    sheet: Sheet,
    wanted: Iterable[Wanted],
    slices: Slices,
    took: Took,
    form: Callable[[Encoded], Encoded] = lambda status: status,
) -> None:
    """Give everybody their status of this instant, as JSON, in this ``form``.

    A status is made once for all who want the same, and kept no longer than they are given it.
    Each environment is charged for its own, and for a part of what was made for many: the sheet,
    which ``slices`` saw made, and the rows that all administrators or all others are shown.
    """
    charged = sheet_took = slices.spent
    for_many = {True: 0.0, False: 0.0}  # administrators, all others
    own_leases: dict[str, Encoded] = {}
    others_leases: dict[bool, dict[str, Encoded]] = {True: {}, False: {}}
    queue: dict[str, Encoded] = {}
    same: dict[tuple[Viewer, int], list[Callable[[Encoded], object]]] = {}
    for viewer, page, tell in wanted:
        # Only administrators have pages, so a person who names many has still one status made.
        same.setdefault((viewer, page if viewer.admin else 0), []).append(tell)

    async def lease_rows(viewer: Viewer, page: int) -> list[Encoded]:
        rows, own, others = [], sheet.own(viewer), others_leases[viewer.admin]
        for lease in sheet.leases(viewer, page)[0]:
            made = own_leases if lease.environment in own else others
            if (row := made.get(lease.id)) is None:
                begun = slices.spent
                row = made[lease.id] = sheet.lease_row(lease, viewer.view(lease))
                if made is others:
                    shared(viewer, begun)
                await slices.rest()
            rows.append(row)
        return rows

    async def queue_rows(viewer: Viewer, page: int) -> list[Encoded]:
        rows, own = [], sheet.own(viewer)
        for lease in sheet.queue(viewer, page)[0]:
            of_other = not viewer.admin and lease.environment not in own
            row = queue.get(lease.id) if of_other else None
            if row is None:
                begun = slices.spent
                row = encoded(sheet.queue_row(lease, viewer))
                if of_other:
                    queue[lease.id] = row
                    shared(viewer, begun)
                await slices.rest()
            rows.append(row)
        return rows

    def shared(viewer: Viewer, begun: float) -> None:
        nonlocal charged
        seconds = slices.spent - begun
        for_many[viewer.admin] += seconds
        charged += seconds

    def charge(viewer: Viewer) -> None:
        nonlocal charged
        spent = slices.spent
        took(viewer.environment, spent - charged)
        charged = spent

    for (viewer, page), tells in same.items():
        head, gpus = sheet.head(viewer, page)
        status = form(
            encoded(
                {name: said for name, said in head.items() if name != "gpus"},
                gpus=gpus,
                leases=await lease_rows(viewer, page),
                queue=await queue_rows(viewer, page),
            )
        )
        charge(viewer)
        for tell in tells:
            tell(status)
            charge(viewer)
            await slices.rest()
    people = {(viewer.environment, viewer.admin) for viewer, _page in same}
    for environment, admin in people:
        alike = sum(one == admin for _name, one in people)
        took(environment, sheet_took / len(people) + for_many[admin] / alike)
