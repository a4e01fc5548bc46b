"""A kernel whose GPU was given back has one again when it uses one, and says only what helps.

Real kernels over a real node manager with one simulated GPU, which bob may hold.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kernel import Kernel, Shown, shows
from support.node import GIB, NodeClient, RunningNode, until
from support.node_fixtures import running_node

from jupyter_gpushare.protocol.messages import Method

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.2\n"
    "c.Policy.max_tasks_per_gpu = 1\nc.Policy.notify_before = 0.5\nc.Policy.idle_timeout = 0.5\n"
    "c.Policy.heartbeat_timeout = 600.0\n"  # bob, a plain client, gives no sign of life
)
VISIBLE = "import os; print('visible:', os.environ.get('CUDA_VISIBLE_DEVICES'))"
CPU = "visible: "
#: Tells in a file when the kernel has heard that it lost its lease.
WATCH = """
import pathlib
from jupyter_gpushare.client.acquire import broker
def watch(session, hears):
    session._on_lost = lambda *told: (hears(*told), pathlib.Path({path!r}).touch())
watch(broker().line.session, broker()._lost)
"""


node = running_node(simulate="1x24GiB", config=CONFIG, people=("alice", "bob", "root"))


@pytest.fixture
def root(node: RunningNode) -> Iterator[NodeClient]:
    with node.client("root") as client:
        yield client
        until(lambda: not leases(client), "all is given back")


@pytest.fixture
def bob(node: RunningNode, root: NodeClient) -> Iterator[NodeClient]:
    with node.client("bob") as client:
        yield client
        for lease in leases(root, "bob"):
            client.call(Method.RELEASE, lease=lease["id"])


@pytest.fixture
def alice(node: RunningNode, root: NodeClient, tmp_path: Path) -> Iterator[Kernel]:
    modules = tmp_path / "modules"
    modules.mkdir()
    # A framework whose CUDA nobody can look into; it is imported in no time.
    (modules / "cupy.py").write_text("class ndarray: pass\ndef ones(): return ndarray()\n")
    with Kernel(
        tmp_path, node.socket, JUPYTER_GPUSHARE_TOKEN="alice", PYTHONPATH=str(modules)
    ) as kernel:
        yield kernel


def leases(root: NodeClient, who: str = "alice") -> list[dict[str, Any]]:
    """Those that have not ended."""
    found = root.call(Method.STATUS)["leases"]
    return [one for one in found if one["environment"] == who and one["phase"] != "ended"]


def is_in(root: NodeClient, state: str) -> bool:
    return [one["state"] for one in leases(root)] == [state]


def traceback_of(shown: Shown) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(shown.error()["traceback"]))


# -- released: Run All again -----------------------------------------------------------------


@pytest.mark.parametrize("framework", ["torch", "jax"])  # one that shows its first use, one not
def test_run_all_after_a_release_is_run_all_before_it(
    alice: Kernel, root: NodeClient, framework: str
) -> None:
    cells = (f"import {framework}", VISIBLE)
    first = [alice.ok(cell) for cell in cells]
    assert first[1].stream().startswith("visible: GPU-")
    told = alice.ok("%gpushare release").plain()
    assert f"The next cell that uses {framework}" in told  # it may import another one
    assert "asks for a GPU again." in told
    assert leases(root) == []
    assert alice.ok(VISIBLE).stream().strip() == CPU.strip(), "nothing is asked without need"
    assert alice.ok("print(6 * 7)").stream() == "42\n"
    again = [alice.ok(cell) for cell in cells]
    assert again[1].stream() == first[1].stream()
    assert len(leases(root)) == 1


def test_who_releases_it_in_the_panel_is_not_told_so_by_the_next_cell(
    node: RunningNode, alice: Kernel, root: NodeClient, tmp_path: Path
) -> None:
    first = alice.ok("import cupy")
    assert first.plain() == "GPU 0 (24 GiB), simulated", "it says which GPU, once"
    assert first.stream("stderr") == first.stream() == ""
    heard = tmp_path / "heard"
    with node.client("alice") as panel:
        for revoke in (False, True):
            alice.ok(WATCH.format(path=str(heard)))
            (lease,) = leases(root)
            if revoke:
                root.call(Method.LEASE_REVOKE, lease=lease["id"], reason="Enough.")
            else:
                panel.call(Method.RELEASE, lease=lease["id"])
            until(heard.exists, "the kernel hears of it")
            heard.unlink()
            again = alice.ok("x = cupy.ones()")
            assert again.plain() == ""
            said = again.stream("stderr")
            assert ("Enough. A cell that uses cupy asks" in said) is revoke
            assert ("has ended" in said) is revoke
            assert len(leases(root)) == 1


def test_stopping_the_wait_stops_the_cell(alice: Kernel, bob: NodeClient, root: NodeClient) -> None:
    alice.ok("import cupy")
    alice.ok("%gpushare release")
    held = bob.request()["lease"]
    cell = alice.start("import cupy; ran = True")
    shows(alice, cell, "Waiting for GPUs: number 1 in line")
    alice.interrupt()
    error = alice.finish(cell).error()
    why = "You stopped waiting for a GPU, so this cell was not run. `%gpushare cpu` goes on without"
    assert error["evalue"] == f"{why} a GPU."
    assert error["traceback"] == [f"jupyter_gpushare: {why} a GPU."], "one line, no frames of ours"
    assert alice.ok("print('ran' in globals())").stream() == "False\n"
    until(lambda: not root.call(Method.STATUS)["queue"], "she left the queue")
    bob.call(Method.RELEASE, lease=held)
    assert "The cell holds GPU 0" in alice.ok("%%gpushare\n1").stream(), "this one is not barred"
    alice.ok("import cupy")
    assert len(leases(root)) == 1, "and the next one asks again"


def test_a_person_who_does_not_want_to_wait_goes_on_without_a_gpu(
    alice: Kernel, bob: NodeClient, root: NodeClient
) -> None:
    alice.ok("import cupy")
    assert "wait for none" in alice.ok("%gpushare cpu").plain()
    assert leases(root) == [], "what it had is given back"
    held = bob.request()["lease"]
    assert alice.ok(f"import cupy; cupy.ones(); {VISIBLE}").stream().strip() == CPU.strip()
    child = f"import cupy; {VISIBLE}"
    ran = alice.ok(
        f"import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', {child!r}],"
        " text=True))"
    )
    assert ran.stream().strip() == CPU.strip(), "a program that it starts neither"
    assert "goes on without a GPU" in alice.ok("%gpushare status").plain()
    told = alice.ok("%gpushare release").plain()
    assert told.endswith("Cells run without a GPU until `%gpushare request`.")
    bob.call(Method.RELEASE, lease=held)
    assert "now holds GPU 0" in alice.ok("%gpushare request").plain()
    alice.ok("%gpushare release")
    alice.ok("import cupy")
    assert len(leases(root)) == 1, "it asks by itself again"


def test_what_was_requested_once_is_not_asked_by_blocks_nor_by_another_request(
    alice: Kernel, root: NodeClient
) -> None:
    alice.ok("import cupy")
    alice.ok("%gpushare request --memory 8GiB --class batch")
    told = alice.ok("%gpushare release").plain()
    assert "asks for 1 GPU with 8 GiB, class batch again." in told
    assert "That was your last request" in told
    block = "from jupyter_gpushare.client import lease\nwith lease() as grant: print(grant.words)"
    assert "GPU 0 (24 GiB)" in alice.ok(block).stream()
    assert "holds GPU 0 (24 GiB)" in alice.ok("%%gpushare\n1").stream()
    until(lambda: not root.call(Method.STATUS)["gpus"][0]["tasks"], "the GPU is free")
    alice.ok("%gpushare request --class batch")
    assert leases(root)[0]["gpus"][0]["memory"] == 24 * GIB
    alice.ok("%gpushare request --memory 8GiB")
    assert leases(root)[-1]["priority_class"] == "interactive"
    alice.ok("%gpushare release")
    assert "8 GiB of 24 GiB" in alice.ok("%gpushare request").plain(), "it repeats the last one"


# -- between cells ---------------------------------------------------------------------------


def test_nothing_is_written_under_a_cell_that_has_ended(
    alice: Kernel, bob: NodeClient, root: NodeClient
) -> None:
    first = alice.ok("import torch")
    messages = len(first.messages)
    bobs = bob.wait(bob.ask())["lease"]
    assert is_in(root, "parked")
    alice.ok("%gpushare status")  # whatever was written before it has come
    assert first.messages[messages:] == []

    bob.call(Method.RELEASE, lease=bobs)
    alice.ok(VISIBLE)
    (lease,) = leases(root)
    root.call(Method.LEASE_REVOKE, lease=lease["id"], reason="the card burns")
    until(lambda: not leases(root), "it has ended")
    status = alice.ok("%gpushare status")  # it may run already when the kernel hears of it
    assert first.messages[messages:] == []
    told = "the card burns" in status.stream("stderr")
    until(lambda: told or "the card burns" in alice.ok("1 + 1").stream("stderr"), "a cell tells it")
    assert "the card burns" not in alice.ok("2 + 2").stream("stderr"), "once"


# -- what is said ------------------------------------------------------------------------------


def test_stopping_a_wait_leaves_the_queue_and_is_one_line(
    alice: Kernel, bob: NodeClient, root: NodeClient
) -> None:
    held = bob.request()["lease"]
    for code, said in (
        ("import os\nimport cupy", "you stopped waiting.*`import cupy` was not run"),
        ("from jupyter_gpushare.client import request\nrequest()", "you stopped waiting for GPUs"),
        ("%gpushare request --gpus 1", "left the queue, no GPU was taken. `%gpushare cpu`"),
    ):
        cell = alice.start(code)
        shows(alice, cell, "Waiting for GPUs: number 1 in line")
        alice.interrupt()
        error = alice.finish(cell).error()
        assert error["ename"] == "KeyboardInterrupt"
        assert re.match(f"KeyboardInterrupt: {said}", traceback_of(cell)), code
        assert len(error["traceback"]) == 1
        assert cell.stream("stderr") == ""
        last = cell.of("update_display_data")[-1]
        assert last["data"]["text/plain"].startswith("Stopped waiting")
        until(lambda: not root.call(Method.STATUS)["queue"], "the queue is empty")
    alice.ok("%gpushare release")
    bob.call(Method.RELEASE, lease=held)
    alice.ok("import cupy")
    assert len(leases(root)) == 1, "and it can be imported again"


def test_an_error_shows_no_frames_of_ours(alice: Kernel, tmp_path: Path) -> None:
    (tmp_path / "modules" / "mxnet.py").write_text("def load():\n    1 / 0\nload()\n")
    for mode in ("Context", "Plain", "Verbose"):
        alice.ok(f"%xmode {mode}")
        error = traceback_of(alice.run("import mxnet"))
        assert "mxnet.py" in error, mode
        assert "in load" in error, mode
        assert "jupyter_gpushare" not in error, mode
        assert "importlib" not in error, mode
    alice.ok("%xmode Context")
    alice.ok("from jupyter_gpushare.client import gpu, lease, request")
    for slip in (
        *("request(memory='8')", "with lease(memory=8): pass"),
        "@gpu(memory='8')\ndef f(): pass",
    ):
        trace = traceback_of(alice.run(f"'a line'\n{slip}"))
        assert trace.splitlines()[-1].endswith("Did you mean 8GiB?")
        assert "----> 2 " in trace, "the person's line alone"
        assert "sizes.py" not in trace
        assert "api.py" not in trace


# -- programs ----------------------------------------------------------------------------------


def started(node: RunningNode, folder: Path, code: str, **env: str) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(code)
    (folder / "cupy.py").write_text("")
    node_of = {"JUPYTER_GPUSHARE_SOCKET": os.fspath(node.socket), "JUPYTER_GPUSHARE_TOKEN": "alice"}
    return subprocess.Popen(
        [sys.executable, str(folder / "train.py")],
        env={**os.environ, **node_of, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "code",
    [
        "def main():\n    import cupy\nmain()\n",
        "from jupyter_gpushare.client import lease\ndef main():\n    with lease(): pass\nmain()\n",
    ],
)
def test_ctrl_c_in_a_program_shows_where_it_was_and_why(
    node: RunningNode, bob: NodeClient, root: NodeClient, tmp_path: Path, code: str
) -> None:
    bob.request()
    with started(node, tmp_path, code) as running:
        until(lambda: root.call(Method.STATUS)["queue"], "it waits")
        running.send_signal(signal.SIGINT)
        out, said = running.communicate(timeout=60)
    assert out == ""
    assert running.returncode == -signal.SIGINT, "as Ctrl-C ends any program"
    trace = said[said.index("Traceback") :].splitlines()
    assert trace[0] == "Traceback (most recent call last):"
    assert [line for line in trace if line.startswith("  File")] == [
        f'  File "{tmp_path}/train.py", line {len(code.splitlines())}, in <module>',
        f'  File "{tmp_path}/train.py", line {len(code.splitlines()) - 1}, in main',
    ]
    assert trace[-1].startswith("KeyboardInterrupt: you stopped waiting for ")


def test_a_refusal_in_a_program_says_what_works_there(node: RunningNode, tmp_path: Path) -> None:
    code, wish = "import os\nimport cupy\n", {"JUPYTER_GPUSHARE_GPUS": "5"}
    with started(node, tmp_path, code, JUPYTER_GPUSHARE_FALLBACK="error", **wish) as running:
        _, said = running.communicate(timeout=60)
    files = [line for line in said.splitlines() if line.startswith("  File")]
    assert files == [f'  File "{tmp_path}/train.py", line 2, in <module>']
    assert "QuotaExceeded: " in said.splitlines()[-1]
    assert running.returncode == 1
    with started(node, tmp_path, code, **wish) as running:
        _, said = running.communicate(timeout=60)
    assert "%gpushare" not in said
    assert "Starting the program again tries again" in said
    with started(node, tmp_path, "import cupy\nprint('done')\n") as running:
        assert running.communicate(timeout=60) == ("done\n", "")
