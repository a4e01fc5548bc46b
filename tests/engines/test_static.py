"""Hosts of one's own serve a real pool while they are wanted, and are out of service else."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.livenode import CLI
from support.node import until
from support.runningpool import PoolHost, RunningPool, joined

from jupyter_gpushare.engines.engine import EngineAway
from jupyter_gpushare.engines.static import StaticHosts
from jupyter_gpushare.protocol.poolcalls import PoolMethod

#: Why a host is given back; a person may say the same.
WORDS = "it is given back, since nobody used it"
HASTY = ("--interval=0.1", "--patience=0.1", "--idle=1")


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[RunningPool]:
    with RunningPool(tmp_path / "lab", {"default": {"gpus": 2}}) as running:
        yield running


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is ended where a test fails."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_a_second_host_serves_while_somebody_waits_for_the_first(
    tmp_path: Path, pool: RunningPool
) -> None:
    with (
        PoolHost(tmp_path / "a", pool, "a", "1x24GiB") as a,
        PoolHost(tmp_path / "b", pool, "b", "1x24GiB"),
    ):
        pool.sees("a", "b")
        joined(pool, tmp_path / "c", "c", 1)
        pool.verb("drain", "c", "--reason", WORDS)
        line = [*CLI, "pool", "static", "c", "a", "b", f"--socket={pool.socket}", *HASTY]
        with ended(subprocess.Popen(line, stdout=subprocess.PIPE, text=True)) as keeps:
            until(lambda: _drain(pool, "b"), "b is given back, since nobody is there")
            own, others = _drain(pool, "b"), _drain(pool, "c")
            assert own == others | {"gives_back": True}
            assert _drain(pool, "a") is None, "one stays"
            with a.client("alice") as alice, a.client("bob") as bob:
                alice.request(gpus=1)
                bob.ask(gpus=1)
                until(lambda: _drain(pool, "b") is None, "b serves")
                assert _drain(pool, "c") == others, "what a person took out stays out"
            keeps.send_signal(signal.SIGTERM)
            told, _ = keeps.communicate(timeout=60)
        assert keeps.returncode == 0
        assert "b (b) is given back" in told
        assert "static host b" in pool.words("hosts")


def test_only_a_host_that_can_be_reached_is_put_back_into_service() -> None:
    """What is gone for good stays known until somebody forgets it, and stands in nobody's way."""
    back = {"reason": WORDS, "gives_back": True}
    rows = [
        {"host": "b", "connected": False, "empty": False, "drain": back},
        {"host": "c", "connected": True, "empty": True, "drain": back},
    ]
    calls: list[tuple[PoolMethod, str]] = []

    def ask(method: PoolMethod, host: str = "", **_told: Any) -> dict[str, Any]:
        calls.append((method, host))
        return {"hosts": rows}

    hosts = StaticHosts(["b", "c"], ask)
    hosts.hold(None)
    assert calls[-1] == (PoolMethod.RESUME, "c")
    rows.pop()
    with pytest.raises(EngineAway, match="cannot be reached"):
        hosts.hold(None)


def test_a_host_that_has_not_joined_is_named(pool: RunningPool) -> None:
    assert "'z'" in pool.words("static", "z", code=1)
    assert "pool static b c" in pool.words("static", code=2)


def _drain(pool: RunningPool, host: str) -> Any:
    return pool.host(host)["drain"]
