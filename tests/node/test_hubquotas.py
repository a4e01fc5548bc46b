"""Quotas follow JupyterHub's groups, and a mistake or a Hub that is away takes none.

Its last answer in a file is nobody else's, never half of one, and stops no start.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.node import needs_root
from support.tinyhub import OWN, TinyHub

from jupyter_gpushare.daemon.hubapi import HubApi
from jupyter_gpushare.quotas.config import NodeSize
from jupyter_gpushare.quotas.hub import HubQuotas, told_by
from jupyter_gpushare.quotas.last import LastQuotas

LOG = logging.getLogger("hubquotas")
NODE = NodeSize(4, 24 * 2**30)
STUDENTS = {"gpus": 1, "memory": "16GiB"}
HUB = "http://127.0.0.1:8081/hub/api"
GROUPS, AT = {"students": STUDENTS}, 1_700_000_000.0
OPEN = (0o020, 0o002, 0o040, 0o004)


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
        with closing(HubApi(hub.url)) as api:
            last = LastQuotas(folder / "hub-quotas.json", hub.url, LOG)
            yield hub, quotas_of(api, apply, last, time.time), applied


def quotas_of(api: HubApi, apply: Any, last: LastQuotas, wall: Callable[[], float]) -> HubQuotas:
    return HubQuotas(
        api, OWN, refresh=3600.0, node=lambda: NODE, apply=apply, last=last, wall=wall, log=LOG
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
        again._last.keep({"students": STUDENTS, "odd": {"gpus": "many"}}, wall)
        hub.broken = 503
        assert await anew(quotas).first(NODE) == {"students": STUDENTS}
        assert "JupyterHub group 'odd'" in caplog.text


def anew(quotas: HubQuotas) -> HubQuotas:
    """What a restarted node manager has: the same files, and nothing in memory."""
    last = LastQuotas(quotas._last._path, quotas._last._hub, LOG)
    return quotas_of(quotas._api, quotas._apply, last, quotas._wall)


# -- the file --------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.hub-quotas.json"


def last(file: Path, hub: str = HUB) -> LastQuotas:
    return LastQuotas(file, hub, LOG)


def test_what_was_kept_is_recalled_for_the_owner_only(file: Path) -> None:
    mask = os.umask(0)
    try:
        last(file).keep(GROUPS, AT)
    finally:
        os.umask(mask)
    assert last(file).recall() == (GROUPS, AT)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_same_answer_writes_nothing_but_the_time(file: Path) -> None:
    kept = last(file)
    kept.keep(GROUPS, AT)
    inode = file.stat().st_ino
    kept.keep(GROUPS, AT + 60)
    assert file.stat().st_ino == inode
    again = last(file)
    assert again.recall() == (GROUPS, AT + 60)
    again.keep(GROUPS, AT)
    assert file.stat().st_ino == inode
    again.keep({}, AT)
    assert last(file).recall() == ({}, AT)


def test_another_hubs_groups_are_nobodys_here(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert last(file).recall() is None
    last(file).keep(GROUPS, AT)
    assert last(file, "http://other/hub/api").recall() is None
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        *((partial(os.chmod, mode=0o600 | more), "open to other users") for more in OPEN),
        pytest.param(partial(os.chown, uid=7, gid=7), "belongs to user 7", marks=needs_root),
    ],
)
def test_what_others_have_or_may_open_is_not_believed(
    file: Path, spoil: Callable[[Path], None], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    last(file).keep(GROUPS, AT)
    spoil(file)
    assert last(file).recall() is None
    assert why in caplog.text


@pytest.mark.parametrize(("plant", "mode"), [(os.symlink, 0o600), (os.link, 0o644), (None, 0o600)])
def test_what_is_planted_is_neither_read_nor_written_through(
    file: Path, tmp_path: Path, plant: Any, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A link, or a pipe that nobody writes to."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(json.dumps({"version": 1, "hub": HUB, "groups": {}}))
    elsewhere.chmod(mode)
    if plant is None:
        os.mkfifo(file, 0o600)
    else:
        plant(elsewhere, file)
    before = elsewhere.read_bytes()
    assert last(file).recall() is None
    assert "is not used" in caplog.text
    last(file).keep(GROUPS, AT)
    assert elsewhere.read_bytes() == before
    assert last(file).recall() == (GROUPS, AT)


def test_a_place_where_nothing_can_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = last(tmp_path / "nowhere" / "file")
    kept.keep(GROUPS, AT)
    kept.keep(GROUPS, AT)
    assert caplog.text.count("could not be kept") == 1
