"""The log has one line for each event, says which call it came from, and has no secrets.

People read a sentence of each event, and not the name of a class. A trouble that lasts is told
once, now and then with how often, and when it is over; so is an observer that fails.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import logging
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from support.clock import FakeClock
from support.node import GIB, NodeClient, RemoteError, RunningNode, until

from jupyter_gpushare.daemon.troubles import FIRST_PAUSE, LONGEST_PAUSE, MOST_KINDS, Trouble
from jupyter_gpushare.ledger.codec import to_record
from jupyter_gpushare.node.host.observers import Observers
from jupyter_gpushare.node.host.outcome import Outcome
from jupyter_gpushare.node.views import logs
from jupyter_gpushare.node.views.history import entry, telling
from jupyter_gpushare.node.views.logs import (
    EventLog,
    JsonFormatter,
    LogLines,
    LogStyle,
    PlainFormatter,
    call_tag,
    say,
)
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.words import events as ev
from jupyter_gpushare.policy.words.commands import Tick
from jupyter_gpushare.policy.words.described import Line, OneOf
from jupyter_gpushare.policy.words.events import EVENTS
from jupyter_gpushare.policy.words.model import (
    Activity,
    Allocation,
    EndReason,
    ProcessId,
    Quota,
)
from jupyter_gpushare.protocol.messages import Method

ALICE = "Alices-token-2f6b1d0c"
BOB = "Bobs-token-90aa17e4"
WRONG = "Nobodys-token-5577aa"
NOTEBOOK = "thesis/chapter of secrets.ipynb"


def node(
    directory: Path, *arguments: str, style: LogStyle = LogStyle.JSON, config: str = ""
) -> RunningNode:
    tokens = directory / "tokens.json"
    tokens.touch(0o600)
    alice = {"token": ALICE, "environment": "alice"}
    bob = {"token": BOB, "environment": "bob", "admin": True}
    tokens.write_text(json.dumps({"tokens": [alice, bob]}))
    given = [f"--token-file={tokens}", f"--log-style={style.value}", *arguments]
    return RunningNode(directory, simulate="1x24GiB", arguments=given, config=config)


def log_of(formatter: logging.Formatter) -> tuple[logging.Logger, io.StringIO]:
    """A log, and where its lines are."""
    stream = io.StringIO()
    log, handler = logging.Logger("test", logging.DEBUG), logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    log.addHandler(handler)
    return log, stream


def lines(running: RunningNode) -> list[dict[str, Any]]:
    """The log so far; fails where a line is no JSON object."""
    text = running.story()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def find(running: RunningNode, event: str, **fields: Any) -> dict[str, Any]:
    """The one line of this event with these fields, when it is there."""

    def look() -> list[dict[str, Any]]:
        wanted = {"event": event, **fields}
        return [line for line in lines(running) if wanted.items() <= line.items()]

    found = until(look, f"a line {event} {fields}")
    assert len(found) == 1, found
    return found[0]


def whole(client: NodeClient, **more: Any) -> Any:
    task = {"name": "chapter of secrets", "kind": "kernel", "kernel_id": "k-1", "path": NOTEBOOK}
    return client.send(Method.REQUEST, task=task, **more)


def test_a_call_is_followed_to_its_effects_and_a_late_grant_to_the_request(tmp_path: Path) -> None:
    with node(tmp_path, "--debug", config="c.Policy.max_tasks_per_gpu = 1\n") as running:
        alice, bob = running.client(ALICE), running.client(BOB)
        assert find(running, "connection.hello", environment="alice")["level"] == "DEBUG"
        first = alice.wait(whole(alice))
        # A grant at once needs no word about a queue, and none about another call.
        at_once = find(running, "lease.granted", environment="alice")
        assert "request" not in at_once
        call = at_once["call"]
        assert find(running, "call", call=call)["method"] == "request"
        assert find(running, "decided", call=call)["decision"] == "grant"
        assert find(running, "effect", call=call, kind="WatchProcess")

        asked = whole(bob)
        queued = find(running, "lease.queued", level="INFO")
        assert queued["environment"] == "bob"
        released = alice.send(Method.RELEASE, lease=first["lease"])
        second = bob.wait(asked)
        granted = find(running, "lease.granted", environment="bob")
        ended = find(running, "lease.ended", environment="alice")
        assert granted["lease"] == queued["lease"] == second["lease"]
        assert granted["request"] == queued["call"]
        # What frees it is a measurement: nobody's call.
        assert "call" not in granted
        assert ended["call"] != queued["call"]
        assert queued["call"].endswith(f".{asked}")
        assert ended["call"].endswith(f".{released}")
        assert ended["request"] == at_once["call"]
        assert granted["gpus"] == [second["gpus"][0]["uuid"]]


@pytest.mark.parametrize("style", LogStyle)
def test_nothing_secret_is_ever_logged(tmp_path: Path, style: LogStyle) -> None:
    with node(tmp_path, "--debug", style=style) as running:
        alice, bob = running.client(ALICE), running.client(BOB)
        grant = alice.wait(whole(alice))
        lease, secret = grant["lease"], grant["secret"]
        alice.call(Method.ATTACH, lease=lease, secret=secret)
        alice.refused(Method.ATTACH, lease=lease, secret=WRONG)
        alice.call(Method.ACTIVITY, lease=lease, state="idle")
        alice.call(Method.KEPT, lease=lease, reason=f"{NOTEBOOK} is why")
        alice.socket.sendall(b'{"jsonrpc": "2.0", "id": 901, "method": "%s"}\n' % BOB.encode())
        alice.call(Method.STATUS)
        bob.call(Method.LEASE_REVOKE, lease=lease, reason=f"{NOTEBOOK}\nis too long")
        alice.call(Method.STATUS)
        with pytest.raises(RemoteError, match="token"):
            running.client(WRONG)
        running.terminate()
        told = running.story()
    assert "lease.granted" in told
    assert "lease.ended" in told
    assert lease in told
    for hidden in (ALICE, BOB, WRONG, secret, NOTEBOOK, "chapter of secrets", "k-1"):
        assert hidden not in told, hidden
    assert all(re.match(r"\{|\d{4}-\d\d-\d\dT\S+Z [A-Z]+ ", line) for line in told.splitlines())


def test_who_is_turned_away_often_is_told_a_few_times_only(tmp_path: Path) -> None:
    with node(tmp_path) as running, running.client(ALICE) as alice:
        for _ in range(10):
            alice.refused(Method.HEARTBEAT, lease="nobody's")  # ordinary: not told
        for _ in range(20):
            alice.refused(Method.QUOTA_LIST)
        alice.turned_away(gpus=7)
        refused = find(running, "request.refused")
        assert (refused["level"], refused["environment"], refused["gpus"]) == ("INFO", "alice", 7)
        told = [line for line in lines(running) if line["event"] == "call.refused"]
        assert len(told) == 5
        assert {(line["level"], line["reason"]) for line in told} == {("WARNING", "not_allowed")}


def test_who_fills_the_log_is_counted_and_hides_nobody_else(tmp_path: Path) -> None:
    """The node manager of a person who asks and gives back as fast as can be, on many lines."""
    with node(tmp_path) as running, running.client(ALICE) as alice, running.client(BOB) as bob:
        for _ in range(200):
            alice.call(Method.RELEASE, lease=alice.request()["lease"])
        for _ in range(60):
            with running.client(ALICE) as again:
                again.refused(Method.QUOTA_LIST)
        granted = bob.request()
        bob.call(Method.RELEASE, lease=granted["lease"])
        alice.request()
        bob.call(Method.QUOTA_SET, environment="alice", gpus=1)
        find(running, "quota.set", environment="alice")  # bob's doing, not hers
        assert find(running, "lease.granted", environment="bob")["lease"] == granted["lease"]
        told = [line for line in lines(running) if line.get("environment") == "alice"]
        assert logs.LINES_AT_ONCE <= len(told) < logs.LINES_AT_ONCE + 60


def test_how_many_lines_were_left_out_is_told_in_one_line() -> None:
    clock = FakeClock()
    sieve = LogLines(clock.boot)
    assert sum(sieve.tells("mallory") for _ in range(1000)) == logs.LINES_AT_ONCE
    assert not sieve.tells("mallory")
    assert sieve.tells("alice")
    assert sieve.left_out() == []
    clock.advance(logs.LEFT_OUT_AFTER / 2)
    assert sum(sieve.tells("mallory") for _ in range(1000)) == 15
    clock.advance(logs.LEFT_OUT_AFTER / 2)
    assert sieve.left_out() == [("mallory", 901 + 985)]
    assert sieve.left_out() == []
    assert sieve.tells("mallory")


def test_what_was_left_out_is_told_when_nothing_else_happens() -> None:
    clock, (log, stream) = FakeClock(), log_of(PlainFormatter())
    sieve = LogLines(clock.boot)
    told = EventLog(log, sieve)
    for owner in ("mallory", ("uid", 54002)):
        for _ in range(logs.LINES_AT_ONCE + 7):
            sieve.tells(owner)
    clock.advance(logs.LEFT_OUT_AFTER)
    for _ in range(2):
        told.heard(Outcome(Tick(0.0, 0.0), core.Done(), (), ()), State())
    first, second = stream.getvalue().splitlines()
    assert first.endswith("WARNING log.left_out environment=mallory lines=7")
    assert second.endswith("WARNING log.left_out uid=54002 lines=7")


def test_a_line_is_made_only_where_a_handler_takes_it() -> None:
    log = logging.Logger("an application's, as traitlets makes it", logging.DEBUG)
    made: list[logging.LogRecord] = []
    log.addFilter(lambda record: made.append(record) is None)
    handler = logging.StreamHandler(io.StringIO())
    handler.setLevel(logging.INFO)
    log.addHandler(handler)
    say(log, logging.DEBUG, "call")
    assert not made
    say(log, logging.INFO, "lease.granted")
    handler.setLevel(logging.DEBUG)
    say(log, logging.DEBUG, "call")
    assert [record.getMessage() for record in made] == ["lease.granted", "call"]


@pytest.mark.parametrize("formatter", [PlainFormatter(), JsonFormatter()], ids=["plain", "json"])
def test_an_event_is_one_line_whatever_is_in_it(formatter: logging.Formatter) -> None:
    nasty = 'a b="c"\n2026-01-01T00:00:00.000Z ERROR forged\u2028\x1b[31m'
    log, stream = log_of(formatter)
    fields = {"who": nasty, "nothing": None, "gpus": ["GPU-1", "GPU-2"], "took": 0.25}
    say(log, logging.INFO, "thing", **fields)
    try:
        raise ValueError("one\ntwo")
    except ValueError:
        log.exception("a sentence\nin two lines")
    text = stream.getvalue()
    assert len(text.splitlines()) == 2
    assert "\x1b" not in text
    assert "nothing" not in text
    assert "ValueError" in text
    assert "took=0.25" in text or '"took": 0.25' in text


def test_a_calls_tag_is_short_however_long_the_clients_id_is() -> None:
    assert call_tag(3, 7) == "3.7"
    assert call_tag(3, None) == "3.-"
    assert len(call_tag(3, "x" * 5000)) < 50


def names_of(line: Line) -> Iterator[str]:
    choices: list[str | OneOf[str]] = [line.name]
    while choices:
        match choices.pop():
            case OneOf(values=values, otherwise=otherwise):
                choices += [*values.values(), otherwise]
            case name:
                yield name


def test_the_docs_name_only_lines_and_metrics_that_there_are() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "troubleshooting.md").read_text("utf-8")
    told = [kind.ABOUT.log for kind in EVENTS.values() if kind.ABOUT.log]
    declared = {name for one in told for name in (*names_of(one), *one.fields)}
    said = (root / "jupyter_gpushare" / "node" / "views" / "logs.py").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    metrics = (root / "docs" / "generated" / "metrics.md").read_text("utf-8")
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 6, row
        assert all(cells), row
        for event in re.findall(r"`([a-z]+(?:\.[a-z_]+)?)`", cells[3]):
            assert event in declared or f'"{event}"' in said, event
        for metric in re.findall(r"`([a-z_]+)(?:\{[^`]*)?`", cells[4]):
            known = metric in ("reason",) or f"`jupyter_gpushare_{metric}`" in metrics
            assert known, metric
    rules = (root / "etc" / "prometheus" / "jupyter-gpushare.rules.yml").read_text("utf-8")
    for alert in re.findall(r"`(GpuShare\w+)`", page):
        assert f"alert: {alert}\n" in rules, alert


# -- the history, for people

WHO, CAROL = "alice", "carol"
LEASE, GPU = "l-1", "GPU-1"
PARTS = (Allocation(GPU, GIB), Allocation("GPU-gone", GIB))
TELLING = telling({GPU: "0"})


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (ev.LeaseRestored(1.0, LEASE, WHO, 2 * GIB, 0.5), "has its 2 GiB on its GPUs again"),
        (
            ev.ReservationResized(1.0, WHO, GPU, 8 * GIB),
            "its reservation on GPU 0 is 8 GiB now",
        ),
        (
            ev.LeaseGranted(1.0, LEASE, WHO, PARTS, Activity.BUSY),
            "got 1 GiB of GPU 0, 1 GiB of GPU-gone",
        ),
        (
            ev.LeaseEnded(1.0, LEASE, WHO, EndReason.REVOKED, "maintenance", CAROL),
            "ended: taken back by carol, maintenance",
        ),
        (ev.LeaseEnded(1.0, LEASE, WHO, EndReason.RELEASED, ""), "ended: released"),
        (
            ev.LeaseEnded(1.0, LEASE, WHO, EndReason.PROCESS_GONE, "its process is gone"),
            "ended: its process has ended",
        ),
        (
            ev.QuotaChanged(1.0, WHO, None, Quota(2, idle_timeout=600.0, burst_memory=0.9), CAROL),
            "quota set to GPUs: 2, memory on each GPU: the whole GPU, weight: 1, idle time-out: "
            "10 min, limits lifted up to: 0.9 of a GPU, by carol",
        ),
    ],
)
def test_an_event_is_told_in_a_sentence(event: ev.Event, text: str) -> None:
    assert entry(to_record(event, wall=5.0), TELLING)["text"] == text


@pytest.mark.parametrize("kind", EVENTS.values(), ids=EVENTS)
@settings(max_examples=10)
@given(data=st.data())
def test_each_event_is_told_here_and_in_the_log_or_says_why_not(
    kind: type[ev.Event], data: st.DataObject
) -> None:
    about = kind.ABOUT
    assert bool(about.title) == bool(about.text) == (kind.DURABLE and not about.unlisted)
    assert about.log is not None or not kind.DURABLE
    event = data.draw(st.builds(kind))
    assert isinstance(TELLING.of(event), str)
    log, stream = log_of(JsonFormatter())
    outcome = Outcome(Tick(0.0, 0.0), core.Done(), (event,), ())
    EventLog(log, LogLines(lambda: 0.0)).heard(outcome, State())
    for line in stream.getvalue().splitlines():
        assert json.loads(line)["level"] in ("DEBUG", "INFO", "WARNING", "ERROR")
        assert "Traceback" not in line


def test_a_record_of_another_release_is_told_as_far_as_it_is_understood() -> None:
    known = to_record(ev.LeaseInherited(1.0, LEASE, WHO, ProcessId("b", 7, 1)), wall=5.0)
    more = dataclasses.replace(known, data={**known.data, "new": 1})
    assert entry(more, TELLING)["text"] == "the process that asked has ended, and process 7 goes on"
    other = dataclasses.replace(known, data={"process": "?"})
    assert entry(other, TELLING)["what"] == "lease inherited"
    unknown = dataclasses.replace(known, kind="Unheard")
    assert [entry(unknown, TELLING)[part] for part in ("what", "text")] == ["Unheard"] * 2


# -- troubles that last ----------------------------------------------------------------------------


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(boot=0.0)


@pytest.fixture
def trouble(clock: FakeClock) -> Trouble:
    return Trouble(logging.getLogger("troubles"), clock.boot, "It works again")


def test_told_at_once_at_growing_intervals_and_when_it_is_over(
    trouble: Trouble, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    trouble.is_over()
    assert caplog.messages == [], "nothing was wrong"
    told = []
    for second in range(4 * 3600):
        clock._boot = float(second)
        before = len(caplog.messages)
        trouble.came("The disk is full.")
        if len(caplog.messages) > before:
            told.append(second)
    assert told[:5] == [0, 60, 180, 420, 900]
    assert told[-1] - told[-2] == LONGEST_PAUSE
    assert caplog.messages[0] == "The disk is full."
    assert caplog.messages[1] == "The disk is full. (60 times more in 60 s)"
    trouble.is_over()
    assert caplog.messages[-1] == "It works again, after it failed 14400 times in 14399 s"
    trouble.is_over()
    trouble.came("The disk is full.")
    assert caplog.messages[-1] == "The disk is full.", "a new trouble is told at once"
    trouble.is_over()
    assert caplog.messages[-1] == "It works again, after it failed once in 0 s"


def test_another_reason_is_told_at_once_but_not_without_end(
    trouble: Trouble, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    trouble.came("one")
    trouble.came("two")
    trouble.came("one")
    assert caplog.messages == ["one", "two"]
    for number in range(1000):
        trouble.came(f"sector {number}")
    assert len(caplog.messages) == MOST_KINDS + 1
    clock.advance(FIRST_PAUSE)
    trouble.came("sector 1001")
    assert len(caplog.messages) == MOST_KINDS + 2


# -- observers -------------------------------------------------------------------------------------


def test_each_observer_is_told_of_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    observers = Observers(lambda: 0.0, logging.getLogger("observers"))

    def one(what: str) -> None:
        raise ValueError(what)

    def other() -> None:
        raise KeyError("other")

    for number in range(5):
        assert not observers.call(one, f"one {number}")
    assert not observers.call(other)
    assert not observers.call(partial(one, "partly"))
    assert [r.levelname for r in caplog.records] == ["ERROR", "ERROR"]
    assert "ValueError: one 0" in caplog.text
    assert "one 1" not in caplog.text


@pytest.mark.parametrize("end", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
def test_the_end_of_the_program_is_nobodys_failure(end: type[BaseException]) -> None:
    def stop() -> None:
        raise end

    with pytest.raises(end):
        Observers(lambda: 0.0, logging.getLogger("observers")).call(stop)
