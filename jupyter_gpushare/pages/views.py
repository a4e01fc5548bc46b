"""Makes the content of the pages from the node manager's documents. Pure.

The same facts are read in a cell, a terminal, the panel and here, and must sound the same. So the
node manager words each of them, and here sentences are only put where a page shows them. Only what
no status has is made here: administrators' tables of everybody, and GPU-hours by day.

A template is no place for a condition that could be wrong. So what may be done with a lease, how
long a bar is and which row stands first is worked out here, where a test can look at it, and the
templates only write it down.

A page that is open fetches its parts again when :func:`fingerprint` changes. What changes all the
time (times, use, estimates) does not count for that, else each page would be fetched every second;
it is shown fresh whenever something else is.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from jupyter_gpushare.figures import format_hours
from jupyter_gpushare.protocol import said
from jupyter_gpushare.protocol.holding import gpu_number

from . import forms
from .listing import Member
from .shown import Shown, gpu_hours, shown

Json = Mapping[str, Any]

_UUID: Final = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_LOWEST_TOP: Final = 360.0  # seconds: a minute on an axis of seconds looks like much
_MOST_WAITING: Final = 50  # rows of the queue; who stands further back learns how many are ahead


def bar(label: str, text: str, used: float, limit: float) -> dict[str, Any]:
    """The bar of ``used`` of ``limit``, in whichever unit; its ``share`` is from 0 to 1."""
    tone = "bad" if used > limit else "warn" if used == limit > 0 else "plain"
    share = min(1.0, used / limit) if limit > 0 else float(used > 0)
    return {"label": label, "text": text, "share": share, "tone": tone}


#: Parts that change all the time, fields and subjects of what is said. A page takes them when it
#: fetches, but fetches only for other changes.
_VOLATILE: Final = frozenset(
    {
        *("time", "age", "waiting", "used", "utilisation", "measured", "spent", "outlook"),
        *("pauses", "turn_expected", "progress", "expected_end", "busy"),
    }
)
#: Figures that stay what they are while time passes; all others are measured.
_MOMENTS: Final = frozenset({"left", "since"})


def fingerprint(status: Json | None) -> str:
    """A text that differs where two documents differ in what a page must show at once."""
    return json.dumps(_lasting(status))


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return [
            _news(said.says(value)) if name == "says" else _lasting(part)
            for name, part in value.items()
            if name not in _VOLATILE
        ]
    if isinstance(value, list):
        return [_lasting(part) for part in value]
    # A moment is worked out anew in each document, and differs by less than a microsecond.
    return round(value, 1) if isinstance(value, float) else value


def _news(says: Iterable[Json]) -> list[Any]:
    return [
        (one.get("tone"), said.FIGURE.sub(_lasting_figure, one["text"]))
        for one in says
        if one["about"] not in _VOLATILE
    ]


def _lasting_figure(found: re.Match[str]) -> str:
    value = said.number(found[2])
    return f"{{{value:.1f}}}" if value is not None and found[1] in _MOMENTS else "{}"


# -- a node -----------------------------------------------------------------------------------


class Lease(Shown):
    """A lease, or several that are one job, and what may be done with it."""

    def __init__(self, of: Json, now: float, *, key: str, may_keep: bool) -> None:
        super().__init__(of, now)
        ours, state = bool(of["mine"] and of.get("id")), of.get("state")
        is_over = state in ("draining", "ended")
        self.key: Final = key
        self.can_cancel: Final = ours and state == "queued"
        self.can_release: Final = ours and state != "queued" and not is_over
        self.can_revoke: Final = bool(of.get("id")) and not is_over
        #: Whether the viewer may keep the GPU of an idle notebook.
        self.can_keep: Final = (
            may_keep and ours and of["kind"] == "kernel" and of["phase"] == "held"
        )
        self.is_kept: Final = (of.get("pinned_until") or now) > now

    @property
    def loses(self) -> str:
        """What its person loses when it is revoked."""
        if self.of["state"] == "parked":
            return "the parked lease, but no variables,"
        return self.first["where"].plain if "where" in self.first else "the place in the queue"


def leases(
    status: Json, *, everybody: bool = False, takes: Callable[[str], bool] = lambda name: True
) -> list[Lease]:
    """The viewer's own leases, or all: waiting ones first, then the oldest first.

    A job is a row, and those of its leases stand below it. ``takes`` says whether an environment's
    leases are shown.
    """
    rows = [
        lease
        for lease in status["leases"]
        if lease["state"] != "ended" and (lease["mine"] or everybody)
        if takes(lease["environment"] or "")
    ]
    rows.sort(key=lambda lease: (lease["state"] != "queued", lease["requested"]))
    node = status["node"]
    now, keeps = node["time"], node["pin_limit"] > 0
    jobs = {lease: job for job in status.get("jobs") or () for lease in job["leases"]}
    found: dict[str, list[Lease]] = {}
    for place, row in enumerate(rows):
        # Others' leases are told without their ids.
        key = row["id"] or f"other-{place}"
        job = jobs.get(row["id"])
        group = key if job is None else f"job-{job['leases'][0]}"
        if job is not None and group not in found:
            found[group] = [Lease(job, now, key=group, may_keep=False)]
        found.setdefault(group, []).append(Lease(row, now, key=key, may_keep=keeps))
    return [lease for group in found.values() for lease in group]


class Gpu(Shown):
    """A GPU by its number."""

    @property
    def title(self) -> str:
        return f"GPU {gpu_number(self.of)}"


def node_parts(status: Json) -> dict[str, Any]:
    """What every page shows of a node.

    ``more`` waiting requests stand further back than the rows of ``queue``.
    """
    now, queue = status["node"]["time"], status["queue"]
    # One's own place must be seen, however far back it is.
    mine = [row for row in queue[_MOST_WAITING:] if row["mine"]]
    return {
        "told": Shown(status, now),
        "gpus": [Gpu(gpu, now) for gpu in status["gpus"]],
        "queue": shown([*queue[:_MOST_WAITING], *mine], now),
        "more": max(0, len(queue) - _MOST_WAITING - len(mine)),
    }


def quotas(status: Json) -> Iterator[tuple[str, Shown]]:
    """The viewer's own quota, then those of their named servers with their own, by the name."""
    for row in (status["quota"], *(status.get("servers") or ())):
        yield row.get("environment", "").partition("/")[2], Shown(row, status["node"]["time"])


# -- everybody -----------------------------------------------------------------------------------


def members(quotas: Json, usage: Json, status: Json) -> list[Member]:
    """Everybody whom the node manager knows."""
    used = {row["environment"]: row for row in usage["rows"]}
    listed = {row["environment"]: row for row in quotas["quotas"]}
    default = {**quotas["default"], "source": "default", "used_gpus": 0}
    states = Counter((lease["environment"], lease["phase"]) for lease in status["leases"])
    return [
        Member(
            name=name,
            quota=listed.get(name, default),
            held=states[name, "held"] + states[name, "parked"],
            waiting=states[name, "queued"],
            usage=used.get(name),
        )
        for name in sorted(listed.keys() | used.keys())
    ]


def environment_view(one: Member) -> dict[str, Any]:
    """Somebody's row of the administrators' table. ``busy`` are GPU-hours in words.

    ``about`` are the groups, and that somebody was never here; ``own`` is what the quota says
    besides: its time-out, and how far limits are lifted.
    """
    quota, budget = one.quota, one.quota.get("budget")
    text = f"{quota['used_gpus']} of {quota['gpus']}"
    never = [] if quota.get("seen", True) else ["was never here"]
    return {
        "of": one,
        "about": ", ".join([*(quota.get("groups") or ()), *never]),
        "use": bar(f"GPUs of {one.name}", text, quota["used_gpus"], quota["gpus"]),
        "budget": bar(
            f"GPU-hours of {one.name}",
            f"{format_hours(budget['spent'])} of {budget['hours']:g} {budget['when']}",
            budget["spent"],
            budget["hours"],
        )
        if budget
        else None,
        # The table of groups has this of groups and of the default.
        "own": "" if quota["source"] in ("group", "default") else forms.own_text(quota),
        "busy": _busy_text(one.usage) if one.usage else "0 busy",
    }


def _busy_text(usage: Json) -> str:
    """``3.2 busy``, and what was charged where that is not all that was held."""
    held, resident = usage["gpu_seconds_held"], usage["resident_gib_seconds"]
    charged = usage["gpu_seconds_charged"]
    words_of = [f"{gpu_hours(usage['gpu_seconds_busy'])} busy"]
    if held - charged >= 60.0:
        words_of += [f"{gpu_hours(charged)} charged", f"{resident / 3600:.1f} GiB-hours"]
    return ", ".join(words_of)


def events_shown(
    events: Iterable[Json], wanted: Mapping[str, str], gpus: Mapping[str, str]
) -> list[Json]:
    """Events that fit, newest first. ``gpus`` says what their UUIDs are called.

    ``wanted`` are the filters by name (:data:`~.listing.EVENT_FILTERS`); an empty one means any.
    Its ``text`` is searched for in any case.
    """
    who, kind, sought = wanted["environment"], wanted["kind"], wanted["text"].casefold()
    named = [
        {**event, "text": _UUID.sub(lambda found: gpus.get(found[0], found[0]), event["text"])}
        for event in events
        if who in ("", event["environment"]) and kind in ("", event["what"])
    ]
    fitting = [
        one for one in named if sought in f"{one['text']} {one['environment'] or ''}".casefold()
    ]
    return sorted(fitting, key=lambda event: -event["at"])


# -- by day --------------------------------------------------------------------------------------


#: The chart's own units.
_WIDTH: Final = 600
_HEIGHT: Final = 120


def days_view(daily: Sequence[Json], names: Sequence[str], zone: str) -> dict[str, Any]:
    """GPU-hours by day, oldest first. ``names`` are the days', ``daily`` may be of many nodes.

    A day's ``columns`` are its bars in the chart's own units, and in words; ``top`` is the end of
    the axis in words.
    """
    held, busy, counts, charged, resident = (
        [sum(document["days"][n][figure] for document in daily) for n in range(len(names))]
        for figure in ("held", "busy", "leases", "charged", "resident_gib_seconds")
    )
    top = axis_top(max([*held, _LOWEST_TOP]) / 3600) * 3600
    step = _WIDTH / max(1, len(names))
    columns = [
        {
            "day": name,
            "held": gpu_hours(one),
            "busy": gpu_hours(part),
            "leases": count,
            "charged": gpu_hours(charged[place]),
            "resident": f"{resident[place] / 3600:.1f}",
            "title": f"{name}: {gpu_hours(one)} GPU-hours held, {gpu_hours(part)} busy",
            "x": round(place * step + step * 0.1, 2),
            "width": round(step * 0.8, 2),
            "held_height": round(min(1.0, one / top) * _HEIGHT, 2),
            "busy_height": round(min(1.0, part / top) * _HEIGHT, 2),
        }
        for place, (name, one, part, count) in enumerate(
            zip(names, held, busy, counts, strict=True)
        )
    ]
    return {
        "columns": columns,
        "width": _WIDTH,
        "height": _HEIGHT,
        "top": f"{top / 3600:g} h",
        "summary": said.usage_text(f"{len(names)} days", sum(held), sum(busy), sum(charged)),
        "zone": zone,
        "nothing": not any(column["held_height"] for column in columns),
    }


def server_days(
    daily: Iterable[Json], names: Sequence[str], zone: str
) -> list[tuple[str, dict[str, Any]]]:
    """GPU-hours by day of each named server that has its own, by its name. Of many nodes."""
    servers: dict[str, list[Json]] = {}
    for document in daily:
        for own in document.get("servers") or ():
            servers.setdefault(own["environment"].partition("/")[2], []).append(own)
    return [(name, days_view(servers[name], names, zone)) for name in sorted(servers)]


def axis_top(most: float) -> float:
    """A round number at or above ``most``, for the top of an axis."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= most)
