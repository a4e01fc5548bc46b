"""``jupyter gpushare pool serve``: the pool alone, without a Hub."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

from jupyter_core.application import JupyterApp
from traitlets import List, TraitError, Unicode

from .._version import __version__
from .answers import PoolAnswers
from .configuration import Pool
from .joining import NotJoined
from .ledger import LedgerProblem
from .manager import PoolManager
from .pki import NoAuthority
from .socket import PoolSocket


class PoolApp(JupyterApp):
    """Run the pool: several hosts' node managers as one."""

    name = "jupyter-gpushare-pool"
    version = __version__
    description = __doc__
    classes = List([Pool])
    config_file_name = Unicode("jupyter_gpushare_pool_config")
    aliases = {  # noqa: RUF012 - traitlets wants a plain class attribute
        **JupyterApp.aliases,
        "folder": "Pool.folder",
        "socket": "Pool.socket",
        "listen": "Pool.listen",
        "address": "Pool.address",
    }
    examples = """
    jupyter gpushare pool serve --address=pool.example.org
    jupyter gpushare pool serve --generate-config
    """

    def start(self) -> None:
        """Serve until SIGTERM or SIGINT. Exit status 1 with one sentence when it cannot."""
        super().start()
        try:
            asyncio.run(self._serve())
        except (LedgerProblem, NoAuthority, NotJoined, TraitError, ValueError) as error:
            self._leave(str(error))
        except OSError as error:
            self._leave(f"The pool cannot start: {error}")

    def _leave(self, sentence: str) -> None:
        print(f"jupyter gpushare pool serve: {sentence}", file=sys.stderr)
        self.exit(1)

    async def _serve(self) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with serving(Pool(parent=self), self.log) as manager:
            self.log.info("The pool serves at %s", manager.settings.socket)
            print(f"ready {manager.settings.socket}", flush=True)
            await stop.wait()


@contextlib.asynccontextmanager
async def serving(settings: Pool, log: Any) -> Any:
    """A pool that runs, with its socket. Raises as :meth:`PoolManager.start`."""
    manager = PoolManager(settings, log=log)
    manager.quotas.check()
    await manager.start()
    socket = PoolSocket(Path(settings.socket), PoolAnswers(manager), log)
    try:
        await socket.start()
        yield manager
    finally:
        await socket.close()
        await manager.close()


def main() -> None:
    """Run the pool."""
    PoolApp.launch_instance()
