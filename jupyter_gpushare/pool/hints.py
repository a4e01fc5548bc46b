"""Tells hosts which of those who wait there could start on another host now.

Each free GPU is shown to one environment only: else all who wait would run to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..protocol.calls import HintParams
from . import texts
from .draft import Draft
from .state import Host
from .where import LASTS
from .words import events as ev
from .words.hosts import HostGpu


def give_hints(draft: Draft) -> None:
    """Make the hints anew; hosts whose hints did not change hear nothing."""
    hosts = [host for host in draft.state.hosts.values() if host.connected]
    free = [(host, gpu) for host in hosts if host.serves for gpu in _free(host)]
    soon = draft.at + draft.state.unix + LASTS
    free.sort(
        key=lambda one: (
            one[0].ends_before(soon),
            one[0].report.queue if one[0].report else 0,
            one[0].name,
        )
    )
    for host in sorted(hosts, key=lambda host: host.name):
        hints = tuple(_hints(draft, host, free)) if _is_short(host) else ()
        if hints != host.hints:
            draft.emit(ev.HintsGiven(draft.at, host.name, hints))


def _free(host: Host) -> list[HostGpu]:
    if host.report is None or host.report.queue:
        return []
    return [gpu for gpu in host.report.gpus if gpu.out is None and gpu.exclusive_free]


def _is_short(host: Host) -> bool:
    return any(here.short for here in host.here.values()) and not _free(host)


def _hints(draft: Draft, host: Host, free: list[tuple[Host, HostGpu]]) -> Iterator[HintParams]:
    for one, here in sorted(host.here.items()):
        if not here.short or not free:
            continue  # what a person's own quota prevents here it prevents there, too
        # What it uses elsewhere counts there, too: a hint to what its quota refuses is none.
        other, gpu = free[0]
        held = sum(place.here[one].held for place in draft.state.at(one) if one in place.here)
        if held >= draft.state.quota(host, one).gpus:
            continue
        free.pop(0)
        yield HintParams(one, other.name, 1, gpu.kind, texts.hint(other.name, gpu.kind))
