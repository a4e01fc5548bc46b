"""What a node manager exports to Prometheus."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from jupyter_gpushare.node.views.metrics import PREFIX


def samples(port: int) -> dict[str, float]:
    """Everything that is exported now, by name with labels."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith(PREFIX))
    return {name: float(value) for name, value in pairs}


@pytest.fixture
def port() -> int:
    """One that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number
