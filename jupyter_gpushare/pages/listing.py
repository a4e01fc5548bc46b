"""Filters, sorts and pages the tables of users and of hosts. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Generic, Self, TypeVar
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
#: The arguments of the table of users, fields of :class:`Listing`.
_USER_ARGUMENTS: Final = ("window", "find", "group", "only", "sort", "page", "rows")


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
class Table:
    """The arguments of a table in addresses. ``others`` are those of the page around it."""

    #: How each field is called in addresses.
    ARGUMENTS: ClassVar[Mapping[str, str]]

    find: str = ""
    sort: str = "name"
    page: int = 1
    rows: int = ROWS[0]
    others: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def told(
        cls,
        arguments: Callable[[str], str],
        known: Mapping[str, Collection[str]],
        others: Iterable[str],
    ) -> Self:
        """Parse the arguments of an address. ``known``: the words that some fields may have.

        Raises :class:`NodeProblem` for nonsense.
        """
        usual, called = cls(), cls.ARGUMENTS
        told = {name: arguments(called[name]).strip() for name in called}
        for name, choices in known.items():
            told[name] = told[name] or getattr(usual, name)
            if told[name] not in choices:
                named = ", ".join(filter(None, choices))
                raise wishes.bad_request(f"'{called[name]}' is one of {named}.")
        page = wishes.count(called["page"], told.pop("page") or None, 1, _MOST_PAGES) or 1
        rows = wishes.count(called["rows"], told.pop("rows") or None, 1, ROWS[-1]) or ROWS[0]
        around = _said({name: arguments(name) for name in others})
        return cls(**told, page=page, rows=rows, others=around)

    def address(self, **change: Any) -> str:
        """The query of the same page with something else; another list begins on its first page."""
        # Whoever looks at another host goes on from the same rows.
        first = {} if set(change) <= {"chosen"} else {"page": 1}
        new, usual = replace(self, **{**first, **change}), type(self)()
        named = {
            argument: value
            for name, argument in self.ARGUMENTS.items()
            if (value := getattr(new, name)) != getattr(usual, name)
        }
        return urlencode({**_said(new.others), **named})

    def without(self, *names: str) -> Mapping[str, str]:
        """The arguments of the page around it but some."""
        return {name: text for name, text in self.others.items() if name not in names}


@dataclass(frozen=True, slots=True)
class Listing(Table):
    """The arguments of the table of users."""

    ARGUMENTS: ClassVar[Mapping[str, str]] = {name: name for name in _USER_ARGUMENTS}

    window: str = "1d"
    group: str = ""
    only: str = ""

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
    others = (*EVENT_FILTERS, *HOST_ARGUMENTS.values())
    return Listing.told(arguments, {"window": WINDOWS, "only": ONLY, "sort": SORTS}, others)


@dataclass(frozen=True, slots=True)
class HostListing(Table):
    """The arguments of the table of hosts; ``chosen`` is the one whose details stand below it."""

    ARGUMENTS: ClassVar[Mapping[str, str]] = HOST_ARGUMENTS

    chosen: str = ""
    kind: str = ""
    state: str = ""

    @property
    def kept(self) -> Mapping[str, str]:
        """The arguments that the form of this table keeps."""
        return _said({**self.others, "host": self.chosen})

    @property
    def is_all(self) -> bool:
        """Whether the table shows every host."""
        return not (self.find or self.kind or self.state)


def host_listing(
    arguments: Callable[[str], str], states: Iterable[str], sorts: Collection[str]
) -> HostListing:
    """Parse the arguments of an address. Raises :class:`NodeProblem` for nonsense."""
    others = (*_USER_ARGUMENTS, "span", *EVENT_FILTERS)
    return HostListing.told(arguments, {"state": ("", *states), "sort": sorts}, others)


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
    """The members that fit, sorted, and the page of them that is shown."""
    everybody, (_, fits), (_, key) = list(members), ONLY[wanted.only], SORTS[wanted.sort]
    fitting = [
        one
        for one in everybody
        if wanted.takes(one.name, one.quota.get("groups") or ()) and fits(one)
    ]
    fitting.sort(key=lambda one: (key(one), one.name.casefold(), one.name))
    return cut(fitting, len(everybody), wanted.page, wanted.rows)


def cut(fitting: Sequence[Row], known: int, page: int, rows: int) -> Page[Row]:
    """A page of those that fit, or the last page if there are fewer pages."""
    pages = max(1, math.ceil(len(fitting) / rows))
    number = min(page, pages)
    start = (number - 1) * rows
    return Page(tuple(fitting[start : start + rows]), number, pages, start + 1, len(fitting), known)
