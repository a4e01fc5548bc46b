"""Says in words what a lease of a status document holds. Memory is always given for each GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .sizes import format_size

Document = Mapping[str, Any]


def task_name(lease: Document) -> str:
    """The name by which a person knows a lease's task; empty where it is not told."""
    path = lease.get("path") or ""
    return str(path).rstrip("/").rpartition("/")[2] or str(lease.get("name") or "")


def sharers(leases: Iterable[Document], lease: Document, gpu: object) -> list[str]:
    """The same person's other tasks that use what a lease has on a GPU: they share it."""
    return [
        task_name(other) or "task"
        for other in leases
        if other.get("id") != lease.get("id")
        and lease.get("environment") is not None
        and other.get("environment") == lease.get("environment")
        and other.get("phase") == "held"
        and any(part.get("uuid") == gpu for part in other.get("gpus") or ())
    ]


def shared_text(names: Sequence[str], whose: str = "your ") -> str:
    """``shared with your first.ipynb and second.ipynb``; empty if it is not shared."""
    if not names:
        return ""
    *most, last = names
    listed = f"{', '.join(most)} and {last}" if most else last
    return f"shared with {whose}{listed}"


def remaining_text(quota: Document) -> str:
    """The rest of a quota: ``1 GPU, 2 GiB on GPU 0``; empty if that is not known."""
    left = quota.get("remaining")
    if left is None:
        return ""
    count = left["gpus"]
    parts = [f"{count} GPU" if count == 1 else f"{count} GPUs"] if count else []
    parts += (
        f"{format_size(part['bytes'])} on GPU {part['index']}"
        for part in left["memory"]
        if isinstance(part["bytes"], int) and part["bytes"] > 0
    )
    return ", ".join(parts) or "nothing"


def each_text(sizes: Sequence[int]) -> str:
    """Bytes on each of several GPUs: ``24 GiB``, ``24 GiB each``, ``24 GiB and 80 GiB``."""
    words = [format_size(size) for size in sizes]
    if len(words) > 1 and len(set(words)) == 1:
        return f"{words[0]} each"
    return " and ".join(words)
