"""The kernel provisioner ``gpushare``: any kernel of this host, below a keeper of its own.

To Jupyter the keeper (`.keep`) is the kernel's process. Both are in one process group, so what
Jupyter sends the one is sent to the other, as if there were no keeper. Only an Interrupt is for
the keeper, which passes it on when the kernel can hear it. A keeper that was killed alone gets a
successor, and the kernel goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any, Final

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.launcher import launch_kernel
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import CaselessStrEnum, Unicode

from ..keeper.record import forget, noted
from .cells import name_of

_KEEP: Final = f"{__package__}.keep"


class GpuShareProvisioner(LocalProvisioner):
    """A kernel under a lease; the kernelspec's ``config`` or ``c.GpuShareProvisioner`` set it."""

    gpus = Unicode("", config=True, help="GPUs to ask for, where the notebook names none.")
    gpu_memory = Unicode("", config=True, help="Memory on each, like 24GiB. Empty: the quota's.")
    lease = CaselessStrEnum(
        ["start", "first-cell"],
        default_value="start",
        config=True,
        help="When the lease is taken. 'start': the kernel starts when it has GPUs. 'first-cell': "
        "it starts at once, and its first cell waits; only where the host has no more GPUs than "
        "the kernel asks for, since CUDA is told its GPUs when the kernel starts. Elsewhere as "
        "'start'.",
    )

    _keeps: tuple[list[str], dict[str, Any]] = ([], {})
    _file: str = ""
    _is_ending = False
    #: Process groups of keepers that were killed; the kernel is in the first one's.
    _groups: tuple[int, ...] = ()

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start a keeper, which starts the kernel."""
        manager: Any = self.parent
        self._file, self._is_ending, self._groups = manager.connection_file, False, ()
        wishes = {"gpus": self.gpus, "memory": self.gpu_memory, "lease": self.lease}
        keep = [sys.executable, "-P", "-m", _KEEP, json.dumps(wishes), self._file, *cmd]
        self._keeps = keep, self._scrub_kwargs(kwargs)
        return await super().launch_kernel(keep, **kwargs)

    async def poll(self) -> int | None:
        """``None`` while the kernel runs."""
        code: int | None = await super().poll()
        # A keeper that ends by itself ends as the kernel did. Only a signal ends it alone.
        if code is None or code >= 0 or self._is_ending or self.process is None:
            return code
        command, how = self._keeps
        found = noted(how["env"], name_of(self._file))
        if found is None:
            # The kernel is not under a lease yet, if there is one, and another takes its ports.
            await self.kill()
            return code
        assert self.pgid is not None
        self._groups += (self.pgid,)
        self.process = launch_kernel(command, **how)
        self.pid = self.pgid = self.process.pid
        self.log.warning("jupyter_gpushare: the keeper of kernel %s is replaced", self.kernel_id)
        return None

    async def cleanup(self, restart: bool = False) -> None:
        """The kernel has ended: remove what a killed keeper left."""
        if not restart and self._file:
            forget(self._keeps[1]["env"], name_of(self._file))
        await super().cleanup(restart)

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel, its children and its keeper."""
        if signum == signal.SIGINT and self.process is not None:
            self.process.send_signal(signum)
            return
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signum)
        await super().send_signal(signum)

    async def kill(self, restart: bool = False) -> None:
        """End the kernel and its keeper at once."""
        self._is_ending = True
        await self.send_signal(signal.SIGKILL)
