"""A pool that runs, with its socket: alone, or in the Hub's service."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..daemon import metricsport
from ..ledger.ledger import LedgerError
from .configuration import Pool
from .socket import PoolSocket

if TYPE_CHECKING:
    from .manager import PoolManager

_NEEDS_CRYPTOGRAPHY: Final = (
    "The pool needs the package cryptography: install jupyter_gpushare[pool] where the pool runs."
)


class CannotServe(Exception):
    """The pool cannot start; the text says why and what to do."""


@contextlib.asynccontextmanager
async def serving(settings: Pool, log: logging.Logger) -> AsyncIterator[PoolManager]:
    """Serve until the context ends. Raises :class:`CannotServe`."""
    try:
        from .answers import PoolAnswers
        from .joining import NotJoined
        from .manager import PoolManager
        from .pki import NoAuthority
    except ModuleNotFoundError as error:
        if error.name != "cryptography":
            raise
        raise CannotServe(_NEEDS_CRYPTOGRAPHY) from error
    async with contextlib.AsyncExitStack() as stack:
        try:
            manager = PoolManager(settings, log=log)
            stack.push_async_callback(manager.close)
            manager.quotas.check()
            await manager.start()
            socket = PoolSocket(Path(settings.socket), PoolAnswers(manager).answer, log)
            stack.push_async_callback(socket.close)
            await socket.start()
            if settings.metrics_port:
                registry, address = manager.metrics.registry, settings.metrics_address
                stack.callback(metricsport.serve(registry, address, settings.metrics_port).stop)
        except (LedgerError, NoAuthority, NotJoined, ValueError) as error:
            raise CannotServe(str(error)) from error
        except OSError as error:
            raise CannotServe(f"The pool cannot start: {error}") from error
        yield manager
