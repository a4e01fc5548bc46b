"""A notebook's kernel starts again on the host that is free, or its person is told why not.

A Jupyter server on one host: real server, real sshd, two nodes.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hosts import Hosts, impossible
from support.jupyter import Home, Kernel, Server, wait_for
from support.sshd import serve_ssh, why_no_ssh

WHY = impossible() or why_no_ssh()
pytestmark = [pytest.mark.story, pytest.mark.skipif(bool(WHY), reason=WHY)]
HERE = socket.gethostname()


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with Home.make() as made:
        yield made


@pytest.fixture(scope="module")
def server(home: Home) -> Iterator[Server]:
    """A server with two pretend GPUs, and a host b that has three."""
    with tempfile.TemporaryDirectory(prefix="gk-") as text, Hosts(("b",), real=True) as hosts:
        folder = Path(text)
        prefix = serve_ssh(hosts["b"], folder)
        hosts["b"].start_node(
            *("--simulate=3x40GiB", "--ledger=/run/ledger.sqlite"),
            "--socket=/run/jupyter-gpushare/node.sock",
        )
        (home.path / "config" / "jupyter_server_config.py").write_text(
            f"c.PoolProvisioner.ssh = {prefix[:-2]!r}\n"
            f"c.PoolProvisioner.destinations = { {'b': prefix[-2]}!r}\n"
        )
        yield home.serve()


def _kernelspec(home: Home) -> None:
    line = [sys.executable, "-m", "jupyter_gpushare.cli", "pool", "kernelspec"]
    said = subprocess.run(line, env=home.environ(), check=True, capture_output=True, text=True)
    assert "'Python 3 · any GPU in the pool'" in said.stdout


def test_a_notebooks_kernel_is_started_again_on_the_host_that_is_free(
    home: Home, server: Server
) -> None:
    server.wait_connected()
    (home.work / "work.ipynb").write_text(
        json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    first = server.start_kernel("work.ipynb")
    assert first.run("x = 1; import os; print(os.uname().nodename)").strip() == HERE
    assert server.gpushare("kernels")["elsewhere"] == []
    # Nobody can put a kernel elsewhere before a kernelspec says how.
    refused = server.api.post(f"gpushare/api/kernels/{first.id}/host", json={"host": "b"})
    assert refused.status_code == 409
    assert "Run `jupyter gpushare pool kernelspec`" in refused.json()["message"]
    assert first.run("print(x)").strip() == "1"
    _kernelspec(home)
    moved = server.api.post(f"gpushare/api/kernels/{first.id}/host", json={"host": "b"})
    assert moved.status_code == 200, f"{moved.text}\n{server.tail()}"
    second = Kernel(server, moved.json()["kernel"])
    (session,) = server.api.get("api/sessions").json()
    assert session["kernel"]["id"] == second.id
    assert session["path"] == "work.ipynb"
    assert first.id not in [one["id"] for one in server.api.get("api/kernels").json()]
    assert second.run("import os; print(os.uname().nodename, os.getcwd())").split() == [
        "b",
        str(home.work),
    ]
    assert server.gpushare("kernels")["elsewhere"] == [
        {"kernel": second.id, "host": "b", "why": "You chose it."}
    ]
    second.run("%load_ext jupyter_gpushare")
    status = second.run(
        "from IPython.utils.capture import capture_output\n"
        "with capture_output() as caught:\n"
        "    get_ipython().run_line_magic('gpushare', 'status')\n"
        "print(caught.outputs[0].data['text/plain'])"
    )
    assert "GPUs of b (simulated)" in status
    assert f"This kernel runs on host b, and its Jupyter server on {HERE}" in status
    assert status.count("Simulated GPU (40 GiB)") == 3
    # A restart stays there, under the same id; and so does one that names the host.
    second.restart()
    wait_for(second.answers, 60, "it runs again")
    again = server.api.post(f"gpushare/api/kernels/{second.id}/host", json={"host": "b"})
    assert again.json() == {"kernel": second.id, "host": "b"}
    wait_for(second.answers, 60, "it runs again")
    assert second.run("import os; print(os.uname().nodename)").strip() == "b"


def test_what_cannot_be_is_said(server: Server) -> None:
    gone = server.api.post("gpushare/api/kernels/none/host", json={"host": "b"})
    assert gone.status_code == 404
    kernel = server.start_kernel()
    for host in ("-oProxyCommand=x", "", 1, None):
        answer = server.api.post(f"gpushare/api/kernels/{kernel.id}/host", json={"host": host})
        assert answer.status_code == 400, answer.text
    with server.anonymous() as anybody:
        assert anybody.post("gpushare/api/kernels/none/host").status_code == 403
