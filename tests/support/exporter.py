"""What a node manager exports to Prometheus."""

from __future__ import annotations

import urllib.request

import pytest

from jupyter_gpushare.daemon.families import PREFIX

from .hub import free_ports


def samples(port: int) -> dict[str, float]:
    """Everything that is exported now, by name with labels."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith(PREFIX))
    return {name: float(value) for name, value in pairs}


@pytest.fixture
def port() -> int:
    """One that is free now."""
    return free_ports(1)[0]
