"""The pool's parts lose no event, go back to no earlier time, and give no token away.

Each alone: its ledger, clock and lines, and the Hub's links.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import ssl
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpushare.hub.links import Limits, LinkPool
from jupyter_gpushare.link import nodelink
from jupyter_gpushare.link.dial import Host
from jupyter_gpushare.link.errors import NodeTimedOut, NodeUnavailable
from jupyter_gpushare.link.nodelink import LinkState
from jupyter_gpushare.pages.viewer import Viewer
from jupyter_gpushare.policy.books.table import Map
from jupyter_gpushare.policy.words.model import EnvironmentName, Quota
from jupyter_gpushare.pool import budget, core, ledger
from jupyter_gpushare.pool.clock import PoolClock
from jupyter_gpushare.pool.configuration import Pool
from jupyter_gpushare.pool.hostlink import HostLink, _budget, _lines
from jupyter_gpushare.pool.ledger import LedgerProblem, PoolLedger
from jupyter_gpushare.pool.manager import PoolManager
from jupyter_gpushare.pool.words import events as ev
from jupyter_gpushare.pool.words.effects import Budget
from jupyter_gpushare.protocol.framing import MAX_LINE, encode

LENT = ev.BudgetLent(0.0, "a", "alice", 1, 1, 120.0)


def replayed(events: list[ev.Event]) -> core.State:
    state = core.State()
    for event in events:
        state = core.evolve(state, event)
    return state


def test_what_is_forgotten_of_the_ledger_changes_no_state(tmp_path: Path) -> None:
    book = PoolLedger(tmp_path / "ledger.sqlite")
    told: list[ev.Event] = [ev.HostAdded(1.0, "a", "root"), ev.HostAdded(1.0, "b", "root")]
    told.append(ev.QuotaSet(2.0, "alice", Quota(gpus=3), "carol"))
    for number in range(1, 40):
        at, host = 2.0 + number, "ab"[number % 2]
        told.append(ev.BudgetLent(at, host, "alice", number % 3, number, at + 120, 5.0, why="x"))
        if number % 4:
            told.append(ev.BudgetAccepted(at, host, "alice", number % 3))
    # Sent, and not answered when the pool was killed.
    told.append(ev.BudgetLent(50.0, "a", "alice", 0, 50, 170.0))
    book.append(told, 1e9)
    assert book.load() == told
    assert book.prune() > 40
    left = book.load()
    assert started(left) == started(told)
    assert [(one.by, one.kind) for one in book.audit(9)] == [
        *(("carol", "QuotaSet"), ("root", "HostAdded"), ("root", "HostAdded"))
    ]
    book.close()


def at_random(seed: int) -> list[ev.Event]:
    """What a host that may say anything makes the pool write, of a few people."""
    chance, state = random.Random(seed), core.State()
    told: list[ev.Event] = [ev.HostAdded(0.0, "a", "root"), ev.HostAdded(0.0, "b", "root")]
    for number in range(1, 120):
        at, host = float(number), chance.choice("ab")
        who, gpus = EnvironmentName(chance.choice(("ada", "bo"))), chance.choice((0, 0, 1, 3))
        hours, why = chance.choice((None, 0.0, 2.0, 9.0)), chance.choice(("", "", "x"))
        reclaim = chance.random() < 0.3
        event: ev.Event = ev.BudgetLent(at, host, who, gpus, number, at, hours, reclaim, why)
        # Only what was lent is ever answered.
        if number > 2 and who in state.hosts[host].out and chance.random() < 0.5:
            event = ev.BudgetAccepted(at, host, who, gpus)
        elif chance.random() < 0.1:
            event = ev.GroupsTold(at, host, who, (why,))
        told.append(event)
        if chance.random() < 0.01:
            told += [ev.HostForgotten(at, host, "root"), ev.HostAdded(at, host, "root")]
        state = replayed(told) if len(told) < 4 else core.evolve(state, event)
    return told


def started(events: list[ev.Event]) -> core.State:
    """The state as a pool that starts has it; of nobody's groups where nothing is lent."""
    state = replayed([*events, ev.PoolStarted(500.0, 1e9, 620.0)])
    hosts = {
        name: replace(host, told=Map({who: g for who, g in host.told.items() if who in host.out}))
        for name, host in state.hosts.items()
    }
    return replace(state, hosts=Map(hosts), number=0)


@pytest.mark.parametrize("seed", range(30))
def test_a_host_that_changes_its_mind_leaves_few_records_and_the_same_state(
    tmp_path: Path, seed: int
) -> None:
    book, told = PoolLedger(tmp_path / "ledger.sqlite"), at_random(seed)
    book.append(told, 1e9)
    for _twice in range(2):
        book.prune()
        left = book.load()
        assert started(left) == started(told)
        of_hosts = [one for one in left if not hasattr(one, "by")]
        assert len(of_hosts) <= 2 * 2 * 2
    book.close()


def test_invented_people_leave_no_records(tmp_path: Path) -> None:
    """Each was lent something, gave it back, and had groups; all of that stayed for ever."""
    book = PoolLedger(tmp_path / "ledger.sqlite")
    told: list[ev.Event] = [ev.HostAdded(1.0, "a", "root")]
    for number in range(500):
        at, who = 2.0 + number, EnvironmentName(f"nobody-{number}")
        told += [ev.GroupsTold(at, "a", who, (f"g{step}",)) for step in range(3)]
        told += [ev.BudgetLent(at, "a", who, gpus, number, at + 120) for gpus in (1, 0)]
        told.append(ev.BudgetAccepted(at, "a", who, 0))
    book.append([*told, LENT, ev.GroupsTold(600.0, "a", EnvironmentName("alice"), ("staff",))], 1e9)
    book.prune()
    left = book.load()
    assert len(left) <= 8
    assert replayed(left).hosts["a"].told["alice"] == ("staff",)
    book.close()


def test_events_are_written_all_or_none(tmp_path: Path) -> None:
    book = PoolLedger(tmp_path / "ledger.sqlite")
    broken = ev.BudgetLent(1.0, "a", "\ud800", 1, 1, 2.0)  # half a letter cannot be written
    with pytest.raises((LedgerProblem, UnicodeEncodeError)):
        book.append([LENT, broken, object()], 1e9)  # type: ignore[list-item]
    assert book.load() == []
    book.append([LENT], 1e9)
    assert book.load() == [LENT]
    book.close()


def test_two_pools_never_share_a_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_OTHER_ENDS", 0.0)
    first = PoolLedger(tmp_path / "ledger.sqlite")
    with pytest.raises(LedgerProblem, match="Another pool"):
        PoolLedger(tmp_path / "ledger.sqlite")
    first.close()
    PoolLedger(tmp_path / "ledger.sqlite").close()


def test_a_ledger_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"not a database at all, and long enough to be looked at" * 40)
    before = path.read_bytes()
    with pytest.raises(LedgerProblem):
        PoolLedger(path)
    assert path.read_bytes() == before


def test_the_pools_clock_never_goes_back(tmp_path: Path) -> None:
    book = PoolLedger(tmp_path / "ledger.sqlite")
    first = PoolClock(book)
    # Of a boot that lasted for longer than this one has so far.
    far = first.now() + 1e6
    book.append([ev.HostAdded(far, "a", "root")], 1e9)
    book.remember((("boot_id", "another boot"),))
    clock = PoolClock(book)
    now = clock.now()
    assert far <= now < far + 60
    assert now <= PoolClock(book).now() < now + 60
    book.close()


def test_it_looks_at_the_time_no_more_often_than_it_is_to() -> None:
    manager: Any = object.__new__(PoolManager)
    manager.config, looks = SimpleNamespace(interval=3600.0), list[object]()

    async def submit(command: object) -> None:
        looks.append(command)
        await asyncio.sleep(0)

    async def story() -> None:
        manager.submit = submit
        ticking = asyncio.create_task(manager._tick())
        for _ in range(20):  # turns of the loop
            await asyncio.sleep(0)
        ticking.cancel()

    asyncio.run(story())
    assert looks == []


def test_what_is_lent_to_many_fits_into_lines() -> None:
    quota = Quota(gpus=2, memory=8 * 2**30)
    budgets = [Budget(f"person-{n:04}", 1, quota, 1.5, False, "é" * 200) for n in range(900)]
    whole = [_budget(one) for one in budgets]
    parts = list(_lines(whole))
    assert len(parts) > 1
    assert [one for part in parts for one in part] == whole
    assert all(len(encode(part)) < MAX_LINE - 512 for part in parts)
    assert list(_lines([])) == [[]]


def test_why_a_connection_ended_is_not_lost_when_the_next_call_finds_it_ended() -> None:
    async def main() -> None:
        async def submit(_make: object) -> None:
            raise AssertionError("nothing is to be decided")

        link = HostLink(
            "a", "lab", lambda: None, submit, patience=1.0, silence=1.0, log=logging.getLogger()
        )
        said: list[str] = []
        link.link.drop = said.append  # type: ignore[method-assign]
        # It ends now; the link notices a moment later.
        link.link.state = LinkState({}, {}, "", 1)
        link._failed("report", NodeTimedOut("report", 1.0))
        link._failed("pool.lend", NodeUnavailable(""))
        assert said == ["The host did not answer in time. It is tried again."]

    asyncio.run(main())


def test_a_quota_travels_without_what_it_does_not_say() -> None:
    told = _budget(Budget("alice", 1, Quota(gpus=2, memory=2**30), None, False, ""))
    assert told["quota"] == {"gpus": 2, "memory": 2**30}
    assert told["why"] is None


def test_no_persons_token_leaves_for_a_host_of_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[dict[str, Any]] = []
    path = str(tmp_path / "host.sock")

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(json.loads(await reader.readline())["params"])
        writer.close()

    async def dial(_place: object, *_: Any) -> Any:
        return await asyncio.open_unix_connection(path)

    async def scenario() -> None:
        server = await asyncio.start_unix_server(listen, path)
        places = {"b": Host("b", "10.0.0.2", ssl.create_default_context)}
        pool = LinkPool(places, Limits(), log=logging.getLogger("test"))
        viewer = Viewer("user:alice", "secret", "alice", ("students",), admin=False)
        async with pool.borrow("b", viewer):
            pass
        await pool.close()
        server.close()

    monkeypatch.setattr(nodelink, "open_streams", dial)
    asyncio.run(scenario())
    assert heard[0]["viewer"] == {"name": "alice", "groups": ["students"], "admin": False}
    assert "secret" not in json.dumps(heard)


@pytest.mark.parametrize("wrong", ["nonsense", "host:", ":99", "1.2.3.4:99999"])
def test_a_place_to_listen_needs_a_port(wrong: str) -> None:
    with pytest.raises(Exception, match="no address with a port"):
        Pool(listen=wrong)


def test_a_host_that_leaves_more_than_its_budget_is_heard_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, slept = [100.0], list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(budget.asyncio, "sleep", sleep)

    async def story() -> None:
        host = budget.HostBudget(lambda: now[0])
        host.spend(records=3_000, seconds=0.5)
        await host.may_report()  # a host of a thousand people that joins
        assert slept == []
        host.spend(records=3_000)
        await host.may_speak()  # what others ask of it is answered meanwhile
        assert slept == []
        await host.may_report()
        assert sum(slept) == pytest.approx(1_000 / 50, abs=0.1)
        slept.clear()
        host.spend(seconds=3.0)
        await host.may_speak()
        assert 3.0 < sum(slept) < 5.0

    asyncio.run(story())
