"""Kernels and terminals find the node manager and their wishes; the server itself takes no GPU."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import given, strategies as st
from support.jupyter import Home, Kernel, Server, wait_for

from jupyter_gpushare.server.kernelenv import _may_be_notebook, notebook_wishes

MANAGERS = "jupyter_server.services.kernels.kernelmanager"


def variables(kernel: Kernel) -> dict[str, str]:
    """Return the kernel's variables of ours."""
    code = (
        "import os, json; print(json.dumps({k: v for k, v in os.environ.items() "
        "if k.startswith('JUPYTER_GPUSHARE_')}))"
    )
    return json.loads(kernel.run(code))


def write_notebook(path: Path, metadata: dict[str, Any]) -> None:
    notebook = nbformat.v4.new_notebook(metadata={"gpushare": metadata} if metadata else {})
    path.write_text(nbformat.writes(notebook))


@pytest.fixture
def socket_arguments(home: Home) -> tuple[str, ...]:
    """A server that has a node manager's socket configured, whether or not one serves it."""
    return ("--GpuShareExtension.embed=never", f"--GpuShareExtension.socket={home.path}/n.sock")


@pytest.mark.parametrize("manager", ["AsyncMappingKernelManager", "MappingKernelManager"])
def test_kernels_know_socket_and_id_over_restarts(
    home: Home, socket_arguments: tuple[str, ...], manager: str
) -> None:
    server = home.serve(
        *socket_arguments,
        f"--ServerApp.kernel_manager_class={MANAGERS}.{manager}",
        "--GpuShareExtension.fallback=error",
        "--GpuShareExtension.wait_timeout=7",
        environ=home.environ(JUPYTER_GPUSHARE_ACQUIRE="first-use", KEPT="yes"),
        simulate=None,
    )
    kernel = server.start_kernel()
    expected = {
        "JUPYTER_GPUSHARE_SOCKET": f"{home.path}/n.sock",
        "JUPYTER_GPUSHARE_SET_IN": f"|{home.path}/n.sock",
        "JUPYTER_GPUSHARE_KERNEL_ID": kernel.id,
        "JUPYTER_GPUSHARE_FALLBACK": "error",
        "JUPYTER_GPUSHARE_WAIT_TIMEOUT": "7",
        "JUPYTER_GPUSHARE_ACQUIRE": "first-use",
    }
    expected["JUPYTER_GPUSHARE_NOTEBOOK_SOCKET"] = variables(kernel)[
        "JUPYTER_GPUSHARE_NOTEBOOK_SOCKET"
    ]
    assert variables(kernel) == expected
    assert kernel.run("import os; print(os.environ['KEPT'])") == "yes\n"

    before = kernel.pid()
    kernel.restart()
    assert kernel.pid() != before
    assert variables(kernel) == expected

    dead = kernel.pid()
    os.kill(dead, signal.SIGKILL)
    wait_for(lambda: not alive(dead), what="the kernel's end")
    wait_for(kernel.answers, 60, "the automatic restart")
    assert variables(kernel) == expected

    other = server.start_kernel()
    assert variables(other)["JUPYTER_GPUSHARE_KERNEL_ID"] == other.id != kernel.id


def test_another_packages_framework_is_watched_in_kernels(home: Home, tmp_path: Path) -> None:
    """A real installed distribution: a module, its adapter and the entry point, nothing more."""
    site = tmp_path / "site"
    metadata = site / "theirs-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[jupyter_gpushare.adapters]\ntheirs = theirs_adapter:Adapter\n"
    )
    (site / "theirs.py").write_text("import os\nGPUS = os.environ.get('CUDA_VISIBLE_DEVICES')\n")
    (site / "theirs_adapter.py").write_text(ADAPTER)
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    server = home.serve("--GpuShareExtension.embed=always", environ=home.environ(PYTHONPATH=path))
    server.wait_connected()
    kernel = server.start_kernel()
    assert variables(kernel)["JUPYTER_GPUSHARE_FRAMEWORKS"] == "theirs"
    assert "GPU-" in kernel.run("import theirs; print(theirs.GPUS)", within=60)


ADAPTER = """
class Adapter:
    name, catches_first_use = "Theirs", False
    def before(self, grant): pass
    def after(self, module, grant): pass
    def cuda_started(self, module): return False
    def first_use(self, module, acquire, expected): pass
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_notebooks_wishes_reach_its_kernel_and_terminals_know_the_socket(
    home: Home, socket_arguments: tuple[str, ...]
) -> None:
    server = home.serve(*socket_arguments, "--GpuShareExtension.fallback=error", simulate=None)
    (home.work / "sub").mkdir()
    path = home.work / "sub" / "train.ipynb"
    write_notebook(path, {"gpus": 2, "memory": "8GiB", "class": "batch", "secret": "x"})
    kernel = server.start_kernel("sub/train.ipynb")
    assert json.loads(variables(kernel)["JUPYTER_GPUSHARE_NOTEBOOK"]) == {
        "gpus": 2,
        "memory": "8GiB",
        "class": "batch",
    }

    # Edited and restarted: the new wishes count, also when they are gone.
    write_notebook(path, {})
    kernel.restart()
    assert json.loads(variables(kernel)["JUPYTER_GPUSHARE_NOTEBOOK"]) == {}

    # A notebook that cannot be read is no reason not to start its kernel.
    (home.work / "broken.ipynb").write_text("{")
    broken = server.start_kernel("broken.ipynb")
    assert variables(broken)["JUPYTER_GPUSHARE_KERNEL_ID"] == broken.id
    assert "JUPYTER_GPUSHARE_NOTEBOOK" not in variables(broken)

    answer = server.api.post("api/terminals")
    assert answer.status_code == 200, answer.text
    said = terminal_says(
        server,
        answer.json()["name"],
        'echo "=$JUPYTER_GPUSHARE_SOCKET,$JUPYTER_GPUSHARE_FALLBACK="',
    )
    assert f"={home.path}/n.sock,error=" in said


def test_without_a_node_manager_kernels_get_nothing(home: Home) -> None:
    server = home.serve("--GpuShareExtension.embed=never", simulate=None)
    assert variables(server.start_kernel()) == {}


def terminal_says(server: Server, name: str, command: str) -> str:
    """Type ``command`` and return what the terminal shows, up to the ``=…=`` it prints."""
    socket = server.websocket(f"terminals/websocket/{name}")
    said = ""
    try:
        socket.send(json.dumps(["stdin", command + "\r"]))
        while "error=" not in said:
            kind, *rest = json.loads(socket.recv())
            if kind == "stdout":
                said += rest[0]
    finally:
        socket.close()
    return said


@pytest.mark.parametrize(
    ("path", "kind", "is_one"),
    [
        ("a.ipynb", "notebook", True),
        ("a", "notebook", True),
        ("a.ipynb", None, True),  # as an old front end says it
        ("a.py", None, False),
        ("a.ipynb", "console", False),
        (None, "notebook", False),
    ],
)
def test_what_may_be_a_notebook(path: object, kind: object, is_one: bool) -> None:
    assert _may_be_notebook(path, kind) is is_one


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["gpus", "memory", "class", "reserve", "other"]), json_values)
    | json_values
)
def test_any_metadata_gives_a_small_json_object_or_nothing(gpushare: Any) -> None:
    text = notebook_wishes({"gpushare": gpushare})
    if text is None:
        return
    assert len(text) < 4096
    wishes = json.loads(text, parse_constant=pytest.fail)
    assert set(wishes) <= {"gpus", "memory", "class", "reserve"}
    assert all(isinstance(v, int | float | str) for v in wishes.values())
    assert not any(isinstance(v, bool) for v in wishes.values())


# -- handlers of other extensions ------------------------------------------------------------------

EXTENSION = """
import asyncio, os
from jupyter_server.base.handlers import JupyterHandler
from tornado.web import authenticated

class Handler(JupyterHandler):
    @authenticated
    async def get(self, what):
        if what == "import":
            import caffe
            await asyncio.to_thread(__import__, "mxnet")
        else:
            from jupyter_gpushare.client import request
            await asyncio.to_thread(request)
        self.finish(os.environ.get("JUPYTER_GPUSHARE_LEASE", "none"))

def _jupyter_server_extension_points():
    return [{"module": "assistant"}]

def _load_jupyter_server_extension(app):
    app.web_app.add_handlers(".*$", [(app.base_url + "assistant/(.*)", Handler)])
"""
LEASE = "import caffe, os; print(os.environ.get('JUPYTER_GPUSHARE_LEASE'))"


def test_a_handler_takes_no_gpu_and_no_kernel_joins_its_server(home: Home) -> None:
    site = home.path / "site"
    site.mkdir()
    (site / "assistant.py").write_text(EXTENSION)
    for name in ("caffe", "mxnet"):
        (site / f"{name}.py").touch()
    path = os.pathsep.join([os.fspath(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    enabled = {"jupyter_gpushare": True, "assistant": True, "jupyterlab": False}
    server = home.serve(
        f"--ServerApp.jpserver_extensions={enabled}",
        "--GpuShareExtension.embed=always",
        enabled_by_hand=False,
        environ=home.environ(PYTHONPATH=path),
    )
    server.wait_connected()
    assert server.api.get("assistant/import").text == "none"
    assert server.gpushare("status")["leases"] == []
    assert "`import caffe` asked for no GPU. A server's event loop asks" in server.tail(200)

    kernel = server.start_kernel()
    first = kernel.run(LEASE).strip()
    assert [lease["id"] for lease in server.gpushare("status")["leases"]] == [first]

    # What a handler asks for in so many words it gets, and keeps for itself.
    its = server.api.get("assistant/request").text
    second = server.start_kernel().run(LEASE).strip()
    held = {lease["id"] for lease in server.gpushare("status")["leases"]}
    assert held == {first, its, second}
    assert len(held) == 3
