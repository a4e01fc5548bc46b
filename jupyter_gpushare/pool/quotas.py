"""The quotas that are written down, in the configuration and in the Hub's groups, for all hosts.

``"all"`` GPUs and ``0.5`` of one are worked out for all GPUs of the pool, and again when more come.
They stay when a host goes: one that cannot be reached for a minute must not cause refusals.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..policy.words.commands import Command, ConfigureQuotas

# Quotas are written for a pool as they are for one host.
from ..quotas.config import NodeSize, configure
from .words.hosts import Host, HostReport

Submit = Callable[[Callable[[float], Command]], Awaitable[object]]


class PoolQuotas:
    """``written``: the configuration's ``default``, ``groups`` and ``users``."""

    def __init__(self, written: Mapping[str, Any], submit: Submit) -> None:
        self._written = written
        self._hub: Mapping[str, Any] = {}
        self._submit = submit
        self.size = NodeSize(0, 1)
        self._hosts: dict[Host, tuple[int, int]] = {}  # GPUs, bytes of the smallest

    def recall(self, told: Any) -> None:
        """After a restart hosts report one by one, and "all" must not shrink meanwhile."""
        if told is not None:
            self.size = NodeSize(*told)

    def check(self) -> None:
        """Raises ``ValueError`` with a sentence for a quota that makes no sense."""
        self._command(0.0)

    async def apply(self, hub: Mapping[str, Any] | None = None) -> None:
        """Tell the pool its quotas; ``hub`` are those of the Hub's groups, if they are new."""
        if hub is not None:
            self._hub = hub
        await self._submit(self._command)

    def grows(self, report: HostReport) -> bool:
        """Whether there are more GPUs now than the quotas were made for; then apply them again."""
        memories = [gpu.memory for gpu in report.gpus]
        size = (len(memories), min(memories, default=0))
        if self._hosts.get(report.name) == size:
            return False  # as nearly always
        self._hosts[report.name] = size
        count = sum(gpus for gpus, _smallest in self._hosts.values())
        if count <= self.size.gpus:
            return False
        smallest = min(least for gpus, least in self._hosts.values() if gpus)
        self.size = NodeSize(count, smallest)
        return True

    def _command(self, at: float) -> ConfigureQuotas:
        return configure(
            at,
            self.size,
            self._written.get("default", {}),
            {**self._written.get("groups", {}), **self._hub},
            self._written.get("users", {}),
        )
