"""What the pool tells Prometheus of its hosts is how they stand."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.exporter import samples
from support.hub import free_ports
from support.pool_world import CONFIG, World, gpu, report

from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.policy.words.model import EnvironmentName
from jupyter_gpushare.pool.answers import PoolAnswers
from jupyter_gpushare.pool.configuration import Pool
from jupyter_gpushare.pool.metrics import PoolMetrics
from jupyter_gpushare.pool.serving import serving
from jupyter_gpushare.pool.words import commands as cmd, events as ev
from jupyter_gpushare.protocol.connection import ClientConnection
from jupyter_gpushare.protocol.poolcalls import PoolMethod, parse_pool_call

RULES = Path(__file__).parents[2] / "etc" / "prometheus" / "jupyter-gpushare.rules.yml"
POOL = "jupyter_gpushare_pool"


def test_hosts_and_their_gpus_are_counted_as_they_stand() -> None:
    world = World("a", "b")
    registry = PoolMetrics(lambda: world.state).registry

    def told(name: str, label: str, *words: str, **more: str) -> list[float | None]:
        several = ({**more, label: word} for word in words)
        return [registry.get_sample_value(f"{POOL}_{name}", labels) for labels in several]

    def hosts() -> list[float | None]:
        return told("hosts", "state", "in_service", "out_of_service", "lost", "given_up")

    def gpus(kind: str) -> list[float | None]:
        return told("gpus", "state", "free", "used", "out_of_service", "unknown", kind=kind)

    world.ask("b", "ada")
    several = (gpu("b", 0, free=False), gpu("b", 1), gpu("b", 2, out="broken"))
    said = report("b", world.nodes["b"].clock + 1, boot_id="boot-1", gpus=several, queue=3)
    world.do(cmd.HostReported(world.time, "b", said))
    assert hosts() == [2, 0, 0, 0]
    assert gpus("H100") == [2, 1, 1, 0]
    assert told("lent_gpus", "hosts", "reached", "lost", "given_up") == [1, 0, 0]
    assert registry.get_sample_value(f"{POOL}_queue_requests") == 3
    world.do(cmd.LendGpus(world.time, "l", EnvironmentName("bob"), 1, 600.0, "root", "a"))
    assert registry.get_sample_value(f"{POOL}_kept_gpus") == 1
    world.deed(ev.HostServiceChanged, "a", "new fans")
    assert (hosts(), gpus("H100")) == ([1, 1, 0, 0], [1, 1, 2, 0])
    world.cut("b")
    assert told("host_reached", "host", "a", "b") == [1, 0]
    assert (hosts(), gpus("H100")) == ([0, 1, 1, 0], [0, 0, 1, 3])
    world.passes(CONFIG.validity * 1.02)
    assert hosts() == [0, 1, 0, 1]
    assert told("lent_gpus", "hosts", "given_up") == [1]


def test_calls_are_counted_and_all_is_at_the_port(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = Pool(folder=str(tmp_path), socket=f"{tmp_path}/s", listen="", metrics_port=port)

    async def scenario() -> dict[str, float]:
        async with serving(settings, logging.getLogger("test")) as manager:
            answers = PoolAnswers(manager)

            async def ask(method: PoolMethod, **params: Any) -> None:
                line = ClientConnection().call(method, **params)[1]
                await answers.answer(parse_pool_call(line), "root")

            await ask(PoolMethod.WHERE, environment="bob", gpus=1)
            with pytest.raises(NodeProblem):
                await ask(PoolMethod.DRAIN, host="nowhere", reason="x")
            return await asyncio.to_thread(samples, port)

    found = asyncio.run(scenario())
    assert found[f'{POOL}_refusals_total{{reason="bad_request"}}'] == 1
    assert found[f"{POOL}_where_seconds_count"] == 1
    rules = yaml.safe_load(RULES.read_text())["groups"]
    asked = " ".join(rule["expr"] for group in rules for rule in group["rules"])
    wanted = set(re.findall(rf"{POOL}_\w+", asked))
    assert wanted
    # There is no host of which it could be told that it is reached.
    assert wanted - {f"{POOL}_host_reached"} <= {name.partition("{")[0] for name in found}
