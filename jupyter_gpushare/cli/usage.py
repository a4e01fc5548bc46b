"""``jupyter gpushare usage --since 7d``: GPU-hours by environment."""

from __future__ import annotations

from datetime import datetime

from ..protocol.times import parse_duration
from .node import connect
from .table import table
from .verb import Verb, option


class UsageApp(Verb):
    """GPU-hours by environment."""

    name = "usage"
    description = """GPU-hours by environment: held (GPUs times the time they were leased), busy
    (the part of it in which a cell or a program ran), and charged (what counts towards a budget:
    the time of its turns on GPUs that are used by turns, elsewhere all of it). GiB-hours are the
    memory that was reserved for it, times the time. Administrators see everybody."""
    examples = """
    jupyter gpushare usage --since 12h
    jupyter gpushare usage --since 30d --environment alice --json
    """

    since = option(
        7 * 86400.0, "How far back: 30m, 12h, 7d, 2w, or seconds. Default: 7d.", parse_duration
    )
    environment = option("", "Only this environment.")

    def run(self, arguments: list[str]) -> int:
        self.no_arguments(arguments)
        from ..protocol.messages import Method

        with connect() as node:
            answer = node.call(Method.USAGE, since=self.since, environment=self.environment or None)
        if self.json:
            self.print_json(answer)
            return 0
        begin, end = (
            datetime.fromtimestamp(answer[key]).strftime("%Y-%m-%d %H:%M")
            for key in ("since", "until")
        )
        print(f"From {begin} to {end}:")
        if not answer["rows"]:
            print("nobody held a GPU.")
            return 0
        print(
            table(
                (
                    *("ENVIRONMENT", "GPU-HOURS HELD", "GPU-HOURS BUSY", "BUSY %"),
                    *("CHARGED", "GIB-HOURS", "LEASES"),
                ),
                [
                    (
                        row["environment"],
                        row["gpu_seconds_held"] / 3600,
                        row["gpu_seconds_busy"] / 3600,
                        percent(row["gpu_seconds_busy"], row["gpu_seconds_held"]),
                        row.get("gpu_seconds_charged", row["gpu_seconds_held"]) / 3600,
                        hours_of(row.get("resident_gib_seconds")),
                        row["leases"],
                    )
                    for row in answer["rows"]
                ],
            )
        )
        return 0


def hours_of(seconds: float | None) -> float | None:
    """``None`` where a node manager of an older release does not say."""
    return None if seconds is None else seconds / 3600


def percent(part: float, whole: float) -> int:
    """Whole per cents; 0 of nothing is 0."""
    return round(100 * part / whole) if whole else 0
