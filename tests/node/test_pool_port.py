"""Whoever comes in at the TLS port has the rights that were proved; a host serves by its loans.

Nothing that runs ends when a loan does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.leasecalls import CALLS
from support.loop import soon
from support.node import GIB, NodeClient, RemoteError, needs_root, until
from support.pool import Pool, PoolNode, hello

from jupyter_gpushare.node.views import report as reports
from jupyter_gpushare.node.wire import pool as calls
from jupyter_gpushare.node.wire.translate import FROM_ELSEWHERE
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.events import BootSeen
from jupyter_gpushare.pool.pki import Authority
from jupyter_gpushare.pool.words.hosts import Want, read_report
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.framing import MAX_REPORT, encode
from jupyter_gpushare.protocol.messages import PAGES, Method, Notice
from jupyter_gpushare.protocol.secured import client_context

ALICE = {"name": "alice", "groups": ["class"]}
ROOT = {"name": "root", "admin": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pool")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority.create(folder / "authority", "lab", time.time())


@pytest.fixture(scope="module")
def node(folder: Path, authority: Authority) -> Iterator[PoolNode]:
    with PoolNode(folder, authority, "b", people=("alice", "bob", "root")) as running:
        pool = Pool(running, authority)
        pool.lend(seconds=3600.0, alice=1, bob=1)
        yield running
        pool.client.close()


def refusal(knock: Any) -> str:
    """The sentence with which somebody is not let in, or the TLS alert."""
    with pytest.raises((RemoteError, OSError)) as caught:
        knock().close()
    error = caught.value
    if isinstance(error, RemoteError):
        assert error.reason is Reason.NOT_ALLOWED
    return str(error)


# -- who comes in ------------------------------------------------------------------------------


def test_the_pool_comes_in_and_is_nobody_s_environment(
    node: PoolNode, authority: Authority
) -> None:
    with node.from_pool(authority) as pool:
        assert pool.hello["node"]["name"] == "b"
        assert not pool.hello["admin"]
        assert "csr" in pool.call(Method.POOL_CERTIFY)
        # Lending needs no administrator, but setting quotas does.
        refused = pool.refused(Method.QUOTA_SET, environment="alice", gpus=2)
        assert refused.reason is Reason.NOT_ALLOWED
    with node.client("root") as root:
        known = [row["environment"] for row in root.call(Method.QUOTA_LIST)["quotas"]]
        assert "gpushare:pool" not in known


def test_a_viewer_sees_what_the_person_sees_by_token(node: PoolNode, authority: Authority) -> None:
    with node.client("alice") as alice, node.client("bob") as bob:
        own, other = alice.request(name="mine"), bob.request(name="bobs-notebook")
        with node.from_pool(authority, ALICE) as viewer:
            seen, told = viewer.call(Method.STATUS), alice.call(Method.STATUS)
            assert {one["id"] for one in seen["leases"]} == {one["id"] for one in told["leases"]}
            assert [one["name"] for one in seen["leases"] if one["id"] == own["lease"]]
            assert "bobs-notebook" not in str(seen)
            assert viewer.hello["environment"] == "alice"
            for method, params in (
                (Method.RELEASE, {"lease": other["lease"]}),
                (Method.LEASE_REVOKE, {"lease": other["lease"], "reason": "r"}),
                (Method.QUOTA_SET, {"environment": "alice", "gpus": 9}),
                (Method.POOL_FOLLOW, {"pool": "lab"}),
                (Method.POOL_CERTIFY, {}),
            ):
                viewer.refused(method, **params)
            assert viewer.call(Method.RELEASE, lease=own["lease"])
        with node.from_pool(authority, ROOT) as admin:
            assert "bobs-notebook" in str(admin.call(Method.STATUS))
            admin.call(Method.LEASE_REVOKE, lease=other["lease"], reason="maintenance")


def test_a_token_counts_over_tls_as_on_the_socket(node: PoolNode, authority: Authority) -> None:
    with node.from_elsewhere(authority, "alice") as alice:
        assert alice.hello["environment"] == "alice"
        assert not alice.hello["admin"]
        alice.call(Method.STATUS)
    assert "not known" in refusal(lambda: node.from_elsewhere(authority, "mallory"))
    assert "only the pool" in refusal(lambda: node.from_elsewhere(authority, None))


TASK = {"name": "n", "kind": "process"}
#: A call's least parameters, if it has any.
LEAST: dict[Method, dict[str, Any]] = {
    **{method: {"lease": "l", **params} for method, params in CALLS.items()},
    Method.REQUEST: {"task": TASK},
    Method.ATTACH: {"lease": "l", "secret": "s"},
    Method.PREDICT: {
        **{"task": TASK, "framework": "torch", "operations": []},
        **{"batch": 1, "iterations": 1, "inputs": 1, "peak": 1},
    },
    Method.TASK_ENDED: {"kernel_id": "k"},
    Method.TASK_RENAMED: {"kernel_id": "k", "name": "n", "path": "n"},
}


@pytest.mark.parametrize("admin", [False, True])
def test_what_a_process_must_ask_for_itself_is_refused(
    node: PoolNode, authority: Authority, admin: bool
) -> None:
    methods = set(Method) - FROM_ELSEWHERE - {Method.HELLO}
    assert {Method.REQUEST, Method.ATTACH, Method.HEARTBEAT, Method.LEDGER_BACKUP} <= methods
    with node.from_pool(authority, {"name": "root" if admin else "alice", "admin": admin}) as one:
        for method in sorted(methods, key=lambda method: method.value):
            refused = one.refused(method, **LEAST.get(method, {}))
            assert refused.reason is Reason.NOT_ALLOWED, method
            assert "processes of this host only" in refused.message, method


# -- who does not -------------------------------------------------------------------------------


def test_only_the_pool_s_certificate_names_a_viewer(node: PoolNode, authority: Authority) -> None:
    context = client_context(authority.authorities)

    def knock(connected: socket.socket | None) -> NodeClient:
        client = NodeClient(node.socket, connected=connected, hello=False)
        return hello(client, token="alice", viewer=ROOT)

    assert "Only the pool may say" in refusal(lambda: knock(node.dial(context)))
    assert "Only the pool may say" in refusal(lambda: knock(None))


# -- floods ---------------------------------------------------------------------------------------


def test_slow_handshakes_delay_neither_local_clients_nor_the_pool(
    node: PoolNode, authority: Authority
) -> None:
    held: list[socket.socket] = []
    try:
        for _ in range(300):
            one = socket.create_connection(("127.0.0.1", node.port), 60, ("127.0.0.9", 0))
            one.sendall(b"\x16\x03\x01")  # a record begins, and nothing follows
            held.append(one)
        took = []
        for _ in range(50):
            begun = time.monotonic()
            with node.client("alice") as alice:
                alice.call(Method.STATUS)
            took.append(time.monotonic() - begun)
        begun = time.monotonic()
        with node.from_pool(authority) as pool:
            pool.call(Method.STATUS)
        came_in = time.monotonic() - begun
    finally:
        for one in held:
            one.close()
    assert statistics.median(took) < 0.5
    assert came_in < 30.0


#: Knocks from ever other loopback addresses as fast as it can, and says nothing more.
KNOCKS = """
import collections, contextlib, os, socket, sys
os.setuid(54321)
held, number = collections.deque(maxlen=200), 0
while True:
    number += 1
    wire = socket.socket()
    wire.setblocking(False)
    with contextlib.suppress(OSError):
        wire.bind((f"127.{1 + number // 62500 % 250}.{number // 250 % 250}.{1 + number % 250}", 0))
        with contextlib.suppress(BlockingIOError):
            wire.connect(("127.0.0.1", int(sys.argv[1])))
        held.append(wire)
    if number == 2000:
        print("on", flush=True)
"""


@needs_root
def test_after_a_restart_the_pool_comes_in_beside_strangers_from_many_addresses(
    tmp_path: Path, authority: Authority
) -> None:
    """Each address was a network of its own, and the pool a stranger like them."""
    with PoolNode(tmp_path, authority, "b") as node:
        node.from_pool(authority).close()
        node.restart()
        line = [sys.executable, "-c", KNOCKS, str(node.port)]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as stranger:
            try:
                assert stranger.stdout.readline() == "on\n"
                for _ in range(5):  # each of them, as the pool tries again only after seconds
                    node.from_pool(authority).close()
            finally:
                stranger.kill()


# -- renewal --------------------------------------------------------------------------------------


def _shown(node: PoolNode, authority: Authority) -> bytes | None:
    with node.dial(authority.call_context()) as wire:
        return wire.getpeercert(binary_form=True)


def test_a_certificate_is_renewed_over_the_link(node: PoolNode, authority: Authority) -> None:
    before = _shown(node, authority)
    key = (node.directory / "pool" / "host.pem").read_bytes()
    with node.from_pool(authority) as pool:
        csr = pool.call(Method.POOL_CERTIFY)["csr"]
        wrong, signed = (authority.sign(csr, name, time.time()) for name in ("c", "b"))
        told = {"certificates": wrong, "authorities": authority.authorities}
        assert "not for the host b" in pool.refused(Method.POOL_CERTIFY, **told).message
        assert _shown(node, authority) == before
        told["certificates"] = signed
        assert pool.call(Method.POOL_CERTIFY, **told) == {}
        # What was asked for is used up, and the connection goes on.
        assert "asked for no certificate" in pool.refused(Method.POOL_CERTIFY, **told).message
        pool.call(Method.STATUS)
    assert _shown(node, authority) != before
    assert (node.directory / "pool" / "host.pem").read_bytes() != key
    assert (node.directory / "pool" / "host.pem").stat().st_mode & 0o077 == 0


def test_many_people_open_the_pool_s_pages_at_once(node: PoolNode, authority: Authority) -> None:
    """They come from one address, which is no flood where the pool's certificate was shown."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(node.from_pool(authority))
        for number in range(100):
            viewer = {"name": f"student-{number}"}
            stack.enter_context(node.from_pool(authority, viewer))


CONFIG = """
c.NodeManagerApp.debug_checks = True
c.NodeManagerApp.measure_interval = 0.1
c.Policy.notify_before = 0.0
c.Quotas.default = {"gpus": 2}
c.Quotas.groups = {"staff": {"gpus": 9}}
"""


@pytest.fixture
def lent(tmp_path: Path, authority: Authority) -> Iterator[PoolNode]:
    options = {"simulate": "2x24GiB", "config": CONFIG, "people": ("alice", "bob", "root")}
    with PoolNode(tmp_path, authority, "b", **options) as running:
        yield running
        assert "Traceback" not in running.story()


@pytest.fixture
def pool(lent: PoolNode, authority: Authority) -> Iterator[Pool]:
    pool = Pool(lent, authority)
    yield pool
    pool.client.close()


def test_who_asks_is_wanted_and_a_loan_serves_her_at_once(lent: PoolNode, pool: Pool) -> None:
    assert [gpu["exclusive_free"] for gpu in pool.seen["gpus"]] == [True, True]
    assert (pool.seen["name"], pool.seen["seconds"], pool.seen["empty"]) == ("b", 0.0, True)
    with lent.client("alice") as alice:
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
    lent: PoolNode, pool: Pool
) -> None:
    def short(who: str) -> bool:
        until(lambda: pool.of(who).get("waiting") == 1, f"{who} waits")
        return bool(pool.of(who)["short"])

    def lacking(*lacks: tuple[int, int]) -> None:
        told = [{"gpus": gpus, "requests": requests} for gpus, requests in lacks]
        until(lambda: pool.fresh()["lacking"] == told, f"{lacks} GPUs, requests are lacking")

    pool.lend(alice=2, bob=2)
    with lent.client("alice") as alice, lent.client("bob") as bob, lent.client("root") as root:
        alice.request(gpus=2)
        bob.ask()
        assert short("bob"), "alice has all"
        lacking((1, 1))
        root.ask(gpus=2)
        assert not short("root"), "the pool lends her none: no host would help"
        lacking((1, 1))
        bob.ask(gpus=2)
        bob.ask()
        lacking((1, 2))
        pool.lend(root=2)
        lacking((1, 2), (2, 1))
        pool.lend(hours=0.0, bob=2)
        lacking((2, 1))
        pool.lend(bob=2)
        until(lambda: pool.of("alice")["short"] is False, "who does not wait lacks nothing")


def test_a_hint_is_said_to_the_person_who_waits_and_goes_with_the_link(
    lent: PoolNode, pool: Pool
) -> None:
    text = "Host c has a free GPU now: start your kernel there."
    hint = {"environment": "alice", "host": "c", "gpus": 1, "kind": "A100", "text": text}
    with lent.client("alice") as alice, lent.client("bob") as bob:
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
    lent: PoolNode, pool: Pool
) -> None:
    assert pool.client.call(Method.NODE_DRAIN, reason="cooling") == {"count": 2}
    drained = pool.report(lambda report: report["draining"])
    assert (drained["draining"], drained["empty"]) == ("cooling", True)
    assert [gpu["out"] for gpu in drained["gpus"]] == ["cooling", "cooling"]
    with lent.client("root") as root:
        assert root.call(Method.NODE_RESUME) == {"count": 2}
        assert pool.report(lambda report: not report["draining"])["gpus"][0]["out"] is None
        assert root.call(Method.NODE_DRAIN, reason="again") == {"count": 2}
        told = [event["text"] for event in root.call(Method.HISTORY)["events"]]
        assert any("cooling" in text and "pool" in text for text in told), "it is in the history"


def test_own_quotas_are_neither_edited_nor_doubted_in_a_pool(lent: PoolNode, pool: Pool) -> None:
    with lent.client("root") as root:
        refused = root.refused(Method.QUOTA_SET, environment="alice", gpus=2)
        assert "pool lab" in refused.message
        # More GPUs than there are, but they do not count.
        assert root.call(Method.QUOTA_LIST)["warnings"] == []
    assert "Quotas:" not in lent.story()


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
    lent: PoolNode, pool: Pool, tmp_path: Path
) -> None:
    """The real command line: it asks, waits, says the hint, and runs when it is lent a GPU."""
    code = "import os; print('on', os.environ['CUDA_VISIBLE_DEVICES'])"
    run = ("-m", "jupyter_gpushare.cli", "run", "--", sys.executable, "-c", code)
    said, pipe = tmp_path / "said", subprocess.PIPE
    with said.open("w") as errors, lent.program("alice", *run, stdout=pipe, stderr=errors) as one:
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
    lent: PoolNode, pool: Pool, authority: Authority
) -> None:
    assert pool.fresh()["talking"] == []
    with (
        lent.client("alice"),
        NodeClient(connected=lent.dial(authority.call_context()), hello=False) as page,
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
    rows = [Want(f"person-{n}", *row) for n in range(3000)]
    monkeypatch.setattr(reports, "_wants", lambda state: rows)
    state, talking = State(boot=BootSeen(0.0, "boot", 3600.0)), [f"p{n}" for n in range(3000)]
    told = encode(reports.report(state, PolicyConfig(), "a", "1", 1.0, {}, talking, []))
    assert len(told) < MAX_REPORT
    read = read_report(json.loads(told))
    assert 200 < len(read.wants) < 1024
    assert list(read.wants) == rows[: len(read.wants)]
    assert len(read.talking) == len(read.wants)
