"""Tells the node manager at once when a kernel was shut down, restarted or died.

The server's ``kernel_actions`` events say what people did; the restarter's
callbacks say what happened by itself. A kernel keeps its id over a restart,
so an end is told with the process id that ended: the lease that the *new*
process of the same kernel may already hold must not be hit.

This is the fast and well-named path, not the only one: the node manager also
watches every task's process itself (a pidfd), so managers that emit no
events, and a server that dies, leak nothing.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from jupyter_client.ioloop.manager import AsyncIOLoopKernelManager
from jupyter_client.manager import AsyncKernelManager

from ..protocol.background import Background
from .otherpythons import OtherPythons, lacking, other_python
from .unlocking import unlock

KERNEL_ACTIONS = "https://events.jupyter.org/jupyter_server/kernel_actions/v1"

#: A message's header is one of its first parts: delimiter, signature, header.
_HEADER_WITHIN = 4

_HOOK_TOLD_WITHIN = 5.0  # seconds that a kernel's Python may take to answer

Tell = Callable[[str, int | None], Coroutine[Any, Any, None]]
"""Called with the kernel's id and the process id that ended, or ``None`` for whatever it had."""


class KernelLifecycle:
    """Follows the kernels of one server; ``tell`` is called once for each end."""

    def __init__(
        self,
        *,
        kernel_manager: Any,
        event_logger: Any,
        tell: Tell,
        pythons: OtherPythons,
        log: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self._kernels = kernel_manager
        self._pythons = pythons
        self._events = event_logger
        self._tell = tell
        self._log = log
        self._pids: dict[str, int | None] = {}
        self._told = Background()
        self._asked: set[str] = set()  # Pythons of kernels

    def start(self) -> None:
        """Listen to the server's kernel events."""
        self._events.add_listener(schema_id=KERNEL_ACTIONS, listener=self._on_action)

    async def stop(self) -> None:
        """Stop listening and let what is being told finish (it is bounded by ``tell``)."""
        self._events.remove_listener(schema_id=KERNEL_ACTIONS, listener=self._on_action)
        await self._told.wait()

    async def _on_action(self, logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        kernel_id = data.get("kernel_id")
        if not isinstance(kernel_id, str) or data.get("status") != "success":
            return
        match data.get("action"):
            case "start":
                self._started(kernel_id)
            case "restart":
                before = self._pids.get(kernel_id)
                now = self._pid(kernel_id)
                self._pids[kernel_id] = now
                if before is not None and before != now:
                    self._ended(kernel_id, before)
            case "shutdown":
                self._pids.pop(kernel_id, None)
                self._ended(kernel_id, None)

    def _started(self, kernel_id: str) -> None:
        self._pids[kernel_id] = self._pid(kernel_id)
        kernel = self._kernel(kernel_id)
        if kernel is None:
            return
        self._look_for_hook(kernel)
        if isinstance(kernel, AsyncKernelManager):
            for name in ("interrupt_kernel", "restart_kernel", "shutdown_kernel"):
                _unlocks_first(kernel, name)
            if isinstance(kernel, AsyncIOLoopKernelManager):  # its channels are streams
                _unlocks_for_debugger(kernel, self._told.start)

        def died() -> None:
            # A dead process's id is told, so what the restarted kernel asks for is safe.
            before = self._pids.get(kernel_id)
            self._pids[kernel_id] = None
            if before is not None:
                self._ended(kernel_id, before)

        def gone() -> None:
            self._pids.pop(kernel_id, None)
            self._ended(kernel_id, None)

        kernel.add_restart_callback(died, "restart")
        kernel.add_restart_callback(gone, "dead")

    def _look_for_hook(self, kernel: Any) -> None:
        """Ask a Python that is not this one, once, whether it has the import hook."""
        spec = kernel.kernel_spec
        python = None if spec is None else other_python(spec.argv, spec.metadata)
        if python is None or python in self._asked:
            return
        self._asked.add(python)

        async def look() -> None:
            if await self._pythons.lacks(python, _HOOK_TOLD_WITHIN):
                text, fix = lacking(kernel.kernel_name, python)
                self._log.warning("gpushare: %s To mend it: %s", text, fix)

        self._told.start(look())

    def _kernel(self, kernel_id: str) -> Any:
        return self._kernels.get_kernel(kernel_id) if kernel_id in self._kernels else None

    def _pid(self, kernel_id: str) -> int | None:
        return _pid_of(self._kernel(kernel_id))

    def _ended(self, kernel_id: str, pid: int | None) -> None:
        self._log.debug("gpushare: kernel %s ended (process %s)", kernel_id, pid)
        self._told.start(self._tell(kernel_id, pid))


def _pid_of(kernel: Any) -> int | None:
    pid = getattr(getattr(kernel, "provisioner", None), "pid", None)
    return pid if isinstance(pid, int) else None


def _unlocks_first(kernel: Any, name: str) -> None:
    """What a kernel's manager does by this name is done once the kernel is not locked any more."""
    act = getattr(kernel, name)

    @functools.wraps(act)
    async def after_unlock(*arguments: Any, **options: Any) -> Any:
        if (pid := _pid_of(kernel)) is not None:
            await unlock(pid)
        return await act(*arguments, **options)

    setattr(kernel, name, after_unlock)


def _unlocks_for_debugger(kernel: Any, keep: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """Whatever a debugger in a browser asks of a kernel ends its lock; ``keep`` runs that.

    The question is sent all the same: a kernel reads it as soon as its lock has ended.
    """
    connect = kernel.connect_control

    def sent(parts: Sequence[Any], status: Any) -> None:
        # Others ask on this channel, too, and some every few seconds: they can wait.
        is_debugger = any(b'"debug_request"' in bytes(part) for part in parts[:_HEADER_WITHIN])
        if is_debugger and (pid := _pid_of(kernel)) is not None:
            keep(unlock(pid))

    @functools.wraps(connect)
    def watched(*arguments: Any, **options: Any) -> Any:
        stream = connect(*arguments, **options)
        stream.on_send(sent)
        return stream

    kernel.connect_control = watched
