"""What the pages know of each host, and what they say of all of them. Pure.

The facts come from a node manager's status, or from a pool's report; both give the same row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from jupyter_gpushare.protocol.times import format_range

from . import words
from .listing import HostListing, Page, cut

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


@dataclass(frozen=True, slots=True)
class Host:
    """A host. ``problem`` says why it cannot be asked; ``drained`` why it takes no new task.

    ``expected`` are the seconds that a new request is expected to wait, if that is known.
    """

    name: str
    problem: str = ""
    drained: str = ""
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
    for row in reversed(status["queue"]):
        estimate = (row.get("outlook") or {}).get("estimate")
        if estimate:
            return float(estimate["low"]), float(estimate["high"])
    return None


# -- where the viewer is ---------------------------------------------------------------------------


def own_hosts(hosts: Iterable[Host]) -> tuple[str, ...]:
    """The hosts on which servers or tasks of the viewer's run."""
    return tuple(host.name for host in hosts if host.own.is_there)


class Reach(Enum):
    """Whether the viewer's notebooks get GPUs of a host."""

    HERE = "here"
    ELSEWHERE = "elsewhere"
    UNKNOWN = "unknown"


def reach(name: str, hosts: Sequence[Host]) -> Reach:
    """Whether the viewer's notebooks get GPUs of the host ``name``.

    Of the only one they always do; a pool of one host may be beside the Hub's own host.
    """
    own = own_hosts(hosts)
    is_alone = len(hosts) == 1 and hosts[0].own.lent is None
    if is_alone or name in own:
        return Reach.HERE
    return Reach.ELSEWHERE if own else Reach.UNKNOWN


def chosen(hosts: Sequence[Host], wanted: str) -> str:
    """The host whose details a page shows: the one that was named, else the viewer's own.

    Without either, the first that answers.
    """
    if wanted:
        return wanted
    own = own_hosts(hosts)
    if own:
        return own[0]
    answering = (host.name for host in hosts if host.state is not HostState.AWAY)
    return next(answering, hosts[0].name)


def where_text(hosts: Sequence[Host]) -> str:
    """On which of several hosts the viewer's notebooks get GPUs; empty of one."""
    if len(hosts) < 2:
        return ""
    rule = (
        "A notebook gets GPUs of the host on which its kernel runs: the host of its server, if you "
        "did not choose another."
    )
    own = own_hosts(hosts)
    if own:
        return f"{rule} Servers, kernels or programs of yours run on {named(own)}."
    away_ones = [host.name for host in hosts if host.state is HostState.AWAY]
    if away_ones:
        return (
            f"{rule} No server of yours runs on a host that answers. Whether one runs on "
            f"{named(away_ones)} is not known."
        )
    return f"{rule} No server of yours runs on one of these hosts now."


def nothing_text(name: str, hosts: Sequence[Host]) -> str:
    """What to do to get a GPU of a host on which the viewer has none; empty where code says it."""
    where = reach(name, hosts)
    if where is Reach.HERE:
        return ""
    if where is Reach.ELSEWHERE:
        own = named(own_hosts(hosts))
        return (
            f"You hold no GPU of {name} and wait for none. Your notebooks run on {own}, so they "
            f"get GPUs there. They do not get GPUs of {name}."
        )
    return (
        f"You hold no GPU of {name} and wait for none. A notebook gets GPUs of {name} if its "
        "server runs there. Start your server to see on which host it runs."
    )


def named(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b, c and 4 others``."""
    listed = list(names)
    if len(listed) > _NAMED + 1:
        listed = [*listed[:_NAMED], words.counted(len(listed) - _NAMED, "other")]
    *first, last = listed
    return f"{', '.join(first)} and {last}" if first else last


# -- the table -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostView:
    """A row of the table of hosts. ``notes`` say why a host or a GPU takes nothing new."""

    name: str
    state: str
    word: str
    kinds: str
    free: str
    waiting: str
    expected: str
    notes: tuple[str, ...]
    is_own: bool
    is_chosen: bool
    is_drained: bool


@dataclass(frozen=True, slots=True)
class HostsView:
    """The table of hosts: a page of those that fit, and the totals of all."""

    page: Page[Host]
    rows: tuple[HostView, ...]
    totals: str
    kind_choices: Mapping[str, str]
    own: tuple[OwnRow, ...]


def hosts_view(hosts: Sequence[Host], wanted: HostListing, shown: str) -> HostsView:
    """The table as it is ``wanted``; ``shown`` is the host whose details stand below."""
    kinds = {kind for host in hosts for kind in host.kinds}
    page = cut(fitting(hosts, wanted), len(hosts), wanted.page, wanted.rows)
    return HostsView(
        page=page,
        rows=tuple(_row(host, shown) for host in page.shown),
        totals=totals_text(hosts),
        kind_choices={"": "all", **{kind: kind for kind in sorted(kinds)}},
        own=own_rows(hosts),
    )


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


def _row(host: Host, shown: str) -> HostView:
    is_away = host.state is HostState.AWAY
    return HostView(
        name=host.name,
        state=host.state.value,
        word=STATES[host.state],
        kinds=kinds_text(host.gpus) or ("unknown" if is_away else "no GPUs"),
        free="unknown" if is_away else _free_text(host),
        waiting="unknown" if is_away else str(host.waiting),
        expected=_expected_text(host),
        notes=_notes(host),
        is_own=host.own.is_there,
        is_chosen=host.name == shown,
        is_drained=bool(host.drained),
    )


def kinds_text(gpus: Iterable[HostGpu]) -> str:
    """``8 of NVIDIA A100, 80 GiB``."""
    counts = Counter((gpu.kind, gpu.memory) for gpu in gpus)
    return "; ".join(
        f"{count} of {kind}, {words.size(memory)}" for (kind, memory), count in counts.items()
    )


def _free_text(host: Host) -> str:
    empty, most = host.free
    if not most:
        return "none"
    return f"{words.gpus(empty) if empty else 'no GPU'}; up to {words.size(most)} on one"


def _expected_text(host: Host) -> str:
    if host.state in (HostState.AWAY, HostState.OUT):
        return ""
    if host.expected is None:
        return "unknown"
    low, high = host.expected
    return "none" if high == 0 else f"about {format_range(low, high)}"


def _notes(host: Host) -> tuple[str, ...]:
    if host.problem:
        return (host.problem,)
    if host.drained:
        return (host.drained,)
    reasons: dict[str, list[int]] = {}
    for gpu in host.gpus:
        if gpu.out:
            reasons.setdefault(gpu.out, []).append(gpu.index)
    return tuple(
        f"GPU {', '.join(map(str, numbers))}: {reason}" for reason, numbers in reasons.items()
    )


def totals_text(hosts: Sequence[Host]) -> str:
    """The GPUs and the queues of all hosts that answer, and the hosts that do not."""
    told = [host for host in hosts if host.state is not HostState.AWAY]
    missing = [host.name for host in hosts if host.state is HostState.AWAY]
    empty, every = sum(host.free[0] for host in told), sum(len(host.gpus) for host in told)
    waiting = sum(host.waiting for host in told)
    are, wait = "is" if empty == 1 else "are", "waits" if waiting == 1 else "wait"
    text = (
        f"{words.counted(len(told), 'host')} with {words.gpus(every)}: {empty} {are} free now, "
        f"{words.counted(waiting, 'request')} {wait}."
    )
    return f"{text} {missing_text(missing)}".rstrip() if told else missing_text(missing)


def missing_text(missing: Sequence[str]) -> str:
    """The hosts that figures lack; empty if they lack none."""
    if not missing:
        return ""
    they, are = ("it", "is") if len(missing) == 1 else ("they", "are")
    return f"{named(missing)} {are} not in these figures: {they} cannot be reached."


@dataclass(frozen=True, slots=True)
class OwnRow:
    """What the viewer has on one host, in words."""

    name: str
    text: str
    why: str


def own_rows(hosts: Iterable[Host]) -> tuple[OwnRow, ...]:
    """The hosts on which the viewer holds GPUs, has parked tasks, waits, or is lent GPUs."""
    return tuple(
        OwnRow(host.name, text, host.own.why) for host in hosts if (text := _own_text(host.own))
    )


def _own_text(own: Own) -> str:
    parts = (
        f"{words.gpus(own.held)} held" if own.held else "",
        f"{words.counted(own.parked, 'task')} parked" if own.parked else "",
        f"{words.counted(own.waiting, 'request')} waiting" if own.waiting else "",
        f"{words.gpus(own.lent)} of your quota lent to it" if own.lent else "",
    )
    return ", ".join(part for part in parts if part)
