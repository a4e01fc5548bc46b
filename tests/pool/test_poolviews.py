"""The pages and Prometheus say of a pool's hosts, groups and people what its state says."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.exporter import samples
from support.hub import free_ports
from support.pool_world import CONFIG, World, gpu, report

from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.pages.hosts import HostState, Own
from jupyter_gpushare.policy.books.table import Map
from jupyter_gpushare.policy.words.model import Quota
from jupyter_gpushare.pool import hubviews
from jupyter_gpushare.pool.answers import PoolAnswers, own_quota
from jupyter_gpushare.pool.configuration import Pool
from jupyter_gpushare.pool.decide import step
from jupyter_gpushare.pool.metrics import PoolMetrics
from jupyter_gpushare.pool.serving import serving
from jupyter_gpushare.pool.state import Drained, Here, Host, Out, State, Used
from jupyter_gpushare.pool.words import commands as cmd, events as ev
from jupyter_gpushare.pool.words.hosts import Environment, Group, Holding
from jupyter_gpushare.protocol.connection import ClientConnection
from jupyter_gpushare.protocol.poolcalls import PoolMethod, parse_pool_call
from jupyter_gpushare.protocol.said import text_of

ALICE, GPU_SERVER, BOB = (Environment(name) for name in ("alice", "alice/gpu", "bob"))
A100 = {"kind": "A100", "memory": 80}
REPORT = report(
    "a",
    gpus=(
        gpu("a", 0, free_memory=80, **A100),
        gpu("a", 1, free=False, share=0, out="its fan", **A100),
    ),
    **{"queue": 2, "expected_wait": 90.0, "talking": ("alice/gpu", "bob")},
)
HOST = Host(
    name="a",
    connected=True,
    report=REPORT,
    here={ALICE: Here(held=1), GPU_SERVER: Here(waiting=1)},
    out=Map({ALICE: Out(gpus=1, why="not said: nothing waits"), GPU_SERVER: Out(why="a has it")}),
)


def test_a_host_is_as_its_report_says() -> None:
    shown = hubviews.host_of(HOST, "")
    assert (shown.state, shown.waiting, shown.expected) == (HostState.PARTLY, 2, (90.0, 90.0))
    assert shown.free == (1, 80)
    assert shown.own == Own(lent=0), "what is one person's is told to that person only"


def test_a_host_says_what_holds_it_and_until_when() -> None:
    texts = [
        hubviews.host_of(replace(HOST, held=held), "").held
        for held in (None, Holding("Slurm", "job 7"), Holding("Slurm", "job 7", 1_796_000_400.0))
    ]
    assert texts == ["", "Slurm job 7", "Slurm job 7 until 2026-11-30 01:00 UTC"]


def test_a_host_that_is_away_keeps_its_kind_and_says_why() -> None:
    away = hubviews.host_of(replace(HOST, connected=False), "no answer")
    assert (away.state, away.problem, away.waiting) == (HostState.AWAY, "no answer", 0)
    assert away.kinds == {"A100"}
    assert hubviews.host_of(Host("a"), "").problem, "also without a reason it is away"


def test_a_drain_of_the_pool_counts_before_the_host_has_heard_of_it() -> None:
    drained = replace(HOST, drain=Drained("new fans", "carol"))
    assert hubviews.host_of(drained, "").state is HostState.OUT
    assert hubviews.host_of(drained, "").drained == "new fans"
    told = replace(HOST, report=replace(REPORT, draining="old driver"))
    assert hubviews.host_of(told, "").drained == "old driver"


def test_a_person_has_what_all_their_servers_have() -> None:
    found = hubviews.owners(HOST)
    assert found["alice"] == Own(held=1, waiting=1, lent=1, talks=True, why="a has it")
    assert found["bob"] == Own(lent=0, talks=True)
    away = hubviews.owners(replace(HOST, connected=False))
    assert "bob" not in away, "nobody knows who talks to a host that is away"
    assert not away["alice"].talks


def test_groups_say_what_they_own_use_borrow_and_leave() -> None:
    state = State(
        groups=Map(
            {
                "a": Group("a", nominal=4, lending=2),
                "b": Group("b", nominal=1, borrowing=3),
                "c": Group("c", nominal=2),
            }
        ),
        used=Map({"a": Used(1), "b": Used(2)}),
    )
    shown = hubviews.pool_groups(state)
    rows = [(one.name, one.own, one.used, one.borrowed, one.unused) for one in shown.rows]
    assert rows == [("a", 4, 1, 0, 2), ("b", 1, 2, 1, 0), ("c", 2, 0, 0, 2)]
    assert shown.text == ("1 GPU of groups' own is lent to other groups. 3 GPUs more may be lent.")
    assert [one.may_borrow for one in shown.rows[:2]] == ["what others lend", "up to 3"]
    said = hubviews.group_text(shown.rows, ("b", "nobody"))
    assert said == "Your group b has 1 GPU of its own and uses 2: 1 is borrowed."
    assert hubviews.group_text(shown.rows, ()) == ""


def test_a_quota_of_all_hosts_is_said_as_one_of_a_host() -> None:
    configured = cmd.ConfigureQuotas(0.0, Quota(gpus=2, gpu_hours=5.0))
    told = own_quota(step(State(), configured, CONFIG).state, ALICE)
    words = {one["about"]: text_of(one, 0.0) for one in told["says"]}
    assert (words["held"], words["budget"]) == ("0 of 2", "0 of 5 lately")
    assert "advice" not in words, "it is of no node, so it does not say that the node has no GPU"


# -- Prometheus ------------------------------------------------------------------------------------

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
    world.do(cmd.LendGpus(world.time, "l", "bob", 1, 600.0, "root", "a"))
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
