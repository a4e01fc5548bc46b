"""A host that was taken over raises no quota, reads no names and opens no other host.

It has its key and certificate, and says to the pool what it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support.node import RemoteError, until
from support.pool_world import gpu, report
from support.runningpool import PoolHost, RunningPool, joined

from jupyter_gpushare.pool.decide import MOST_HERE
from jupyter_gpushare.pool.words.hosts import Want
from jupyter_gpushare.protocol.messages import Method

QUOTAS = {"default": {"gpus": 1}, "groups": {"rich": {"gpus": 8}}}
WANT = asdict(Want("alice", 8, None, "interactive", 1.0, ("rich",)))
REPORT = asdict(report("evil", 100.0, gpus=tuple(gpu("evil", n) for n in range(8)), queue=1))
REPORT |= {"wants": [WANT]}
#: What it asks of the pool, over the line on which the pool asks it.
TRIES = [
    ("quota.set", {"environment": "alice", "gpus": 8}),
    ("pool.lend", {"budgets": [{"environment": "alice", "gpus": 8}]}),
    ("pool.token", {}),
    ("pool.hosts", {}),
    ("status", {}),
]


class Evil:
    """Answers the pool as the host ``evil``, and keeps what it hears."""

    #: Reports with a thousand new people each.
    SAYS = 0

    def __init__(self, folder: Path, pool: RunningPool) -> None:
        self._pool, self._listener = pool, socket.create_server(("127.0.0.1", 0))
        self._member = joined(pool, folder, "evil", self._listener.getsockname()[1])
        self.heard: list[dict[str, Any]] = []
        self.said = 0
        self._runner, self._ends = asyncio.Runner(), asyncio.Event()
        # One thread for each wire: OpenSSL's state is destroyed if one reads while another writes.
        self._thread = threading.Thread(target=self._runner.run, args=(self._serve(),))
        self._runner.get_loop()  # made here, for whoever ends it
        self._thread.start()

    async def _serve(self) -> None:
        context = self._member.context()
        async with await asyncio.start_server(self._talk, sock=self._listener, ssl=context):
            await self._ends.wait()

    async def _talk(self, lines: asyncio.StreamReader, wire: asyncio.StreamWriter) -> None:
        floods: list[asyncio.Task[None]] = []
        try:
            while line := await lines.readline():
                call = json.loads(line)
                self.heard.append(call)
                if "method" in call:
                    wire.write(self._line(id=call["id"], result=self._result(call)))
                    if call["method"] == "pool.follow":
                        for number, (method, params) in enumerate(TRIES):
                            wire.write(self._line(id=9000 + number, method=method, params=params))
                        wire.write(self._line(method="report", params={**REPORT, "at": 101.0}))
                        floods.append(asyncio.create_task(self._flood(wire)))
        except (OSError, ValueError):
            pass  # the pool hung up
        finally:
            for flood in floods:
                flood.cancel()
            wire.transport.abort()

    async def _flood(self, wire: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            for number in range(self.SAYS):
                names = [f"n{number}-{n}" for n in range(1000)]
                wants = [{**WANT, "gpus": 1, "environment": name} for name in names]
                told = {**REPORT, "at": 102.0 + number, "wants": wants}
                wire.write(self._line(method="report", params=told))
                await wire.drain()
                self.said += 1

    def _line(self, **message: Any) -> bytes:
        return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"

    def _result(self, call: dict[str, Any]) -> dict[str, Any]:
        match call["method"]:
            case "hello":
                return {"protocol": 1, "node": {"name": "evil", "version": "1"}, "features": []}
            case "pool.follow":
                return REPORT
            case "pool.lend":
                budgets = call["params"]["budgets"]
                rows = [{"environment": one["environment"], "gpus": 4096} for one in budgets]
                return {"environments": [{**row, "held": 0} for row in rows]}
        return {}

    def told_of(self, name: str) -> bool:
        lent = [one["params"]["budgets"] for one in self.heard if one.get("method") == "pool.lend"]
        return any(budget["environment"] == name for budgets in lent for budget in budgets)

    def __enter__(self) -> Evil:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()
        self._runner.get_loop().call_soon_threadsafe(self._ends.set)
        self._thread.join(60)
        self._runner.close()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[RunningPool]:
    with RunningPool(tmp_path / "lab", QUOTAS) as running:
        yield running


@pytest.fixture
def b(tmp_path: Path, pool: RunningPool) -> Iterator[PoolHost]:
    with PoolHost(tmp_path / "b", pool, "b", "2x24GiB") as running:
        pool.sees("b")
        yield running


def test_it_raises_no_quota_and_reads_nobody_s_names(
    tmp_path: Path, pool: RunningPool, b: PoolHost
) -> None:
    with b.client("alice") as alice, b.client("bob") as bob:
        alice.request(name="alices-secret-notebook")
        bob.request(name="bobs-secret-notebook")
        with Evil(tmp_path / "evil", pool) as evil:
            until(lambda: evil.told_of("alice"), "it is told what alice may have there")
            # Its word that alice is rich counts for nobody but itself.
            second = alice.ask(name="another", gpus=2)
            pool.sees("b", "evil")
            assert pool.host("b")["lent"]["alice"]["gpus"] == 1
            with contextlib.suppress(RemoteError):  # refused, or it waits; but not granted
                assert not (alice.answered(second) and alice.wait(second))
            (own,) = (one for one in alice.call(Method.STATUS)["leases"] if one["mine"])
            assert len(own["gpus"]) == 1
            quotas = {one["environment"]: one["gpus"] for one in pool.verb("quota")["quotas"]}
            assert quotas.get("alice", 1) == 1
    heard = json.dumps(evil.heard)
    assert "secret-notebook" not in heard
    # It never named bob, so it heard of nobody of that name.
    assert "bob" not in heard
    assert all("token" not in one.get("params", {}) for one in evil.heard)
    # The pool answers no call: it is the one that asks.
    assert not [one for one in evil.heard if "result" in one or "error" in one]


def test_what_it_says_without_end_is_bounded(
    tmp_path: Path, pool: RunningPool, b: PoolHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New people in each report left 2,000 records, as fast as it could say them, for ever."""
    monkeypatch.setattr(Evil, "SAYS", 200)
    begun = time.monotonic()
    with Evil(tmp_path / "evil", pool) as evil, b.client("bob") as bob:
        pool.sees("b", "evil")
        until(lambda: evil.said == evil.SAYS or time.monotonic() > begun + 4.0, "it says much")
        bob.request(name="work")
        assert pool.host("b")["lent"]["bob"]["gpus"] == 1
        assert len(pool.host("evil")["lent"]) <= MOST_HERE
        rows = f"file:{pool.directory}/pool/ledger.sqlite?mode=ro"
        with contextlib.closing(sqlite3.connect(rows, uri=True)) as ledger:
            (count,) = ledger.execute("SELECT count(*) FROM records").fetchone()
        # What may be left at once and since, and what one report and its answer leave beyond.
        assert count <= 5_000 + 50 * (time.monotonic() - begun) + 8_000


def test_a_report_that_is_longer_than_a_mebibyte_is_not_read(
    tmp_path: Path, pool: RunningPool, b: PoolHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REPORT, "boot_id", "x" * 2**20)
    with Evil(tmp_path / "evil", pool):
        until(
            lambda: "A line is longer than 1048576 bytes" in pool.host("evil")["problem"],
            "why it cannot be used",
        )
        pool.sees("b")
