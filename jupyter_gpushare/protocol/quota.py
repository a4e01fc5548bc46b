"""A quota's fields: how people and programs write them, their bounds, and the meaning of null.

Configuration, REST, the Hub's form and the command line all read quotas with this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from .messages import MOST_GPU_HOURS, MOST_IDLE, MOST_MEMORY, WEIGHTS
from .names import RESERVES
from .periods import parse_period
from .sizes import MOST_GPUS, MOST_SHARE, parse_burst, parse_size
from .times import parse_duration


class QuotaField(NamedTuple):
    """``null``: the word for a field without a value of its own; ``None`` if it must have one.

    ``is_size``: a person writes it with a unit, so its text is never read as a number.
    """

    read: Callable[[Any], Any]
    about: str
    null: str | None = None
    is_size: bool = False


def _whole(value: object) -> int | None:
    """A whole number (``2.0`` is), ``None`` for anything else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _gpus(given: object) -> int:
    count = _whole(given)
    if count is None or not 0 <= count <= MOST_GPUS:
        raise ValueError(f"it must be a whole number from 0 to {MOST_GPUS}.")
    return count


def _share(given: object) -> int:
    share = _whole(given)
    if share is None or not 0 <= share <= MOST_SHARE:
        raise ValueError(f"it must be a whole number of hundredths from 0 to {MOST_SHARE}.")
    return share


def _memory(given: object) -> int:
    whole = given if isinstance(given, str) else _whole(given)
    if whole is None:
        raise ValueError(f"{given!r:.40} is no memory size: write it like 8GiB, or bytes.")
    size = parse_size(whole)
    if size > MOST_MEMORY:
        raise ValueError("it is more than any GPU has.")
    return size


def _offset(given: object) -> int:
    return 0 if given in (0, "0") and given is not False else _memory(given)


def _burst(given: object) -> float:
    burst = parse_burst(given)
    if burst > MOST_MEMORY:
        raise ValueError("it is more than any GPU has.")
    return burst


def _reserve(given: object) -> str:
    if given not in RESERVES:
        raise ValueError(f"{given!r:.40} is none of {', '.join(RESERVES)}.")
    return str(given)


def _number(least: float, most: float = math.inf) -> Callable[[Any], float]:
    def read(given: Any) -> float:
        wrong = isinstance(given, bool) or not isinstance(given, int | float)
        # NaN is in no range; a whole number may be too long for a float, so compare first.
        if wrong or not least <= given <= most:
            raise ValueError(f"it must be a number from {least:g} to {most:g}.")
        return float(given)

    return read


#: In the order of pages.
QUOTA: Final = {
    "gpus": QuotaField(_gpus, "GPUs it may hold at once."),
    "memory": QuotaField(
        _memory, "Memory on each GPU, such as 8GiB; none: the whole GPU.", "none", is_size=True
    ),
    "weight": QuotaField(_number(*WEIGHTS), "Fair share among those who wait."),
    "gpu_hours": QuotaField(
        _number(0.0, MOST_GPU_HOURS), "GPU-hours it may hold in the time of its period.", "none"
    ),
    "per": QuotaField(
        parse_period,
        "What the GPU-hours are for: week, month, or the first day of a term as 2026-10-01; "
        "window: the node manager's rolling window.",
        "window",
    ),
    "idle_timeout": QuotaField(
        lambda given: parse_duration(given, 0.0, MOST_IDLE),
        "For how long a kernel may be idle before its GPUs are asked back, such as 10m; 0: for "
        "ever; default: the node's own.",
        "default",
    ),
    "burst_memory": QuotaField(
        _burst,
        "Up to what its limits are lifted on a nearly empty GPU, such as 60GiB, or 0.9 of one; 0: "
        "not at all; default: the node's own.",
        "default",
        is_size=True,
    ),
    "turn_offset": QuotaField(
        _offset,
        "Head-room before its tasks' parts of a GPU that is used by turns, such as 1GiB; default: "
        "the node's own.",
        "default",
        is_size=True,
    ),
    "reserve": QuotaField(
        _reserve,
        "What a request reserves that names no memory: whole: all that the quota gives; quota: "
        "that, until the task is measured; estimate: what earlier runs of its code needed; "
        "default: the node's own.",
        "default",
    ),
    "pin_turn_limit": QuotaField(
        lambda given: parse_duration(given, 0.0, MOST_IDLE),
        "For how long a pin keeps a task's turn from being asked back, such as 10m; 0: not at "
        "all; default: the node's own.",
        "default",
    ),
    "interactive": QuotaField(
        _gpus,
        "GPUs that its interactive requests may have or wait for at once; what it asks beyond is "
        "batch; none: no bound.",
        "none",
    ),
    "share": QuotaField(
        _share,
        "Hundredths of one GPU that its promises (deadlines and rates that people name) may claim "
        "at once; 0: none; default: the node's own.",
        "default",
    ),
}


def read_field(name: str, given: object) -> Any:
    """The value of a field; ``None`` is its null. Raises :class:`ValueError`, a sentence."""
    field = QUOTA[name]
    return None if given is None and field.null is not None else field.read(given)
