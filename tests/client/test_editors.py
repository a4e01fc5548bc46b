"""A kernel that an editor starts has its GPUs like a notebook's, without any Jupyter server."""

from __future__ import annotations

from pathlib import Path

from support.kernel import Kernel
from support.node import RunningNode, token_file, until

from jupyter_gpushare.protocol.address import embedded_socket, host_id
from jupyter_gpushare.protocol.messages import Method

CONFIG = "c.Policy.idle_timeout = 0.5\nc.Policy.notify_before = 0\n"


def test_it_gets_a_gpu_is_parked_when_idle_and_comes_back(tmp_path: Path) -> None:
    runtime = tmp_path / "alice" / "runtime"
    runtime.mkdir(parents=True)
    notebook = str(runtime.parent / "study.ipynb")
    known = token_file(tmp_path, "alice", "bob", "root")
    with RunningNode(tmp_path, simulate="1x24GiB", config=CONFIG, arguments=[known]) as node:
        # Nothing tells the kernel where: it looks where node managers are.
        Path(embedded_socket(str(runtime), host_id({}))).symlink_to(node.socket)
        # As VS Code starts one.
        file = runtime / "kernel-v2-7351fh0YlqWZqHqB.json"
        vscode = {"VSCODE_PID": "4711", "TERM_PROGRAM": "vscode"}
        with (
            Kernel(
                runtime.parent, None, file=file, JUPYTER_GPUSHARE_TOKEN="alice", **vscode
            ) as kernel,
            node.client("bob") as bob,
            node.client("root") as root,
        ):

            def state() -> str:
                leases = root.call(Method.STATUS)["leases"]
                return next(one["state"] for one in leases if one["environment"] == "alice")

            # The editor says silently what its notebook is called.
            kernel.run(f"__vsc_ipynb_file__ = {notebook!r}", silent=True)
            kernel.ok("import os, torch; kept = torch.arange(5)")
            visible = "print(os.environ['CUDA_VISIBLE_DEVICES'])"
            assert kernel.ok(visible).stream().startswith("GPU-")
            (mine,) = root.call(Method.STATUS)["leases"]
            assert (mine["name"], mine["path"]) == ("study.ipynb", notebook)
            assert "study.ipynb" in kernel.ok("%gpushare status").plain(), "in place of the panel"
            waiting = bob.ask()
            until(lambda: state() == "parked", "she is idle and bob waits")
            theirs = bob.wait(waiting)["lease"]
            bob.call(Method.RELEASE, lease=theirs)
            assert kernel.ok("print(kept.sum().item())").stream() == "10\n"
            assert kernel.ok(visible).stream().startswith("GPU-")
            assert state() in ("active", "idle")
        with node.client("root") as root:
            until(lambda: not root.call(Method.STATUS)["leases"], "the editor was closed")
