"""Figures of a replay: as JSON, as a table."""

from __future__ import annotations

import math
from typing import Any

from .quantiles import Quantiles
from .run import Variant, works_out
from .tally import Tally

HOUR = 3600.0
GIB = 2**30

#: What the columns of :func:`row` are called.
HEADINGS = (
    "POLICY",
    "BOUND GPU-H",
    "BUSY GPU-H",
    "UTIL %",
    "SERVED %",
    "WAIT P50",
    "P95",
    "P99",
    "≤ 5 S %",
    "PARKED GIB",
    "PEAK/NODE",
    "MOVED",
    "OUT OF MEMORY",
)


#: The columns that are added where cells have deadlines.
PROMISES = ("IN TIME %", "MADE", "KEPT %", "DECLINED", "BATCH GPU-H")


def figures(variant: Variant, tally: Tally) -> dict[str, Any]:
    """One policy's figures for programs. ``None`` where a quantile lies beyond what was replayed.

    ``wait`` is until a cell first computes, ``delay`` all that it did not compute after it was
    sent.
    """
    return {
        "label": variant.label,
        "policy": variant.policy.value,
        "gpu_hours_bound": tally.bound / HOUR,
        "gpu_hours_busy": tally.busy / HOUR,
        "gpu_hours_asked": tally.asked / HOUR,
        "gpu_hours_served": tally.computed / HOUR,
        "gpu_hours_capacity": tally.capacity / HOUR,
        "utilisation": tally.busy / tally.capacity if tally.capacity else 0.0,
        "served": tally.served,
        "sessions": tally.sessions,
        "cells": tally.cells,
        "cells_unreached": tally.unreached,
        "cells_prompt": tally.prompt,
        "wait": quantiles(tally.first),
        "delay": quantiles(tally.delay),
        "parked_bytes_mean": tally.parked_mean,
        "parked_bytes_peak_node": tally.parked_peak,
        "parks": tally.parks - tally.moves,
        "moves": tally.moves,
        "requests_refused": tally.refused,
        "out_of_memory": tally.out_of_memory,
        "deadlines": tally.deadlines,
        "deadlines_in_time": tally.in_time,
        "promises_made": tally.made,
        "promises_kept": tally.kept,
        "promises_declined": tally.declined,
        "gpu_hours_batch": tally.batch / HOUR,
        "commands": tally.commands,
        "works_out": works_out(tally),
    }


def quantiles(sketch: Quantiles) -> dict[str, float | None]:
    """Seconds; each is wrong by one per cent at most."""
    found: dict[str, float | None] = {}
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        value = sketch.at(share)
        found[name] = None if value is None or value == math.inf else value
    return found


def row(figure: dict[str, Any], *, deadlines: bool) -> tuple[object, ...]:
    """One line of the table for people; with ``deadlines`` it has the columns of PROMISES."""
    delay = figure["delay"]
    cells = figure["cells"]
    return (
        figure["label"],
        round(figure["gpu_hours_bound"]),
        round(figure["gpu_hours_busy"]),
        round(100 * figure["utilisation"]),
        round(100 * figure["served"]),
        *(span(delay[name]) for name in ("p50", "p95", "p99")),
        round(100 * figure["cells_prompt"] / cells) if cells else 100,
        round(figure["parked_bytes_mean"] / GIB),
        round(figure["parked_bytes_peak_node"] / GIB),
        figure["moves"],
        figure["out_of_memory"],
        *(promised(figure) if deadlines else ()),
    )


def promised(figure: dict[str, Any]) -> tuple[object, ...]:
    """What became of deadlines and promises. A policy that is told of none makes none."""
    made = figure["promises_made"]
    return (
        share(figure["deadlines_in_time"], figure["deadlines"]),
        made,
        share(figure["promises_kept"], made),
        figure["promises_declined"],
        round(figure["gpu_hours_batch"], 1),
    )


def share(part: int, whole: int) -> str:
    """In per cent; ``-`` of nothing."""
    return f"{100 * part / whole:.1f}" if whole else "-"


def span(seconds: float | None) -> str:
    """``0``, ``4.2s``, ``12m``, ``3.5h``; ``never`` where it is beyond what was replayed."""
    if seconds is None:
        return "never"
    for size, unit in ((86400.0, "d"), (HOUR, "h"), (60.0, "m")):
        if seconds >= size:
            return f"{seconds / size:.3g}{unit}"
    return f"{seconds:.2g}s" if seconds else "0"
