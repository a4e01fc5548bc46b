"""A grant is what the allocation rule says, point by point, and breaks no limit.

The rule is that of the source S1, Fig. 3 and Fig. 4.
"""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from jupyter_gpushare.policy.books.placement import GpuRoom, Granted, NoRoom, Refused, place
from jupyter_gpushare.policy.words.model import Quota, RefusalReason

GIB = 1024**3


def room(index, free=24, tasks=0, own=None, memory=24, usable=True, named=0):
    return GpuRoom(
        f"GPU-{index}",
        index,
        memory * GIB,
        int(free * GIB),
        tasks,
        None if own is None else int(own * GIB),
        usable,
        int(named * GIB),
    )


def chosen(result):
    assert isinstance(result, Granted), result
    return [(part.gpu, part.memory // GIB) for part in result.allocations]


def quota(gpus, memory=None):
    return Quota(gpus, None if memory is None else memory * GIB)


@pytest.mark.parametrize(
    ("rooms", "q", "gpus", "asks", "gets"),
    [
        pytest.param(
            [room(0, free=10), room(1, free=20), room(2, free=20), room(3, free=9)],
            quota(3, 8),
            3,
            None,
            [(1, 8), (2, 8), (0, 8)],
            id="new ones with most free memory first, ties by index",
        ),
        pytest.param(
            [room(0, free=16, tasks=2, own=8), room(1), room(2)],
            quota(2, 8),
            2,
            None,
            [(1, 8), (0, 8)],
            id="the quota's head-room limits new ones, and the rest is reused",
        ),
        pytest.param(
            [room(0, free=16, tasks=1, own=8), room(1), room(2, free=2)],
            quota(3, 8),
            2,
            None,
            [(1, 8), (0, 8)],
            id="reused is the need less the candidates, not less the head-room",
        ),
        pytest.param(
            [room(index, free=16, tasks=tasks, own=8) for index, tasks in enumerate((3, 1, 2))]
            + [room(3)],
            quota(3, 8),
            2,
            None,
            [(1, 8), (2, 8)],
            id="without head-room the least loaded own ones",
        ),
        pytest.param(
            [room(0, free=16, tasks=4)],
            quota(1, 8),
            1,
            None,
            None,
            id="full of tasks for strangers",
        ),
        pytest.param(
            [room(0, free=16, tasks=4, own=8)], quota(1, 8), 1, None, [(0, 8)], id="not for holders"
        ),
        pytest.param([room(0, free=7)], quota(1, 8), 1, None, None, id="lack of room"),
        pytest.param(
            [room(0, free=8, tasks=1, own=8)], quota(1, 16), 1, 16, [(0, 16)], id="grows into room"
        ),
        pytest.param(
            [room(0, free=7, tasks=1, own=8)], quota(1, 16), 1, 16, None, id="no room to grow"
        ),
        pytest.param(
            [room(0, free=0, tasks=1, own=8)],
            quota(1, 8),
            1,
            1,
            [(0, 8)],
            id="within what is shared",
        ),
        pytest.param(
            [room(0), room(1, memory=80, free=80)],
            quota(2),
            2,
            None,
            [(1, 80), (0, 24)],
            id="no size anywhere means whole ones",
        ),
        pytest.param(
            [room(0, usable=False), room(1, free=16, own=8, usable=False)],
            quota(2, 8),
            1,
            None,
            None,
            id="a lost one takes nobody, not even its holder",
        ),
    ],
)
def test_where_a_request_goes(rooms, q, gpus, asks, gets):
    result = place(rooms, q, gpus, asks and asks * GIB, 4)
    if gets is None:
        assert result == NoRoom(0, 0)
    else:
        assert chosen(result) == [(f"GPU-{index}", memory) for index, memory in gets]


@pytest.mark.parametrize(
    ("allowed", "free", "asks", "reserved"),
    [
        (8, 18, 2, 8),
        (8, 18, 3, None),  # beyond the quota together
        (16, 18, 6, 12),
        (16, 6, 6, 12),
        (16, 5, 6, None),  # the GPU has no room for both
        (None, 18, 18, 24),
        (8, 18, None, 8),
        (6, 0, None, 6),  # who names nothing shares what is reserved
        (4, 18, 1, None),  # a quota that was lowered
        (4, 0, None, 6),
    ],
)
def test_what_tasks_of_one_environment_name_adds_up(allowed, free, asks, reserved):
    rooms = [room(0, free=free, tasks=1, own=6, named=6)]
    asked = None if asks is None else asks * GIB
    result = place(rooms, quota(1, allowed), 1, asked, 4)
    assert result == NoRoom(0, 0) if reserved is None else chosen(result) == [("GPU-0", reserved)]


@pytest.mark.parametrize(
    ("q", "gpus", "memory", "reason"),
    [
        (quota(0), 1, None, RefusalReason.ZERO_QUOTA),
        (quota(0), 0, None, RefusalReason.ZERO_QUOTA),
        (quota(1), 2, None, RefusalReason.OVER_QUOTA),
        (quota(1, 8), 1, 9, RefusalReason.OVER_QUOTA),
        (quota(9, 8), 3, None, RefusalReason.TOO_LARGE),
        (quota(2), 1, 25, RefusalReason.TOO_LARGE),
        (quota(2, 99), 1, 25, RefusalReason.TOO_LARGE),
        (quota(99, 99), 3, None, RefusalReason.TOO_LARGE),
        (quota(2), 0, None, RefusalReason.BAD_REQUEST),
        (quota(2), -1, None, RefusalReason.BAD_REQUEST),
        (quota(2), 1, 0, RefusalReason.BAD_REQUEST),
    ],
)
def test_what_can_never_be_is_refused_at_once(q, gpus, memory, reason):
    asked = None if memory is None else memory * GIB
    result = place([room(0), room(1)], q, gpus, asked, 4)
    assert isinstance(result, Refused)
    assert result.reason is reason


rooms_of_any_kind = st.lists(
    st.builds(
        room,
        index=st.integers(0, 9),
        free=st.integers(-4, 24),
        tasks=st.integers(0, 6),
        own=st.none() | st.integers(1, 24),
        usable=st.booleans(),
        named=st.integers(0, 24),
    ),
    max_size=8,
    unique_by=lambda r: r.index,
)


@given(
    rooms=rooms_of_any_kind,
    gpus_allowed=st.integers(0, 9),
    limit=st.none() | st.integers(1, 30),
    gpus=st.integers(-1, 9),
    memory=st.none() | st.integers(0, 30),
    threshold=st.integers(1, 6),
)
def test_a_grant_never_breaks_a_limit(rooms, gpus_allowed, limit, gpus, memory, threshold):
    q = quota(gpus_allowed, limit)
    asked = None if memory is None else memory * GIB
    result = place(rooms, q, gpus, asked, threshold)
    assert result == place(list(reversed(rooms)), q, gpus, asked, threshold)
    if not isinstance(result, Granted):
        return
    by_uuid = {r.uuid: r for r in rooms}
    names = [part.gpu for part in result.allocations]
    assert len(names) == len(set(names)) == gpus
    held = {r.uuid for r in rooms if r.reservation is not None}
    assert len(held | set(names)) <= max(gpus_allowed, len(held))
    for part in result.allocations:
        there = by_uuid[part.gpu]
        assert there.usable
        assert part.memory - (there.reservation or 0) <= max(0, there.free)
        if there.reservation is None:
            assert there.tasks < threshold
        elif asked is not None:
            assert there.named + asked <= min(part.memory, q.memory or part.memory)


@given(
    rooms=st.lists(
        st.builds(
            room,
            index=st.integers(0, 9),
            free=st.integers(-4, 80),
            tasks=st.integers(0, 6),
            own=st.none() | st.integers(1, 24),
            memory=st.sampled_from([16, 24, 80]),
        ),
        min_size=1,
        max_size=8,
        unique_by=lambda r: r.index,
    ),
    allowed=st.integers(1, 99),
    limit=st.none() | st.integers(1, 999),
)
def test_no_quota_locks_out_who_asks_for_nothing_in_particular(rooms, allowed, limit):
    result = place(rooms, quota(allowed, limit), 1, None, 4)
    assert not isinstance(result, Refused), result
    beyond = place(rooms, quota(allowed, 10**6), 1, None, 4)
    assert beyond == place(rooms, quota(allowed), 1, None, 4), "more than there is means whole"
    if isinstance(result, Granted):
        (part,) = result.allocations
        there = next(r for r in rooms if r.uuid == part.gpu)
        own = there.reservation or 0
        assert part.memory <= max(own, there.memory)
        assert limit is None or part.memory <= max(own, limit * GIB)
