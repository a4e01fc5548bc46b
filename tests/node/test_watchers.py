"""Everybody who watches ends with the newest status, and pays for their own watching only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.loop import soon
from support.managing import CLOCK, managing

from jupyter_gpushare.daemon.fairness import FREE
from jupyter_gpushare.ledger.ledger import Ledger
from jupyter_gpushare.node.manager import Manager
from jupyter_gpushare.node.people.identity import Principal
from jupyter_gpushare.node.views.board import Slices
from jupyter_gpushare.node.wire import statuses
from jupyter_gpushare.node.wire.service import Service
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import ProcessId, Quota
from jupyter_gpushare.protocol.calls import Call, Client, Hello
from jupyter_gpushare.protocol.framing import Encoded
from jupyter_gpushare.protocol.messages import PROTOCOL, CallId, Method, Notice


class Reader:
    """A connection that mostly reads all, and remembers it."""

    process = ProcessId("boot", 1, 1)
    is_remote = False
    reads = True
    missed = 0

    def __init__(self, number: int) -> None:
        self.id = number
        self.got: list[object] = []
        self.changes: list[Encoded] = []

    def reply(self, call_id: CallId, result: Any) -> None:
        self.got.append(call_id)

    def notify(self, method: str, params: Any) -> bool:
        if not self.reads:
            self.missed += 1
            return False
        if method == Notice.CHANGED.value:
            self.got.append("changed")
            self.changes.append(params)
        return True

    def error(self, *what: object) -> None:
        raise AssertionError(what)

    def close(self) -> None:
        self.got.append("closed")


class Held(Slices):
    """Work that stands still between two slices while the gate is shut."""

    gate: asyncio.Event
    stood: asyncio.Event

    async def rest(self) -> None:
        if not self.gate.is_set():
            self.stood.set()
        await self.gate.wait()


@dataclass
class House:
    """A manager, and a service that tells of it."""

    manager: Manager
    service: Service
    number: int = 0

    async def enter(self, who: str, *, watching: bool = True) -> Reader:
        self.number += 1
        reader = Reader(self.number)
        hello = Hello(PROTOCOL, Client("test", "0"), None)
        self.service.on_hello(reader, Principal(who), Call(1, Method.HELLO, hello))
        await soon(lambda: 1 in reader.got)
        if watching:
            self.watch(reader)
            await soon(lambda: 2 in reader.got)
        return reader

    def watch(self, reader: Reader) -> None:
        self.service.on_call(reader, Call(2, Method.WATCH, None))

    async def change(self) -> None:
        self.number += 1
        quota = Quota(self.number)
        await self.manager.submit(cmd.SetQuota(CLOCK.boot(), "somebody", quota, "somebody"))


@contextlib.asynccontextmanager
async def house(path: Path) -> AsyncIterator[House]:
    ledger = Ledger.open(path / "ledger.sqlite", history=1e6, wall=CLOCK.wall())
    async with managing(ledger) as manager:
        service = Service(manager, key=b"k", name="n", version="0", heartbeat_interval=1.0)
        service.start()
        try:
            yield House(manager, service)
        finally:
            await service.close()


async def settled(here: House, *readers: Reader) -> None:
    """What entering changed has been told, and is forgotten."""
    told = here.service.statuses

    def is_quiet() -> bool:
        """Whoever pushes waits for a change, and there is none, and nobody lacks one."""
        waits = told._changed._waiters and not told._changed.is_set()  # type: ignore[attr-defined]
        return waits and not any(guest.behind for guest in told._guests.values())

    await soon(is_quiet)
    for reader in readers:
        reader.got.clear()
        reader.changes.clear()


async def test_a_change_while_the_answer_to_a_watch_is_made_is_told_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statuses, "Slices", Held)

    Held.gate, Held.stood = asyncio.Event(), asyncio.Event()
    Held.gate.set()
    async with house(tmp_path) as here:
        before = await here.enter("alice")
        asker = await here.enter("carol", watching=False)
        late = await here.enter("bob", watching=False)
        await settled(here, before, asker, late)
        Held.gate.clear()
        here.service.on_call(asker, Call(3, Method.STATUS, None))
        here.watch(late)
        await Held.stood.wait()
        assert asker.got == [3], "both are answered of one sheet"
        assert late.got == []
        Held.stood.clear()
        await here.change()
        await Held.stood.wait()  # the change is being told, to whom watches already
        Held.gate.set()
        await soon(lambda: "changed" in late.got)
        assert late.got == [2, "changed"]
        assert before.got == ["changed"], "who had it was told again"


async def test_who_did_not_read_gets_the_newest_status_when_it_does(tmp_path: Path) -> None:
    """Even if nothing changes any more by then."""

    async with house(tmp_path) as here:
        slow = await here.enter("alice")
        await settled(here, slow)
        slow.reads = False
        await here.change()
        await soon(lambda: slow.missed)
        slow.reads = True
        await soon(lambda: slow.changes)


async def test_who_has_taken_too_much_is_told_later_and_all_others_at_once(tmp_path: Path) -> None:
    async with house(tmp_path) as here:
        many = [await here.enter("mallory") for _ in range(3)]
        other = await here.enter("alice")
        await settled(here, *many, other)
        is_let_off = False

        def owes(environment: str) -> bool:
            """One notification is all that mallory can pay."""
            told = any(one.changes for one in many)
            return environment == "mallory" and told and not is_let_off

        here.manager.charges = SimpleNamespace(owes=owes, took=FREE.took, wrote=FREE.wrote)
        await here.change()
        await soon(lambda: other.changes)
        assert [len(one.changes) for one in many] == [1, 0, 0]
        await here.change()
        await soon(lambda: len(other.changes) == 2)
        assert [len(one.changes) for one in many] == [1, 0, 0]
        is_let_off = True
        await soon(lambda: all(one.changes for one in many) and many[0].changes[1:])
        assert len(other.changes) == 2
        assert len({id(one.changes[-1]) for one in many}) == 1, "encoded for each again"


async def test_a_status_that_costs_more_than_the_whole_allowance_is_told_all_the_same(
    tmp_path: Path,
) -> None:
    async with house(tmp_path) as here:
        root = await here.enter("root")
        await settled(here, root)
        charged = False

        def took(environment: str, seconds: float) -> None:
            nonlocal charged
            charged = charged or (environment == "root" and seconds > 0)

        here.manager.charges = SimpleNamespace(
            owes=lambda environment: charged, took=took, wrote=FREE.wrote
        )
        await here.change()
        await soon(lambda: root.changes)
