"""What Prometheus reads, and that the dashboard asks for nothing else."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from support.node import RunningNode, until

from jupyter_gpushare.node.metrics import PREFIX

DASHBOARD = Path(__file__).parents[2] / "etc" / "grafana" / "jupyter-gpushare.json"


def samples(port: int) -> dict[str, float]:
    """Everything that is exported now, by name with labels."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith(PREFIX))
    return {name: float(value) for name, value in pairs}


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


def test_grants_are_counted_with_their_waits(tmp_path: Path, port: int) -> None:
    with RunningNode(tmp_path, arguments=[f"--metrics-port={port}"]) as node, node.client() as one:
        one.request()
        count = f'{PREFIX}_wait_seconds_count{{priority_class="interactive"}}'
        until(lambda: samples(port)[count] == 1, "the grant is counted")
        told = samples(port)
        assert told[f'{PREFIX}_wait_seconds_count{{priority_class="batch"}}'] == 0
        assert told[f'{PREFIX}_wait_seconds_bucket{{le="0.1",priority_class="interactive"}}'] == 1


def expressions(panels: list[dict[str, Any]]) -> list[str]:
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_the_dashboard_asks_only_for_what_there_is(tmp_path: Path, port: int) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    with RunningNode(tmp_path, arguments=[f"--metrics-port={port}"]) as node, node.client() as one:
        one.request()
        utilisation = f"{PREFIX}_gpu_utilisation_ratio{{"
        until(
            lambda: any(name.startswith(utilisation) for name in samples(port)),
            "a measured utilisation",
        )
        there = samples(port)
    exported = {name.partition("{")[0] for name in there}
    labels = {
        (name.partition("{")[0], label)
        for name in there
        for label in re.findall(r'[{,](\w+)="', name)
    }
    asked = expressions(dashboard["panels"])
    assert len(asked) > 10
    used: set[str] = set()
    for expression in asked:
        (name,) = set(re.findall(rf"{PREFIX}_\w+", expression))
        used.add(name)
        assert name in exported, expression
        for by in re.findall(r"by \(([^)]*)\)", expression):
            for label in by.split(", "):
                assert (name, label) in labels, expression
    # Nothing that is exported goes unseen.
    known = {re.sub("_(bucket|sum|count|created|total)$", "", name) for name in used}
    for name in exported - {f"{PREFIX}_gpu_memory_bytes"}:
        assert re.sub("_(bucket|sum|count|created|total)$", "", name) in known, name
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)
