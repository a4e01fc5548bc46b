"""The state after events about GPUs, and about the node itself."""

from __future__ import annotations

import math

from ..books.copies import replace
from ..books.state import (
    GpuState,
    State,
)
from ..books.table import Map
from ..words import events as ev
from ..words.model import (
    OutOfService,
)
from .registry import evolves
from .steps import books_of, charge, drop, put_books


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


@evolves(ev.GpuProblemChanged)
def _gpu_problem_changed(state: State, event: ev.GpuProblemChanged) -> State:
    return put_books(state, replace(books_of(state, event.gpu), problem=event.problem))


@evolves(ev.ServiceChanged)
def _service_changed(state: State, event: ev.ServiceChanged) -> State:
    with_node = event.with_node or event.gpu is None
    out = None if event.reason is None else OutOfService(event.reason, event.by, with_node)
    if event.gpu is None:
        return replace(state, drained=out)
    if out is None:
        return replace(state, out=drop(state.out, event.gpu))
    return replace(state, out=state.out.set(event.gpu, out))


@evolves(ev.UnleasedChanged)
def _unleased_changed(state: State, event: ev.UnleasedChanged) -> State:
    books = books_of(state, event.gpu)
    return put_books(state, replace(books, unleased=event.memory, system=event.system))


@evolves(ev.GrantingChanged)
def _granting_changed(state: State, event: ev.GrantingChanged) -> State:
    return replace(state, problem=event.problem)
