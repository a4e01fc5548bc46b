"""A notebook kernel as jupyterlab-genv starts one: by its provisioner, in its own environment.

``genv_kernel.py MEMORY``: does what the extension's server and the user's ``genv config`` do: makes
the environment for the kernel's id, gives it one device with so much memory, starts the kernel, and
says its pid and id. Runs in the peers' own Python; ends when its input does.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.paths import jupyter_runtime_dir


def genv(*arguments: str) -> None:
    """A command of genv's."""
    subprocess.run(["genv", *arguments], check=True, stdout=subprocess.DEVNULL)


async def main() -> None:
    """Start it, tell, wait."""
    kernel = str(uuid.uuid4())
    uid = str(os.getuid())
    folder = Path(os.environ["JUPYTER_DATA_DIR"], "kernels", "python3-genv")
    folder.mkdir(parents=True)
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python (genv)",
        "language": "python",
        "metadata": {"kernel_provisioner": {"provisioner_name": "genv-provisioner"}},
    }
    (folder / "kernel.json").write_text(json.dumps(spec))
    # A server names the connection file so, and genv looks for it to see that the kernel lives.
    runtime = Path(jupyter_runtime_dir())
    runtime.mkdir(parents=True, exist_ok=True)
    connection = runtime / f"kernel-{kernel}.json"
    connection.write_text("{}")
    genv("envs", "activate", "--eid", kernel, "--uid", uid, "--kernel-id", kernel)
    genv("envs", "config", "--eid", kernel, "gpu-memory", "--gpu-memory", sys.argv[1])
    genv("devices", "attach", "--eid", kernel, "--count", "1")
    connection.unlink()
    manager = AsyncKernelManager(
        kernel_name="python3-genv",
        kernel_spec_manager=KernelSpecManager(ensure_native_kernel=False),
        connection_file=str(connection),
        kernel_id=kernel,
    )
    # The provisioner asks genv for the kernel's devices, and genv looks for this file.
    manager.write_connection_file()
    await manager.start_kernel()
    pid = manager.provisioner.pid
    environ = Path(f"/proc/{pid}/environ").read_text().split("\0")
    visible = [line for line in environ if line.startswith("CUDA_VISIBLE_DEVICES=")]
    print(json.dumps({"kernel": kernel, "pid": pid, "visible": visible}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await manager.shutdown_kernel(now=True)


asyncio.run(main())
