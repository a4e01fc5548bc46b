"""The pool's parts, each alone: its lines to hosts lose nothing, and give no token away."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from traitlets.config import Config

from jupyter_gpushare.hub.app import GpuShareHub
from jupyter_gpushare.hub.links import Limits, LinkPool
from jupyter_gpushare.link import nodelink
from jupyter_gpushare.link.dial import Host
from jupyter_gpushare.link.errors import NodeTimedOut, NodeUnavailable
from jupyter_gpushare.link.nodelink import LinkState
from jupyter_gpushare.pages.viewer import Viewer
from jupyter_gpushare.pool import budget
from jupyter_gpushare.pool.configuration import Pool
from jupyter_gpushare.pool.hostlink import HostLink, _lines, _told
from jupyter_gpushare.pool.hubrole import settings_of
from jupyter_gpushare.pool.manager import PoolManager
from jupyter_gpushare.protocol.calls import LentParams, QuotaFields
from jupyter_gpushare.protocol.framing import MAX_LINE, encode


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
    quota = QuotaFields(gpus=2, memory=8 * 2**30)
    budgets = [LentParams(f"person-{n:04}", 1, quota, 1.5, False, "é" * 200) for n in range(900)]
    whole = [_told(one) for one in budgets]
    parts = list(_lines(whole))
    assert len(parts) > 1
    assert [one for part in parts for one in part] == whole
    assert all(len(encode(part)) < MAX_LINE - 512 for part in parts)
    assert list(_lines([])) == [[]]


async def test_why_a_connection_ended_is_not_lost_when_the_next_call_finds_it_ended() -> None:
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


def test_a_quota_travels_without_what_it_does_not_say() -> None:
    told = _told(LentParams("alice", 1, QuotaFields(gpus=2, memory=2**30)))
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
        server.close()

    monkeypatch.setattr(nodelink, "open_streams", dial)
    asyncio.run(scenario())
    assert heard[0]["viewer"] == {"name": "alice", "groups": ["students"], "admin": False}
    assert "secret" not in json.dumps(heard)


@pytest.mark.parametrize(
    ("url", "told", "address"),
    [
        ("http://10.0.0.1:10204", {}, "10.0.0.1"),
        ("http://127.0.0.1:10204", {}, socket.getfqdn()),
        ("http://10.0.0.1:10204", {"address": "pool.example.org"}, "pool.example.org"),
    ],
)
def test_tokens_say_where_hosts_reach_the_pages_with_which_a_pool_runs(
    url: str, told: dict[str, str], address: str
) -> None:
    hub = GpuShareHub(url=url, config=Config({"Pool": told}))
    assert settings_of(hub, urlsplit(url).hostname).address == address


@pytest.mark.parametrize("wrong", ["nonsense", "host:", ":99", "1.2.3.4:99999"])
def test_a_place_to_listen_needs_a_port(wrong: str) -> None:
    with pytest.raises(Exception, match="no address with a port"):
        Pool(listen=wrong)


async def test_a_host_that_leaves_more_than_its_budget_is_heard_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, slept = [100.0], list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(budget.asyncio, "sleep", sleep)

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
