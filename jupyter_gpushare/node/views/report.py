"""What the pool is told of a host: its GPUs, who has what on them, and who waits for a loan. Pure.

O(leases + GPUs): it is made again when something changes, at most five times a second.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import msgspec

from ...policy.books.heldup import lacks_loan, quota_of
from ...policy.books.state import GpuState, Lease, State
from ...policy.recall.outlook import Recent, by_waits
from ...policy.words.config import PolicyConfig
from ...policy.words.model import Activity, BudgetLevel, EnvironmentName, LeasePhase, PriorityClass
from ...policy.words.promises import WHOLE
from ...protocol.framing import MAX_REPORT, encode
from ...protocol.hostreports import (
    HostEnvironment,
    HostEstimate,
    HostGpu,
    HostReport,
    Lacking,
    Want,
)
from ...protocol.reading import MOST_PARTS

#: Bytes of a report's line that are left for what is around it.
_AROUND: Final = 1024


def report(
    state: State,
    config: PolicyConfig,
    name: str,
    version: str,
    at: float,
    recent: Recent,
    talking: Iterable[EnvironmentName],
    estimates: list[HostEstimate],
) -> dict[str, Any]:
    """The host at boot time ``at``; ``recent`` are the waits of requests granted lately.

    ``talking``: the environments of which a server or task is connected. ``estimates``: what
    people's newest models need. Where there are more of these, of people or of requests than a
    pool reads of one host, the last ones are left out.
    """
    claimed = Counter(gpu for _lease, gpu in state.claims)
    left, batch = _shares_left(state, config)
    gpus = [
        _gpu(state, books, config, claimed[uuid], (left.get(uuid, WHOLE), batch[uuid]))
        for uuid, books in state.gpus.items()
    ]
    expiry = state.quotas.next_expiry
    told = HostReport(
        name=name,
        boot_id=state.boot.boot_id,
        at=at,
        version=version,
        # Until the first of the loans is over, or 0 if none is valid.
        seconds=max(0.0, expiry - at) if math.isfinite(expiry) else 0.0,
        draining=None if state.drained is None else state.drained.reason,
        empty=not state.claims,
        gpus=tuple(sorted(gpus, key=lambda row: row.index)),
        environments=tuple(_environments(state)),
        wants=tuple(_wants(state)),
        queue=len(state.queue.waiting),
        expected_wait=_expected_wait(state, gpus, recent),
        talking=tuple(sorted({*talking})),
        estimates=tuple(estimates),
        lacking=tuple(Lacking(*one) for one in sorted(_lacking(state).items())),
    )
    most = MOST_PARTS
    while True:
        told = replace(
            told,
            environments=told.environments[:most],
            wants=told.wants[:most],
            talking=told.talking[:most],
            estimates=told.estimates[:most],
        )
        plain: dict[str, Any] = msgspec.to_builtins(told)
        if not most or len(encode(plain)) < MAX_REPORT - _AROUND:
            return plain
        # Halved until it fits: to find the exact number would cost an encoding for each.
        most //= 2


def _gpu(
    state: State, books: GpuState, config: PolicyConfig, claims: int, shares: tuple[int, int]
) -> HostGpu:
    uuid = books.gpu.uuid
    out = state.out.get(uuid)
    most = config.max_tasks_per_gpu
    is_full = most is not None and books.tasks >= most
    why = books.problem if out is None else out.reason
    return HostGpu(
        uuid=uuid,
        index=books.gpu.index,
        kind=books.gpu.name,
        memory=books.gpu.memory,
        free_memory=0 if is_full or why is not None else max(0, books.free),
        free_share=shares[0],
        out=why,
        # Also what is used without a lease counts: a request for a whole GPU would not fit there.
        exclusive_free=why is None and not claims and books.free == books.whole,
        batch_share=shares[1],
    )


def _shares_left(state: State, config: PolicyConfig) -> tuple[dict[str, int], Counter[str]]:
    """Hundredths of each claimed GPU's compute that busy tasks leave, and those with which batch
    tasks there would make way for a person.

    A task of which nothing is predicted may use all of it.
    """
    left, batch = dict[str, int](), Counter[str]()
    for name, gpu in state.claims:
        lease = state.leases[name]
        if lease.phase is LeasePhase.HELD and lease.activity is Activity.BUSY:
            share = state.given.get(name, WHOLE)
            left[gpu] = max(0, left.get(gpu, WHOLE) - share)
            if name in state.given and lease.request.priority_class is PriorityClass.BATCH:
                batch[gpu] += max(0, share - config.batch_share_least)
    return left, batch


def _environments(state: State) -> list[HostEnvironment]:
    held = Counter(environment for environment, _gpu in state.reservations)
    waiting = Counter(item.environment for item in state.queue.waiting.values())
    parked, moved = Counter[EnvironmentName](), Counter[EnvironmentName]()
    for lease in state.leases.values():
        if lease.phase is LeasePhase.PARKED:
            parked[lease.environment] += 1
            moved[lease.environment] += 0 if lease.parked is None else lease.parked.memory
    book, short = state.quotas, _short(state)
    # Those who hold GPUs come first: what is cut off at the end must not be what counts for quotas.
    return [
        HostEnvironment(
            environment=name,
            held=held[name],
            parked=parked[name],
            parked_bytes=moved[name],
            waiting=waiting[name],
            gpu_hours=state.budget(name).spent,
            lent=book.lent[name].loan.quota.gpus if book.is_lent(name) else 0,
            short=name in short,
        )
        for name in sorted(
            {*held, *waiting, *parked, *book.lent}, key=lambda name: (not held[name], name)
        )
    ]


def _short(state: State) -> set[EnvironmentName]:
    """Whose longest waiting request lacks but a free GPU, which another host may have.

    Whether a quota allows one GPU more the pool knows, which sees all hosts.
    """
    waits = _longest_waiting(state.leases[name] for name in state.queue.waiting)
    first = {lease.environment: lease for lease in reversed(waits)}
    return {
        name
        for name, lease in first.items()
        if lease.request.gpus == 1 and _lacks_gpus_only(state, lease)
    }


def _lacking(state: State) -> Counter[int]:
    """How many requests for so many GPUs free ones on another host would serve.

    What a person's loan does not allow beside their other requests, no host would serve.
    """
    held = Counter(environment for environment, _gpu in state.reservations)
    lacking = Counter[int]()
    for lease in _longest_waiting(state.leases[name] for name in state.queue.waiting):
        who, gpus = lease.environment, lease.request.gpus
        is_lent = held[who] + gpus <= quota_of(state, lease).gpus
        if is_lent and _lacks_gpus_only(state, lease):
            held[who] += gpus
            lacking[gpus] += 1
    return lacking


def _lacks_gpus_only(state: State, lease: Lease) -> bool:
    can_not = lease.suspended or state.budget(lease.environment).level is BudgetLevel.SPENT
    return not can_not and not lacks_loan(state, lease)


def _longest_waiting(leases: Iterable[Lease]) -> list[Lease]:
    """Them, the longest waiting first."""
    return sorted(leases, key=lambda lease: (lease.requested_at, lease.order))


def _wants(state: State) -> list[Want]:
    held = Counter(environment for environment, _gpu in state.reservations)
    waits = (state.leases[name] for name in state.queue.waiting)
    wanting = [lease for lease in waits if _gains(state, lease, held[lease.environment])]
    return [
        Want(
            environment=lease.environment,
            gpus=lease.request.gpus,
            memory=lease.request.memory,
            priority_class=lease.request.priority_class.value,
            since=lease.requested_at,
            groups=state.quotas.groups_of.get(lease.environment, ()),
        )
        for lease in _longest_waiting(wanting)
    ]


def _gains(state: State, lease: Lease, held: int) -> bool:
    """Whether a request could go on by a larger loan, at least if a GPU is free."""
    if lease.id in state.queue.held_up:
        return lacks_loan(state, lease) and not lease.suspended
    book, lent = state.quotas, quota_of(state, lease).gpus
    return book.pool is not None and lent <= held and lent < book.most(lease.environment).gpus


def _expected_wait(state: State, gpus: list[HostGpu], recent: Recent) -> float | None:
    """Seconds that a new interactive request for one GPU waits, about."""
    if state.problem is not None or state.rebuild is not None:
        return None
    if not state.has_line and any(gpu.free_memory for gpu in gpus):
        return 0.0
    found = by_waits(sorted(recent.get(PriorityClass.INTERACTIVE, ())), 0.0)
    return None if found is None else (found.low + found.high) / 2.0
