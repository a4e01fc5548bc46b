"""Sentences on what a waiting request can expect, from a ``queued`` notice or a queue row.

The cell, ``%gpushare status``, the command line and the Hub's pages use the same sentences.
Documents of an older node manager have no ``outlook``; the sentence is then empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .times import format_duration, format_range

Document = Mapping[str, Any]

_FOREVER: Final = 1e9  # seconds; no estimate is that long, even if a node manager sends it


def waits_for_budget(waiting: Document) -> bool:
    """Whether the request waits for GPU-hours and so stands in no line."""
    return waiting.get("reason") == "budget_spent"


def expectation(waiting: Document) -> list[str]:
    """About how long it will wait, and what will happen; empty if neither is known."""
    outlook = waiting.get("outlook")
    if not isinstance(outlook, Mapping) or waits_for_budget(waiting):
        return []  # when GPU-hours are left again is in the reason
    said = (_estimate(outlook.get("estimate")), _happens(outlook))
    return [sentence for sentence in said if sentence]


def short_estimate(waiting: Document) -> str:
    """``about 10 to 30 min``; empty without an estimate."""
    outlook = waiting.get("outlook")
    estimate = outlook.get("estimate") if isinstance(outlook, Mapping) else None
    span = _span(estimate)
    return f"about {span}" if span else ""


def _span(estimate: object) -> str:
    if not isinstance(estimate, Mapping):
        return ""
    low, high = estimate.get("low"), estimate.get("high")
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return ""
    return format_range(low, high) if 0 <= low <= high < _FOREVER else ""


def _estimate(estimate: object) -> str:
    span = _span(estimate)
    if not span or not isinstance(estimate, Mapping):
        return "There is no estimate yet of how long it takes."
    if estimate.get("basis") == "idle":
        return f"It takes about {span}, if kernels that are idle now stay idle."
    return f"It takes about {span}, as it did for others in the last hour."


def _happens(outlook: Document) -> str:
    idle, after = outlook.get("idle"), outlook.get("idle_after")
    if isinstance(idle, Mapping):
        return (
            f"{_whose(idle)} has been idle for {format_duration(idle.get('idle'))}; after "
            f"{format_duration(idle.get('after'))} it is asked for its GPU."
        )
    if isinstance(stop := outlook.get("stop"), Mapping):
        when = f"in {format_duration(left)}" if (left := stop.get("left") or 0.0) > 0 else "now"
        whose = _whose(stop, "batch program")
        return f"{whose} is asked {when} to save its state and make way."
    if isinstance(after, int | float) and after > 0:
        return f"Idle GPUs are asked back after {format_duration(after)}."
    return ""


def _whose(task: Document, kind: str = "kernel") -> str:
    name, environment = task.get("name"), task.get("environment")
    if task.get("mine") is True:
        return f"Your {name}" if name else f"A {kind} of yours"
    return f"Somebody's {kind}" if environment is None else f"A {kind} of {environment}"
