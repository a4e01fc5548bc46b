"""Where a server or a kernel starts: hosts in the order of preference, with reasons.

A host is eligible if enough of its GPUs have what is wished for. Where it is predicted what share
of each kind of GPU the person's newest model needs, a GPU must have that share left, and kinds of
which nothing is predicted do not count. Of the eligible hosts the one comes first whose best GPU
has the largest share of its compute left: not the sum over the host, since the task runs on that
GPU. Hosts on which batch tasks have to make way come after those where it fits as it is. Among
equals it is the shorter queue, then fewer people for each GPU, then fewer bytes of parked leases,
then where the person's own kernels are parked.

A host that an engine takes back soon comes after all others where it fits, too: whoever starts
there would soon have to go.

People compute a quarter of the time, so at most moments some GPU of each host has all of its
compute left. Without counting the people they would all start on the same host until the last of
its GPUs is busy (docs/benchmarks-hosts.md).

The quota holds over all hosts. Where it is used up, a host with GPUs of the person's own comes
first, because a new task shares these at once; on the others it has to wait, however much is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..figures import counted
from ..policy.say.texts import gpus
from ..predict.kinds import model_of
from . import texts
from .state import NOTHING, Host
from .words.hosts import Environment, HostGpu, HostReport, KindShare, Ranked, Wish

#: Seconds for which a host should last where something starts of which nobody knows how long it
#: takes. A host's successor is asked for so long before its end.
LASTS = 1800.0
_GIB = 2**30
_NEVER = 1e12


def rank(
    hosts: Iterable[Host],
    wish: Wish,
    limit: Callable[[Host], int] | None = None,
    group_full: str = "",
) -> tuple[Ranked, ...]:
    """All hosts, the best first; those where it fits now come before all others.

    ``limit`` is how many GPUs the person may hold on all hosts together, as the quota on a host
    says; without it the quota does not count. ``group_full`` says why the person's group may have
    no more GPUs; empty: it may.
    """
    hosts = list(hosts)
    needs = _Needs(hosts, wish)
    held = {host.name: host.here.get(wish.environment, NOTHING).held for host in hosts}
    held = {name: gpus for name, gpus in held.items() if gpus}
    found = sorted(
        _judge(
            host, wish, needs, None if limit is None else _Allowed(limit(host), held, group_full)
        )
        for host in hosts
    )
    return tuple(ranked for _key, ranked in found)


def newest(hosts: Iterable[Host], environment: Environment) -> tuple[KindShare, ...]:
    """What somebody's newest model is predicted to need on each kind of GPU, of all that hosts say;
    empty: nobody knows."""
    said = (
        estimate
        for host in hosts
        if host.report is not None
        for estimate in host.report.estimates
        if estimate.environment == environment
    )
    found = max(said, key=lambda one: one.at, default=None)
    return () if found is None else found.kinds


class _Needs:
    """What the wish is predicted to need of a GPU; of no kind in the pool: as nothing predicted."""

    def __init__(self, hosts: Iterable[Host], wish: Wish) -> None:
        self._wish = wish
        self._of = {one.kind: one for one in wish.expected}
        every = (gpu for host in hosts if host.report is not None for gpu in host.report.gpus)
        self.any = bool(self._of) and any(self.of(gpu) is not None for gpu in every)

    def of(self, gpu: HostGpu) -> KindShare | None:
        """For the GPU's own name, or for its kind as predictors name it."""
        return self._of.get(gpu.kind) or self._of.get(model_of(gpu.kind, gpu.memory))

    def could(self, gpu: HostGpu) -> bool:
        """Whether the GPU would do if it were free."""
        wish, need = self._wish, self.of(gpu)
        if (wish.kind is not None and gpu.kind != wish.kind) or (self.any and need is None):
            return False
        memory = self._memory(need)
        return memory is None or gpu.memory >= memory

    def fits(self, gpu: HostGpu) -> int | None:
        """The share that is left of a GPU that has what is needed; -1 - (share): if batch tasks
        make way, or ``None`` if it has not."""
        need = self.of(gpu)
        memory, share = self._memory(need), need.share if need is not None else 0
        if not gpu.exclusive_free if memory is None else gpu.free_memory < memory:
            return None
        if gpu.free_share >= share:
            return gpu.free_share
        after = min(100, gpu.free_share + gpu.batch_share)
        return after - _MAKES_WAY if after >= share else None

    def _memory(self, need: KindShare | None) -> int | None:
        wish = self._wish
        if wish.memory is None and wish.by_estimate and need is not None:
            return need.memory
        return wish.memory


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The GPUs that a person may hold on all hosts together, and those held now, by host."""

    limit: int
    held: Mapping[str, int]
    group_full: str

    def shares(self, host: str, gpus: int) -> bool:
        """Whether a new task shares the person's GPUs on the host, as no others are allowed."""
        is_used_up = sum(self.held.values()) + gpus > self.limit
        return (is_used_up or bool(self.group_full)) and self.held.get(host, 0) >= gpus

    def why_not(self, host: str, gpus: int) -> str:
        """Why it cannot begin there now. Empty if the quota allows it."""
        if gpus > self.limit:
            return texts.too_many(gpus, self.limit)
        others = [(name, count) for name, count in self.held.items() if name != host]
        too_much = sum(count for _, count in others) + gpus > self.limit
        if too_much:
            return texts.in_use(self.limit, others)
        return "" if self.shares(host, gpus) else self.group_full


#: What is left only if batch tasks make way counts less than anything that is left without that.
_MAKES_WAY = 1000


def _judge(
    host: Host, wish: Wish, needs: _Needs, allowed: _Allowed | None
) -> tuple[tuple[object, ...], Ranked]:
    report = host.report
    if report is None or not host.connected:
        return _last(host, "it cannot be reached")
    if host.out_of_service:
        return _last(host, f"it is out of service: {host.out_of_service}")
    could = [gpu for gpu in report.gpus if gpu.out is None and needs.could(gpu)]
    if len(could) < wish.gpus:
        only = "only " if could else ""
        return _last(host, f"it has {only}{_count(len(could))}{_wished(wish)}")
    left = [(left, gpu) for gpu in could if (left := needs.fits(gpu)) is not None]
    free = sorted(left, key=lambda one: -one[0])
    best = free[0][0] if free else 0
    parked_bytes = sum(one.parked_bytes for one in report.environments)
    parked = host.here.get(wish.environment, NOTHING).parked
    has_room = len(free) >= wish.gpus
    shares = allowed is not None and allowed.shares(host.name, wish.gpus)
    why_not = "" if allowed is None else allowed.why_not(host.name, wish.gpus)
    fits = (has_room or shares) and not why_not
    wait = 0.0 if fits else None if why_not else report.expected_wait
    reasons = [why_not] if why_not else []
    if shares:
        reasons.append(f"It shares the GPUs that you have on host {host.name}.")
    elif has_room:
        reasons.append(f"Host {host.name} has {_count(len(free))}{_wished(wish)} free now.")
        reasons.append(_left(free[0][1], best, needs))
    else:
        reasons.append(
            f"Host {host.name} has {_count(len(could))}{_wished(wish)}, of which "
            f"{len(free)} are free now."
        )
    if report.queue:
        reasons.append(f"{counted(report.queue, 'request waits', 'requests wait')} there.")
    if parked:
        reasons.append(f"{parked} of your kernels {'is' if parked == 1 else 'are'} parked there.")
    # Where only the quota is in the way, its GPUs are free all the same: it comes between the two.
    level, order = 0.0 if fits else 0.5, float(-best)
    if not (has_room or fits):
        level, order = 1.0, _NEVER if wait is None else wait
    if host.held is not None and host.ends_before(wish.until):
        level += 0.25
        reasons.append(texts.ends(host.held))
    crowd = len(_people(report) - {wish.environment}) / len(could)
    key = (level, order, report.queue, crowd, parked_bytes, -parked, host.name)
    return key, Ranked(host.name, fits, tuple(reasons), wait, place=host.place)


def _last(host: Host, why: str) -> tuple[tuple[object, ...], Ranked]:
    reason = f"Host {host.name} is left out: {why}."
    key = (2.0, 0.0, 0, 0.0, 0, 0, host.name)
    return key, Ranked(host.name, False, (reason,), None, possible=False, place=host.place)


def _people(report: HostReport) -> set[str]:
    """Environments with a server, a task, or something of theirs on the host."""
    every = report.environments
    there = {one.environment for one in every if one.held or one.parked or one.waiting}
    return {*there, *report.talking}


def _left(gpu: HostGpu, left: int, needs: _Needs) -> str:
    """What is left of its best GPU, and what of that is needed."""
    need = needs.of(gpu)
    wanted = f", and {need.share} % are expected to be needed" if need is not None else ""
    if left >= 0:
        return f"{left} % of the compute of its best one ({gpu.kind}) is left{wanted}."
    return (
        f"{gpu.free_share} % of the compute of its best one ({gpu.kind}) is left{wanted}: batch "
        "tasks make way there."
    )


def _count(count: int) -> str:
    return "no GPU" if count == 0 else gpus(count)


def _wished(wish: Wish) -> str:
    kind = "" if wish.kind is None else f" of the kind {wish.kind}"
    return kind if wish.memory is None else f"{kind} with at least {wish.memory / _GIB:.3g} GiB"
