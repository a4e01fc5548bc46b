"""The administrators' table of users: which of them, in which order, and which page of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
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


class Only(Enum):
    """Whom the table shows; the value is in addresses."""

    ALL = ""
    HOLDING = "holding"
    WAITING = "waiting"
    OVER = "over"
    SET = "set"
    NEVER = "never"


ONLY: Final = {
    Only.ALL: "everybody",
    Only.HOLDING: "who holds a GPU",
    Only.WAITING: "who waits",
    Only.OVER: "who is over quota or budget",
    Only.SET: "whose quota an administrator set",
    Only.NEVER: "who was never here",
}


class Sort(Enum):
    """By what the table is sorted; the value is in addresses."""

    NAME = "name"
    GPUS = "gpus"
    MEMORY = "memory"
    LEASES = "leases"
    HOURS = "hours"
    BUDGET = "budget"


SORTS: Final = {
    Sort.NAME: "name",
    Sort.GPUS: "GPUs held",
    Sort.MEMORY: "memory each",
    Sort.LEASES: "leases, who waits first",
    Sort.HOURS: "GPU-hours",
    Sort.BUDGET: "share of the budget",
}


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
        """The share of the budget that is spent; less than nothing where there is none."""
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


_IS: Final[dict[Only, Callable[[Member], bool]]] = {
    Only.ALL: lambda one: True,
    Only.HOLDING: lambda one: one.held > 0 or one.quota["used_gpus"] > 0,
    Only.WAITING: lambda one: one.waiting > 0,
    Only.OVER: lambda one: one.is_over,
    Only.SET: lambda one: one.quota["source"] == "override",
    Only.NEVER: lambda one: not one.quota.get("seen", True),
}
# The most first, but names from A; who is equal stands by name.
_KEYS: Final[dict[Sort, Callable[[Member], tuple[float, ...]]]] = {
    Sort.NAME: lambda one: (),
    Sort.GPUS: lambda one: (-one.quota["used_gpus"], -one.quota["gpus"]),
    Sort.MEMORY: lambda one: (-math.inf if one.quota["memory"] is None else -one.quota["memory"],),
    Sort.LEASES: lambda one: (-one.waiting, -one.held),
    Sort.HOURS: lambda one: (-one.seconds,),
    Sort.BUDGET: lambda one: (-one.spent,),
}


@dataclass(frozen=True, slots=True)
class Listing:
    """What the address of the page says. ``events`` are the filters of the events."""

    window: str = "1d"
    find: str = ""
    group: str = ""
    only: Only = Only.ALL
    sort: Sort = Sort.NAME
    page: int = 1
    rows: int = ROWS[0]
    events: Mapping[str, str] = field(default_factory=dict)

    def address(self, **change: Any) -> str:
        """The query of the same page with something else; another list begins at its begin."""
        if "page" not in change:
            change["page"] = 1
        new = replace(self, **change)
        usual = Listing()
        named = {
            name: value.value if isinstance(value, Enum) else value
            for name in ("window", "find", "group", "only", "sort", "page", "rows")
            if (value := getattr(new, name)) != getattr(usual, name)
        }
        return urlencode({**named, **{name: text for name, text in new.events.items() if text}})

    @property
    def is_all(self) -> bool:
        """Whether nobody is left out."""
        return not (self.find or self.group or self.only is not Only.ALL)

    def takes(self, name: str, groups: Sequence[str]) -> bool:
        """Whether somebody of this name and in these groups is looked for."""
        named = self.find.casefold() in name.casefold()
        return named and (not self.group or self.group in groups)


def listing(arguments: Callable[[str], str]) -> Listing:
    """What the arguments of an address say. Raises :class:`NodeProblem` for nonsense."""
    window = arguments("window") or "1d"
    if window not in WINDOWS:
        raise wishes.bad_request(f"'window' is one of {', '.join(WINDOWS)}.")
    try:
        only, sort = Only(arguments("only")), Sort(arguments("sort") or "name")
    except ValueError:
        raise wishes.bad_request("'only' or 'sort' is nothing that this page knows.") from None
    page = wishes.count("page", arguments("page") or None, 1, _MOST_PAGES) or 1
    rows = wishes.count("rows", arguments("rows") or None, 1, ROWS[-1]) or ROWS[0]
    return Listing(
        window=window,
        find=arguments("find").strip(),
        group=arguments("group"),
        only=only,
        sort=sort,
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
    """Those who fit, sorted, and of them the page; behind the last page is the last one."""
    everybody = list(members)
    fitting = [
        one
        for one in everybody
        if wanted.takes(one.name, one.quota.get("groups") or ()) and _IS[wanted.only](one)
    ]
    fitting.sort(key=lambda one: (_KEYS[wanted.sort](one), one.name.casefold(), one.name))
    pages = max(1, math.ceil(len(fitting) / wanted.rows))
    number = min(wanted.page, pages)
    start = (number - 1) * wanted.rows
    shown = tuple(fitting[start : start + wanted.rows])
    return Page(shown, number, pages, start + 1, len(fitting), len(everybody))
