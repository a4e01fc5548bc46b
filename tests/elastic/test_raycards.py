"""Ray Train's workers count only on GPUs that their job can have, and it says what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.elastic.raytrain import ElasticError, cards, run, step

GIB = 2**30


def gpu(uuid: str, tasks: int = 0, **more: Any) -> dict[str, Any]:
    plain = {"health": "ok", "out_of_service": None, "free": 24 * GIB, "memory": 24 * GIB}
    return {"uuid": uuid, "tasks": tasks, **plain, **more}


def lease(uuid: str, job: str | None = None, mine: bool = True) -> dict[str, Any]:
    return {"mine": mine, "job": job, "gpus": [{"uuid": uuid}]}


def status(gpus: list[dict[str, Any]], *leases: dict[str, Any], **more: Any) -> dict[str, Any]:
    quota = {"gpus": 8, "used_gpus": len(leases)}
    return {"gpus": gpus, "leases": [*leases], "queue": [], "quota": quota, **more}


def test_idle_cards_and_the_jobs_own_are_counted() -> None:
    some = [gpu("1"), gpu("2", 1), gpu("3", 1)]
    told = status(some, lease("2", "sine"), lease("3", "other"))
    assert cards(told, "sine", None) == (1, 1)
    assert cards(told, "other", None) == (1, 1)


def test_a_card_with_others_on_it_is_not_the_jobs() -> None:
    shared = [gpu("1", 2)]
    assert cards(status(shared, lease("1", "sine"), lease("1", mine=False)), "sine", None) == (0, 0)
    assert cards(status(shared, lease("1", "sine"), lease("1", "sine")), "sine", None) == (1, 0)


def test_the_quota_and_those_who_wait_come_first() -> None:
    some = [gpu("1"), gpu("2"), gpu("3")]
    assert cards(status(some, quota={"gpus": 2, "used_gpus": 1}), "sine", None) == (0, 1)
    assert cards(status(some, quota={"gpus": 1, "used_gpus": 2}), "sine", None) == (0, 0)
    waits = [{"mine": False}, {"mine": False}, {"mine": True}]
    assert cards(status(some, queue=waits), "sine", None) == (0, 1)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ElasticError, match="nothing between 3 and 2"):
        run(print, storage="/tmp", name="x", min_gpus=3, max_gpus=2)
    with pytest.raises(ElasticError, match=r"raytrain\.run"):
        step(print)
