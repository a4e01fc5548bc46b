"""A release older or newer than a ledger reads all of it, or says why not."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from support.node import GIB, RunningNode

from jupyter_gpushare.ledger import ledger as ledger_module
from jupyter_gpushare.ledger.codec import from_record, to_record
from jupyter_gpushare.ledger.ledger import Ledger, LedgerFailed, Record
from jupyter_gpushare.node.views.history import entry, telling
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.words import events as ev
from jupyter_gpushare.policy.words.model import EnvironmentName, Quota
from jupyter_gpushare.policy.words.versions import RELEASES
from jupyter_gpushare.protocol.messages import Method

BEYOND = max(RELEASES) + 1
LATER = {**RELEASES, BEYOND: "9.9"}


def open_ledger(path: Path) -> Ledger:
    return Ledger.open(path, history=1e6, wall=1.7e9)


def record(version: int | None = None) -> Record:
    return Record("Noted", 1.0, 1.7e9, None, None, {} if version is None else {"v": version})


def test_a_ledger_of_a_later_release_is_refused_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless what only the later one can read is history."""
    path = tmp_path / "ledger.sqlite"

    def later(write: Callable[[Ledger], object]) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(ledger_module, "RELEASES", LATER)
            with contextlib.closing(open_ledger(path)) as ledger:
                write(ledger)
            open_ledger(path).close()

    for write in (
        lambda ledger: ledger.append([record(), record(BEYOND)]),
        lambda ledger: ledger.write_snapshot([record(BEYOND)]),
    ):
        later(write)
        before = path.read_bytes()
        with pytest.raises(LedgerFailed, match=r"only jupyter_gpushare 9\.9 or later can read it"):
            open_ledger(path)
        assert path.read_bytes() == before
        assert list(path.parent.glob("*corrupt*")) == []
    later(lambda ledger: ledger.write_snapshot([record()]))
    with contextlib.closing(open_ledger(path)) as ledger:
        assert len(ledger.load()[0]) == 1


#: A ledger of commit 23a31f90, and the snapshot that it made of it.
BEFORE, SNAPSHOT = Path(__file__).with_name("ledger_before.sql").read_text().split("-- snapshot\n")
ALICE, BOB, CAROL = map(EnvironmentName, ("alice", "bob", "carol"))


@pytest.fixture
def before(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    run(path, BEFORE)
    return path


def run(path: Path, script: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(script)


def events(path: Path) -> list[ev.Event]:
    ledger = open_ledger(path)
    assert ledger.notice is None
    snapshot, after = ledger.load()
    ledger.close()
    return [from_record(one) for one in (*snapshot, *after)]


def state_of(told: Iterable[ev.Event]) -> State:
    state = State()
    for event in told:
        state = core.evolve(state, event)
    core.check(state)
    return state


def test_a_ledger_of_the_release_before_is_read_and_written_on(before: Path) -> None:
    told = events(before)
    assert len({type(event) for event in told}) > 25
    assert all(event.DURABLE for event in told), "what is only asked of a task is not on disk"
    state = state_of(told)
    own = state.quotas.overrides[ALICE]
    assert len(own.names) == 12, "a whole quota was set"
    mine = own.quota
    assert (mine.gpus, mine.memory, mine.gpu_hours, mine.per) == (2, 20 * GIB, 0.5, "month")
    assert (mine.burst_memory, mine.interactive, mine.share) == (0.5, 5, 50)
    assert state.quotas.pool == "lab"
    phases = sorted((lease.environment, lease.phase.value) for lease in state.leases.values())
    assert phases == [(BOB, "held"), (BOB, "queued"), (CAROL, "held"), (CAROL, "parked")]
    ledger = open_ledger(before)
    ledger.write_snapshot([to_record(event, 1.8e9) for event in core.summarise(state)])
    ledger.close()
    assert state_of(events(before)) == state_of(core.summarise(state))


def test_its_snapshot_says_the_same_as_its_records(before: Path, tmp_path: Path) -> None:
    summed = tmp_path / "summed.sqlite"
    open_ledger(summed).close()
    run(summed, SNAPSHOT)
    told = events(summed)
    assert list(core.summarise(state_of(events(before)))) == told


def test_a_node_manager_serves_with_it(before: Path) -> None:
    """The boot is another one: all leases are over. Quotas, history and usage stay."""
    people = {name: ["class"] for name in (ALICE, BOB, CAROL, "root")}
    with RunningNode(before.parent, simulate="3x24GiB", people=people) as node:
        root, alice = node.client("root"), node.client("alice")
        quotas = root.call(Method.QUOTA_LIST)
        texts = [one["text"] for one in root.call(Method.HISTORY, limit=200)["events"]]
        rows = root.call(Method.USAGE, since=100 * 365 * 86400.0)["rows"]
        granted = alice.request(memory=8 * GIB)
        assert alice.call(Method.HEARTBEAT, lease=granted["lease"])["state"] == "held"
    assert {row["environment"]: row["gpus"] for row in quotas["quotas"]}["bob"] == 2
    assert any("after 10 s its promise was kept" in text for text in texts)
    assert {row["environment"] for row in rows} == {"alice", "bob", "carol"}
    assert "Traceback" not in node.story()


QUOTA = {"quota": {"gpus": 2}, "named": ["gpus"], "by": "root"}
FLAG = {"gpu": "G", "process": {"boot_id": "b", "pid": 7, "start_time": 1}, "kind": "squatter"}
#: What each kind of record that only the release before wrote said, and its sentence.
SAID: dict[str, tuple[dict[str, Any], str]] = {
    "GpuLost": ({"gpu": "G", "problem": "off"}, "G takes no new leases: off"),
    "GpuRestored": ({"gpu": "G"}, "G works again"),
    "GpuTakenOut": (
        {"gpu": "G", "reason": "dust", "by": "root", "with_node": True},
        "root took G out of service: dust",
    ),
    "GpuPutBack": ({"gpu": "G", "by": "root"}, "root put G back into service"),
    "NodeTakenOut": (
        {"reason": "dust", "by": "root"},
        "root took the whole node out of service: dust",
    ),
    "NodePutBack": ({"by": "root"}, "root put the node back into service"),
    "PoolJoined": ({"pool": "lab"}, "this host belongs to the pool lab now"),
    "PoolLeft": ({}, "this host belongs to no pool any more"),
    "QuotaOverridden": (QUOTA, "quota set to GPUs: 2, by root"),
    "QuotaOverrideRemoved": ({"by": "root"}, "has the configured quota again, by root"),
    "GroupQuotaOverridden": (
        {"group": "class", **QUOTA},
        "quota of group class set to GPUs: 2, by root",
    ),
    "GroupQuotaOverrideRemoved": (
        {"group": None, "by": "root"},
        "the default quota is the configured one again, by root",
    ),
    "ProcessFlagged": ({**FLAG, "memory": 1}, "process 7 on G: squatter"),
    "FlagActed": (FLAG, "acted against process 7 on G"),
    "FlagCleared": (FLAG, "process 7 on G is within bounds again"),
    "RebuildBegun": (
        {"until": 9.0},
        "the ledger is new, or an older copy: programs may present the leases that it lacks",
    ),
    "RebuildEnded": ({"leases": 2}, "programs presented so many leases again: 2"),
    "LeaseRebuilt": ({}, "presented a lease that the ledger lacked, and has it again"),
    "RebuildRefused": ({"processes": [], "why": "others have it"}, "others have it"),
}


def test_what_only_the_release_before_wrote_is_told_in_its_words(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "ledger.sqlite")
    for kind, (data, _text) in SAID.items():
        environment = "alice" if kind.startswith(("Quota", "LeaseR", "RebuildR")) else None
        lease = "l" if "Lease" in kind or kind == "RebuildRefused" else None
        ledger.append([Record(kind, 1.0, 1.7e9, environment, lease, {**data, "v": 3})])
    told = ledger.history(None, len(SAID))[::-1]
    ledger.close()
    rows = [entry(one, telling({})) for one in told]
    assert [row["text"] for row in rows] == [text for _data, text in SAID.values()]
    titles = {row["what"] for row in rows}
    assert {"GPU lost", "GPU works again", "node serves again", "quota of a group set"} <= titles
    assert all(from_record(one) for one in told)


def stored(**changes: Any) -> Record:
    alice = EnvironmentName("alice")
    made = to_record(ev.QuotaChanged(1.0, alice, None, Quota(2), alice), 1.7e9)
    return Record(made.kind, 1.0, 1.7e9, "alice", None, {**made.data, **changes})


def test_an_unknown_field_is_refused_and_not_dropped() -> None:
    alice = EnvironmentName("alice")
    assert from_record(stored()) == ev.QuotaChanged(1.0, alice, None, Quota(2), alice)
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
