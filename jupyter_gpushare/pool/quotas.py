"""The quotas that are written down, in the configuration and in the Hub's groups, for all hosts.

``"all"`` GPUs and ``0.5`` of one are worked out for all GPUs of the pool, and again when more come.
They stay when a host goes: one that cannot be reached for a minute must not cause refusals.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

# Quotas are written for a pool as they are for one host.
from ..node.quotas.config import NodeSize, configure
from .words import commands as cmd
from .words.hosts import HostReport

Submit = Callable[[Callable[[float], cmd.Command]], Awaitable[object]]


class PoolQuotas:
    """``written``: the configuration's ``default``, ``groups`` and ``users``."""

    def __init__(self, written: Mapping[str, Any], submit: Submit) -> None:
        self._written = written
        self._hub: Mapping[str, Any] = {}
        self._submit = submit
        self.size = NodeSize(0, 1)

    def told(self) -> str:
        """The pool's size in words of the ledger; :meth:`recall` reads it."""
        return json.dumps((self.size.gpus, self.size.smallest))

    def recall(self, told: str | None) -> None:
        """After a restart hosts report one by one, and "all" must not shrink meanwhile."""
        if told is not None:
            self.size = NodeSize(*json.loads(told))

    def check(self) -> None:
        """Raises ``ValueError`` with a sentence for a quota that makes no sense."""
        self._command(0.0)

    async def apply(self, hub: Mapping[str, Any] | None = None) -> None:
        """Tell the pool its quotas; ``hub``: those of the Hub's groups, if they are new."""
        if hub is not None:
            self._hub = hub
        await self._submit(self._command)

    def grows(self, reports: Iterable[HostReport]) -> bool:
        """Whether there are more GPUs than the quotas were made for; then apply them again."""
        memories = [gpu.memory for report in reports for gpu in report.gpus]
        if len(memories) <= self.size.gpus:
            return False
        self.size = NodeSize(len(memories), min(memories))
        return True

    def _command(self, at: float) -> cmd.ConfigureQuotas:
        made = configure(
            at,
            self.size,
            self._written.get("default", {}),
            {**self._written.get("groups", {}), **self._hub},
            self._written.get("users", {}),
        )
        return cmd.ConfigureQuotas(at, made.default, made.groups, made.users)
