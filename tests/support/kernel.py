"""A real ipykernel with a plain front end, which keeps what a notebook would show."""

from __future__ import annotations

import os
import queue
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client import BlockingKernelClient, KernelManager

from .node import until

WITHIN = 120.0  # seconds; only a test that fails waits so long


@dataclass
class Shown:
    """What one cell has shown so far. ``displays`` is by display id, newest last."""

    msg_id: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    reply: dict[str, Any] | None = None
    idle: bool = False

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The contents of all messages of one kind, oldest first."""
        return [m["content"] for m in self.messages if m["header"]["msg_type"] == kind]

    def stream(self, name: str = "stdout") -> str:
        """What was printed."""
        return "".join(c["text"] for c in self.of("stream") if c["name"] == name)

    def rich(self) -> list[dict[str, Any]]:
        """The MIME bundles of displays and results, oldest first."""
        kinds = ("display_data", "update_display_data", "execute_result")
        return [m["content"]["data"] for m in self.messages if m["header"]["msg_type"] in kinds]

    def plain(self) -> str:
        """The text/plain of all of them."""
        return "\n".join(data["text/plain"] for data in self.rich())

    def error(self) -> dict[str, Any]:
        """The one error that was shown."""
        (error,) = self.of("error")
        return error

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return self.idle and self.reply is not None


class Kernel:
    """A kernel process in a home of its own; a context manager."""

    def __init__(
        self,
        home: Path,
        socket: os.PathLike[str] | None,
        arguments: tuple[str, ...] = (),
        *,
        file: Path | None = None,
        **env: str,
    ) -> None:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("JUPYTER", "JPY_", "CUDA_", "PYTEST", "IPYTHON"))
        }
        self.environ: Mapping[str, str] = {
            **kept,
            "HOME": str(home),
            "IPYTHONDIR": str(home / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
            **({} if socket is None else {"JUPYTER_GPUSHARE_SOCKET": os.fspath(socket)}),
            **env,
        }
        self.arguments = list(arguments)
        # By TCP, another process may take a port between its choice and the kernel's start.
        self.manager = KernelManager(kernel_name="python3", transport="ipc")
        #: Who names the connection file is an editor, which knows nothing of our extension.
        self.is_editors = file is not None
        if file is not None:
            self.manager.connection_file = str(file)
        self._sockets: tempfile.TemporaryDirectory[str]
        self.client: BlockingKernelClient
        self._shown: dict[str, Shown] = {}

    def __enter__(self) -> Kernel:
        self._sockets = tempfile.TemporaryDirectory(prefix="kernel-")
        if self.manager.transport == "ipc":
            self.manager.ip = f"{self._sockets.name}/s"
        # Loading it again where it is loaded by the kernel's configuration does nothing.
        self.manager.start_kernel(env=dict(self.environ), extra_arguments=self.arguments)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        try:
            self.settle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def settle(self) -> None:
        """Wait until it answers."""
        self.client.wait_for_ready(timeout=WITHIN)
        if not self.is_editors:
            self.run("%load_ext jupyter_gpushare")

    def __exit__(self, *_: object) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        self._sockets.cleanup()

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return int(self.manager.provisioner.pid)

    def start(self, code: str, *, silent: bool = False, subshell: str | None = None) -> Shown:
        """Send a cell and do not wait for it."""
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        message = self.client.session.msg("execute_request", content)
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)
        shown = self._shown[message["header"]["msg_id"]] = Shown(message["header"]["msg_id"])
        return shown

    def run(self, code: str, *, silent: bool = False) -> Shown:
        """Run a cell to its end."""
        return self.finish(self.start(code, silent=silent))

    def ok(self, code: str) -> Shown:
        """Run a cell that must not fail."""
        shown = self.run(code)
        assert shown.reply["status"] == "ok", shown.reply
        return shown

    def finish(self, shown: Shown) -> Shown:
        """Wait for a cell's end."""
        deadline = time.monotonic() + WITHIN
        while not shown.done:
            assert time.monotonic() < deadline, f"the cell did not end: {shown}"
            self.pump()
        return shown

    def pump(self, within: float = 0.05) -> None:
        """Take in what the kernel has said; waits at most about ``within`` seconds."""
        try:
            message = self.client.get_iopub_msg(timeout=within)
            shown = self._shown.get(message["parent_header"].get("msg_id", ""))
            if shown is not None:
                if message["content"].get("execution_state") == "idle":
                    shown.idle = True
                shown.messages.append(message)
        except queue.Empty:
            pass
        try:
            reply = self.client.get_shell_msg(timeout=0)
            shown = self._shown.get(reply["parent_header"].get("msg_id", ""))
            if shown is not None:
                shown.reply = reply["content"]
        except queue.Empty:
            pass

    def interrupt(self) -> None:
        """The stop button."""
        self.manager.interrupt_kernel()

    def complete(self, code: str) -> list[str]:
        """What Tab offers at the end of ``code``."""
        reply = self.client.complete(code, len(code), reply=True, timeout=WITHIN)
        return list(reply["content"]["matches"])

    def new_subshell(self) -> str:
        """A subshell: a second thread that runs cells."""
        message = self.client.session.msg("create_subshell_request", {})
        self.client.control_channel.send(message)
        reply = self.client.get_control_msg(timeout=WITHIN)
        return str(reply["content"]["subshell_id"])


def shows(kernel: Kernel, shown: Shown, words: str) -> None:
    """Wait until a cell that runs has shown ``words``."""

    def seen() -> bool:
        kernel.pump()
        return words in shown.plain() + shown.stream("stderr")

    until(seen, words)


def runs_long(kernel: Kernel) -> Shown:
    """A cell that lasts until it is interrupted. Its own code runs: IPython may drop an interrupt
    that comes earlier."""
    shown = kernel.start("print('it runs', flush=True); import time; time.sleep(600)")
    until(lambda: (kernel.pump(), shown.stream())[1], "its own code runs")
    return shown
