"""``jupyter gpushare usage --since 7d``: GPU-hours by environment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from ..console.node import connect
from ..console.verb import Refused, Verb, option
from ..protocol.messages import Method
from ..protocol.periods import day_names, zone_name
from ..protocol.tables import table
from ..protocol.times import parse_duration
from ..satellites import Part, take


class UsageApp(Verb):
    """GPU-hours by environment: held (GPUs times the time they were leased), busy
    (the part of it in which a cell or a program ran), and charged (what counts towards a budget:
    the time of its turns on GPUs that are used by turns, elsewhere all of it). GiB-hours are the
    memory that was reserved for it, times the time. Administrators see everybody. With
    --trace=FILE administrators get what people did as a trace, for `advise` and `replay`: a session
    for each lease, a cell for each time in which it was busy, and numbers in place of names."""

    name = "usage"
    examples = """
    jupyter gpushare usage --since 12h
    jupyter gpushare usage --since 30d --environment alice --json
    jupyter gpushare usage --by day
    jupyter gpushare usage --since 30d --trace cells.csv
    """

    since = option(
        7 * 86400.0, "How far back: 30m, 12h, 7d, 2w, or seconds. Default: 7d.", parse_duration
    )
    environment = option("", "Only this environment.")
    by = option(
        "environment",
        "day: one environment's (yours, if you name none), a line a day.",
        choices=("environment", "day"),
    )
    trace = option("", "Write a trace into this file instead.")
    ledger = option(
        "", "With --trace: a backup of the ledger. Not set: ask the node manager, which must run."
    )

    def run(self, arguments: list[str]) -> int:
        if self.trace:
            return self._trace()
        if self.by == "day":
            return self._by_day()
        with connect() as node:
            answer = node.call(Method.USAGE, since=self.since, environment=self.environment or None)
        begin, end = (
            datetime.fromtimestamp(answer[key]).strftime("%Y-%m-%d %H:%M")
            for key in ("since", "until")
        )
        rows = [(row["environment"], *_figures(row, "gpu_seconds_")) for row in answer["rows"]]
        told = table(("ENVIRONMENT", *_FIGURES), rows) if rows else "nobody held a GPU."
        return self.say(answer, f"From {begin} to {end}:\n{told}")

    def _trace(self) -> int:
        try:
            export = take(Part.TRACE).export
        except ModuleNotFoundError as error:  # the light client has no replay
            raise Refused(
                "Traces are written where the node manager is, by the package jupyter_gpushare.",
                "unavailable",
            ) from error
        told = export(Path(self.trace), self.since, self.ledger)
        return self.say(
            told,
            f"{told['file']}: {told['sessions']} sessions with {told['cells']} cells. What a cell "
            "waited for its turn, or was slowed down by others, is in its seconds. Of "
            f"{told['guessed']} sessions, which named no memory and were never parked, it is not "
            "known what they keep on a GPU: all that they might use is taken for it.",
        )

    def _by_day(self) -> int:
        days = min(366, max(1, math.ceil(self.since / 86400)))
        with connect() as node:
            answer = node.call(
                Method.USAGE_DAILY,
                days=days,
                environment=self.environment or None,
            )
        told, offset = [], answer.get("utc_offset", 0.0)
        for own in (answer, *answer.get("servers", ())):
            names = day_names((day["start"] for day in own["days"]), offset)
            rows = [(n, *_figures(day)) for n, day in zip(names, own["days"], strict=True)]
            zone = zone_name(offset)
            told.append(f"{own['environment']}, days in {zone}, the node's time zone:")
            told.append(table(("DAY", *_FIGURES), rows))
        return self.say(answer, "\n".join(told))


_FIGURES: Final = (
    *("GPU-HOURS HELD", "GPU-HOURS BUSY", "BUSY %"),
    *("CHARGED", "GIB-HOURS", "LEASES"),
)


def _figures(row: Mapping[str, Any], before: str = "") -> tuple[Any, ...]:
    """A row of usage, in hours. ``before``: what the names of GPU-seconds begin with."""
    held, busy, charged = (row[f"{before}{name}"] for name in ("held", "busy", "charged"))
    hours = row["resident_gib_seconds"] / 3600
    used = round(100 * busy / held) if held else 0
    return held / 3600, busy / 3600, used, charged / 3600, hours, row["leases"]
