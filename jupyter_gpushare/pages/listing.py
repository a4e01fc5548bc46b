"""Filters, sorts and pages the tables of users and of hosts. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

from jupyter_gpushare.link import wishes

Json = Mapping[str, Any]
Row = TypeVar("Row")

#: The windows of the GPU-hours: its name in addresses, seconds, and in words.
WINDOWS: Final = {
    "1h": (3600, "last hour"),
    "1d": (86400, "last 24 hours"),
    "7d": (7 * 86400, "last 7 days"),
    "30d": (30 * 86400, "last 30 days"),
}
ROWS: Final = (25, 50, 100)
_MOST_PAGES: Final = 1_000_000
#: Arguments that the table keeps for the events below it.
EVENT_FILTERS: Final = ("environment", "kind", "text")
#: The arguments of the table of hosts in addresses, by the field of :class:`HostListing`.
HOST_ARGUMENTS: Final = {
    "chosen": "host",
    "find": "host_find",
    "kind": "host_kind",
    "state": "host_state",
    "sort": "host_sort",
    "page": "host_page",
    "rows": "host_rows",
}
#: The other arguments of a page with a table of hosts, which its links keep.
_USER_ARGUMENTS: Final = ("window", "find", "group", "only", "sort", "page", "rows", "span")


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody of the table: the quota as the node manager lists it, and what they do."""

    name: str
    quota: Json
    held: int  # leases
    waiting: int
    usage: Json | None

    @property
    def spent(self) -> float:
        """The spent share of the budget; negative without a budget."""
        budget = self.quota.get("budget")
        if not budget:
            return -1.0
        return math.inf if not budget["hours"] else float(budget["spent"] / budget["hours"])

    @property
    def is_over(self) -> bool:
        return self.quota["used_gpus"] > self.quota["gpus"] or self.spent >= 1.0

    @property
    def seconds(self) -> float:
        return float(self.usage["gpu_seconds_held"]) if self.usage else 0.0


def _memory(one: Member) -> float:
    memory = one.quota["memory"]
    return math.inf if memory is None else float(memory)


#: The filters of the table: the name in addresses, the words, and the test.
ONLY: Final[dict[str, tuple[str, Callable[[Member], bool]]]] = {
    "": ("everybody", lambda one: True),
    "holding": ("users that hold a GPU", lambda one: one.held > 0 or one.quota["used_gpus"] > 0),
    "waiting": ("users that wait", lambda one: one.waiting > 0),
    "over": ("users over quota or budget", lambda one: one.is_over),
    "set": ("quotas set by an administrator", lambda one: one.quota["source"] == "override"),
    "never": ("users never seen here", lambda one: not one.quota.get("seen", True)),
}
#: By what it can be sorted, likewise; the most first, but names from A.
SORTS: Final[dict[str, tuple[str, Callable[[Member], tuple[float, ...]]]]] = {
    "name": ("name", lambda one: ()),
    "gpus": ("GPUs held", lambda one: (-one.quota["used_gpus"], -one.quota["gpus"])),
    "memory": ("memory each", lambda one: (-_memory(one),)),
    "leases": ("leases, waiting ones first", lambda one: (-one.waiting, -one.held)),
    "hours": ("GPU-hours", lambda one: (-one.seconds,)),
    "budget": ("share of the budget", lambda one: (-one.spent,)),
}


@dataclass(frozen=True, slots=True)
class Listing:
    """The arguments of the page's address.

    ``events`` are the filters of the events, and ``hosts`` the arguments of the table of hosts.
    """

    window: str = "1d"
    find: str = ""
    group: str = ""
    only: str = ""
    sort: str = "name"
    page: int = 1
    rows: int = ROWS[0]
    events: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)

    def address(self, **change: Any) -> str:
        """The query of the same page with something else; another list begins on its first page."""
        new, usual = replace(self, **{"page": 1, **change}), Listing()
        named = {
            name: value
            for name in ("window", "find", "group", "only", "sort", "page", "rows")
            if (value := getattr(new, name)) != getattr(usual, name)
        }
        return urlencode({**named, **_said(new.events), **_said(new.hosts)})

    @property
    def kept(self) -> Mapping[str, str]:
        """The arguments that the form of this table keeps."""
        return {**_said(self.events), **_said(self.hosts)}

    @property
    def is_all(self) -> bool:
        """Whether the table shows everybody."""
        return not (self.find or self.group or self.only)

    def takes(self, name: str, groups: Sequence[str]) -> bool:
        """Whether the table shows a person with this name and these groups."""
        named = self.find.casefold() in name.casefold()
        return named and (not self.group or self.group in groups)


def listing(arguments: Callable[[str], str]) -> Listing:
    """Parse the arguments of an address. Raises :class:`NodeProblem` for nonsense."""
    chosen = {}
    for name, known in (("window", WINDOWS), ("only", ONLY), ("sort", SORTS)):
        chosen[name] = arguments(name) or getattr(Listing(), name)
        if chosen[name] not in known:
            raise wishes.bad_request(f"'{name}' is one of {', '.join(filter(None, known))}.")
    page = wishes.count("page", arguments("page") or None, 1, _MOST_PAGES) or 1
    rows = wishes.count("rows", arguments("rows") or None, 1, ROWS[-1]) or ROWS[0]
    return Listing(
        **chosen,
        find=arguments("find").strip(),
        group=arguments("group"),
        page=page,
        rows=rows,
        events={name: arguments(name) for name in EVENT_FILTERS},
        hosts=_said({name: arguments(name) for name in HOST_ARGUMENTS.values()}),
    )


@dataclass(frozen=True, slots=True)
class HostListing:
    """The arguments of the table of hosts. ``others`` are those of the page around it.

    ``chosen`` is the host whose details stand below the table.
    """

    chosen: str = ""
    find: str = ""
    kind: str = ""
    state: str = ""
    sort: str = "name"
    page: int = 1
    rows: int = ROWS[0]
    others: Mapping[str, str] = field(default_factory=dict)

    def address(self, **change: Any) -> str:
        """The query of the same page with something else; another list begins on its first page."""
        # Whoever looks at another host goes on from the same rows.
        first = {} if set(change) <= {"chosen"} else {"page": 1}
        new, usual = replace(self, **{**first, **change}), HostListing()
        named = {
            argument: value
            for name, argument in HOST_ARGUMENTS.items()
            if (value := getattr(new, name)) != getattr(usual, name)
        }
        return urlencode({**_said(new.others), **named})

    @property
    def kept(self) -> Mapping[str, str]:
        """The arguments that the form of this table keeps."""
        return _said({**self.others, "host": self.chosen})

    def without(self, other: str) -> Mapping[str, str]:
        """The arguments of the page around it but one."""
        return {name: text for name, text in self.others.items() if name != other}

    @property
    def is_all(self) -> bool:
        """Whether the table shows every host."""
        return not (self.find or self.kind or self.state)


def host_listing(
    arguments: Callable[[str], str], states: Sequence[str], sorts: Sequence[str]
) -> HostListing:
    """Parse the arguments of an address. Raises :class:`NodeProblem` for nonsense."""
    told = {name: arguments(argument) for name, argument in HOST_ARGUMENTS.items()}
    for name, known in (("state", states), ("sort", sorts)):
        if told[name] and told[name] not in known:
            raise wishes.bad_request(f"'{HOST_ARGUMENTS[name]}' is one of {', '.join(known)}.")
    return HostListing(
        chosen=told["chosen"],
        find=told["find"].strip(),
        kind=told["kind"],
        state=told["state"],
        sort=told["sort"] or HostListing().sort,
        page=wishes.count("host_page", told["page"] or None, 1, _MOST_PAGES) or 1,
        rows=wishes.count("host_rows", told["rows"] or None, 1, ROWS[-1]) or ROWS[0],
        others={name: arguments(name) for name in (*_USER_ARGUMENTS, *EVENT_FILTERS)},
    )


def _said(arguments: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in arguments.items() if text}


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """A page of a table. ``found`` fit, of ``known``; the first is number ``first``."""

    shown: tuple[Row, ...]
    number: int
    pages: int
    first: int
    found: int
    known: int


def page_of(members: Iterable[Member], wanted: Listing) -> Page[Member]:
    """Those that fit, sorted, and of them the page."""
    everybody, (_, fits), (_, key) = list(members), ONLY[wanted.only], SORTS[wanted.sort]
    fitting = [
        one
        for one in everybody
        if wanted.takes(one.name, one.quota.get("groups") or ()) and fits(one)
    ]
    fitting.sort(key=lambda one: (key(one), one.name.casefold(), one.name))
    return cut(fitting, len(everybody), wanted.page, wanted.rows)


def cut(fitting: Sequence[Row], known: int, page: int, rows: int) -> Page[Row]:
    """A page of those that fit; the last one where there are not so many."""
    pages = max(1, math.ceil(len(fitting) / rows))
    number = min(page, pages)
    start = (number - 1) * rows
    return Page(tuple(fitting[start : start + rows]), number, pages, start + 1, len(fitting), known)
