"""A lease's ``path`` is enough to open the notebook or script that holds it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from support.jupyter import Home, Kernel, Server, wait_for

REQUEST = """
from jupyter_gpushare.client import request
request(gpus=1, memory="1GiB")
"""


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Home, Server]]:
    with Home.make() as home:
        server = home.serve()
        server.wait_connected()
        yield home, server


@pytest.fixture
def server(place: tuple[Home, Server]) -> Iterator[Server]:
    """A server whose kernels have nothing before a test, and after it."""
    server = place[1]
    yield server
    for kernel in server.api.get("api/kernels").json():
        Kernel(server, kernel["id"]).shutdown()
    wait_for(lambda: not server.gpushare("leases")["leases"], what="all leases to end")


@pytest.fixture
def work(place: tuple[Home, Server]) -> Path:
    """The folder that the server shows."""
    return place[0].work


def write_notebook(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(nbformat.writes(nbformat.v4.new_notebook()))


def only_lease(server: Server) -> dict[str, Any]:
    (lease,) = server.gpushare("leases")["leases"]
    found: dict[str, Any] = lease
    return found


@pytest.mark.parametrize("named", [True, False], ids=["as JupyterLab asks", "without a name"])
def test_the_path_of_a_kernels_lease(server: Server, work: Path, named: bool) -> None:
    """With a name or without, the server tells the kernel where the file is."""
    path = "sub folder/n\u00f6te.ipynb"
    write_notebook(work / path)
    kernel = server.start_kernel(path, **({} if named else {"name": None}))
    kernel.run(REQUEST)
    lease = only_lease(server)
    assert lease["path"] == str(work / path)
    assert lease["name"] == "n\u00f6te.ipynb"
    # Either way it is the same file, and the session of the kernel says where under the root.
    assert (work / lease["path"]).samefile(work / path)
    (session,) = server.api.get("api/sessions").json()
    assert (session["kernel"]["id"], session["path"]) == (lease["kernel_id"], path)


def test_a_kernel_without_a_notebook_has_no_path(server: Server) -> None:
    kernel = server.start_kernel()
    kernel.run(REQUEST)
    lease = only_lease(server)
    assert (lease["path"], lease["kernel_id"]) == (None, kernel.id)


def test_the_path_of_a_scripts_lease_is_absolute(server: Server, work: Path) -> None:
    script = work / "train.py"
    show = "import json, jupyter_gpushare.client as c; print(json.dumps(c.status()['leases']))"
    script.write_text(f"{REQUEST}\n{show}\n")
    kernel = server.start_kernel()
    # Started as a person would in a terminal: by its name, in its folder.
    run = f"[{sys.executable!r}, 'train.py'], cwd={str(work)!r}, capture_output=True"
    printed = kernel.run(f"import subprocess; print(subprocess.run({run}).stdout.decode())")
    (lease,) = json.loads(printed)
    assert (lease["kind"], lease["path"], lease["name"]) == ("process", str(script), "train.py")
