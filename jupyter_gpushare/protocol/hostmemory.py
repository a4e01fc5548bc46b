"""Finds how much host memory a process may still take before Linux kills a process for it.

The bounds are the host's free memory and the limit of each control group around the process.
:func:`look` reads the files, and :func:`room` only judges their content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_V1: Final[tuple[str, ...]] = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.memsw.usage_in_bytes",
    "memory.stat",
)
_V2: Final[tuple[str, ...]] = (
    "memory.max",
    "memory.high",
    "memory.current",
    "memory.swap.max",
    "memory.swap.current",
    "memory.stat",
)


@dataclass(frozen=True, slots=True)
class Group:
    """A control group's files by name, as far as they are there."""

    path: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Seen:
    """``/proc/meminfo``, and each memory group that this process is in, itself and those above."""

    meminfo: str
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that may still be taken; ``bound`` names what leaves the least."""

    memory: int
    bound: str


def room(seen: Seen) -> Room | None:
    """The least room that the host and any group leaves, or ``None`` if unknown.

    Cached files are room, the half of those in use excepted. So is swap, up to the anonymous
    memory that can go there: what is parked may be pinned, and then the rest goes.
    """
    return min(_rooms(seen), key=lambda one: one.memory, default=None)


def whole(seen: Seen) -> tuple[int, int]:
    """The host's memory, and what of it is available, in bytes; 0 for what Linux does not tell."""
    host = _numbers(seen.meminfo)
    return host.get("MemTotal", 0) * 1024, host.get("MemAvailable", 0) * 1024


def _rooms(seen: Seen) -> Iterator[Room]:
    host = {name: kib * 1024 for name, kib in _numbers(seen.meminfo).items()}
    # The least of all groups: each of them bounds what may go to swap from below it.
    swap = min([host.get("SwapFree", 0), *_swap_left(seen.groups)])
    if (available := host.get("MemAvailable")) is not None:
        yield Room(available + min(swap, host.get("AnonPages", 0)), "the host's memory")
    for group in seen.groups:
        for left, file in _left(group, swap):
            yield Room(max(0, left), f"the limit {group.path}/{file}")


def _swap_left(groups: tuple[Group, ...]) -> Iterator[int]:
    for group in groups:
        most, used = (_number(group, f"memory.swap.{name}") for name in ("max", "current"))
        if most is not None:
            yield max(0, most - (used or 0))


def _left(group: Group, swap: int) -> Iterator[tuple[int, str]]:
    """The room below each limit of the group, and the limit's file."""
    stat = _numbers(group.files.get("memory.stat", ""))
    # Version 1 counts what lies below a group under names of their own.
    inactive = stat.get("total_inactive_file", stat.get("inactive_file", 0))
    active = stat.get("total_active_file", stat.get("active_file", 0))
    swappable = min(swap, stat.get("anon", stat.get("total_rss", 0)))
    cached = inactive + active // 2
    for most, used, more in (
        ("memory.max", "memory.current", cached + swappable),
        # Beyond this limit no process is killed, but none makes progress either.
        ("memory.high", "memory.current", cached + swappable),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", cached + swappable),
        ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", cached),
    ):
        limit = _number(group, most)
        if limit is not None:
            yield limit - (_number(group, used) or 0) + more, most


def _number(group: Group, file: str) -> int | None:
    text = group.files.get(file, "").strip()
    return int(text) if text.isdigit() else None  # "max"


def _numbers(text: str) -> dict[str, int]:
    """Lines of a name and a number; what else stands there is left out."""
    found = {}
    for line in text.splitlines():
        name, number = [*line.split()[:2], "", ""][:2]
        if number.isdigit():
            found[name.rstrip(":")] = int(number)
    return found


# -- looking ---------------------------------------------------------------------------------


def look(root: Path = Path("/"), *, groups: bool = True) -> Seen:
    """Read the present figures for this process, in half a millisecond.

    ``groups``: those around it count.
    """
    return Seen(_text(root / "proc/meminfo"), tuple(_around(root)) if groups else ())


def _around(root: Path) -> Iterator[Group]:
    top = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            base, names = top, _V2
        elif "memory" in controllers.split(","):
            base, names = top / "memory", _V1
        else:
            continue
        group = base / path.lstrip("/")
        # Inside a container the path may be the host's, and the group itself the root.
        for folder in dict.fromkeys((group, *group.parents, base)):
            if folder.is_relative_to(base):
                files = {name: text for name in names if (text := _text(folder / name))}
                if files:
                    yield Group(f"/{folder.relative_to(root)}", files)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
