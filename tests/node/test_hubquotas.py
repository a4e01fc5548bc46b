"""Quotas follow JupyterHub's groups, and a mistake or a Hub that is away takes none."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from support.examples import examples
from support.tinyhub import OWN, TinyHub

from jupyter_gpushare.daemon.hubapi import HubApi
from jupyter_gpushare.quotas.config import NodeSize
from jupyter_gpushare.quotas.hub import HubQuotas, told_by
from jupyter_gpushare.quotas.last import LastQuotas

LOG = logging.getLogger("hubquotas")
NODE = NodeSize(4, 24 * 2**30)
STUDENTS = {"gpus": 1, "memory": "16GiB"}


def a_group(name: str, quota: Any) -> dict[str, Any]:
    return {"kind": "group", "name": name, "properties": {"gpushare": quota, "other": 1}}


def test_groups_with_our_property_have_quotas_and_members() -> None:
    groups = [
        a_group("a", STUDENTS) | {"users": ["alice", "bob"]},
        a_group("b", STUDENTS) | {"users": ["alice", 7]},
        {"name": "plain", "users": ["carol"], "properties": {}},
        a_group("d", STUDENTS) | {"users": None},
        "nonsense",
    ]
    quotas, members = dict.fromkeys("abd", STUDENTS), {"alice": ("a", "b"), "bob": ("a",)}
    assert told_by(groups, NODE, {}) == (quotas, {}, members)
    assert told_by("nonsense", NODE, {}) == ({}, {}, {})


def test_a_slip_of_the_pen_takes_nothing_away() -> None:
    groups = [a_group("students", {"gpus": "many"}), a_group("new", {"memory": "much"})]
    good, wrong, _members = told_by(groups, NODE, {"students": STUDENTS})
    assert good == {"students": STUDENTS}
    assert sorted(wrong) == ["new", "students"]
    assert "JupyterHub group 'students'" in wrong["students"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


@settings(max_examples=examples(100))
@given(JSON, st.lists(JSON))
def test_no_answer_of_a_hub_is_too_odd(body: Any, quotas: list[Any]) -> None:
    told_by(body, NODE, {})
    groups = [a_group(str(number), quota) for number, quota in enumerate(quotas)]
    good, wrong, _members = told_by(groups, NODE, {})
    assert not set(good) & set(wrong)
    assert len(good) + len(wrong) == len(groups)


@asynccontextmanager
async def looking(
    folder: Path,
) -> AsyncIterator[tuple[TinyHub, HubQuotas, list[dict[str, Any]]]]:
    """A Hub, what looks at it, and what was applied."""
    applied: list[dict[str, Any]] = []

    async def apply(quotas: dict[str, Any]) -> None:
        applied.append(quotas)

    async with TinyHub(properties={"students": {"gpushare": STUDENTS}}).served() as hub:
        with closing(HubApi(hub.url)) as api:
            last = LastQuotas(folder / "hub-quotas.json", hub.url, LOG)
            yield hub, quotas_of(api, apply, last, time.time), applied


def quotas_of(api: HubApi, apply: Any, last: LastQuotas, wall: Callable[[], float]) -> HubQuotas:
    return HubQuotas(
        api, OWN, refresh=3600.0, node=lambda: NODE, apply=apply, last=last, wall=wall, log=LOG
    )


async def test_they_are_applied_when_they_change(tmp_path: Path) -> None:
    async with looking(tmp_path) as (hub, quotas, applied):
        await quotas.look()
        await quotas.look()
        assert applied == [{"students": STUDENTS}]
        hub.properties["staff"] = {"gpushare": {"gpus": "all"}}
        del hub.properties["students"]
        await quotas.look()
        assert applied[1:] == [{"staff": {"gpus": "all"}}]


async def test_a_hub_with_many_groups_gives_them_in_pages(tmp_path: Path) -> None:
    async with looking(tmp_path) as (hub, quotas, applied):
        hub.page = 7
        hub.properties = {f"group-{number}": {"gpushare": STUDENTS} for number in range(21)}
        await quotas.look()
        assert len(applied[0]) == 21


async def test_what_cannot_be_applied_is_tried_again(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with looking(tmp_path) as (_hub, quotas, applied):

        async def fails(wanted: dict[str, Any]) -> None:
            applied.append(wanted)
            if len(applied) == 1:
                raise OSError("disk full")

        quotas._apply = fails
        running = asyncio.create_task(quotas.run())
        async with asyncio.timeout(60):
            while "could not be applied" not in caplog.text:
                await asyncio.sleep(0.01)
            quotas.hurry()
            while len(applied) < 2:
                await asyncio.sleep(0.01)
        running.cancel()


async def test_they_stay_while_the_hub_is_away(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with looking(tmp_path) as (hub, quotas, applied):
        await quotas.look()
        hub.broken = 503
        await quotas.look()
        await quotas.look()
        hub.broken = 403
        await quotas.look()
        assert len(applied) == 1
        assert caplog.text.count("cannot be read") == 1
        assert OWN not in caplog.text


async def test_a_mistake_is_told_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    async with looking(tmp_path) as (hub, quotas, applied):
        hub.properties["students"] = {"gpushare": {"gpus": -1}}
        for _ in range(3):
            await quotas.look()
        assert caplog.text.count("JupyterHub group 'students'") == 1
        assert applied == []


async def test_those_of_its_last_answer_hold_after_a_restart_while_it_is_away(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with looking(tmp_path) as (hub, quotas, applied):
        before = time.time()
        assert await quotas.first(NODE) == {"students": STUDENTS}
        assert quotas.when_away() is None
        hub.broken = 503
        again = anew(quotas)
        assert await again.first(NODE) == {"students": STUDENTS}
        told = again.when_away()
        assert told is not None
        assert before - 1 <= told <= time.time() + 1
        assert "1 JupyterHub groups are those of its last answer, 0 minutes ago" in caplog.text
        # The same answer, when it is back, changes nothing but the age.
        hub.broken = 0
        await again.look()
        assert again.when_away() is None
        assert applied == []


async def test_the_age_counts_from_the_last_answer_and_not_from_the_last_change(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path) as (hub, quotas, _applied):
        wall = 1_000_000.0
        quotas._wall = lambda: wall
        await quotas.look()
        wall += 3600
        await quotas.look()
        hub.broken = 503
        again = anew(quotas)
        await again.first(NODE)
        assert again.when_away() == wall


async def test_a_kept_quota_that_makes_no_sense_on_the_node_of_today_is_left_out(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with looking(tmp_path) as (hub, quotas, _applied):
        odd = {"students": STUDENTS, "odd": {"gpus": "many"}}
        quotas._last.keep(odd, time.time())
        hub.broken = 503
        assert await quotas.first(NODE) == {"students": STUDENTS}
        assert "JupyterHub group 'odd'" in caplog.text


def anew(quotas: HubQuotas) -> HubQuotas:
    """What a restarted node manager has: the same files, and nothing in memory."""
    last = LastQuotas(quotas._last._path, quotas._last._hub, LOG)
    return quotas_of(quotas._api, quotas._apply, last, quotas._wall)
