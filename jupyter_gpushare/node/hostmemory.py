"""How much host memory there is: the host's, or what the cgroup of this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def host_memory(cgroups: Path = _CGROUPS, own: Path = _OWN) -> int:
    """Bytes of memory: the smallest of the host's and of each limit around this process."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return min([pages * size, *_limits(cgroups, own)])


def half_of_host() -> int:
    """What parked tasks may use where nobody said otherwise: the other half is for computing."""
    return host_memory() // 2


def _limits(cgroups: Path, own: Path) -> Iterator[int]:
    """The limits of the control groups that this process is in, version 2 and 1."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        # Inside a container the path may be the host's, and the group itself the root.
        for folder in {root, group, *group.parents}:
            if folder.is_relative_to(root):
                yield from _limit(folder / name)


def _limit(file: Path) -> Iterator[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return
    if text.isdigit():
        yield int(text)
