"""The pool's ledger loses no event and stays short; one that cannot be written changes nothing."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from jupyter_gpushare.ledger.ledger import Ledger, LedgerError, LedgerFull
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.policy.books.table import Map
from jupyter_gpushare.policy.words.events import GroupsChanged, QuotaChanged
from jupyter_gpushare.policy.words.model import Quota
from jupyter_gpushare.pool import ledger, manager
from jupyter_gpushare.pool.answers import PoolAnswers
from jupyter_gpushare.pool.clock import PoolClock
from jupyter_gpushare.pool.configuration import Pool
from jupyter_gpushare.pool.evolve import evolve
from jupyter_gpushare.pool.manager import PoolManager
from jupyter_gpushare.pool.state import State
from jupyter_gpushare.pool.words import commands as cmd, events as ev
from jupyter_gpushare.pool.words.hosts import Group, Holding, Loan
from jupyter_gpushare.protocol.calls import parse_call
from jupyter_gpushare.protocol.connection import ClientConnection
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method

ALICE = "alice"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def replayed(events: list[ev.Event]) -> State:
    state = State()
    for event in events:
        state = evolve(state, event)
    return state


def started(events: list[ev.Event]) -> State:
    """The state as a pool that starts has it; of nobody's groups where nothing is lent."""
    state = replayed([*events, ev.PoolStarted(500.0, 1e9, 620.0)])
    hosts = {
        name: replace(host, told=Map({who: g for who, g in host.told.items() if who in host.out}))
        for name, host in state.hosts.items()
    }
    return replace(state, hosts=Map(hosts), number=0)


def at_random(seed: int) -> list[ev.Event]:
    """What a host that may say anything makes the pool write, of a few people."""
    chance, state = random.Random(seed), State()
    told: list[ev.Event] = [ev.HostsChanged(0.0, host, True, "root") for host in "ab"]
    for number in range(1, 120):
        at, host = float(number), chance.choice("ab")
        who, gpus = chance.choice(("ada", "bo")), chance.choice((0, 0, 1, 3))
        hours, why = chance.choice((None, 0.0, 2.0, 9.0)), chance.choice(("", "", "x"))
        reclaim = chance.random() < 0.3
        event: ev.Event = ev.BudgetLent(at, host, who, gpus, number, at, hours, reclaim, why)
        # Only what was lent is ever answered.
        if number > 2 and who in state.hosts[host].out and chance.random() < 0.5:
            event = ev.BudgetAccepted(at, host, who, gpus)
        elif chance.random() < 0.1:
            event = ev.GroupsTold(at, host, who, (why,))
        elif chance.random() < 0.05:
            event = ev.HostHeld(at, host, Holding("Slurm", f"job {number}", hours))
        elif chance.random() < 0.05:
            event = ev.HostServiceChanged(at, host, why or None, "root", bool(why) and reclaim)
        told.append(event)
        if chance.random() < 0.01:
            told += [ev.HostsChanged(at, host, joins, "root") for joins in (False, True)]
        state = replayed(told) if len(told) < 4 else evolve(state, event)
    return told


@pytest.mark.parametrize("seed", range(30))
def test_a_host_that_changes_its_mind_leaves_few_records_and_the_same_state(
    path: Path, seed: int
) -> None:
    book, told = ledger.opened(path), at_random(seed)
    ledger.append(book, told, 1e9)
    deeds = [event for event in told if hasattr(event, "by")]
    for _twice in range(2):
        ledger.shorten(book, replayed(ledger.load(book)), 120.0, 2e9)
        left = ledger.load(book)
        assert started(left) == started(told)
        assert max(event.at for event in left) == 120.0
        assert len(left) <= 2 * 3 + 2 * 2 * 2
        assert [event for _wall, event in ledger.audit(book, 99)] == deeds[::-1]
        assert book.check().records == len(deeds)
    book.close()


def test_invented_people_leave_no_records(path: Path) -> None:
    """Each was lent something, gave it back, and had groups; all of that stayed for ever."""
    told: list[ev.Event] = [ev.HostsChanged(1.0, "a", True, "root")]
    for number in range(500):
        at, who = 2.0 + number, f"nobody-{number}"
        told += [ev.GroupsTold(at, "a", who, (f"g{step}",)) for step in range(3)]
        told += [ev.BudgetLent(at, "a", who, gpus, number, at + 120) for gpus in (1, 0)]
        told.append(ev.BudgetAccepted(at, "a", who, 0))
    told += [ev.BudgetLent(0.0, "a", ALICE, 1, 1, 120.0), ev.GroupsTold(600.0, "a", ALICE, ("s",))]
    book = ledger.opened(path)
    ledger.append(book, told, 1e9)
    ledger.shorten(book, replayed(told), 600.0, 2e9)
    left = ledger.load(book)
    assert len(left) <= 8
    assert replayed(left).hosts["a"].told[ALICE] == ("s",)
    book.close()


def test_what_administrators_decided_outlives_a_shorter_ledger(path: Path) -> None:
    told = [
        *(ev.HostsChanged(0.0, host, True, "root") for host in "abc"),
        ev.HostServiceChanged(1.0, "a", "new memory", "root"),
        ev.HostServiceChanged(2.0, "b", "a fan", "root"),
        ev.DrainSeen(3.0, "b"),
        QuotaChanged(4.0, ALICE, None, Quota(5), "root"),
        QuotaChanged(5.0, None, "staff", Quota(4), "root"),
        GroupsChanged(6.0, ALICE, ("staff",)),
        ev.GroupSet(7.0, Group("staff", 4, 2, 1), "root"),
        ev.GpusLent(8.0, Loan("loan-1", ALICE, "c", 2, 999.0), "root"),
    ]
    book = ledger.opened(path)
    ledger.append(book, told, 1e9)
    ledger.shorten(book, replayed(told), 10.0, 2e9)
    assert started(ledger.load(book)) == started(told)
    book.close()


def test_two_pools_never_share_a_ledger(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_OTHER_ENDS", 0.0)
    first = ledger.opened(path)
    with pytest.raises(LedgerError, match="Another pool"):
        ledger.opened(path)
    first.close()
    ledger.opened(path).close()


def test_a_ledger_of_something_else_is_left_alone(path: Path) -> None:
    path.write_bytes(b"not a database at all, and long enough to be looked at" * 40)
    before = path.read_bytes()
    with pytest.raises(LedgerError):
        ledger.opened(path)
    assert path.read_bytes() == before


def test_the_pools_clock_never_goes_back(path: Path) -> None:
    book = ledger.opened(path)
    # Of a boot that lasted for longer than this one has so far.
    far = PoolClock(book, 0.0).now() + 1e6
    book.remember("boot_id", "another boot")
    now = PoolClock(book, far).now()
    assert far <= now < far + 60
    assert now <= PoolClock(book, far).now() < now + 60
    book.close()


async def test_what_cannot_be_written_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ClientConnection().call(Method.QUOTA_SET, environment="alice", gpus=3)[1]

    def full(*_: object) -> None:
        raise LedgerFull("The disk is full.")

    first = PoolManager(Pool(folder=str(tmp_path), listen=""), log=logging.getLogger("test"))
    await first.start()
    answers = PoolAnswers(first)
    before = first.state
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", full)
        with pytest.raises(NodeProblem, match="full") as caught:
            await answers.answer(parse_call(line), "carol")
        assert caught.value.reason == Reason.UNAVAILABLE.value
    assert first.state == before
    assert (await answers.answer(parse_call(line), "carol"))["gpus"] == 3
    await first.close()
    again = PoolManager(Pool(folder=str(tmp_path), listen=""), log=logging.getLogger("test"))
    await again.start()
    assert again.state.quotas.resolve(ALICE)[0].gpus == 3
    deeds = await again.in_ledger(partial(ledger.audit, limit=5))
    assert [event.by for _wall, event in deeds] == ["carol"]
    await again.close()


async def test_of_hosts_that_join_at_once_each_is_known_and_after_a_restart(tmp_path: Path) -> None:
    places = {name: f"127.0.0.1:{port}" for port, name in enumerate("abc", 1)}

    for does_join in (True, False):
        pool = PoolManager(Pool(folder=str(tmp_path), listen=""), log=logging.getLogger("test"))
        await pool.start()
        if does_join:
            await asyncio.gather(*(pool.add(*one, "root") for one in places.items()))
        assert {name: pool.address(name) for name in places} == places
        await pool.close()


def test_a_running_pool_makes_its_ledger_shorter(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*people: str) -> None:
        running = PoolManager(Pool(folder=str(tmp_path), listen=""), log=logging.getLogger("test"))
        await running.start()
        for who in people:
            await running.submit(partial(cmd.Introduce, environment=who, groups=("x",)))
        await running.close()

    def records() -> int:
        book = ledger.opened(path)
        found = book.check().records
        book.close()
        return found

    asyncio.run(run("ada", "bo"))
    assert records() == 2
    asyncio.run(run())
    assert records() == 0
    monkeypatch.setattr(manager, "_SHORTEN_AFTER", 2)
    asyncio.run(run("cy", "dee", "eve"))
    assert records() == 1
