"""Whom the Hub vouched for is believed for a bounded time, its groups' quotas while it is away."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from support.ledgers import open_ledger
from support.tinyhub import OWN, TinyHub

from jupyter_gpushare.daemon import privatefile
from jupyter_gpushare.daemon.hubapi import HubApi
from jupyter_gpushare.ledger.ledger import Ledger, LedgerFull
from jupyter_gpushare.node.people import hubmemory
from jupyter_gpushare.node.people.hubmemory import HubMemory
from jupyter_gpushare.node.people.identity import Principal
from jupyter_gpushare.quotas.config import NodeSize
from jupyter_gpushare.quotas.hub import KEPT, HubQuotas, told_by

TOKEN = "alices-token"
ALICE = Principal("alice", ("students",), False, True)
KEY = b"k" * 32


class Host:
    """A node manager's memory, and its restarts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 1000.0

    def memory(self, made_for: str = "boot 1", key: bytes = KEY) -> HubMemory:
        return HubMemory(600.0, now=lambda: self.now, key=key, path=self.path, made_for=made_for)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "ledger.hub-people.json")


async def vouched(host: Host, who: Principal = ALICE, *uids: int) -> str:
    """A node manager to which the Hub said yes, and that has ended since; the token's name."""
    memory = host.memory()
    name = memory.name_of(TOKEN)
    for uid in uids or (7,):
        memory.keep(name, uid, host.now, who)
    memory.close()
    return name


@pytest.fixture
def name(host: Host) -> str:
    """The name of alice's token, which the Hub vouched for to a node manager that has ended."""
    return asyncio.run(vouched(host))


async def test_it_is_good_from_the_hubs_yes_and_asking_adds_nothing(host: Host, name: str) -> None:
    for _ in range(5):
        host.now += 119
        assert host.memory().recall(name, 7) == ALICE
    host.now += 5
    assert host.memory().recall(name, 7) is None


async def test_it_is_the_same_os_users_by_the_same_boot_hub_and_key(host: Host) -> None:
    name = await vouched(host, Principal("carol", (), True), 7, 8)
    memory = host.memory()
    # Never an administrator's.
    assert memory.recall(name, 7) == memory.recall(name, 8) == Principal("carol", (), False)
    assert memory.recall(name, 9) is None
    assert memory.recall(memory.name_of("another"), 7) is None
    assert host.memory("boot 2").recall(name, 7) is None
    other = host.memory(key=b"x" * 32)
    assert other.recall(other.name_of(TOKEN), 7) is None
    text = host.path.read_text()
    assert TOKEN not in text
    assert hashlib.sha256(TOKEN.encode()).hexdigest() not in text


def full(path: Path, document: Any) -> None:
    raise OSError(28, "No space left on device")


async def test_a_no_is_kept_at_once_and_takes_all_along_where_it_cannot_be(
    host: Host, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await host.memory().erase(name)
    # As after a kill -9 just now.
    assert host.memory().recall(name, 7) is None
    await vouched(host)
    monkeypatch.setattr(privatefile, "write", full)
    await host.memory().erase(name)
    assert not host.path.exists()
    assert "No space left" in caplog.text


async def test_who_removes_the_file_is_obeyed_by_one_that_runs(host: Host, name: str) -> None:
    memory = host.memory()
    assert memory.recall(name, 7) == ALICE
    host.path.unlink()
    assert memory.recall(name, 7) is None
    memory.keep(memory.name_of("bobs"), 8, host.now, Principal("bob"))
    memory.close()
    assert host.memory().recall(name, 7) is None
    assert host.memory().recall(memory.name_of("bobs"), 8) == Principal("bob")


async def test_who_has_all_forgotten_is_obeyed_though_no_file_is_there(
    host: Host, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was full took the file, and what the node manager knows is still there."""
    memory = host.memory()
    with monkeypatch.context() as patch:
        patch.setattr(privatefile, "write", full)
        memory.keep(memory.name_of("bobs"), 8, host.now, Principal("bob"))
        await memory.erase(memory.name_of("bobs"))
    assert not host.path.exists()
    assert memory.recall(name, 7) == ALICE
    hubmemory.forget(host.path)
    assert memory.recall(name, 7) is None
    memory.close()
    assert host.memory().recall(name, 7) is None


async def test_what_is_just_being_written_is_forgotten_too(
    host: Host, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = privatefile.write

    def forgotten_meanwhile(path: Path, document: Any) -> None:
        hubmemory.forget(path)
        real(path, document)

    memory = host.memory()
    memory.keep(memory.name_of("bobs"), 8, host.now, Principal("bob"))
    with monkeypatch.context() as patch:
        patch.setattr(privatefile, "write", forgotten_meanwhile)
        memory.keep(memory.name_of("carols"), 9, host.now, Principal("carol"))
        await memory.erase(memory.name_of("carols"))
    assert not host.path.exists()
    # As after a kill -9 just now, and in the one that runs.
    assert host.memory().recall(name, 7) is None
    assert memory.recall(name, 7) is None
    # Whom the Hub vouches for from then on is remembered.
    memory.keep(memory.name_of("bobs"), 8, host.now, Principal("bob"))
    memory.close()
    assert host.memory().recall(memory.name_of("bobs"), 8) == Principal("bob")


async def test_a_no_that_waits_for_a_slow_disk_is_kept_at_the_end(
    host: Host, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun, go_on = privatefile.write, threading.Event(), threading.Event()

    def slow(path: Path, document: Any) -> None:
        begun.set()
        assert go_on.wait(60)
        real(path, document)

    memory = host.memory()
    other = memory.name_of("bobs")
    memory.keep(other, 8, host.now, Principal("bob"))
    monkeypatch.setattr(privatefile, "write", slow)
    first = asyncio.create_task(memory.erase(other))
    assert await asyncio.to_thread(begun.wait, 10)
    second = asyncio.create_task(memory.erase(name))
    while memory.environment(name):
        await asyncio.sleep(0)
    for task in (first, second):
        task.cancel()
    threading.Timer(0.05, go_on.set).start()
    memory.close()
    assert host.memory().recall(name, 7) is None
    assert host.memory().recall(name, 7) is None


async def test_ones_many_tokens_push_nobody_out(
    host: Host, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubmemory, "MOST", 20)

    memory = host.memory()
    host.now += 1
    for number in range(100):
        # Also by named servers, of which there may be any number.
        for of in ("bob", f"bob/{number}"):
            his = memory.name_of(f"{of} {number}")
            memory.keep(his, 8, host.now, Principal(of))
    memory.close()
    assert memory.recall(name, 7) == host.memory().recall(name, 7) == ALICE
    people = json.loads(host.path.read_text())["people"].values()
    assert len(people) == 20
    assert sum(known["environment"] == "bob" for known in people) <= hubmemory.MOST_OF_ONE


async def test_what_is_new_is_written_soon_and_seldom(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = host.memory()
    names = [memory.name_of(f"token {number}") for number in range(300)]
    memory.keep(names[0], 7, host.now, ALICE)
    while not host.path.exists():
        await asyncio.sleep(0.01)
    first = host.path.stat().st_ino
    for _ in range(5):
        host.now += 1
        for name in names:
            memory.keep(name, 7, host.now, Principal(name))
    left = memory._due.when() - asyncio.get_running_loop().time()
    assert left > hubmemory.WRITE_EACH / 2, "the next one is written much later"
    assert host.path.stat().st_ino == first
    monkeypatch.setattr(hubmemory, "MOST", 200)
    memory.close()
    assert len(json.loads(host.path.read_text())["people"]) == 200


def test_what_another_release_wrote_is_not_used(
    host: Host, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    host.path.write_text(host.path.read_text().replace('"version": 1', '"version": 2'))
    with caplog.at_level(logging.ERROR):
        assert host.memory().recall(name, 7) is None
    assert "is not used" in caplog.text


# -- quotas of its groups --------------------------------------------------------------------------

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
        for told in (
            "stay: it answered with HTTP 503",
            "stay: it answered with HTTP 403",
            "can be read again, after it failed 3 times",
            "JupyterHub group 'students'",
        ):
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
