"""What the pages know of each host, and what they say of all of them. Pure.

Somebody with many hosts asks three things: where could I begin, what have I where, and what is
broken. A page that asked every host anew for each of them would be as slow as the slowest host. So
each host is reduced to one small row (:class:`Host`), made either from its node manager's status or
from what a pool was reported. All sentences, counts and filters come from the rows, and a host that
cannot be reached is a row, too, with the reason.

A host that is away counts for nothing: what it had when it was last heard of says nothing about
what is free there now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from jupyter_gpushare.figures import counted, format_range, format_size, listed

from .listing import HostListing, cut

Json = Mapping[str, Any]

_NAMED: Final = 3  # hosts that a sentence names; it counts the others


class HostState(Enum):
    """Whether a host takes new tasks; the value is in addresses."""

    SERVES = "serves"
    PARTLY = "partly"
    OUT = "out"
    AWAY = "away"


#: The name of each state on the page.
STATES: Final = {
    HostState.SERVES: "In service",
    HostState.PARTLY: "Partly out of service",
    HostState.OUT: "Out of service",
    HostState.AWAY: "Cannot be reached",
}


@dataclass(frozen=True, slots=True)
class HostGpu:
    """A GPU of a host. ``free`` is memory, bytes; ``out`` says why it takes nothing new."""

    index: int
    kind: str
    memory: int
    free: int
    is_empty: bool
    out: str = ""


@dataclass(frozen=True, slots=True)
class Own:
    """What the viewer has on a host. ``lent`` are GPUs that the pool lends there, in a pool.

    ``talks``: a server or task of theirs is connected to that host's node manager. ``why`` says
    why the pool lends no more for what waits there.
    """

    held: int = 0
    parked: int = 0
    waiting: int = 0
    lent: int | None = None
    talks: bool = False
    why: str = ""

    @property
    def is_there(self) -> bool:
        """Whether a server or task of the viewer's runs on the host."""
        return self.talks or bool(self.held or self.parked or self.waiting)

    @property
    def text(self) -> str:
        """The GPUs that are held or lent, the parked tasks and the requests that wait; or empty."""
        parts = (
            f"{counted(self.held, 'GPU')} held" if self.held else "",
            f"{counted(self.parked, 'task')} parked" if self.parked else "",
            f"{counted(self.waiting, 'request')} waiting" if self.waiting else "",
            f"{counted(self.lent, 'GPU')} of your quota lent to it" if self.lent else "",
        )
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Host:
    """A host. ``problem`` says why it cannot be asked; ``drained`` why it takes no new task.

    ``held``: what holds it for the pool, and until when, unless an administrator let it join.
    ``expected`` are the seconds that a new request is expected to wait, if that is known.
    """

    name: str
    problem: str = ""
    drained: str = ""
    held: str = ""
    gpus: tuple[HostGpu, ...] = ()
    waiting: int = 0
    expected: tuple[float, float] | None = None
    own: Own = Own()

    @property
    def state(self) -> HostState:
        if self.problem:
            return HostState.AWAY
        out = [gpu for gpu in self.gpus if gpu.out]
        if self.drained or (out and len(out) == len(self.gpus)):
            return HostState.OUT
        return HostState.PARTLY if out else HostState.SERVES

    @property
    def in_service(self) -> tuple[HostGpu, ...]:
        """The GPUs that take new tasks."""
        if self.state in (HostState.AWAY, HostState.OUT):
            return ()
        return tuple(gpu for gpu in self.gpus if not gpu.out)

    @property
    def free(self) -> tuple[int, int]:
        """How many GPUs are empty, and the most free memory on one (bytes)."""
        serving = self.in_service
        return sum(gpu.is_empty for gpu in serving), max((gpu.free for gpu in serving), default=0)

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(gpu.kind for gpu in self.gpus)

    @property
    def kinds_text(self) -> str:
        """``8 of NVIDIA A100, 80 GiB``."""
        counts = Counter((gpu.kind, gpu.memory) for gpu in self.gpus)
        told = (f"{n} of {kind}, {format_size(memory)}" for (kind, memory), n in counts.items())
        return "; ".join(told) or ("unknown" if self.problem else "no GPUs")

    @property
    def free_text(self) -> str:
        """What a task may have now."""
        empty, most = self.free
        if not most:
            return "unknown" if self.problem else "none"
        return f"{counted(empty, 'GPU') if empty else 'no GPU'}; up to {format_size(most)} on one"

    @property
    def expected_text(self) -> str:
        """How long a new request is expected to wait; empty where none is served."""
        if self.state in (HostState.AWAY, HostState.OUT):
            return ""
        if self.expected is None:
            return "unknown"
        low, high = self.expected
        return "none" if high == 0 else f"about {format_range(low, high)}"

    @property
    def notes(self) -> list[str]:
        """Why the host, or each GPU of it, takes nothing new."""
        if why := self.problem or self.drained:
            return [why]
        numbers: dict[str, list[str]] = {}
        for gpu in self.gpus:
            if gpu.out:
                numbers.setdefault(gpu.out, []).append(str(gpu.index))
        return [f"GPU {', '.join(those)}: {reason}" for reason, those in numbers.items()]


# -- from a node manager's status ------------------------------------------------------------------


def away(name: str, problem: str) -> Host:
    """A host whose node manager does not answer."""
    return Host(name, problem or "Its node manager does not answer.")


def of_status(name: str, status: Json) -> Host:
    """A host as its node manager tells the viewer."""
    gpus = tuple(_gpu(gpu) for gpu in status["gpus"])
    waiting = len(status["queue"]) + status.get("more", {}).get("queue", 0)
    phases = Counter[str]()
    for lease in status["leases"]:
        if lease["mine"]:
            phases[lease["phase"]] += len(lease["gpus"]) if lease["phase"] == "held" else 1
    talks = bool(status["node"].get("connected", False))
    return Host(
        name=name,
        drained=_drained(status["gpus"]),
        gpus=gpus,
        waiting=waiting,
        expected=_expected(status, gpus, waiting),
        own=Own(phases["held"], phases["parked"], phases["queued"], talks=talks),
    )


def _gpu(gpu: Json) -> HostGpu:
    out = gpu.get("out_of_service")
    lost = "" if gpu["health"] == "ok" else gpu["problem"] or "It is lost."
    return HostGpu(
        index=gpu["index"],
        kind=gpu["name"],
        memory=gpu["memory"],
        free=gpu["free"],
        is_empty=gpu["tasks"] == 0
        and gpu["reserved"] == 0
        and gpu["unleased"] == gpu.get("system", 0),
        out=lost or (out["reason"] if out else ""),
    )


def _drained(gpus: Sequence[Json]) -> str:
    """Why the whole host is out of service: an administrator took all its GPUs out of it."""
    outs = [gpu.get("out_of_service") for gpu in gpus]
    return "; ".join(dict.fromkeys(out["reason"] for out in outs if out)) if all(outs) else ""


def _expected(status: Json, gpus: Sequence[HostGpu], waiting: int) -> tuple[float, float] | None:
    """About how long a new request waits: as the last in line, or not at all."""
    if not waiting:
        return (0.0, 0.0) if any(gpu.is_empty and not gpu.out for gpu in gpus) else None
    # Who comes now is behind the last one of whom anybody can say how long it takes.
    for row in reversed(status["queue"]):
        if estimate := (row.get("outlook") or {}).get("estimate"):
            return float(estimate["low"]), float(estimate["high"])
    return None


# -- where the viewer is ---------------------------------------------------------------------------


def own_hosts(hosts: Iterable[Host]) -> tuple[str, ...]:
    """The hosts on which servers or tasks of the viewer's run."""
    return tuple(host.name for host in hosts if host.own.is_there)


def chosen(hosts: Sequence[Host], wanted: str) -> str:
    """The host whose details a page shows: the one that was named, else the viewer's own.

    Without either, the first that answers.
    """
    answering = (host.name for host in hosts if host.state is not HostState.AWAY)
    return wanted or next(iter((*own_hosts(hosts), *answering)), hosts[0].name)


_RULE: Final = (
    "A notebook gets GPUs of the host on which its kernel runs: the host of its server, if you did "
    "not choose another."
)


def where_text(hosts: Sequence[Host]) -> str:
    """On which of several hosts the viewer's notebooks get GPUs; empty of one."""
    own, away_ones = own_hosts(hosts), [h.name for h in hosts if h.state is HostState.AWAY]
    where = "No server of yours runs on one of these hosts now."
    if own:
        where = f"Servers, kernels or programs of yours run on {named(own)}."
    elif away_ones:
        where = (
            "No server of yours runs on a host that answers. Whether one runs on "
            f"{named(away_ones)} is not known."
        )
    return f"{_RULE} {where}" if len(hosts) > 1 else ""


def nothing_text(name: str, hosts: Sequence[Host]) -> str:
    """What to do to get a GPU of a host on which the viewer has none; empty where code says it.

    Of the only host notebooks always get GPUs; a pool of one host may be beside the Hub's own host.
    """
    own = own_hosts(hosts)
    is_alone = len(hosts) == 1 and hosts[0].own.lent is None
    if is_alone or name in own:
        return ""
    if own:
        return (
            f"You hold no GPU of {name} and wait for none. Your notebooks run on {named(own)}, so "
            f"they get GPUs there. They do not get GPUs of {name}."
        )
    return (
        f"You hold no GPU of {name} and wait for none. A notebook gets GPUs of {name} if its "
        "server runs there. Start your server to see on which host it runs."
    )


def named(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b, c and 4 others``."""
    more = len(names) - _NAMED
    return listed([*names[:_NAMED], counted(more, "other")] if more > 1 else names)


# -- the table -------------------------------------------------------------------------------------


def view(hosts: Sequence[Host], wanted: HostListing) -> dict[str, Any]:
    """What the template of the table needs: as it is ``wanted``, and the totals of all hosts."""
    kinds = sorted({kind for host in hosts for kind in host.kinds})
    return {
        "hosts": cut(fitting(hosts, wanted), len(hosts), wanted.page, wanted.rows),
        "wanted_hosts": wanted,
        "totals": totals_text(hosts),
        "where": where_text(hosts),
        "mine": [host for host in hosts if host.own.text],
        "host_kinds": {"": "all", **dict(zip(kinds, kinds, strict=True))},
        "host_sorts": {name: words for name, (words, _key) in SORTS.items()},
        "host_states": {"": "all", **{one.value: word for one, word in STATES.items()}},
    }


def fitting(hosts: Iterable[Host], wanted: HostListing) -> list[Host]:
    """The hosts that the table shows, in its order."""
    sought, (_, key) = wanted.find.casefold(), SORTS[wanted.sort]
    found = [
        host
        for host in hosts
        if sought in host.name.casefold()
        and (not wanted.kind or wanted.kind in host.kinds)
        and (not wanted.state or wanted.state == host.state.value)
    ]
    return sorted(found, key=lambda host: (key(host), host.name.casefold(), host.name))


def _expected_key(host: Host) -> tuple[float, ...]:
    unknown = float("inf")
    if host.state in (HostState.AWAY, HostState.OUT):
        return (1.0, unknown)
    return (0.0, unknown if host.expected is None else host.expected[1])


_ORDER: Final = {state: float(place) for place, state in enumerate(reversed(HostState))}
#: By what the table can be sorted: the words, and the key. Names begin at A.
SORTS: Final[dict[str, tuple[str, Callable[[Host], tuple[Any, ...]]]]] = {
    "name": ("name", lambda host: ()),
    "state": ("state, worst first", lambda host: (_ORDER[host.state],)),
    "kind": ("kind of GPUs", lambda host: tuple(sorted(host.kinds))),
    "free": ("free now, most first", lambda host: tuple(-part for part in host.free)),
    "waiting": ("waiting, most first", lambda host: (-host.waiting,)),
    "expected": ("expected wait, shortest first", _expected_key),
}


def totals_text(hosts: Sequence[Host]) -> str:
    """The GPUs and the queues of all hosts that answer, and the hosts that do not."""
    told = [host for host in hosts if host.state is not HostState.AWAY]
    missing = [host.name for host in hosts if host.state is HostState.AWAY]
    empty, every = sum(host.free[0] for host in told), sum(len(host.gpus) for host in told)
    waiting = sum(host.waiting for host in told)
    text = (
        f"{counted(len(told), 'host')} with {counted(every, 'GPU')}: "
        f"{counted(empty, 'is', 'are')} free now, "
        f"{counted(waiting, 'request waits', 'requests wait')}."
    )
    return f"{text} {missing_text(missing)}".rstrip() if told else missing_text(missing)


def missing_text(missing: Sequence[str]) -> str:
    """The hosts that figures lack; empty if they lack none."""
    if not missing:
        return ""
    they, are = ("it", "is") if len(missing) == 1 else ("they", "are")
    return f"{named(missing)} {are} not in these figures: {they} cannot be reached."
