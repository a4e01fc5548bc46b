"""``jupyter gpushare pool serve``: the pool alone, without a Hub."""

from __future__ import annotations

import asyncio
import signal
import sys

from jupyter_core.application import JupyterApp
from traitlets import List, Unicode

from .._version import __version__
from .configuration import Pool
from .serving import CannotServe, serving


class PoolApp(JupyterApp):
    """Run the pool: several hosts' node managers as one."""

    name = "jupyter-gpushare-pool"
    version = __version__
    description = __doc__
    classes = List([Pool])  # type: ignore[assignment]  # traitlets' own is declared so
    config_file_name = Unicode("jupyter_gpushare_pool_config")
    aliases = {  # noqa: RUF012 - traitlets wants a plain class attribute
        **JupyterApp.aliases,
        "folder": "Pool.folder",
        "socket": "Pool.socket",
        "listen": "Pool.listen",
        "address": "Pool.address",
        "metrics-port": "Pool.metrics_port",
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
        except CannotServe as error:
            sys.exit(f"jupyter gpushare pool serve: {error}")

    async def _serve(self) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with serving(Pool(parent=self), self.log) as manager:
            self.log.info("The pool serves at %s", manager.settings.socket)
            print(f"ready {manager.settings.socket}", flush=True)
            await stop.wait()


def main() -> None:
    """Run the pool."""
    PoolApp.launch_instance()
