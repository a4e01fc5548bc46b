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
from support.ledgers import open_ledger
from support.tinyhub import OWN, TinyHub

from jupyter_gpushare.daemon.hubapi import HubApi
from jupyter_gpushare.ledger.ledger import Ledger, LedgerFull
from jupyter_gpushare.quotas.config import NodeSize
from jupyter_gpushare.quotas.hub import KEPT, HubQuotas, told_by

LOG = logging.getLogger("hubquotas")
NODE = NodeSize(4, 24 * 2**30)
STUDENTS = {"gpus": 1, "memory": "16GiB"}
AT = 1_700_000_000.0


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


@asynccontextmanager
async def looking(
    folder: Path,
) -> AsyncIterator[tuple[TinyHub, HubQuotas, list[dict[str, Any]]]]:
    """A Hub, what looks at it, and what was applied."""
    applied: list[dict[str, Any]] = []

    async def apply(quotas: dict[str, Any]) -> None:
        applied.append(quotas)

    async with TinyHub(properties={"students": {"gpushare": STUDENTS}}).served() as hub:
        with closing(HubApi(hub.url)) as api, closing(open_ledger(folder / "ledger")) as ledger:

            async def in_ledger(work: Callable[[Ledger], Any]) -> Any:
                return work(ledger)

            yield hub, quotas_of(api, apply, in_ledger, time.time), applied


def quotas_of(api: HubApi, apply: Any, in_ledger: Any, wall: Callable[[], float]) -> HubQuotas:
    return HubQuotas(
        api,
        OWN,
        refresh=3600.0,
        node=lambda: NODE,
        apply=apply,
        in_ledger=in_ledger,
        wall=wall,
        log=LOG,
    )


async def test_they_are_applied_when_they_change_and_stay_while_the_hub_is_away(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with looking(tmp_path) as (hub, quotas, applied):
        await quotas.look()
        await quotas.look()
        assert applied == [{"students": STUDENTS}]
        for hub.broken in (503, 503, 403):
            await quotas.look()
        hub.broken = 0
        hub.properties["students"] = {"gpushare": {"gpus": -1}}
        for _ in range(3):
            await quotas.look()
        assert len(applied) == 1
        for told in ("cannot be read", "JupyterHub group 'students'"):
            assert caplog.text.count(told) == 1
        assert OWN not in caplog.text
        # So many that they come in pages.
        hub.page = 7
        hub.properties = {f"group-{n}": {"gpushare": {"gpus": "all"}} for n in range(21)}
        await quotas.look()
        assert applied[1:] == [{f"group-{n}": {"gpus": "all"} for n in range(21)}]


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


async def test_those_of_its_last_answer_hold_after_a_restart_while_it_is_away(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with looking(tmp_path) as (hub, quotas, applied):
        wall = AT
        quotas._wall = lambda: wall
        assert await quotas.first(NODE) == {"students": STUDENTS}
        assert quotas.when_away() is None
        wall += 3600
        await quotas.look()  # the age counts from the last answer, and not from the last change
        hub.broken = 503
        again = anew(quotas)
        assert await again.first(NODE) == {"students": STUDENTS}
        assert again.when_away() == wall
        assert "1 JupyterHub groups are those of its last answer, 0 minutes ago" in caplog.text
        # The same answer, when it is back, changes nothing but the age.
        hub.broken = 0
        await again.look()
        assert again.when_away() is None
        assert applied == []
        # One that makes no sense on the node of today is left out.
        kept = await again._in_ledger(lambda ledger: ledger.recollect(KEPT))
        kept["quotas"]["odd"] = {"gpus": "many"}
        await again._keep(kept)
        hub.broken = 503
        assert await anew(quotas).first(NODE) == {"students": STUDENTS}
        assert "JupyterHub group 'odd'" in caplog.text
        # Another Hub's are nobody's here.
        await again._keep(kept | {"hub": "http://other/hub/api"})
        assert await anew(quotas).first(NODE) == {}


async def test_an_answer_that_cannot_be_kept_holds_and_is_told_once(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with looking(tmp_path) as (_hub, quotas, applied):

        async def fails(_work: object) -> None:
            raise LedgerFull("The disk is full.")

        quotas._in_ledger = fails
        for _ in range(2):
            await quotas.look()
        assert applied == [{"students": STUDENTS}]
        assert caplog.text.count("could not be kept: The disk is full.") == 1


def anew(quotas: HubQuotas) -> HubQuotas:
    """What a restarted node manager has: the same ledger, and nothing in memory."""
    return quotas_of(quotas._api, quotas._apply, quotas._in_ledger, quotas._wall)
