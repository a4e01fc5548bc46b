"""A release older or newer than a ledger reads all of it, or says why not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.node.ledger import ledger as ledger_module
from jupyter_gpushare.node.ledger.codec import from_record, to_record
from jupyter_gpushare.node.ledger.ledger import Ledger, LedgerFailed, Record
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.words import events as ev
from jupyter_gpushare.policy.words.model import EnvironmentName, Quota
from jupyter_gpushare.policy.words.versions import RELEASES

BEYOND = len(RELEASES) + 1


def open_ledger(path: Path) -> Ledger:
    return Ledger.open(path, history=1e6, wall=1.7e9)


def record(version: int | None = None) -> Record:
    return Record("Noted", 1.0, 1.7e9, None, None, {} if version is None else {"v": version})


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger in which a release after this one has written."""
    path = tmp_path / "ledger.sqlite"
    monkeypatch.setattr(ledger_module, "RELEASES", (*RELEASES, "9.9"))
    ledger = open_ledger(path)
    ledger.append([record(), record(BEYOND)])
    ledger.close()
    open_ledger(path).close()
    monkeypatch.undo()
    return path


def test_a_ledger_of_a_later_release_is_refused_and_left_as_it_was(newer: Path) -> None:
    before = newer.read_bytes()
    with pytest.raises(LedgerFailed, match=r"only jupyter_gpushare 9\.9 or later can read it"):
        open_ledger(newer)
    assert newer.read_bytes() == before
    assert list(newer.parent.glob("*corrupt*")) == []


def test_what_is_only_history_keeps_no_older_release_out(
    newer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr(ledger_module, "RELEASES", (*RELEASES, "9.9"))
        ledger = open_ledger(newer)
        ledger.write_snapshot([record(BEYOND)])
        ledger.close()
    with pytest.raises(LedgerFailed, match="or later"):
        open_ledger(newer)
    with monkeypatch.context() as later:
        later.setattr(ledger_module, "RELEASES", (*RELEASES, "9.9"))
        ledger = open_ledger(newer)
        ledger.write_snapshot([record()])
        ledger.close()
    ledger = open_ledger(newer)
    assert len(ledger.load()[0]) == 1
    ledger.close()


def test_a_ledger_of_an_earlier_release_is_read_and_written_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(Path(__file__).with_name("ledger_before.sql").read_text())
    connection.close()

    ledger = open_ledger(path)
    assert ledger.notice is None
    snapshot, after = ledger.load()
    state = State()
    for one in (*snapshot, *after):
        state = core.evolve(state, from_record(one))
    core.check(state)
    assert dict(state.quotas.overrides) == {EnvironmentName("bob"): Quota(1)}
    assert len(state.gpus) == 1
    assert not state.leases
    assert {one.kind for one in after} > {"LeaseParked", "ResumeQueued", "LeaseEnded"}
    ledger.write_snapshot([to_record(event, 1.8e9) for event in core.summarise(state)])
    ledger.close()
    again = open_ledger(path)
    assert len(again.load()[0]) > 3
    again.close()


def stored(**changes: Any) -> Record:
    alice = EnvironmentName("alice")
    made = to_record(ev.QuotaOverridden(1.0, alice, Quota(2), alice), 1.7e9)
    return Record(made.kind, 1.0, 1.7e9, "alice", None, {**made.data, **changes})


def test_an_unknown_field_is_refused_and_not_dropped() -> None:
    assert from_record(stored()) == ev.QuotaOverridden(
        1.0, EnvironmentName("alice"), Quota(2), EnvironmentName("alice")
    )
    quota = stored().data["quota"]
    assert isinstance(quota, dict)
    with pytest.raises(LedgerFailed, match="a field 'colour'"):
        from_record(stored(colour="red"))
    with pytest.raises(LedgerFailed, match="a field 'colour'"):
        from_record(stored(quota={**quota, "colour": "red"}))
    with pytest.raises(LedgerFailed, match=f"of version {BEYOND}"):
        from_record(stored(v=BEYOND))
    del quota["per"]
    assert from_record(stored(quota=quota)) == from_record(stored()), "as older ledgers have it"


RECALLS = Path(__file__).with_name("ledger_recalls.sql").read_text().split("-- ledger ")[1:]


def durable(path: Path, script: str) -> list[ev.Event]:
    open_ledger(path).close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(script)
    connection.close()
    ledger = open_ledger(path)
    snapshot, after = ledger.load()
    ledger.close()
    events = [from_record(one) for one in (*snapshot, *after)]
    assert all(event.DURABLE for event in events), "what is only asked of a task is not on disk"
    return events


@pytest.mark.parametrize("recorded", RECALLS, ids=lambda text: text.split()[0])
def test_what_was_asked_of_tasks_is_read_from_an_earlier_ledger(
    tmp_path: Path, recorded: str
) -> None:
    script, snapshot = recorded.split("\n", 1)[1].split("-- snapshot")
    state = State()
    for event in durable(tmp_path / "ledger.sqlite", script):
        state = core.evolve(state, event)
    core.check(state)
    told = durable(tmp_path / "snapshot.sqlite", snapshot.split("\n", 1)[1])
    assert apart_from_use(core.summarise(state)) == apart_from_use(told)
    again = State()
    for event in told:
        again = core.evolve(again, event)
    assert apart_from_use(core.summarise(again)) == apart_from_use(told)


def apart_from_use(events: Iterable[ev.Event]) -> list[ev.Event]:
    """``events`` without what each environment has used, and without the head-room in turns.

    An earlier release counted all tasks of a GPU by turns; now the one that has the turn counts.
    And it had one head-room for each GPU; now there is one before each later task. How long a GiB
    takes was not in its snapshots.
    """
    plain: list[ev.Event] = []
    for event in events:
        if isinstance(event, ev.BooksRestored):
            accounts = tuple((name, 0.0, 0, 0.0) for name, *_ in event.accounts)
            plain.append(replace(event, accounts=accounts, pace=None))
        elif isinstance(event, ev.GpuShared):
            plain.append(replace(event, offset=0))
        else:
            plain.append(event)
    return plain
