"""What the pages show of a pool: its hosts, a person's quota over them, its groups. Pure.

Only what this person may know leaves here: of others, how many wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jupyter_gpushare.figures import counted
from jupyter_gpushare.pages import hosts
from jupyter_gpushare.pages.hosts import Host, Own
from jupyter_gpushare.pool import groups
from jupyter_gpushare.pool.answers import held_by
from jupyter_gpushare.pool.state import NOT_LENT, NOT_USED, NOTHING, Host as PoolHost, State
from jupyter_gpushare.pool.words.hosts import Environment, HostGpu

Json = Mapping[str, Any]


def host_of(host: PoolHost, problem: str) -> Host:
    """A host as the pool knows it, without what is one person's. A lost one has a ``problem``."""
    report = host.report
    gpus = () if report is None else tuple(_gpu(gpu) for gpu in report.gpus)
    away = hosts.away(host.name, problem)
    held, out = held_by(host), host.out_of_service
    base = replace(away, gpus=gpus, drained=out, held=held, own=Own(lent=0))
    if not host.connected or report is None:
        return base
    wait = report.expected_wait
    expected = None if wait is None else (wait, wait)
    return replace(base, problem="", waiting=report.queue, expected=expected)


def _gpu(gpu: HostGpu) -> hosts.HostGpu:
    return hosts.HostGpu(
        gpu.index, gpu.kind, gpu.memory, gpu.free_memory, gpu.exclusive_free, gpu.out or ""
    )


def owners(host: PoolHost) -> dict[str, Own]:
    """What each person has on a host, with all their servers."""
    talking = () if host.report is None or not host.connected else host.report.talking
    talks, found = frozenset(map(Environment, talking)), dict[str, Own]()
    for name in sorted({*host.here, *host.out, *talks}):
        here, out = host.here.get(name, NOTHING), host.out.get(name, NOT_LENT)
        person = name.partition("/")[0]
        own = found.get(person, Own(lent=0))
        why = out.why if here.waiting else ""
        found[person] = Own(
            held=own.held + here.held,
            parked=own.parked + here.parked,
            waiting=own.waiting + here.waiting,
            lent=(own.lent or 0) + out.gpus,
            talks=own.talks or name in talks,
            why=own.why if why in own.why else f"{own.why} {why}".strip(),
        )
    return found


@dataclass(frozen=True, slots=True)
class PoolGroup:
    """A group whose GPUs breathe, in words."""

    name: str
    own: int
    used: int
    borrowed: int
    may_borrow: str
    unused: int


@dataclass(frozen=True, slots=True)
class PoolGroups:
    """All groups that breathe, and how many GPUs are lent between them."""

    rows: tuple[PoolGroup, ...]
    text: str


def pool_groups(state: State) -> PoolGroups:
    """What each group has, uses, borrows and leaves to others."""
    rows = []
    for name, group in sorted(state.groups.items()):
        used = state.used.get(name, NOT_USED).gpus
        bound = group.borrowing
        rows.append(
            PoolGroup(
                name=name,
                own=group.nominal,
                used=used,
                borrowed=max(0, used - group.nominal),
                may_borrow="what others lend" if bound is None else f"up to {bound}",
                unused=min(groups.lends(group), max(0, group.nominal - used)),
            )
        )
    lent = sum(row.borrowed for row in rows)
    unused = max(0, sum(row.unused for row in rows) - lent)
    lend = counted(lent, "GPU of groups' own is", "GPUs of groups' own are")
    text = f"{lend} lent to other groups. {counted(unused, 'GPU')} more may be lent."
    return PoolGroups(tuple(rows), text)


def group_text(rows: Iterable[PoolGroup], own: Iterable[str]) -> str:
    """How a person's groups stand; empty if none of them breathes."""
    return " ".join(_group_text(row) for row in rows if row.name in {*own})


def _group_text(row: PoolGroup) -> str:
    borrowed = f": {counted(row.borrowed, 'is', 'are')} borrowed" if row.borrowed else ""
    own = counted(row.own, "GPU")
    return f"Your group {row.name} has {own} of its own and uses {row.used}{borrowed}."
