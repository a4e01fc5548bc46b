"""No more host memory is taken for parking than the host and each group's limit leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from jupyter_gpushare.protocol.hostmemory import Group, Room, Seen, look, room

GIB = 2**30
MIB = 2**20
LIMITS = ("memory.max", "memory.limit_in_bytes")


def meminfo(available: int, swap: int = 0, anonymous: int = 0) -> str:
    return (
        f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {available // 1024} kB\n"
        f"SwapFree: {swap // 1024} kB\nAnonPages: {anonymous // 1024} kB\nHugePages_Total: 0\n"
    )


def v2(most: str, used: int, *, stat: str = "", path: str = "/g", **more: str) -> Group:
    files = {"memory.max": most, "memory.current": str(used), "memory.stat": stat}
    return Group(path, {**files, **{name.replace("_", "."): text for name, text in more.items()}})


FILES = f"anon {GIB}\ninactive_file {GIB}\nactive_file {GIB}\n"


@pytest.mark.parametrize(
    ("available", "groups", "memory", "bound"),
    [
        (5 * GIB, (), 5 * GIB, "the host's memory"),
        (5 * GIB, (v2("max\n", GIB),), 5 * GIB, "the host's memory"),
        # The limit of any group around counts.
        (5 * GIB, (v2("max", GIB), v2(f"{4 * GIB}\n", 3 * GIB, path="/a")), GIB, "/a/memory.max"),
        (GIB, (v2(str(GIB), 2 * GIB),), 0, "/g/memory.max"),
        # A group is throttled before it is killed.
        (9 * GIB, (v2(str(8 * GIB), GIB, memory_high=str(2 * GIB)),), GIB, "/g/memory.high"),
        # Cached files are room, and half of those in use.
        (9 * GIB, (v2(str(4 * GIB), 4 * GIB, stat=FILES),), 3 * GIB // 2, "/g/memory.max"),
    ],
)
def test_what_is_left_is_what_the_host_and_each_limit_leave(
    available: int, groups: tuple[Group, ...], memory: int, bound: str
) -> None:
    said = bound if bound.startswith("the") else f"the limit {bound}"
    assert room(Seen(meminfo(available), groups)) == Room(memory, said)


@pytest.mark.parametrize(
    ("free", "most", "anonymous", "more"),
    [
        (8 * GIB, "max", 2 * GIB, 2 * GIB),  # no more can go there than there is
        (GIB, "max", 2 * GIB, GIB),
        (8 * GIB, str(GIB), 2 * GIB, GIB // 2),  # half a GiB of it is taken
        (8 * GIB, "0", 2 * GIB, 0),
    ],
)
def test_swap_is_room_as_far_as_it_may_be_used(
    free: int, most: str, anonymous: int, more: int
) -> None:
    group = v2(str(4 * GIB), 3 * GIB, stat=f"anon {anonymous}")
    files = {**group.files, "memory.swap.max": most, "memory.swap.current": str(GIB // 2)}
    found = room(Seen(meminfo(20 * GIB, free), (Group("/g", files),)))
    assert found.memory == GIB + more


def test_version_1_counts_what_is_below_and_limits_swap_with_memory() -> None:
    stat = f"inactive_file 1\ntotal_inactive_file {GIB}\ntotal_active_file 0\ntotal_rss {3 * GIB}\n"
    files = {
        "memory.limit_in_bytes": str(4 * GIB),
        "memory.usage_in_bytes": str(4 * GIB),
        "memory.stat": stat,
    }
    seen = Seen(meminfo(20 * GIB, swap=2 * GIB), (Group("/g", files),))
    assert room(seen) == Room(3 * GIB, "the limit /g/memory.limit_in_bytes")
    files |= {
        "memory.memsw.limit_in_bytes": str(5 * GIB),
        "memory.memsw.usage_in_bytes": str(4 * GIB),
    }
    assert room(seen) == Room(2 * GIB, "the limit /g/memory.memsw.limit_in_bytes")


def test_where_nobody_says_there_is_no_figure(tmp_path: Path) -> None:
    assert room(look(tmp_path)) is None


@pytest.mark.parametrize("inside", [False, True])
def test_groups_are_found_from_the_host_and_from_inside(tmp_path: Path, inside: bool) -> None:
    """Inside a container the path may be the host's, and what is mounted the group itself."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(meminfo(9 * GIB))
    (tmp_path / "proc/self/cgroup").write_text("1:name=systemd:/\n0::/box/leaf\n")
    top = tmp_path / "sys/fs/cgroup"
    (top / "box/leaf").mkdir(parents=True)
    limited = top if inside else top / "box"
    (limited / "memory.max").write_text(f"{3 * GIB}\n")
    (limited / "memory.current").write_text(f"{GIB}\n")
    found = room(look(tmp_path))
    bound = "/sys/fs/cgroup/memory.max" if inside else "/sys/fs/cgroup/box/memory.max"
    assert found == Room(2 * GIB, f"the limit {bound}")
    assert room(look(tmp_path, groups=False)) == Room(9 * GIB, "the host's memory")


ASK = """
import json, sys
from jupyter_gpushare.protocol.hostmemory import look, room
for line in sys.stdin:
    if line.startswith("take"):
        kept = b"x" * (int(line.split()[1]) * 2**20)
    else:
        found = room(look())
        print(json.dumps([found.memory, found.bound]), flush=True)
"""


def test_a_process_in_a_real_group_sees_its_limit(limited: Path) -> None:
    most = next(limited / name for name in LIMITS if (limited / name).exists())
    most.write_text(str(300 * MIB))
    with subprocess.Popen(
        [sys.executable, "-c", ASK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "JUPYTER_GPUSHARE": "off"},
    ) as asked:
        assert asked.stdin is not None
        assert asked.stdout is not None
        (limited / "cgroup.procs").write_text(str(asked.pid))
        print("look", file=asked.stdin, flush=True)
        before, bound = json.loads(asked.stdout.readline())
        print("take 100\nlook", file=asked.stdin, flush=True)
        after, _bound = json.loads(asked.stdout.readline())
        asked.stdin.close()
    assert bound.startswith(f"the limit {limited}/memory.")
    assert 250 * MIB < before <= 300 * MIB
    assert 95 * MIB < before - after < 125 * MIB, "what it took is gone, to the page"


@pytest.fixture
def limited() -> Iterator[Path]:
    """A control group of this test's, whose memory can be limited."""
    for top in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")):
        group = top / f"gpushare-test-{os.getpid()}"
        with suppress(OSError):
            group.mkdir()
            if any((group / name).exists() for name in LIMITS):
                break
            group.rmdir()
    else:
        pytest.skip("no control group can be made here")
    yield group
    for pid in (group / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            (group.parent / "cgroup.procs").write_text(pid)
    group.rmdir()
