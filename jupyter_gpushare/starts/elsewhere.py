"""Kernels of this server that run on other hosts of the pool, and restarts on another host.

A kernel of the pool's kernelspec restarts there under the same id. Any other kernel is replaced by
one of that kernelspec: its notebook's session gets the new kernel, and the old one ends.
"""

from __future__ import annotations

import socket
from typing import Any, Final

from jupyter_core.utils import ensure_async

from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.protocol import names
from jupyter_gpushare.protocol.documents import KernelElsewhere, MovedKernel
from jupyter_gpushare.starts.provisioner import PROVISIONER, PoolProvisioner

_NO_SPEC: Final = (
    "No kernel for the hosts of the pool is installed here. Run `jupyter gpushare pool kernelspec` "
    "in a terminal, or ask an administrator to."
)


class Elsewhere:
    """What this server's managers know of other hosts."""

    def __init__(self, kernel_manager: Any, session_manager: Any, spec_manager: Any) -> None:
        self._kernels = kernel_manager
        self._sessions = session_manager
        self._specs = spec_manager

    def running(self) -> list[KernelElsewhere]:
        """The kernels that run on another host, which the pool or a person chose."""
        found: list[KernelElsewhere] = []
        for kernel_id in self._kernels.list_kernel_ids():
            choice = getattr(self._provisioner(kernel_id), "choice", None)
            if choice is not None and choice.host != socket.gethostname():
                why = " ".join(choice.reasons)
                found.append({"kernel": kernel_id, "host": choice.host, "why": why})
        return found

    async def move(self, kernel_id: str, host: str) -> MovedKernel:
        """Restart a kernel on ``host``; its variables are lost. Raises :class:`NodeProblem`."""
        if kernel_id not in self._kernels:
            raise NodeProblem("not_found", "There is no such kernel.")
        provisioner = self._provisioner(kernel_id)
        try:
            if isinstance(provisioner, PoolProvisioner):
                provisioner.next_host = host
                await ensure_async(self._kernels.restart_kernel(kernel_id, now=True))
                return {"kernel": kernel_id, "host": host}
            return {"kernel": await self._replace(kernel_id, host), "host": host}
        except RuntimeError as error:
            raise NodeProblem("unavailable", str(error)) from error

    def _provisioner(self, kernel_id: str) -> Any:
        return getattr(self._kernels.get_kernel(kernel_id), "provisioner", None)

    async def _replace(self, kernel_id: str, host: str) -> str:
        spec = await self._spec()
        sessions = [
            session
            for session in await ensure_async(self._sessions.list_sessions())
            if (session.get("kernel") or {}).get("id") == kernel_id
        ]
        if not sessions:
            raise NodeProblem("not_found", "This kernel belongs to no notebook.")
        # First the new one: where it does not start, the notebook keeps the kernel that it has.
        new: str = await ensure_async(
            self._kernels.start_kernel(
                kernel_name=spec, path=sessions[0]["path"], env=self._environ(kernel_id, host)
            )
        )
        for session in sessions:
            await ensure_async(self._sessions.update_session(session["id"], kernel_id=new))
        await ensure_async(self._kernels.shutdown_kernel(kernel_id, now=True))
        return new

    def _environ(self, kernel_id: str, host: str) -> dict[str, str]:
        """What the old kernel was started with, and the host."""
        before = getattr(self._kernels.get_kernel(kernel_id), "_launch_args", None) or {}
        return {**before.get("env", {}), names.KERNEL_HOST: host}

    async def _spec(self) -> str:
        specs = await ensure_async(self._specs.get_all_specs())
        for name, told in sorted(specs.items()):
            used = (told["spec"].get("metadata") or {}).get("kernel_provisioner") or {}
            if used.get("provisioner_name") == PROVISIONER:
                return str(name)
        raise NodeProblem("no_resources", _NO_SPEC)
