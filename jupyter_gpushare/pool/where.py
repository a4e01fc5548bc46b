"""Where a server or a kernel starts: hosts in the order of preference, with reasons.

A host is eligible if enough of its GPUs have what is wished for. Of the eligible ones the
host comes first whose best GPU has the largest share of its compute left: not the sum over the
host, since the task runs on that GPU. Among equals it is the shorter queue, then fewer people for
each GPU, then fewer bytes of parked leases, then where the person's own kernels are parked.

People compute a quarter of the time, so at most moments some GPU of each host has all of its
compute left. Without counting the people they would all start on the same host until the last of
its GPUs is busy (docs/benchmarks-hosts.md).
"""

from __future__ import annotations

from collections.abc import Iterable

from . import texts
from .state import NOTHING, Host
from .words.hosts import HostGpu, HostReport, Ranked, Wish

_GIB = 2**30
_NEVER = 1e12


def rank(hosts: Iterable[Host], wish: Wish) -> tuple[Ranked, ...]:
    """All hosts, the best first; those where it fits now come before all others."""
    share = dict(wish.share)
    found = sorted(_judge(host, wish, share) for host in hosts)
    return tuple(ranked for _key, ranked in found)


def _judge(host: Host, wish: Wish, share: dict[str, int]) -> tuple[tuple[object, ...], Ranked]:
    report = host.report
    if report is None or not host.connected:
        return _last(host, "it cannot be reached")
    drain = report.draining or (host.drain.reason if host.drain is not None else None)
    if drain is not None:
        return _last(host, f"it is out of service: {drain}")
    could = [gpu for gpu in report.gpus if gpu.out is None and _could(gpu, wish)]
    if len(could) < wish.gpus:
        only = "only " if could else ""
        return _last(host, f"it has {only}{_count(len(could))}{_wished(wish)}")
    free = [gpu for gpu in could if _fits(gpu, wish, share)]
    best = max((gpu.free_share for gpu in free), default=0)
    parked_bytes = sum(one.parked_bytes for one in report.environments)
    parked = host.here.get(wish.environment, NOTHING).parked
    fits = len(free) >= wish.gpus
    wait = 0.0 if fits else report.expected_wait
    reasons = []
    if fits:
        kind = max(free, key=lambda gpu: gpu.free_share).kind
        reasons.append(f"Host {host.name} has {_count(len(free))}{_wished(wish)} free now.")
        reasons.append(f"{best} % of the compute of its best one ({kind}) is left.")
    else:
        reasons.append(
            f"Host {host.name} has {_count(len(could))}{_wished(wish)}, of which "
            f"{len(free)} are free now."
        )
    if report.queue:
        what = "request waits" if report.queue == 1 else "requests wait"
        reasons.append(f"{report.queue} {what} there.")
    if parked:
        what = "kernel is" if parked == 1 else "kernels are"
        reasons.append(f"{parked} of your {what} parked there.")
    first = (0.0, float(-best)) if fits else (1.0, _NEVER if wait is None else wait)
    crowd = len(_people(report) - {wish.environment}) / len(could)
    key = (*first, report.queue, crowd, parked_bytes, -parked, host.name)
    return key, Ranked(host.name, fits, tuple(reasons), wait)


def _last(host: Host, why: str) -> tuple[tuple[object, ...], Ranked]:
    reason = f"Host {host.name} is left out: {why}."
    key = (2.0, 0.0, 0, 0.0, 0, 0, host.name)
    return key, Ranked(host.name, False, (reason,), None, possible=False)


def _people(report: HostReport) -> set[str]:
    """Environments with a server, a task, or something of theirs on the host."""
    every = report.environments
    there = {one.environment for one in every if one.held or one.parked or one.waiting}
    return {*there, *report.talking}


def _could(gpu: HostGpu, wish: Wish) -> bool:
    """Whether the GPU would do if it were free."""
    return (wish.kind is None or gpu.kind == wish.kind) and (
        wish.memory is None or gpu.memory >= wish.memory
    )


def _fits(gpu: HostGpu, wish: Wish, share: dict[str, int]) -> bool:
    if wish.memory is None:
        return gpu.exclusive_free
    return gpu.free_memory >= wish.memory and gpu.free_share >= share.get(gpu.kind, 0)


def _count(count: int) -> str:
    return "no GPU" if count == 0 else texts.gpus(count)


def _wished(wish: Wish) -> str:
    kind = "" if wish.kind is None else f" of the kind {wish.kind}"
    return kind if wish.memory is None else f"{kind} with at least {wish.memory / _GIB:.3g} GiB"
