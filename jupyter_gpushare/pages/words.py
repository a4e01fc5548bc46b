"""Figures of quotas and of tables as people read them. Pure."""

from __future__ import annotations

from jupyter_gpushare.protocol.said import format_hours
from jupyter_gpushare.protocol.sizes import format_size


def counted(count: int, one: str, many: str = "") -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def gpus(count: int) -> str:
    return counted(count, "GPU")


def memory_each(limit: int | None) -> str:
    """A quota's memory on each GPU, bytes."""
    return "the whole GPU" if limit is None else format_size(limit)


def gpu_hours(gpu_seconds: float) -> str:
    """The number with as many figures as say something."""
    return format_hours(gpu_seconds / 3600)


def percent(share: float | None) -> str:
    """A share of one; unknown stays unknown."""
    return "?" if share is None else f"{round(share * 100)} %"
