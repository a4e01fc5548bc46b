"""Calls of the pool: it follows the host's report, lends quotas, and tells of room elsewhere.

The host owns its GPUs. What the pool lends bounds new tasks; it ends none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from ...policy import core
from ...policy.books.state import State
from ...policy.words import commands as cmd
from ...policy.words.model import EnvironmentName, Loan
from ...protocol import documents as doc
from ...protocol.background import event_or_time
from ...protocol.calls import Call, LentParams, named_of
from ...protocol.errors import Reason
from ...protocol.hostreports import Accepted, Answer
from ...protocol.messages import Method, Notice
from ...protocol.sizes import MOST_GPUS
from ...quota import made_of
from ..host.outcome import Outcome
from ..manager import Manager
from ..views.hints import Hints
from .guests import Guest

#: Seconds between two reports, at least; and at most, because a loan counts from the newest.
SOONEST: Final = 0.2
LATEST: Final = 5.0


class PoolCalls:
    """Answers them. ``report`` makes the host's report, ``ask`` has a command decided, and
    ``refused`` answers what was decided instead.
    """

    def __init__(
        self,
        manager: Manager,
        *,
        report: Callable[[], dict[str, Any]],
        ask: Callable[[Guest, Call, cmd.Command, Callable[[core.Decision], None]], None],
        refused: Callable[[Guest, Call, core.Decision], None],
        news: Callable[[], None],
    ) -> None:
        self._manager = manager
        self._report = report
        self._ask = ask
        self._refused = refused
        self._news = news
        self._followers: dict[int, Guest] = {}
        self._changed = asyncio.Event()
        #: Which connection told them: they hold as long as it lasts.
        self._told_by: int | None = None
        self.hints: Hints = {}
        self.calls: Mapping[Method, Callable[[Guest, Call], None]] = {
            Method.POOL_FOLLOW: self._follow,
            Method.POOL_LEND: self._lend,
            Method.POOL_HINT: self._hint,
        }
        manager.listeners.append(self._heard)

    def forget(self, conn_id: int) -> None:
        """A connection is gone."""
        self._followers.pop(conn_id, None)
        if self._told_by == conn_id:
            self._told_by, self.hints = None, {}
            self._news()

    async def push(self) -> None:
        """Tell those who follow of each change, for ever."""
        while True:
            await event_or_time(self._changed, LATEST)
            self._changed.clear()
            if self._followers:
                self._manager.observers.call(self._tell)
            await asyncio.sleep(SOONEST)

    def _tell(self) -> None:
        now = self._report()
        for guest in tuple(self._followers.values()):
            if not guest.conn.notify(Notice.REPORT.value, now):
                self._changed.set()  # it does not read now: it gets the next one

    def _heard(self, outcome: Outcome, _state: State) -> None:
        if self._followers and outcome.events:
            self._changed.set()

    # -- calls ---------------------------------------------------------------

    def _follow(self, guest: Guest, call: Call) -> None:
        known = self._manager.state.quotas.pool
        if known not in (None, call.params.pool):
            why = f"This host belongs to the pool {known}."
            guest.conn.error(call.id, Reason.NOT_ALLOWED, why)
            return
        command = cmd.BelongTo(self._manager.clock.boot(), call.params.pool)
        self._ask(guest, call, command, partial(self._followed, guest, call))

    def _followed(self, guest: Guest, call: Call, decision: core.Decision) -> None:
        if not isinstance(decision, core.Done):
            self._refused(guest, call, decision)
            return
        self._followers[guest.conn.id] = guest
        guest.conn.reply(call.id, self._report())

    def _lend(self, guest: Guest, call: Call) -> None:
        params = call.params
        command = cmd.LendQuotas(
            self._manager.clock.boot(),
            params.as_of.boot_id,
            params.as_of.at,
            params.seconds,
            tuple(_loan(one) for one in params.budgets),
            params.complete,
        )
        before = set(self._manager.state.quotas.lent)
        self._ask(guest, call, command, partial(self._lent, guest, call, before))

    def _lent(
        self, guest: Guest, call: Call, before: set[EnvironmentName], decision: core.Decision
    ) -> None:
        if not isinstance(decision, core.Done):
            self._refused(guest, call, decision)
            return
        state = self._manager.state
        named = {EnvironmentName(one.environment) for one in call.params.budgets}
        holders = [environment for environment, _gpu in state.reservations]
        if call.params.complete:
            named |= before | set(holders)
        rows = []
        for name in sorted(named):
            held, loan = holders.count(name), state.quotas.loan(name)
            lent = 0 if loan is None else loan.quota.gpus
            # What is held beyond the loan goes on, so for the pool it is not free yet.
            rows.append(Accepted(name, max(held, lent), held))
        guest.conn.reply(call.id, msgspec.to_builtins(Answer(tuple(rows))))

    def _hint(self, guest: Guest, call: Call) -> None:
        hints: dict[EnvironmentName, list[doc.Hint]] = {}
        for one in call.params.hints:
            hints.setdefault(EnvironmentName(one.environment), []).append(
                {"host": one.host, "gpus": one.gpus, "kind": one.kind, "text": one.text}
            )
        self._told_by = guest.conn.id
        if hints != self.hints:
            self.hints = hints
            self._news()
        guest.conn.reply(call.id, {})


def _loan(params: LentParams) -> Loan:
    named = named_of(params.quota)
    quota, whole = made_of(named), named.get("gpus", MOST_GPUS)
    return Loan(
        EnvironmentName(params.environment),
        replace(quota, gpus=params.gpus, gpu_hours=None),
        max(whole, params.gpus),
        params.gpu_hours,
        params.reclaim,
        why=params.why or "",
        borrowed=params.borrowed,
    )
