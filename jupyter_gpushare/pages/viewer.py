"""The person who looks at a page, and the pool of hosts that is asked for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.poolcalls import PoolMethod

from .hosts import Host
from .shown import Shown


@dataclass(frozen=True, slots=True)
class Viewer:
    """The person who looks, as the server knows them. No repr contains the token."""

    name: str
    token: str = field(repr=False)
    environment: str = ""
    groups: tuple[str, ...] = ()
    admin: bool = False


class Pool(Protocol):
    """What the pages ask of a pool of hosts. All calls raise :class:`NodeProblem`."""

    def hosts(self, viewer: Viewer) -> Sequence[Host]:
        """All hosts, with what the viewer has there."""

    def problem(self, name: str) -> str:
        """Why a host cannot be asked; empty if it can."""

    def quotas(self, viewer: Viewer) -> Sequence[tuple[str, Shown]]:
        """The viewer's own quota over all hosts, and by name those of servers with their own."""

    def group_text(self, viewer: Viewer) -> str:
        """How the viewer's groups stand, where groups have GPUs."""

    def groups(self) -> object:
        """The groups whose GPUs breathe, for the template."""

    async def deeds(self, viewer: Viewer) -> Sequence[Mapping[str, Any]]:
        """What people did to the pool, the newest first: ``wall``, ``by``, ``text``."""

    async def ask(
        self, method: Method | PoolMethod, viewer: Viewer, **params: Any
    ) -> dict[str, Any]:
        """Ask in an administrator's name."""

    async def where(self, viewer: Viewer, **wish: Any) -> dict[str, Any]:
        """The hosts ranked for the viewer's own wish."""
