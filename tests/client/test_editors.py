"""A kernel that an editor starts has its GPUs like a notebook's, without any Jupyter server."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from jupyter_client import BlockingKernelClient
from jupyter_client.connect import write_connection_file
from support.node import RunningNode, token_file, until

from jupyter_gpushare.protocol.address import embedded_socket, host_id
from jupyter_gpushare.protocol.messages import Method

WITHIN = 60.0  # seconds; only a test that fails waits so long
CONFIG = "c.Policy.idle_timeout = 0.5\nc.Policy.notify_before = 0\n"


class EditorsKernel:
    """As VS Code starts one: no kernelspec, no server, a connection file of the editor's."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client

    def run(self, code: str, *, silent: bool = False) -> str:
        """What a cell prints; fails where it raises."""
        printed: list[str] = []

        def hear(message: dict[str, object]) -> None:
            content = message["content"]
            assert isinstance(content, dict)
            printed.append(content.get("text", "") or content.get("data", {}).get("text/plain", ""))

        reply = self._client.execute_interactive(
            code, silent=silent, timeout=WITHIN, output_hook=hear, allow_stdin=False
        )
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(printed)


def answers(client: BlockingKernelClient) -> bool:
    try:
        client.kernel_info(reply=True, timeout=1.0)
    except TimeoutError:
        return False
    return True


@contextmanager
def started_by_vscode(home: Path, **more: str) -> Iterator[EditorsKernel]:
    runtime = home / "runtime"
    file = str(runtime / "kernel-v2-7351fh0YlqWZqHqB.json")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JUPYTER", "JPY_", "CUDA_", "PYTEST"))
    }
    environ = {
        **kept,
        **{"HOME": str(home), "IPYTHONDIR": str(home / "ipython")},
        **{"JUPYTER_RUNTIME_DIR": str(runtime), "VSCODE_PID": "4711", "TERM_PROGRAM": "vscode"},
        **more,
    }
    command = [sys.executable, "-m", "ipykernel_launcher", f"--f={file}"]
    with ExitStack() as ends:
        # Editors use TCP, but another process may take a port before the kernel does.
        sockets = ends.enter_context(tempfile.TemporaryDirectory(prefix="kernel-"))
        write_connection_file(file, ip=f"{sockets}/s", transport="ipc")
        kernel = ends.enter_context(subprocess.Popen(command, env=environ, cwd=home))
        client = BlockingKernelClient(connection_file=file)
        try:
            client.load_connection_file()
            client.start_channels()
            until(lambda: answers(client), "the kernel answers")
            yield EditorsKernel(client)
        finally:
            client.stop_channels()
            kernel.kill()


def test_it_gets_a_gpu_is_parked_when_idle_and_comes_back(tmp_path: Path) -> None:
    home = tmp_path / "alice"
    (home / "runtime").mkdir(parents=True)
    known = token_file(tmp_path, "alice", "bob", "root")
    with RunningNode(tmp_path, simulate="1x24GiB", config=CONFIG, arguments=[known]) as node:
        # Nothing tells the kernel where: it looks where node managers are.
        place = Path(embedded_socket(str(home / "runtime"), host_id({})))
        place.symlink_to(node.socket)
        with (
            started_by_vscode(home, JUPYTER_GPUSHARE_TOKEN="alice") as kernel,
            node.client("bob") as bob,
            node.client("root") as root,
        ):

            def state() -> str:
                leases = root.call(Method.STATUS)["leases"]
                return next(one["state"] for one in leases if one["environment"] == "alice")

            # The editor says silently what its notebook is called.
            kernel.run(f"__vsc_ipynb_file__ = {str(home / 'study.ipynb')!r}", silent=True)
            kernel.run("import os, torch; kept = torch.arange(5)")
            assert kernel.run("print(os.environ['CUDA_VISIBLE_DEVICES'])").startswith("GPU-")
            (mine,) = root.call(Method.STATUS)["leases"]
            assert (mine["name"], mine["path"]) == ("study.ipynb", str(home / "study.ipynb"))
            assert "study.ipynb" in kernel.run("%gpushare status"), "in place of the panel"
            waiting = bob.ask()
            until(lambda: state() == "parked", "she is idle and bob waits")
            theirs = bob.wait(waiting)["lease"]
            bob.call(Method.RELEASE, lease=theirs)
            assert kernel.run("print(kept.sum().item())") == "10\n"
            assert kernel.run("print(os.environ['CUDA_VISIBLE_DEVICES'])").startswith("GPU-")
            assert state() in ("active", "idle")
        with node.client("root") as root:
            until(lambda: not root.call(Method.STATUS)["leases"], "the editor was closed")
