"""Whom the Hub vouched for is believed for a bounded time, and forgotten when that is said."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.daemon import privatefile
from jupyter_gpushare.node.people import hubmemory
from jupyter_gpushare.node.people.hubmemory import HubMemory
from jupyter_gpushare.node.people.identity import Principal

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
    assert memory._due is not None
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
