"""The state after events of a restart: a lost ledger rebuilt, books restored."""

from __future__ import annotations

import math

from ..books.copies import replace
from ..books.queue import Account
from ..books.state import (
    Rebuild,
    State,
)
from ..books.table import Map
from ..words import events as ev
from ..words.moves import InvariantBroken
from .registry import evolves
from .steps import reserve


@evolves(ev.RebuildChanged)
def _rebuild_changed(state: State, event: ev.RebuildChanged) -> State:
    if event.until is None:
        return replace(state, rebuild=None)
    known = state.rebuild or Rebuild(event.until)
    return replace(state, rebuild=replace(known, until=event.until))


@evolves(ev.LeasePresented)
def _lease_presented(state: State, event: ev.LeasePresented) -> State:
    if event.why is not None:
        spared = state.spared.update(dict.fromkeys(event.processes, event.lease))
        return replace(state, spared=spared)
    if state.rebuild is None:
        raise InvariantBroken(f"lease {event.lease} is presented, and no lease is unknown")
    return replace(state, rebuild=replace(state.rebuild, done=state.rebuild.done | {event.lease}))


@evolves(ev.BooksRestored)
def _books_restored(state: State, event: ev.BooksRestored) -> State:
    # The turns are told after this: till then all that is held counts.
    accounts = {
        environment: replace(
            state.accounts.get(environment, Account()),
            charge=-math.inf if charge is None else charge,
            gpus=state.gpus_used(environment),
            since=since,
        )
        for environment, charge, _gpus, since in event.accounts
    }
    state = replace(
        state,
        queue=replace(state.queue, grants=event.grants, arrivals=event.arrivals),
        settled_at=event.settled_at,
        accounts=Map(accounts),
        pace=event.pace,
    )
    lifted = {(environment, gpu): burst for environment, gpu, burst in event.bursts}
    for environment, gpu, size in event.reservations:
        whose = (environment, gpu)
        held = replace(state.reservations[whose], memory=size, lifted=lifted.get(whose, 0))
        state = reserve(state, whose, held)
    for environment, account in accounts.items():
        key = account.charge - math.log2(state.quotas.resolve(environment)[0].weight)
        state = replace(state, queue=state.queue.charge(environment, key))
    return state
