"""Tells the pool what JupyterHub says of its groups: their quotas, and who belongs to them."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from ..daemon.hubapi import CertificatesUnreadable, HubApi, hub_trust
from ..policy.words.commands import Introduce
from ..protocol.background import Background
from ..quotas.hub import HubQuotas
from .manager import PoolManager
from .serving import CannotServe

#: Seconds between two looks at the groups.
_REFRESH: Final = 60.0


class HubGroups(HubQuotas):
    """The Hub's groups; the pool is told who belongs to them, too."""

    def __init__(self, manager: PoolManager, log: logging.Logger) -> None:
        """Raises :class:`CannotServe`."""
        hub = os.environ["JUPYTERHUB_API_URL"]
        try:
            trust = hub_trust(os.environ)
        except CertificatesUnreadable as error:
            raise CannotServe(str(error)) from error
        super().__init__(
            HubApi(hub, trust=trust),
            os.environ["JUPYTERHUB_API_TOKEN"],
            refresh=_REFRESH,
            node=lambda: manager.quotas.size,
            apply=manager.quotas.apply,
            in_ledger=manager.in_ledger,
            wall=time.time,
            log=log,
        )
        self._manager = manager

    async def look(self) -> None:
        """Read the groups once, and tell what is new in them."""
        await super().look()
        await self.introduce()

    async def introduce(self) -> None:
        """Say who belongs to which groups, and who belongs to none any more."""
        if self.when_away() is not None:
            return
        known = self._manager.state.quotas.groups_of
        told = dict(self.members())
        gone = {name: () for name in known if name not in told}
        for name, groups in {**told, **gone}.items():
            if known.get(name, ()) != groups:
                await self._manager.submit(partial(Introduce, environment=name, groups=groups))


@contextlib.asynccontextmanager
async def following(manager: PoolManager, log: logging.Logger) -> AsyncIterator[None]:
    """While it is open, the pool hears of the groups. Raises :class:`CannotServe`.

    The first look is over when the pool begins to serve pages: hosts hear no wrong quota.
    """
    groups, work = HubGroups(manager, log), Background()
    await manager.quotas.apply(await groups.first(manager.quotas.size))
    await groups.introduce()
    work.start(groups.run())
    try:
        yield
    finally:
        await work.cancel()
