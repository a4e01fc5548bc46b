"""Filters, sorts and pages the administrators' table of users. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlencode

from jupyter_gpushare.link import wishes

Json = Mapping[str, Any]

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
    """The arguments of the page's address. ``events`` are the filters of the events."""

    window: str = "1d"
    find: str = ""
    group: str = ""
    only: str = ""
    sort: str = "name"
    page: int = 1
    rows: int = ROWS[0]
    events: Mapping[str, str] = field(default_factory=dict)

    def address(self, **change: Any) -> str:
        """The query of the same page with something else; another list begins on its first page."""
        new, usual = replace(self, **{"page": 1, **change}), Listing()
        named = {
            name: value
            for name in ("window", "find", "group", "only", "sort", "page", "rows")
            if (value := getattr(new, name)) != getattr(usual, name)
        }
        return urlencode({**named, **{name: text for name, text in new.events.items() if text}})

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
    )


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a table. ``found`` fit, of ``known``; the first is number ``first``."""

    members: tuple[Member, ...]
    number: int
    pages: int
    first: int
    found: int
    known: int


def page_of(members: Iterable[Member], wanted: Listing) -> Page:
    """Those that fit, sorted, and of them the page; the last one where there are not so many."""
    everybody, (_, fits), (_, key) = list(members), ONLY[wanted.only], SORTS[wanted.sort]
    fitting = [
        one
        for one in everybody
        if wanted.takes(one.name, one.quota.get("groups") or ()) and fits(one)
    ]
    fitting.sort(key=lambda one: (key(one), one.name.casefold(), one.name))
    pages = max(1, math.ceil(len(fitting) / wanted.rows))
    number = min(wanted.page, pages)
    start = (number - 1) * wanted.rows
    shown = tuple(fitting[start : start + wanted.rows])
    return Page(shown, number, pages, start + 1, len(fitting), len(everybody))
