"""A person has no more than the quota on all hosts together, though hosts or the pool are away.

A real pool and real node managers, over TLS.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.node import NodeClient, RemoteError, until
from support.pool import join
from support.runningpool import PoolHost, RunningPool

from jupyter_gpushare.cli import poolchecks
from jupyter_gpushare.console.check import Level
from jupyter_gpushare.pool.pki import Authority
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.poolcalls import PoolMethod

ONE = {"default": {"gpus": 1}}


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[RunningPool]:
    with RunningPool(tmp_path / "lab", ONE) as running:
        yield running
        assert "Traceback" not in running.story()


@pytest.fixture
def host(tmp_path: Path, pool: RunningPool) -> Iterator[Callable[..., PoolHost]]:
    """Starts node managers of the pool."""
    started: list[PoolHost] = []

    def start(name: str, simulate: str = "1x24GiB") -> PoolHost:
        node = PoolHost(tmp_path / name, pool, name, simulate)
        started.append(node)
        node.start()
        pool.sees(name)
        return node

    yield start
    for node in started:
        node.close()
        assert "Traceback" not in node.story()


def reason(node: PoolHost, who: str) -> str:
    """Why somebody's first request waits there."""
    with node.client(who) as client:
        queue = client.call(Method.STATUS)["queue"]
    return str(queue[0]["message"]) if queue else ""


def test_a_quota_of_one_gpu_moves_to_where_it_is_wanted_within_a_second(
    pool: RunningPool, host: Callable[..., PoolHost]
) -> None:
    a, b = host("a"), host("b")
    with a.client("alice") as here, b.client("alice") as there:
        lease, took = here.request(gpus=1)["lease"], []
        waits = there.ask(gpus=1)
        until(lambda: "on host a" in reason(b, "alice"), "it is told that a has it")
        assert not there.answered(waits)
        for holder, waiter in ((here, there), (there, here)) * 3:
            holder.call(Method.RELEASE, lease=lease)
            begun = time.monotonic()
            lease = waiter.wait(waits)["lease"]
            took.append(time.monotonic() - begun)
            waits = holder.ask(gpus=1)  # and back again
        assert min(took) < 1.0, "or the machine is busy all the time"


def test_a_killed_pool_is_missed_by_nobody_and_knows_all_when_it_comes_back(
    pool: RunningPool, host: Callable[..., PoolHost]
) -> None:
    a, b = host("a"), host("b")
    pool.verb("quota", "set", "bob", "--gpus", "2")
    with a.client("alice") as alice, b.client("alice") as elsewhere, a.client("bob") as bob:
        lease = alice.request(gpus=1)
        pool.kill9()
        # What a host was lent goes on without the pool.
        alice.call(Method.RELEASE, lease=lease["lease"])
        lease = alice.request(gpus=1)
        waits = elsewhere.ask(gpus=1)
        pool.start()
        pool.sees("a", "b")
        until(lambda: "on host a" in reason(b, "alice"), "the pool knows that a has it")
        assert not elsewhere.answered(waits)
        rows = pool.verb("quota")["quotas"]
        assert {row["environment"]: row["gpus"] for row in rows}["bob"] == 2
        told = [(one["kind"], one["by"]) for one in pool.verb("history")["events"]]
        who = pool.verb("history")["events"][0]["by"]
        assert {("QuotaChanged", who), ("HostsChanged", who)} <= {*told}
        alice.call(Method.RELEASE, lease=lease["lease"])
        elsewhere.wait(waits)
        assert not bob.notices


def test_a_host_that_is_cut_off_is_named_with_the_time_until_it_is_said_to_be_gone(
    pool: RunningPool, host: Callable[..., PoolHost]
) -> None:
    a, b = host("a"), host("b")
    with a.client("alice") as here, b.client("alice") as there:
        here.request(gpus=1)
        os.kill(a.pid, signal.SIGSTOP)
        try:
            waits = there.ask(gpus=1)
            said = until(
                lambda: (text := reason(b, "alice")) and "cannot be reached" in text and text,
                "b says that a cannot be reached",
            )
            assert " a " in said
            lost = pool.host("a")
            assert lost["problem"] == "The host did not answer in time. It is tried again."
            assert not lost["connected"]
            assert time.time() < lost["until"] < time.time() + 130
            assert not there.answered(waits)
        finally:
            os.kill(a.pid, signal.SIGCONT)
        pool.sees("a")
        until(lambda: "cannot be reached" not in reason(b, "alice"), "a is back")
        assert not there.answered(waits)
        a.kill9()
        until(lambda: not pool.host("a")["connected"], "the pool misses it")
        pool.verb("forget", "a")
        there.wait(waits, within=60)
        assert not pool.host("a")


def test_hosts_take_the_next_authority_also_one_that_was_away(
    pool: RunningPool, host: Callable[..., PoolHost]
) -> None:
    b, c = host("b"), host("c")
    files = {node.name: node.directory / "pool" for node in (b, c)}
    before = (files["b"] / "host.pem").read_bytes()

    def trusts(name: str) -> int:
        return (files[name] / "ca.pem").read_text().count("BEGIN CERTIFICATE")

    with b.client("alice") as alice:
        lease = alice.request(gpus=1)
        c.kill9()
        assert pool.verb("rotate") == {}
        until(lambda: trusts("b") == 2, "b knows both authorities")
        until(lambda: (files["b"] / "host.pem").read_bytes() != before, "b is certified")
        assert trusts("c") == 1
        # The link came back with the new certificate, and the lease saw nothing of it.
        pool.sees("b")
        c.start()
        pool.sees("c")
        pool.kill9()
        pool.start()
        until(lambda: trusts("c") == 2, "c knows both authorities")
        pool.sees("b", "c")
        held = {row["id"]: row["phase"] for row in alice.call(Method.STATUS)["leases"]}
        assert held[lease["lease"]] == "held"
    assert "AuthorityRotated" in [one["kind"] for one in pool.verb("history")["events"]]
    assert "The last rotation is not over" in str(pool.verb("rotate", check=False))


def test_a_drained_host_says_when_it_is_empty(
    pool: RunningPool, host: Callable[..., PoolHost]
) -> None:
    a = host("a")
    with a.client("alice") as alice:
        lease = alice.request(gpus=1)
        drained = pool.verb("drain", "a", "--reason", "a new driver")
        assert not drained["empty"]
        # The answer is the host's own: it has heard.
        assert drained["report"]["draining"] == "a new driver"
        with a.client("bob") as bob:
            waits = bob.ask(gpus=1)
            until(lambda: "a new driver" in reason(a, "bob"), "who waits reads the reason")
            alice.call(Method.RELEASE, lease=lease["lease"])
            assert pool.verb("drain", "a", "--reason", "a new driver", "--wait")["empty"]
            assert not bob.answered(waits)
            pool.kill9()
            pool.start()
            pool.sees("a")
            assert pool.host("a")["drain"]["reason"] == "a new driver"
            assert pool.verb("resume", "a")["report"]["draining"] is None
            bob.wait(waits, within=60)


def refused(pool: RunningPool, method: Any, **params: Any) -> str:
    with pytest.raises(RemoteError) as caught:
        pool.ask(method, **params)
    assert caught.value.reason is Reason.BAD_REQUEST
    return str(caught.value)


def test_the_pool_ranks_hosts_and_its_refusals_say_what_would_be_right(
    pool: RunningPool, host: Callable[..., PoolHost]
) -> None:
    host("a"), host("b", "2x40GiB")
    ranked = pool.verb("where", "alice", "--memory", "30GiB")["hosts"]
    assert [(one["host"], one["fits_now"]) for one in ranked] == [("b", True), ("a", False)]
    assert all(one["reasons"] for one in ranked)
    # Whoever starts servers says no hello.
    with NodeClient(pool.socket, hello=False) as client:
        assert client.call(PoolMethod.WHERE, environment="alice", gpus=1)["hosts"]
    assert "its hosts: a, b" in refused(pool, PoolMethod.DRAIN, host="x", reason="why")
    assert "`gpus`" in refused(pool, PoolMethod.WHERE, environment="alice", gpus=-1)
    assert "no method" in refused(pool, Method.REQUEST)


def test_an_administrator_sets_groups_and_reads_what_is_wrong(
    pool: RunningPool, host: Callable[..., PoolHost]
) -> None:
    said = pool.words("group", "unset", "chemistry", code=1)
    assert "Group chemistry has no GPUs of its own, and no other group has any." in said
    a = host("a", "2x24GiB")
    said = pool.words("group", "set", "physics", "--nominal", "1", "--lending", "2")
    assert said.startswith("physics has 1 GPU of its own.\nWarning: Group physics may lend 2, but")
    said = pool.words("group", "set", "physics", "--nominal", "1")
    assert said == "physics has 1 GPU of its own.\n"
    pool.kill9()
    pool.start()
    pool.sees("a")
    with a.client("alice") as alice:
        alice.request(gpus=1)
        until(lambda: pool.verb("group")["groups"][0]["used"], "the pool knows what is in use")
        row = pool.words("group").splitlines()[1]
        assert row.split() == ["physics", "1", "all", "all", "1", "0"]
    said = pool.words("group", "unset", "physcs", code=1)
    assert "; did you mean physics? Groups that have: physics." in said
    pool.verb("group", "unset", "physics")
    assert pool.verb("group")["groups"] == []


def test_whole_gpus_are_lent_and_returned_by_the_administrators_word(
    pool: RunningPool, host: Callable[..., PoolHost]
) -> None:
    a = host("a", "2x24GiB")
    loan = pool.verb("lend", "alice", "--for", "1h")
    assert (loan["host"], loan["gpus"], loan["environment"]) == ("a", 1, "alice")

    def lent() -> bool:
        there = pool.host("a")["report"]["environments"]
        return any(one["environment"] == "alice" and one["lent"] == 1 for one in there)

    until(lent, "the host was told")
    pool.kill9()  # Only what was lent already can be granted now.
    with a.client("alice") as alice:
        alice.request(gpus=1)
    pool.start()
    pool.sees("a")
    pool.verb("return", loan["id"])
    assert "no such loan" in refused(pool, PoolMethod.RETURN_GPUS, loan=loan["id"])
    told = [one["text"] for one in pool.verb("history")["events"]]
    assert "lent alice GPUs of the host a: 1" in told
    words = pool.words("history").splitlines()
    assert words[0].split() == ["WHEN", "WHO", "WHAT"]
    assert f"took back the loan {loan['id']}" in words[1]


def test_the_doctor_knows_a_host_of_a_pool_and_its_certificate(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    join(Authority.create(tmp_path / "authority", "lab", time.time()), folder, "a")
    (good,) = poolchecks.membership(folder)
    assert good.level is Level.OK
    assert "this host is a in its pool" in good.text
    found = [
        next(poolchecks.membership(folder, time.time() + days * 86400.0)).level
        for days in (22, 24, 29, 31)
    ]
    assert found == [Level.OK, Level.WARNING, Level.WARNING, Level.PROBLEM]
    early = next(poolchecks.membership(folder, time.time() - 86400.0))
    assert early.level is Level.PROBLEM
    assert "clock is late" in early.text
    for place, mode, mended in ((folder, 0o755, "700"), (folder / "host.pem", 0o640, "600")):
        private = place.stat().st_mode
        place.chmod(mode)
        fine, loose = poolchecks.membership(folder)
        assert (fine.level, loose.level) == (Level.OK, Level.PROBLEM)
        assert f"Others may read or change {place}" in loose.text
        assert f"chmod {mended} {place}." in str(loose.fix)
        place.chmod(private)
    # Another pool's authority, as where files of two pools were mixed.
    (folder / "ca.pem").write_text(Authority.create(folder / "x", "x", time.time()).authorities)
    (mixed,) = poolchecks.membership(folder)
    assert mixed.level is Level.PROBLEM
    assert "not by an authority of its pool" in mixed.text
    (folder / "host.pem").unlink()
    (broken,) = poolchecks.membership(folder)
    assert broken.level is Level.PROBLEM
    assert "join the pool again" in broken.text
    assert not [*poolchecks.membership(folder / "none")]
