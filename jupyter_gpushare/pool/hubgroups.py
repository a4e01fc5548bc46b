"""Tells the pool what JupyterHub says of its groups: their quotas, and who belongs to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from ..daemon.hubapi import CertificatesUnreadable, HubApi, hub_trust
from ..ledger.ledger import LedgerError
from ..policy.words.commands import Introduce
from ..quotas.hub import HubQuotas
from ..quotas.last import LastQuotas
from .manager import PoolManager
from .serving import CannotServe

#: Seconds between two looks at the groups.
_REFRESH: Final = 60.0


class HubGroups:
    """A context manager: while it is open, the pool hears of the groups."""

    def __init__(self, manager: PoolManager, log: logging.Logger) -> None:
        """Raises :class:`CannotServe`."""
        self._manager = manager
        self._log = log
        hub = os.environ["JUPYTERHUB_API_URL"]
        try:
            trust = hub_trust(os.environ)
        except CertificatesUnreadable as error:
            raise CannotServe(str(error)) from error
        self._quotas = HubQuotas(
            HubApi(hub, trust=trust),
            os.environ["JUPYTERHUB_API_TOKEN"],
            refresh=_REFRESH,
            node=lambda: manager.quotas.size,
            apply=manager.quotas.apply,
            last=LastQuotas(Path(manager.settings.folder, "hub-quotas.json"), hub, log),
            wall=time.time,
            log=log,
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """The first look is over when the pool begins to serve pages: hosts hear no wrong quota."""
        await self._manager.quotas.apply(await self._quotas.first(self._manager.quotas.size))
        await self._introduce()
        self._task = asyncio.get_running_loop().create_task(self._look())
        return self

    async def __aexit__(self, *_: Any) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH)
            try:
                await self._quotas.look()
                await self._introduce()
            except (LedgerError, ValueError) as error:
                self._log.error("The quotas of JupyterHub's groups could not be applied: %s", error)

    async def _introduce(self) -> None:
        """Say who belongs to which groups, and who belongs to none any more."""
        if self._quotas.when_away() is not None:
            return
        known = self._manager.state.quotas.groups_of
        told = dict(self._quotas.members())
        gone = {name: () for name in known if name not in told}
        for name, groups in {**told, **gone}.items():
            if known.get(name, ()) != groups:
                await self._manager.submit(partial(Introduce, environment=name, groups=groups))
