"""The pool as a role of the Hub's service: it runs in the same process.

The pages reach all hosts by the pool's certificate, which says for whom they ask. So no person's
token leaves the Hub's host. Quotas are edited at the pool, once for all hosts.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.pool.answers import PoolAnswers
from jupyter_gpushare.pool.configuration import Pool
from jupyter_gpushare.pool.hubgroups import HubGroups
from jupyter_gpushare.pool.manager import PoolManager
from jupyter_gpushare.pool.serving import serving
from jupyter_gpushare.pool.socket import PoolRefused
from jupyter_gpushare.protocol.connection import ClientConnection
from jupyter_gpushare.protocol.errors import RemoteProtocolError
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.poolcalls import PoolMethod, parse_pool_call

from .links import Viewer


class HubPool:
    """What the pages ask of the pool."""

    def __init__(self, manager: PoolManager) -> None:
        self.places = manager.places
        self._answers = PoolAnswers(manager)

    async def ask(
        self, method: Method | PoolMethod, viewer: Viewer, **params: Any
    ) -> dict[str, Any]:
        """Ask in an administrator's name. Raises :class:`NodeProblem`."""
        if not viewer.admin:
            raise NodeProblem("not_allowed", "Only an administrator of the Hub may do this.")
        return await self._ask(method, viewer, **params)

    async def where(self, viewer: Viewer, **wish: Any) -> dict[str, Any]:
        """The hosts ranked for the viewer's own wish. Raises :class:`NodeProblem`."""
        return await self._ask(PoolMethod.WHERE, viewer, environment=viewer.environment, **wish)

    async def _ask(
        self, method: Method | PoolMethod, viewer: Viewer, **params: Any
    ) -> dict[str, Any]:
        try:
            call = parse_pool_call(ClientConnection().call(method, **params)[1])
            answer: dict[str, Any] = await self._answers.answer(call, viewer.environment)
        except RemoteProtocolError as error:
            raise NodeProblem(error.reason.value, str(error)) from error
        except PoolRefused as refused:
            raise NodeProblem(refused.reason.value, str(refused)) from refused
        return answer


@contextlib.asynccontextmanager
async def running(settings: Pool, log: logging.Logger) -> AsyncIterator[HubPool]:
    """The pool, and the Hub's groups as it is told them."""
    async with serving(settings, log) as manager, HubGroups(manager, log):
        yield HubPool(manager)
