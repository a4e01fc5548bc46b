"""A job takes cards that idle, and where others make room, but no more than its quota allows."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from jupyter_gpushare.jobs import hostside
from jupyter_gpushare.jobs.engine import Idle, OneHost
from jupyter_gpushare.jobs.hostside import Job, idle_in
from jupyter_gpushare.protocol.sizes import MemoryRange

GIB = 2**30
RANGE = MemoryRange(6 * GIB, 20 * GIB)


def gpu(uuid: str, **more: Any) -> dict[str, Any]:
    plain = {"health": "ok", "out_of_service": None, "tasks": 0, "ranged": 0, "mine": False}
    return {"uuid": uuid, "memory": 24 * GIB, "free": 24 * GIB, "lifted": 0, **plain, **more}


#: Others' tasks on it have asked for ranges, and use 18 GiB beyond the least of these.
FULL = {"tasks": 2, "ranged": 2, "free": 0, "lifted": 18 * GIB}


@pytest.mark.parametrize(
    ("there", "beside", "is_idle"),
    [
        ({}, False, True),
        ({"health": "lost"}, False, False),
        ({"out_of_service": {"reason": "fans"}}, False, False),
        ({"free": 5 * GIB}, False, False),
        ({"free": 6 * GIB}, False, True),
        (FULL, True, True),
        (FULL, False, False),
        ({**FULL, "ranged": 1}, True, False),
        ({**FULL, "mine": True}, True, False),
        ({**FULL, "lifted": 5 * GIB}, True, False),
    ],
)
def test_which_cards_idle(there: dict[str, Any], beside: bool, is_idle: bool) -> None:
    found = idle_in({"gpus": [gpu("1", **there)]}, RANGE, beside)
    assert bool(found) == is_idle


def test_only_a_range_finds_room_beside_others() -> None:
    assert idle_in({"gpus": [gpu("1", **FULL)]}, 6 * GIB, beside=True) == []


class Node:
    """A node manager with three cards, on one of which others make room."""

    quota: ClassVar[dict[str, int]] = {"gpus": 9, "used_gpus": 0}

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None: ...

    def call(self, _method: object) -> dict[str, Any]:
        gpus = [gpu("1"), gpu("2", free=12 * GIB), gpu("3", free=25 * GIB), gpu("4", **FULL)]
        return {"gpus": gpus, "quota": self.quota}


@pytest.mark.parametrize(
    ("allowed", "used", "beside", "named"),
    [(9, 0, False, "312"), (9, 0, True, "3124"), (3, 1, False, "31"), (1, 2, True, "")],
)
def test_a_host_names_the_freest_first_within_the_quota(
    allowed: int, used: int, beside: bool, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostside, "connect", Node)
    monkeypatch.setattr(Node, "quota", {"gpus": allowed, "used_gpus": used})
    host = OneHost(Job("x", b"", memory=RANGE), "here", beside=beside)
    host.ask("here")
    (told,) = host.events(20.0)
    assert isinstance(told, Idle)
    assert "".join(row.card.gpu for row in told.rows) == named
