"""Links to the node managers, one for each viewer's token and node.

The service has no power of its own: it asks in the viewer's name, and the node manager decides what
that person sees. On this host it shows the viewer's token. To a host of the pool it names the
viewer, as the Hub does, and the pool's certificate says that it may: the token stays here. Links
are never shared between tokens. Their number is bounded. An unused link is closed after a few
seconds, and its token is forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from jupyter_gpushare.link.dial import Host
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.link.nodelink import NodeLink
from jupyter_gpushare.pages.viewer import Viewer
from jupyter_gpushare.protocol.background import Background
from jupyter_gpushare.protocol.messages import PAGES

#: Seconds to wait for a new link's first answer, and for a lost link to come back.
_FIRST_ANSWER: Final = 6.0
_COME_BACK: Final = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The most links of all viewers and of one; and how long a link may be unused (s)."""

    most: int = 512
    most_each: int = 16
    linger: float = 10.0
    timeout: float = 5.0


@dataclass(slots=True)
class _Lent:
    link: NodeLink
    viewer: str
    users: int = 0
    closing: asyncio.TimerHandle | None = None


class LinkPool:
    """Lends links. ``nodes`` says where each node manager is, by name; a pool's may change."""

    def __init__(
        self,
        nodes: Mapping[str, str] | Mapping[str, Host],
        limits: Limits,
        *,
        log: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self.nodes = nodes
        self._limits = limits
        self._log = log
        self._lent: dict[tuple[str, str], _Lent] = {}
        self._endings = Background()

    def __len__(self) -> int:
        return len(self._lent)

    @asynccontextmanager
    async def borrow(self, node: str, viewer: Viewer) -> AsyncIterator[NodeLink]:
        """A link of ``viewer``'s to ``node``, connected if it can be.

        Raises :class:`NodeProblem` where there are too many already.
        """
        # A person who is no administrator any more, or has left a group, gets another link.
        mark = repr((viewer.token, viewer.environment, viewer.groups, viewer.admin))
        key = (node, hashlib.sha256(mark.encode()).hexdigest())
        lent = self._lent.get(key)
        if lent is None:
            self._make_room(viewer.name)
            lent = self._lent[key] = self._open(node, viewer)
        if lent.closing is not None:
            lent.closing.cancel()
            lent.closing = None
        lent.users += 1
        try:
            await _settle(lent.link)
            yield lent.link
        finally:
            lent.users -= 1
            if lent.users == 0 and self._lent.get(key) is lent:
                lent.closing = asyncio.get_running_loop().call_later(
                    self._limits.linger, self._end, key
                )

    def _open(self, node: str, viewer: Viewer) -> _Lent:
        is_here, token = isinstance(self.nodes[node], str), viewer.token
        who = {"name": viewer.environment, "groups": [*viewer.groups], "admin": viewer.admin}
        link = NodeLink(
            find=lambda: self.nodes.get(node),
            why=lambda: None,
            token=lambda: token if is_here else None,
            viewer=None if is_here else who,
            name=PAGES,
            timeout=self._limits.timeout,
            log=self._log,
        )
        link.start()
        return _Lent(link, viewer.name)

    def _make_room(self, viewer: str) -> None:
        own = [key for key, lent in self._lent.items() if lent.viewer == viewer]
        for keys, most in ((own, self._limits.most_each), (list(self._lent), self._limits.most)):
            if len(keys) < most:
                continue
            # The oldest of those that nobody uses: links are in the order of their making.
            idle = next((key for key in keys if self._lent[key].users == 0), None)
            if idle is None:
                raise NodeProblem(
                    "rate_limited",
                    "Too many pages about GPUs are open at once. Close some, or try again in a "
                    "minute.",
                )
            self._end(idle)

    def _end(self, key: tuple[str, str]) -> None:
        lent = self._lent.pop(key)
        if lent.closing is not None:
            lent.closing.cancel()
        self._endings.start(lent.link.close())


async def _settle(link: NodeLink) -> None:
    """Wait until a new link knows whether it is connected; give a lost one a chance."""
    before = link.state
    if before.connected:
        return
    fresh = before.generation == 0 and not _tried(link)
    changed = asyncio.Event()
    unsubscribe = link.subscribe(changed.set)
    link.hurry()
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_ANSWER if fresh else _COME_BACK):
                while not link.state.connected and not (fresh and _tried(link)):
                    changed.clear()
                    await changed.wait()
    finally:
        unsubscribe()


def _tried(link: NodeLink) -> bool:
    return link.state.message != NodeLink.UNTRIED
