"""A node manager's loop in this process, over a ledger and simulated GPUs, without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from jupyter_gpushare.daemon.clock import Clock
from jupyter_gpushare.node.inventory.simulated import SimulatedInventory
from jupyter_gpushare.node.manager import Manager
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import Quota

from .policy_world import plain_config

CLOCK = Clock()


@asynccontextmanager
async def managing(ledger: Any, *, clock: Clock = CLOCK, **more: Any) -> AsyncIterator[Manager]:
    """Everybody may have all GPUs."""
    usual = {"config": plain_config(), "inventory": SimulatedInventory("1x24GiB")}
    manager = Manager(clock=clock, ledger=ledger, **(usual | more))

    async def quotas(gpus: Any) -> cmd.ConfigureQuotas:
        return cmd.ConfigureQuotas(clock.boot(), Quota(len(gpus)))

    try:
        await manager.start(quotas)
        yield manager
    finally:
        await manager.close()
