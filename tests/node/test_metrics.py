"""Prometheus reads what really happened, and the dashboard asks for nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings, strategies as st
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector
from support.exporter import samples
from support.hub import free_ports
from support.loop import soon
from support.node import GIB, RunningNode, token_file, until
from support.policy_world import task

from jupyter_gpushare.daemon import metricsport
from jupyter_gpushare.daemon.families import PREFIX
from jupyter_gpushare.node.views.environment_metrics import (
    OTHERS,
    EnvironmentMetrics,
)
from jupyter_gpushare.node.views.metrics import Moves
from jupyter_gpushare.policy.books.state import Lease, State
from jupyter_gpushare.policy.books.table import Map
from jupyter_gpushare.policy.words.events import EVENTS, Event
from jupyter_gpushare.policy.words.model import (
    Activity,
    Allocation,
    LeasePhase,
    Request,
)
from jupyter_gpushare.protocol.messages import Method, Notice

BY_PERSON = f"{PREFIX}_environment"
ETC = Path(__file__).parents[2] / "etc"
DASHBOARD = ETC / "grafana" / "jupyter-gpushare.json"
RULES = ETC / "prometheus" / "jupyter-gpushare.rules.yml"


@contextlib.contextmanager
def exporting(
    directory: Path, port: int, *arguments: str, config: str = ""
) -> Iterator[RunningNode]:
    """A node manager of one GPU that tells its metrics."""
    told = [f"--metrics-port={port}", *arguments]
    with RunningNode(directory, simulate="1x24GiB", config=config, arguments=told) as node:
        yield node


def test_hundreds_who_open_it_and_say_nothing_keep_nobody_out(tmp_path: Path, port: int) -> None:
    with exporting(tmp_path, port) as node:
        threads = len(os.listdir(f"/proc/{node.pid}/task"))
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
        for wire in silent[::2]:
            with contextlib.suppress(OSError):
                wire.sendall(b"GET /metrics HTTP/1.1\r\nX-")
        assert samples(port)
        assert len(os.listdir(f"/proc/{node.pid}/task")) <= threads + 1
        for wire in silent:
            wire.close()
        assert node.status()["node"]


async def test_a_flood_of_it_is_taken_a_few_at_a_time_and_each_asks_once(port: int) -> None:
    registry, loop = CollectorRegistry(), asyncio.get_running_loop()
    made, turn, in_turn = 0, 0, Counter[int]()

    class Made(Collector):
        def collect(self) -> list[Metric]:
            nonlocal made
            made += 1
            return []

    registry.register(Made())
    made = 0  # it is asked when it is registered, too
    server = metricsport.serve(registry, "127.0.0.1", port)
    takes = server.handle_stream

    def count(stream: Any, address: Any) -> None:
        in_turn[turn] += 1
        takes(stream, address)

    def tick() -> None:
        nonlocal turn
        turn += 1
        if in_turn.total() < 40:
            loop.call_soon(tick)

    server.handle_stream = count  # type: ignore[method-assign]

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n" * 3)
        said = await reader.read()
        writer.close()
        return said

    tick()
    async with asyncio.timeout(60):
        said = await asyncio.gather(*(ask() for _ in range(40)))
    assert all(one.count(b"200 OK") == 1 for one in said)
    assert in_turn.total() == 40
    assert max(in_turn.values()) <= 4
    assert made < 20
    server.stop()
    await server.close_all_connections()


async def test_a_user_of_this_host_is_one_from_whatever_address(port: int) -> None:
    """Else each of millions of loopback addresses would have a place of its own."""

    server = metricsport.serve(CollectorRegistry(), "127.0.0.1", port)
    with contextlib.ExitStack() as stack:
        for number in range(1, 4):
            source = (f"127.3.2.{number}", 0)
            wire = socket.create_connection(("127.0.0.1", port), 20, source)
            stack.enter_context(wire)
        await soon(lambda: len(server._open) >= 3)
        assert set(server._open.values()) == {f"user {os.getuid()} of this host"}
    server.stop()
    await server.close_all_connections()


PARKING = (
    "c.NodeManagerApp.measure_interval = 0.2\nc.Policy.max_tasks_per_gpu = 1\n"
    "c.Policy.notify_before = 0.0\nc.Policy.idle_timeout = 0.3\nc.Policy.park_when = 'always'\n"
)


def test_parked_memory_is_told_by_rung_and_its_moves_are_timed(tmp_path: Path, port: int) -> None:
    with exporting(tmp_path, port, config=PARKING) as node, node.client() as one:
        lease = one.request(kernel_id="k")["lease"]
        one.call(Method.ACTIVITY, lease=lease, state="idle")
        one.wait_notice(Notice.RECALL)
        moved = 64 * 2**20
        one.call(
            Method.PARKED, lease=lease, rung="driver", memory=moved, movable="any", seconds=1.5
        )
        # A scrape may come between the books and what is counted of their changes.
        bytes_ = f'{PREFIX}_parked_bytes{{rung="driver"}}'
        out = f'{PREFIX}_parking_copied_bytes_total{{direction="out"}}'
        told = until(
            lambda: (now := samples(port))[out] and now[bytes_] and now, "its memory is parked"
        )
        assert told[out] == moved
        assert told[bytes_] == moved
        assert told[f'{PREFIX}_parked_bytes{{rung="storage"}}'] == 0
        assert told[f"{PREFIX}_parked_limit_bytes"] > moved
        assert told[f'{PREFIX}_parking_copy_seconds_sum{{direction="out"}}'] == 1.5
        one.call(Method.RESUME, lease=lease)
        one.call(Method.RESTORED, lease=lease, seconds=0.5)
        back = f'{PREFIX}_parking_copied_bytes_total{{direction="back"}}'
        told = until(
            lambda: (now := samples(port))[back] and not now[bytes_] and now, "its memory is back"
        )
        assert told[back] == moved
        assert told[f'{PREFIX}_parking_copy_seconds_sum{{direction="back"}}'] == 0.5
        assert told[f'{PREFIX}_park_seconds_count{{rung="driver"}}'] == 1
        assert told[f"{PREFIX}_resume_seconds_count"] == 1
        assert told[f'{PREFIX}_leases{{state="parked"}}'] == 0


def test_who_waits_is_counted_by_class_and_the_longest_wait_told(tmp_path: Path, port: int) -> None:
    config, people = "c.Policy.max_tasks_per_gpu = 1\n", token_file(tmp_path, "alice", "bob")
    with (
        exporting(tmp_path, port, people, config=config) as node,
        node.client("alice") as alice,
        node.client("bob") as bob,
    ):
        alice.request()
        assert samples(port)[f"{PREFIX}_queue_oldest_seconds"] == 0
        bob.ask(priority_class="batch")
        bob.wait_notice(Notice.QUEUED)
        told = until(
            lambda: (now := samples(port))[f"{PREFIX}_queue_oldest_seconds"] > 0 and now, "it waits"
        )
        assert told[f'{PREFIX}_queue_requests{{priority_class="batch"}}'] == 1
        assert told[f'{PREFIX}_queue_requests{{priority_class="interactive"}}'] == 0
        assert told[f"{PREFIX}_connections"] == 2
        named = [name for name in told if "environment" in name or "alice" in name]
        assert not named, "nobody is named unless the administrator asks for it"


def test_grants_decisions_and_refusals_are_counted(tmp_path: Path, port: int) -> None:
    with exporting(tmp_path, port) as node, node.client() as one:
        count = f'{PREFIX}_decision_seconds_count{{durable="%s"}}'
        before = samples(port)
        lease = one.request()["lease"]
        for _ in range(10):
            one.call(Method.HEARTBEAT, lease=lease)

        enough = before[count % "no"] + 10
        after = until(lambda: (now := samples(port))[count % "no"] >= enough and now, "decisions")
        assert after[count % "yes"] >= before[count % "yes"] + 1
        assert after[f"{PREFIX}_measured_age_seconds"] < 60
        for kind, granted in (("interactive", 1), ("batch", 0)):
            assert after[f'{PREFIX}_wait_seconds_count{{priority_class="{kind}"}}'] == granted
        at_once = f'{PREFIX}_wait_seconds_bucket{{le="0.1",priority_class="interactive"}}'
        assert after[at_once] == 1
        for gpus in (99, 98):
            reason = one.turned_away(gpus=gpus).reason.value
        one.refused(Method.HEARTBEAT, lease="no such lease")
        times = {reason: 2, "unknown_lease": 1, "not_allowed": 0}

        def refusals() -> dict[str, float]:
            told = samples(port)
            return {one: told[f'{PREFIX}_refusals_total{{reason="{one}"}}'] for one in times}

        until(lambda: refusals() == times, "refusals are counted by reason")


def test_a_task_without_a_sign_of_life_is_counted(tmp_path: Path, port: int) -> None:
    config = "c.Policy.heartbeat_timeout = 0.3\nc.Policy.restart_grace = 0.0\n"
    config += "c.NodeManagerApp.measure_interval = 0.2\n"
    with exporting(tmp_path, port, config=config) as node, node.client() as one:
        one.request()
        stalls, ended = f"{PREFIX}_leases_stalled_total", f"{PREFIX}_leases_ended_total"
        until(lambda: samples(port)[stalls] == 1, "the task is stalled")
        until(lambda: samples(port)[f'{ended}{{reason="heartbeat_lost"}}'] == 1, "it expires")


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """All that is told of a node with a lease, people by name too."""
    config, (port,) = "c.NodeManagerApp.metrics_environments = 9", free_ports(1)
    utilisation = f"{PREFIX}_gpu_utilisation_ratio{{"

    folder = tmp_path_factory.mktemp("node")
    with exporting(folder, port, config=config) as node, node.client() as one:
        task = {"name": "demo", "kind": "server"}
        lease = one.wait(one.send(Method.REQUEST, task=task, keeper=True))["lease"]
        for sleeps in (5, 7):
            told_of_it = {"address": "http://127.0.0.1:8000", "held": 2, "wake_seconds": 1.5}
            one.call(Method.SERVING, lease=lease, sleeps=sleeps, **told_of_it)

        def told() -> dict[str, float] | None:
            now = samples(port)
            return now if any(name.startswith(utilisation) for name in now) else None

        return until(told, "a measured utilisation")


def test_what_servers_do_is_told_by_environment(there: dict[str, float]) -> None:
    figures = {
        name.removeprefix(f"{BY_PERSON}_server_").partition("{")[0]: value
        for name, value in there.items()
        if name.startswith(f"{BY_PERSON}_server_") and "_created" not in name
    }
    # How often it slept before it was first heard of was counted then.
    assert figures == {"requests_held": 2, "wake_seconds": 1.5, "sleeps_total": 2}


def test_the_alert_rules_ask_only_for_what_there_is(there: dict[str, float]) -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    # Those of a pool: tests/pool/test_poolviews.py.
    rules = [x for group in groups for x in group["rules"] if f"{PREFIX}_pool_" not in x["expr"]]
    names = {name.partition("{")[0] for name in there}
    values = {
        (name.partition("{")[0], label, value)
        for name in there
        for label, value in re.findall(r'[{,](\w+)="([^"]*)"', name)
    }
    assert len({rule["alert"] for rule in rules}) == len(rules) > 8
    for rule in rules:
        asked = rule["expr"]
        assert asked.count("(") == asked.count(")")
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description"}
        ours = set(re.findall(rf"{PREFIX}_\w+", asked))
        assert ours or asked.startswith("up{"), asked
        assert ours <= names, asked
        for name, matchers in re.findall(rf"({PREFIX}_\w+)\{{([^}}]*)\}}", asked):
            for label, value in re.findall(r'(\w+)=~?"([^"]*)"', matchers):
                for each in value.split("|"):
                    assert (name, label, each) in values, asked
        # Every alert is explained where an operator looks.
        page = (ETC.parent / "docs" / "troubleshooting.md").read_text("utf-8")
        assert f"`{rule['alert']}`" in page, rule["alert"]


def test_the_dashboard_asks_only_for_what_there_is(there: dict[str, float]) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    exported = {name.partition("{")[0] for name in there}
    labels = {
        (name.partition("{")[0], label)
        for name in there
        for label in re.findall(r'[{,](\w+)="', name)
    }
    panels = dashboard["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(asked) > 10
    used: set[str] = set()
    for expression in asked:
        (name,) = set(re.findall(rf"{PREFIX}_\w+", expression))
        used.add(name)
        assert name in exported, expression
        for by in re.findall(r"by \(([^)]*)\)", expression):
            for label in by.split(", "):
                assert label == "instance" or (name, label) in labels, expression
    # Nothing that is exported goes unseen.
    known = {re.sub("_(bucket|sum|count|created|total)$", "", name) for name in used}
    for name in exported - {f"{PREFIX}_gpu_memory_bytes"}:
        assert re.sub("_(bucket|sum|count|created|total)$", "", name) in known, name
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len({panel["id"] for panel in panels}) == len(panels)


LEASES = st.sampled_from(["a", "b"])
ABOUT_LEASES = [kind for kind in EVENTS.values() if "lease" in kind.__dataclass_fields__]


@settings(max_examples=50)
@given(st.lists(st.one_of([st.builds(kind, lease=LEASES) for kind in ABOUT_LEASES]), max_size=12))
def test_no_order_of_events_can_trouble_the_manager_by_being_timed(events: list[Event]) -> None:
    moves = Moves(CollectorRegistry())
    for event in events:
        moves.heard(event, State())


def test_verdicts_are_told_counted_and_kept_over_a_restart(tmp_path: Path, port: int) -> None:
    kept = f'{PREFIX}_promises_total{{reason="",verdict="kept"}}'
    # This GPU is not used by turns, so no share of it can be given.
    missed = f'{PREFIX}_promises_total{{reason="no_turns",verdict="missed"}}'
    with RunningNode(tmp_path, arguments=[f"--metrics-port={port}"]) as node:
        with node.client() as one:
            lease = one.request()["lease"]
            one.call(Method.PROMISE, lease=lease, deadline=600)
            one.call(Method.PROGRESS, lease=lease, done=3, total=3, seconds=0.1)
            assert samples(port)[f'{PREFIX}_promises_open{{state="on_time"}}'] == 1
            one.call(Method.PROMISE, lease=lease)
            assert node.status()["leases"][0].get("promise") is None
            until(lambda: samples(port).get(kept) == 1, "it was kept")
            one.wait_notice(Notice.PROMISE, where=lambda told: told["state"] == "kept")
            one.call(Method.PROMISE, lease=lease, deadline=0.1)
            told = one.wait_notice(Notice.PROMISE, where=lambda told: told["state"] == "missed")
            assert (told["named"], told["left"] < 0) == (True, True)
            assert node.status()["leases"][0]["promise"]["state"] == "missed"
            one.call(Method.PROMISE, lease=lease)
            until(lambda: samples(port).get(missed) == 1, "it was missed")
        verdicts = node.status()["promises"]
        assert (verdicts["kept"], verdicts["missed"], verdicts["ended"]) == (1, 1, 0)
        assert verdicts["why"] == [{"why": "no_turns", "missed": 1}]
        node.restart()
        assert node.status()["promises"] == verdicts


# -- by person -------------------------------------------------------------------------------------

PEOPLE = ("alice", "bob", "carol")
TWO_NAMED = """
c.Quotas.default = {"gpus": 1, "memory": "8GiB"}
c.Policy.max_tasks_per_gpu = 1
c.NodeManagerApp.metrics_environments = 2
"""


def test_figures_by_environment_agree_with_usage(tmp_path: Path, port: int) -> None:
    more = {"people": PEOPLE, "arguments": [f"--metrics-port={port}"]}

    def told(name: str, who: str) -> float:
        return samples(port).get(f'{BY_PERSON}_{name}{{environment="{who}"}}', -1.0)

    def seconds(name: str) -> float:
        return told(f"gpu_seconds_{name}_total", "alice")

    with RunningNode(tmp_path, simulate="2x24GiB", config=TWO_NAMED, **more) as node:
        alice, bob, carol = map(node.client, PEOPLE)
        lease = alice.request(kernel_id="k")["lease"]
        bob.request()
        carol.ask()
        until(lambda: told("requests", OTHERS) == 1.0, "carol waits, one of the others")
        assert (told("gpus", "alice"), told("gpus", OTHERS)) == (1, 0)
        assert told("reserved_bytes", "bob") == 8 * GIB
        assert not [name for name in samples(port) if "carol" in name]

        begun = seconds("held")
        alice.call(Method.ACTIVITY, lease=lease, state="idle")
        # Who asks often gets the last answer again: a new one is one that was made since.
        until(lambda: seconds("held") > begun, "figures from after the call")
        stays = seconds("busy")
        until(lambda: seconds("held") > stays + 0.3, "it holds on")
        assert seconds("busy") == stays
        alice.call(Method.RELEASE, lease=lease)
        until(lambda: told("gpus", OTHERS) == 1, "carol's")
        (row,) = [r for r in alice.call(Method.USAGE)["rows"] if r["environment"] == "alice"]
        held = seconds("held")
        assert held == pytest.approx(row["gpu_seconds_held"], abs=0.1)
        assert seconds("busy") == pytest.approx(row["gpu_seconds_busy"], abs=0.1)
        assert seconds("charged") == held, "nobody takes turns here"
        for resident in (told("resident_gib_seconds_total", "alice"), row["resident_gib_seconds"]):
            assert resident == pytest.approx(8 * held, rel=0.2, abs=2.0)


@settings(max_examples=100)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(LeasePhase), st.sampled_from(Activity), st.integers(0, 5)),
        max_size=40,
    ),
    seconds=st.lists(st.floats(0, 9), min_size=40, max_size=40),
)
def test_all_seconds_are_somebodys(
    steps: list[tuple[LeasePhase, Activity, int]], seconds: list[float]
) -> None:
    """Whatever comes in which order: labels are bounded, and no second is lost or told twice."""
    now = 0.0
    leases: dict[str, Lease] = {}
    held = busy = 0.0
    metrics = EnvironmentMetrics(2, State(), lambda: now)
    for (phase, activity, number), passed in zip(steps, seconds, strict=False):
        now += passed
        working = [one for one in leases.values() if one.phase is LeasePhase.HELD]
        held += passed * 2 * len(working)
        busy += passed * 2 * sum(one.activity is Activity.BUSY for one in working)
        name, who = f"L{number % 4}", f"user-{number}"
        if name in leases:
            who = leases[name].environment
        parts = (Allocation("GPU-0", 1), Allocation("GPU-1", 1))
        leases[name] = Lease(
            name, who, task(number), Request(2), number, now, phase, activity, allocations=parts
        )
        metrics.changed(State(leases=Map(leases)), now)
    families = {family.name: family for family in metrics.collect(State())}
    told = families[f"{BY_PERSON}_gpu_seconds_held"].samples
    used = families[f"{BY_PERSON}_gpu_seconds_busy"].samples
    assert sum(sample.value for sample in told) == pytest.approx(held)
    assert sum(sample.value for sample in used) == pytest.approx(busy)
    assert all(u.value <= t.value + 1e-6 for t, u in zip(told, used, strict=True))
    assert len(told) <= 3
