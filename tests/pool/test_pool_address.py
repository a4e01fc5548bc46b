"""The token of a pool that runs with JupyterHub's pages says where hosts reach it."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest
from traitlets.config import Config

from jupyter_gpushare.hub.app import GpuShareHub
from jupyter_gpushare.pool.hubrole import settings_of


@pytest.mark.parametrize(
    ("url", "told", "address"),
    [
        ("http://10.0.0.1:10204", {}, "10.0.0.1"),
        ("http://127.0.0.1:10204", {}, socket.getfqdn()),
        ("http://10.0.0.1:10204", {"address": "pool.example.org"}, "pool.example.org"),
    ],
)
def test_tokens_say_where_hosts_reach_the_pages(
    url: str, told: dict[str, str], address: str
) -> None:
    hub = GpuShareHub(url=url, config=Config({"Pool": told}))
    assert settings_of(hub, urlsplit(url).hostname).address == address
