"""A host serves by what its pool lends, and nothing that runs ends when a loan does.

A real node manager, its pool over TLS, and people on its socket.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.loop import soon
from support.node import GIB, NodeClient, RemoteError, until
from support.pool import Pool, PoolNode

from jupyter_gpushare.node.views import report as reports
from jupyter_gpushare.node.wire import pool as calls
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.events import BootSeen
from jupyter_gpushare.policy.words.model import EnvironmentName
from jupyter_gpushare.pool.pki import Authority
from jupyter_gpushare.pool.words.hosts import Want, read_report
from jupyter_gpushare.protocol.framing import MAX_REPORT, encoded
from jupyter_gpushare.protocol.messages import PAGES, Method, Notice

CONFIG = """
c.NodeManagerApp.debug_checks = True
c.NodeManagerApp.measure_interval = 0.1
c.Policy.notify_before = 0.0
c.Quotas.default = {"gpus": 2}
c.Quotas.groups = {"staff": {"gpus": 9}}
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"), "lab", time.time())


@pytest.fixture
def node(tmp_path: Path, authority: Authority) -> Iterator[PoolNode]:
    options = {"simulate": "2x24GiB", "config": CONFIG, "people": ("alice", "bob", "root")}
    with PoolNode(tmp_path, authority, "b", **options) as running:
        yield running
        assert "Traceback" not in running.story()


@pytest.fixture
def pool(node: PoolNode, authority: Authority) -> Iterator[Pool]:
    pool = Pool(node, authority)
    yield pool
    pool.client.close()


def test_who_asks_is_wanted_and_a_loan_serves_her_at_once(node: PoolNode, pool: Pool) -> None:
    assert [gpu["exclusive_free"] for gpu in pool.seen["gpus"]] == [True, True]
    assert (pool.seen["name"], pool.seen["seconds"], pool.seen["empty"]) == ("b", 0.0, True)
    with node.client("alice") as alice:
        assert alice.hello["quota"]["gpus"] == 1, "a program takes 0 for never, and asks for none"
        asked = alice.ask(name="training", memory=4 * GIB)
        queued = alice.wait_notice(Notice.QUEUED)
        assert "not lent you a GPU on this host yet" in queued["message"]
        assert queued["host"] == "b"
        assert "place:info number 1 in line on host b" in queued["says"]
        want = pool.report(lambda report: report["wants"])["wants"][0]
        assert (want["environment"], want["gpus"], want["memory"]) == ("alice", 1, 4 * GIB)
        assert pool.lend(alice=1) == {"alice": {"environment": "alice", "gpus": 1, "held": 1}}
        lease = alice.wait(asked)
        now = pool.report(lambda report: not report["wants"])
        assert 0 < now["seconds"] <= 60
        row = {row["environment"]: row for row in now["environments"]}["alice"]
        assert (row["held"], row["lent"], row["waiting"]) == (1, 1, 0)
        quota = alice.call(Method.STATUS)["quota"]
        assert (quota["gpus"], quota["source"]) == (2, "pool")
        assert quota["pool"] == {
            **{"pool": "lab", "whole": 2, "lent": 1, "borrowed": 0},
            **{"reclaimed": False, "valid": True, "why": None},
        }
        assert pool.lend(alice=0) == {"alice": {"environment": "alice", "gpus": 1, "held": 1}}
        alice.call(Method.RELEASE, lease=lease["lease"])
        until(lambda: pool.of("alice").get("held") == 0, "her GPU back")


def test_a_report_says_who_lacks_a_free_gpu_and_who_her_own_quota(
    node: PoolNode, pool: Pool
) -> None:
    def short(who: str) -> bool:
        until(lambda: pool.of(who).get("waiting") == 1, f"{who} waits")
        return bool(pool.of(who)["short"])

    pool.lend(alice=2, bob=2)
    with node.client("alice") as alice, node.client("bob") as bob, node.client("root") as root:
        alice.request(gpus=2)
        bob.ask()
        assert short("bob"), "alice has all"
        root.ask()
        assert not short("root"), "the pool lends her none: no host would help"
        until(lambda: pool.of("alice")["short"] is False, "who does not wait lacks nothing")


def test_a_hint_is_said_to_the_person_who_waits_and_goes_with_the_link(
    node: PoolNode, pool: Pool
) -> None:
    text = "Host c has a free GPU now: start your kernel there."
    hint = {"environment": "alice", "host": "c", "gpus": 1, "kind": "A100", "text": text}
    with node.client("alice") as alice, node.client("bob") as bob:
        alice.ask()
        bob.ask()
        pool.client.call(Method.POOL_HINT, hints=[hint])
        queued = alice.wait_notice(Notice.QUEUED, where=lambda told: bool(told["hints"]))
        assert queued["message"].endswith(text)
        assert queued["hints"] == [{"host": "c", "gpus": 1, "kind": "A100", "text": text}]
        assert text in alice.call(Method.STATUS)["queue"][0]["message"]
        assert text not in str(bob.call(Method.STATUS))
        pool.client.close()
        gone = alice.wait_notice(Notice.QUEUED, where=lambda told: not told["hints"])
        assert text not in gone["message"]


def test_a_node_is_drained_and_resumed_by_its_pool_and_by_its_administrators(
    node: PoolNode, pool: Pool
) -> None:
    assert pool.client.call(Method.NODE_DRAIN, reason="cooling") == {"count": 2}
    drained = pool.report(lambda report: report["draining"])
    assert (drained["draining"], drained["empty"]) == ("cooling", True)
    assert [gpu["out"] for gpu in drained["gpus"]] == ["cooling", "cooling"]
    with node.client("root") as root:
        assert root.call(Method.NODE_RESUME) == {"count": 2}
        assert pool.report(lambda report: not report["draining"])["gpus"][0]["out"] is None
        assert root.call(Method.NODE_DRAIN, reason="again") == {"count": 2}
        told = [event["text"] for event in root.call(Method.HISTORY)["events"]]
        assert any("cooling" in text and "pool" in text for text in told), "it is in the history"


def test_own_quotas_are_neither_edited_nor_doubted_in_a_pool(node: PoolNode, pool: Pool) -> None:
    with node.client("root") as root:
        with pytest.raises(RemoteError, match="pool lab"):
            root.call(Method.QUOTA_SET, environment="alice", gpus=2)
        # More GPUs than there are, but they do not count.
        assert root.call(Method.QUOTA_LIST)["warnings"] == []
    assert "Quotas:" not in node.story()


async def test_reports_come_soon_after_changes_and_without_one_because_loans_count_from_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = SimpleNamespace(listeners=[], observers=SimpleNamespace(call=lambda tell: tell()))
    told: list[str] = []

    def notify(name: str, _report: object) -> bool:
        told.append(name)
        return True

    ours = calls.PoolCalls(manager, report=dict, ask=print, refused=print, news=print)
    ours._followers[1] = SimpleNamespace(conn=SimpleNamespace(notify=notify))
    monkeypatch.setattr(calls, "SOONEST", 3600.0)
    pushing = asyncio.create_task(ours.push())
    for _ in range(3):
        ours._changed.set()
        for _ in range(20):  # turns of the loop: it would report again if it did
            await asyncio.sleep(0)
    assert told == [Notice.REPORT.value]
    pushing.cancel()
    monkeypatch.setattr(calls, "SOONEST", 0.0)
    monkeypatch.setattr(calls, "LATEST", 0.01)
    pushing = asyncio.create_task(ours.push())
    await soon(lambda: len(told) > 3)
    pushing.cancel()


def test_programs_wait_for_the_pool_and_are_told_where_they_would_not(
    node: PoolNode, pool: Pool, tmp_path: Path
) -> None:
    """The real command line: it asks, waits, says the hint, and runs when it is lent a GPU."""
    code = "import os; print('on', os.environ['CUDA_VISIBLE_DEVICES'])"
    run = ("-m", "jupyter_gpushare.cli", "run", "--", sys.executable, "-c", code)
    said, pipe = tmp_path / "said", subprocess.PIPE
    with said.open("w") as errors, node.program("alice", *run, stdout=pipe, stderr=errors) as one:
        try:
            pool.report(lambda report: report["wants"])
            text = "Host c has a free GPU now: start it there."
            hint = {"environment": "alice", "host": "c", "gpus": 1, "kind": "A100", "text": text}
            pool.client.call(Method.POOL_HINT, hints=[hint])
            until(lambda: text[:-1] in said.read_text(), "it says the hint")
            pool.fresh()
            pool.lend(alice=1)
            assert one.communicate(timeout=60)[0].startswith("on ")
            assert one.returncode == 0
        finally:
            one.kill()


def test_a_report_names_those_who_talk_to_the_host_and_not_those_who_look(
    node: PoolNode, pool: Pool, authority: Authority
) -> None:
    assert pool.fresh()["talking"] == []
    with (
        node.client("alice"),
        NodeClient(connected=node.dial(authority.call_context()), hello=False) as page,
    ):
        viewer = {"name": "bob", "groups": [], "admin": False}
        client = {"name": PAGES, "version": "0"}
        page.call(Method.HELLO, protocol=1, client=client, viewer=viewer)
        assert pool.fresh()["talking"] == ["alice"]
    until(lambda: pool.fresh()["talking"] == [], "she is gone")


def test_a_report_has_no_more_than_a_pool_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of many people in many groups: the first in line are told."""
    groups = [f"{n:03}{'g' * 100}" for n in range(20)]
    row = (1, None, "batch", 1.0, tuple(groups))
    rows = [Want(EnvironmentName(f"person-{n}"), *row) for n in range(3000)]
    monkeypatch.setattr(reports, "_wants", lambda state: rows)
    state, talking = State(boot=BootSeen(0.0, "boot", 3600.0)), [f"p{n}" for n in range(3000)]
    told = encoded(reports.report(state, PolicyConfig(), "a", "1", 1.0, {}, talking, []))
    assert len(told) < MAX_REPORT
    read = read_report(json.loads(told))
    assert 200 < len(read.wants) < 1024
    assert list(read.wants) == rows[: len(read.wants)]
    assert len(read.talking) == len(read.wants)
