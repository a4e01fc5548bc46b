"""Makes the plots of the GPUs, of the last minutes to a day, from node managers' answers. Pure.

They are SVG outlines in a box of 1000 × 100; the templates place them and stretch them.
"""  # noqa: RUF002 - it is that sign

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from jupyter_gpushare.figures import format_size
from jupyter_gpushare.protocol.holding import gpu_number

from .views import axis_top

Json = Mapping[str, Any]
Values = Sequence[float | None]

#: The spans that a person chooses from, in seconds, and their names.
SPANS: Final = {"5m": (300.0, "5 min"), "1h": (3600.0, "1 h"), "24h": (86400.0, "24 h")}
WIDTH: Final = 1000.0
HEIGHT: Final = 100.0
_WARMEST: Final = 100.0  # °C at the top of the axis


def plots(status: Json, readings: Json, seconds: float) -> list[dict[str, Any]]:
    """The plots of a node's GPUs over the last ``seconds``, as the template has them.

    ``areas`` are the parts of the memory, ``lanes`` those of the time, each an outline and its
    newest figure in words; ``lines`` are figures over time with the top of their axis. ``summary``
    says the newest figures to those who do not see them.
    """
    until = status["node"]["time"]
    times = [((at - until) / seconds + 1.0) * WIDTH for at in readings["times"]]
    # A step ends where the next begins; after a pause nothing is known.
    longest = 3 * readings["step"] / seconds * WIDTH
    ends = [*times[1:], WIDTH]
    spans = [
        (max(0.0, x), max(0.0, min(end, x + longest))) for x, end in zip(times, ends, strict=False)
    ]
    rows = {row["uuid"]: row for row in readings["gpus"]}
    return [_plot(gpu, rows[gpu["uuid"]], spans) for gpu in status["gpus"] if gpu["uuid"] in rows]


def _plot(gpu: Json, row: Json, spans: Sequence[tuple[float, float]]) -> dict[str, Any]:
    unknown = [None] * len(spans)
    mine, others, rest = (row.get(name) or unknown for name in ("mine", "others", "rest"))
    nothing: Values = [0.0] * len(spans)
    stacked = [nothing]
    for part in (mine, others, rest):
        stacked.append([_sum(below, more) for below, more in zip(stacked[-1], part, strict=True)])
    total = max(1, gpu["memory"])
    free = None if (used := _last(stacked[-1])) is None else max(0, total - used)
    areas = [
        _part(kind, _area(spans, low, high, total), f"{label} {_bytes(_last(part))}")
        for kind, label, part, low, high in (
            ("mine", "mine", mine, stacked[0], stacked[1]),
            ("others", "others'", others, stacked[1], stacked[2]),
            ("unleased", "without a lease", rest, stacked[2], stacked[3]),
        )
    ]
    areas.append(_part("free", "", f"free {_bytes(free)}"))
    lanes = [
        _part(kind, _area(spans, nothing, shares, 1.0), f"{kind} {_computes(_last(shares))}")
        for kind, shares in (
            ("mine", row.get("i_compute") or unknown),
            ("others", row.get("others_compute") or unknown),
        )
    ]
    lines = [_line("Utilisation", spans, row["utilisation"], 1.0, _percent)]
    for name, values, text, least in (
        ("Temperature", row.get("temperature") or unknown, "{:.0f} °C".format, _WARMEST),
        ("Power", row.get("power") or unknown, "{:.0f} W".format, 0.0),
    ):
        if known := [value for value in values if value is not None]:
            top = max(least, axis_top(max(known)))
            lines.append(_line(name, spans, values, top, text))
    memory, computing = (", ".join(part["text"] for part in parts) for parts in (areas, lanes))
    more = "; ".join(f"{line['name'].lower()} {line['text']}" for line in lines)
    title = f"GPU {gpu_number(gpu)}"
    return {
        "title": title,
        "memory": format_size(gpu["memory"]),
        "areas": areas,
        "lanes": lanes,
        "lines": lines,
        "reserved": bool(row.get("reserved")),
        "summary": f"{title} now: memory: {memory}; computing: {computing}; {more}.",
    }


def _part(kind: str, path: str, text: str) -> dict[str, str]:
    return {"kind": kind, "path": path, "text": text}


def _area(spans: Sequence[tuple[float, float]], low: Values, high: Values, top: float) -> str:
    """The outline of what lies between two figures; a piece for each run of known values."""
    path = ""
    for run in _runs(spans, high):
        there = "L".join(f"{x:g} {y:g}L{end:g} {y:g}" for x, end, y in _steps(run, high, top))
        back = [*_steps(run, low, top)][::-1]
        path += f"M{there}L" + "L".join(f"{end:g} {y:g}L{x:g} {y:g}" for x, end, y in back) + "Z"
    return path


def _line(
    name: str,
    spans: Sequence[tuple[float, float]],
    values: Values,
    top: float,
    text: Callable[[float], str],
) -> dict[str, str]:
    path = ""
    for run in _runs(spans, values):
        points = [*_steps(run, values, top)]
        path += "M" + "L".join(f"{x:g} {y:g}" for x, _end, y in points)
        path += f"L{points[-1][1]:g} {points[-1][2]:g}"
    newest = _last(values)
    newest_text = "unknown" if newest is None else text(newest)
    return {"name": name, "path": path, "top": text(top), "text": newest_text}


Run = Sequence[tuple[int, float, float]]


def _runs(spans: Sequence[tuple[float, float]], values: Values) -> list[Run]:
    """The steps whose value is known, cut where there is a pause: place, beginning, end."""
    found: list[list[tuple[int, float, float]]] = []
    marked = enumerate(zip(spans, values, strict=True))
    for known, some in groupby(marked, lambda one: one[1][1] is not None):
        if not known:
            continue
        run: list[tuple[int, float, float]] = []
        for place, ((x, end), _value) in some:
            if run and x - run[-1][2] > 0.01:
                found.append(run)
                run = []
            run.append((place, x, end))
        found.append(run)
    return [run for run in found if run]


def _steps(run: Run, values: Values, top: float) -> list[tuple[float, float, float]]:
    return [
        (
            round(x, 1),
            round(end, 1),
            round(HEIGHT * (1 - min(1.0, max(0.0, (values[place] or 0.0) / top))), 1),
        )
        for place, x, end in run
    ]


def _sum(below: float | None, more: float | None) -> float | None:
    return None if below is None or more is None else below + more


def _last(values: Values) -> float | None:
    return values[-1] if values else None


def _bytes(value: float | None) -> str:
    return "unknown" if value is None else format_size(round(value))


def _percent(share: float) -> str:
    return f"{round(100 * share)} %"


def _computes(share: float | None) -> str:
    if share is None:
        return "unknown"
    return "no" if share <= 0 else "yes" if share >= 1 else _percent(share)
