"""Answers those who ask for a status, and tells those who watch of each change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from ...daemon.fairness import RoundRobin
from ...policy.books.state import Lease
from ...policy.recall.outlook import Outlook
from ...policy.words.model import EnvironmentName, LeaseId
from ...protocol import documents as doc
from ...protocol.background import event_or_time
from ...protocol.calls import Call
from ...protocol.framing import Encoded, spliced
from ...protocol.messages import Method, Notice
from ..inventory.readings import Readings, figures
from ..manager import Manager
from ..views.board import Slices, Wanted, hand_out
from ..views.hints import Hints
from ..views.lately import Lately
from ..views.pauses import Pauses
from ..views.status import NodeFacts, Sheet
from .guests import Guest

WATCH_INTERVAL = 0.2
#: How many who ask for a status, of each environment, are answered together.
LOOKS = 8
#: The pause after a push, as a multiple of the time that it took: at most a fifth of a core.
WATCH_REST = 4.0


class Statuses:
    """Hands statuses out. All methods run on the manager's loop.

    ``quotas_as_of`` tells when JupyterHub told its groups' quotas, while it is away (Unix seconds);
    ``hints``, where else people who wait would get a GPU, as the pool says; ``predictions``, the
    newest ones of somebody's tasks; and ``serving``, what the keeper of a server says of it.
    """

    def __init__(
        self,
        manager: Manager,
        *,
        name: str,
        version: str,
        guests: Mapping[int, Guest],
        lately: Lately,
        outlooks: Callable[[], dict[LeaseId, Outlook]],
        pauses: Pauses,
        preset: doc.Preset | None,
        quotas_as_of: Callable[[], float | None],
        hints: Callable[[], Hints],
        predictions: Callable[[Callable[[str], bool]], list[doc.Predicted]],
        serving: Callable[[Lease], doc.Serving | None],
    ) -> None:
        self._manager = manager
        self._facts = NodeFacts(
            name=name,
            version=version,
            simulated=manager.inventory.simulated,
            started=manager.started_wall,
            now=0.0,
            boot=0.0,
            ledger=str(manager.ledger.path.absolute()),
            preset=preset,
        )
        self._guests = guests
        self._lately = lately
        self._outlooks = outlooks
        self._pauses = pauses
        self._quotas_as_of = quotas_as_of
        self._hints = hints
        self._predictions = predictions
        self._serving = serving
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._changes = 0
        self._lookers: RoundRobin[tuple[Guest, Call]] = RoundRobin()
        self._figures: object = None
        manager.measured.append(self.measured)

    def ask(self, guest: Guest, call: Call) -> None:
        """Somebody asks for a status, or wants to hear of each change from now on."""
        self._lookers.put(guest.who.environment, (guest, call))
        self._wanted.set()

    def talking(self) -> set[EnvironmentName]:
        """The environments of which a server or task is connected; who only looks does not count,
        nor does the pool.
        """
        guests = self._guests.values()
        return {one.who.environment for one in guests if not (one.only_looks or one.who.pool)}

    def news(self) -> None:
        """Something changed that a person sees."""
        self._changes += 1
        self._changed.set()

    def measured(self, readings: Readings) -> None:
        """Tell watchers about memory in use and utilisation, which change without an event."""
        if (now := figures(readings)) != self._figures:
            self._figures = now
            self.news()

    async def push(self) -> None:
        """Tell those who watch of each change, for ever."""
        told = self._changes
        while True:
            # A client that could not be told before gets the newest status in a second, even if
            # nothing changes again.
            is_behind = any(guest.behind for guest in self._guests.values())
            await event_or_time(self._changed, 1.0 if is_behind else None)
            self._changed.clear()
            changed, told = told != self._changes, self._changes
            watchers: RoundRobin[Guest] = RoundRobin()
            # Those who missed the last one come first, or it would be the same ones each time.
            for guest in sorted(self._guests.values(), key=lambda guest: not guest.behind):
                if guest.watching and (changed or guest.behind):
                    guest.behind = True  # until it is told
                    if not self._manager.charges.owes(guest.who.environment):
                        watchers.put(guest.who.environment, guest)
            heard = set[EnvironmentName]()
            wanted = [
                (guest.who.viewer, 0, partial(self._tell_status, guest, heard))
                for guest in watchers.take(len(watchers), len(watchers))
            ]
            slices = Slices()
            if wanted:
                await self._manager.observers.wait(self._hand_out(wanted, slices, _as_change))
            await asyncio.sleep(max(WATCH_INTERVAL, slices.spent * WATCH_REST))

    def _tell_status(self, guest: Guest, heard: set[EnvironmentName], change: Encoded) -> None:
        """``heard``: environments of which somebody was told of this change."""
        environment = guest.who.environment
        # An environment that used more than its share of the processor is told later than others.
        # But one of it hears what was made: a status that costs more than the whole allowance would
        # be made again and again, and told to nobody.
        if environment in heard and self._manager.charges.owes(environment):
            return
        heard.add(environment)
        guest.behind = not guest.conn.notify(Notice.CHANGED.value, change)

    def _answer_look(self, guest: Guest, call: Call, changes: int, status: Encoded) -> None:
        guest.conn.reply(call.id, status)
        if call.method is Method.WATCH:
            guest.watching = True
            if changes != self._changes:
                # It was made before the newest change, which nobody has told this one.
                guest.behind = True
                self._changed.set()  # no news for the others

    async def answer_all(self) -> None:
        """Answer all who asked for a status while one was made with the next one.

        It answers a few of each environment, so that many questions of one do not delay others.
        """
        while True:
            await self._wanted.wait()
            asked = self._lookers.take(len(self._lookers), LOOKS)
            if not self._lookers:
                self._wanted.clear()
            slices = Slices()
            wanted = [
                (
                    guest.who.viewer,
                    getattr(call.params, "page", 0),
                    partial(self._answer_look, guest, call, self._changes),
                )
                for guest, call in asked
                # Who hung up while others were answered costs no work.
                if self._guests.get(guest.conn.id) is guest
            ]
            if not await self._manager.observers.wait(self._hand_out(wanted, slices)):
                for guest, _call in asked:
                    guest.conn.close()  # it comes back and asks
            # The loop has as much time for everything else as the answers took.
            await asyncio.sleep(slices.spent)

    async def _hand_out(
        self,
        wanted: Iterable[Wanted],
        slices: Slices,
        form: Callable[[Encoded], Encoded] = lambda status: status,
    ) -> None:
        manager = self._manager
        facts = replace(
            self._facts,
            now=self._manager.clock.wall(),
            boot=self._manager.clock.boot(),
            problem=manager.readings.problem,
            left_out=tuple(one.text for one in manager.readings.left_out),
            quotas_as_of=self._quotas_as_of(),
            walls=None if manager.walls is None else manager.walls.told(),
            hints=self._hints(),
        )
        sheet = Sheet(
            manager.state,
            facts,
            manager.config,
            manager.readings.by_gpu,
            self._lately,
            self.talking(),
            self._outlooks,
            self._pauses,
            self._predictions,
            self._serving,
        )
        await hand_out(sheet, wanted, slices, self._manager.charges.took, form)


def _as_change(status: Encoded) -> Encoded:
    """The content of a notification of a status."""
    return Encoded(spliced(b"{}", {"status": (status,)}))
