"""A pool that runs, with its socket: alone, or in the Hub's service."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from tornado.httpserver import HTTPServer

from ..daemon import metricsport
from ..ledger.ledger import LedgerError
from .answers import PoolAnswers
from .configuration import Pool
from .manager import PoolManager
from .pki import NoAuthority
from .socket import PoolSocket


class CannotServe(Exception):
    """The pool cannot start; the text says why and what to do."""


@contextlib.asynccontextmanager
async def serving(settings: Pool, log: logging.Logger) -> AsyncIterator[PoolManager]:
    """Serve until the context ends. Raises :class:`CannotServe`."""
    manager = PoolManager(settings, log=log)
    socket = PoolSocket(Path(settings.socket), PoolAnswers(manager), log)
    exporter: HTTPServer | None = None
    try:
        manager.quotas.check()
        await manager.start()
        await socket.start()
        if settings.metrics_port:
            exporter = metricsport.serve(
                manager.metrics.registry, settings.metrics_address, settings.metrics_port
            )
    except (LedgerError, NoAuthority, ValueError) as error:
        await manager.close()
        raise CannotServe(str(error)) from error
    except OSError as error:
        await socket.close()
        await manager.close()
        raise CannotServe(f"The pool cannot start: {error}") from error
    try:
        yield manager
    finally:
        if exporter is not None:
            exporter.stop()
        await socket.close()
        await manager.close()
