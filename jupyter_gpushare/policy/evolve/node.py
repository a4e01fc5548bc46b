"""The state after events about the node: its starts, its GPUs, and processes that are flagged."""

from __future__ import annotations

import math

from ..books.queue import Account
from ..books.state import Flag, GpuState, Rebuild, State
from ..books.table import Map, replace
from ..words import events as ev
from ..words.model import FlagKind, FlagPhase, OutOfService
from ..words.moves import InvariantBroken
from .steps import books_of, charge, drop, evolves, put_books, reserve


@evolves(ev.BootSeen)
def _boot_seen(state: State, event: ev.BootSeen) -> State:
    if state.boot.boot_id not in ("", event.boot_id):
        # Boot time starts anew, so charges of the last boot cannot be compared.
        fresh = {
            name: replace(account, charge=-math.inf, since=event.at)
            for name, account in state.accounts.items()
        }
        # What was lent is of another clock.
        book = replace(state.quotas, heard_at=event.at, as_of=0.0, lent=Map())
        state = replace(state, accounts=Map(fresh), settled_at=event.at, quotas=book)
        for environment in state.queue.keys:
            state = charge(state, environment, event.at)
    return replace(state, boot=event)


@evolves(ev.GpuFound)
def _gpu_found(state: State, event: ev.GpuFound) -> State:
    known = state.gpus.get(event.gpu.uuid, GpuState(event.gpu))
    return put_books(state, replace(known, gpu=event.gpu))


@evolves(ev.GpuRemoved)
def _gpu_removed(state: State, event: ev.GpuRemoved) -> State:
    return replace(state, gpus=state.gpus.delete(event.gpu))


@evolves(ev.ProblemChanged)
def _problem_changed(state: State, event: ev.ProblemChanged) -> State:
    if event.gpu is None:
        return replace(state, problem=event.problem, may_wait=event.may_wait)
    return put_books(state, replace(books_of(state, event.gpu), problem=event.problem))


@evolves(ev.ServiceChanged)
def _service_changed(state: State, event: ev.ServiceChanged) -> State:
    with_node = event.with_node or event.gpu is None
    out = None
    if event.reason is not None:
        out = OutOfService(event.reason, event.by, with_node, event.until)
    if event.gpu is None:
        return replace(state, drained=out)
    if out is None:
        return replace(state, out=drop(state.out, event.gpu))
    return replace(state, out=state.out.set(event.gpu, out))


@evolves(ev.UnleasedChanged)
def _unleased_changed(state: State, event: ev.UnleasedChanged) -> State:
    books = books_of(state, event.gpu)
    return put_books(state, replace(books, unleased=event.memory, system=event.system))


@evolves(ev.FlagMoved)
def flag_moved(state: State, event: ev.FlagMoved) -> State:
    key = (event.gpu, event.process, event.kind)
    if event.phase is FlagPhase.CLEARED:
        return replace(state, flags=drop(state.flags, key))
    flag = state.flags.get(key)
    if event.phase is FlagPhase.RAISED:
        flag = Flag(event.at, event.memory) if flag is None else replace(flag, memory=event.memory)
    elif flag is None:  # the ledger tells of a flag that is measured anew
        return state
    else:
        flag = replace(flag, acted=True)
    return replace(state, flags=state.flags.set(key, flag))


@evolves(ev.OverLimitStaged)
def over_limit_staged(state: State, event: ev.OverLimitStaged) -> State:
    key = (event.gpu, event.process, FlagKind.OVER_LIMIT)
    flag = state.flags.get(key)
    if flag is None:  # the ledger tells of a flag that is measured anew
        return state
    flag = replace(flag, stage=event.stage, memory=event.used, lease=event.lease)
    return replace(state, flags=state.flags.set(key, flag))


@evolves(ev.RebuildChanged)
def _rebuild_changed(state: State, event: ev.RebuildChanged) -> State:
    if event.until is None:
        return replace(state, rebuild=None)
    return replace(state, rebuild=replace(state.rebuild or Rebuild(0.0), until=event.until))


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
