"""``live``: only tells an open page that something has changed.

The page then fetches its parts in the ordinary way. The server identifies the listener before the
connection is upgraded, and may ask again while it is open.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tornado.websocket import WebSocketClosedError, WebSocketHandler

from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.link.nodelink import NodeLink

from .asking import Asking
from .hosts import Host
from .viewer import Pool, Viewer
from .views import fingerprint

#: The messages to a page.
CHANGED: Final = '{"type": "changed"}'
#: The WebSocket's own code for "you may not": the page does not try again.
LOGGED_OUT: Final = 1008
#: Nodes that one page listens to at once.
MOST_HEARD: Final = 8
_AT_MOST_EVERY: Final = 1.0  # seconds between two messages
_FIGURES_EVERY: Final = 5.0  # seconds between two messages about figures of a pool's hosts
_WRITE_WITHIN: Final = 30.0  # seconds a message may take to leave; then the listener is dropped
_LARGEST_INCOMING: Final = 1024  # bytes; listeners need not send anything


@dataclass(slots=True)
class Audience:
    """The present listeners: at most ``most``, and at most ``most_each`` of one person.

    ``look_again``: seconds between two questions whether a login is still good, if it is asked.
    """

    most: int
    most_each: int
    look_again: float | None = None
    listeners: set[Listener] = field(default_factory=set)
    by_viewer: Counter[str] = field(default_factory=Counter)

    def is_full(self, viewer: str) -> bool:
        return len(self.listeners) >= self.most or self.by_viewer[viewer] >= self.most_each

    def add(self, listener: Listener) -> None:
        self.listeners.add(listener)
        self.by_viewer[listener.viewer.name] += 1

    def remove(self, listener: Listener) -> None:
        if listener in self.listeners:
            self.listeners.remove(listener)
            self.by_viewer[listener.viewer.name] -= 1
            self.by_viewer += Counter()  # forgets those with none

    def close(self) -> None:
        """Say goodbye to everybody (1001, going away)."""
        for listener in tuple(self.listeners):
            listener.close(1001, "The service stops.")


def _is_urgent(before: Sequence[Host], now: Sequence[Host]) -> bool:
    """Whether a person must see at once what changed: not only figures."""
    pairs = ((old, new) for old, new in zip(before, now, strict=False) if old is not new)
    return len(before) != len(now) or any(_lasts(old) != _lasts(new) for old, new in pairs)


def _lasts(host: Host) -> tuple[object, ...]:
    return host.name, host.state, host.problem, host.drained, host.own


class Listener(WebSocketHandler, ABC):
    """Somebody who only listens.

    A listener that reads slowly gets fewer, newer messages: at most one is on its way to it and the
    next one is made when that has gone, so nothing piles up.
    """

    audience: Audience
    #: Seconds between two messages.
    pause = 0.0

    def listens_in(self, audience: Audience) -> None:
        """Get ready: a server's own handler calls it first of all."""
        self.audience = audience
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    @abstractmethod
    def viewer(self) -> Viewer:
        """Who listens."""

    @property
    def is_full(self) -> bool:
        """Whether nobody else may listen now."""
        return self.audience.is_full(self.viewer.name)

    @abstractmethod
    def news(self) -> str:
        """The message that is sent when something has changed."""

    @abstractmethod
    def sources(self) -> list[Coroutine[Any, Any, None]]:
        """What runs as long as the listener is there, and learns of changes."""

    @property
    def max_message_size(self) -> int:
        return _LARGEST_INCOMING

    def open(self, *args: str, **kwargs: str) -> None:
        # Asked again: others may have come in while this one was upgraded.
        if self.is_full:
            self.close(1013, "Too many.")
            return
        self.audience.add(self)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(one) for one in (*self.sources(), self._tell())]

    def on_message(self, message: str | bytes) -> None:
        """Listeners only listen."""

    def on_close(self) -> None:
        self.audience.remove(self)
        for task in self._tasks:
            task.cancel()

    async def hear(self, link: NodeLink, changed: Callable[[], None]) -> None:
        """Hear one node as long as the listener is there."""
        unsubscribe = link.subscribe(changed)
        try:
            self._changed.set()  # what the listener knows is older than this connection
            await asyncio.get_running_loop().create_future()
        finally:
            unsubscribe()

    async def _tell(self) -> None:
        with contextlib.suppress(WebSocketClosedError):
            while True:
                await self._changed.wait()
                self._changed.clear()
                try:
                    async with asyncio.timeout(_WRITE_WITHIN):
                        await self.write_message(self.news())
                except TimeoutError:
                    self.close(LOGGED_OUT, "Too slow.")
                    return
                # After the message and not before it: the first change is told at once, a burst as
                # one.
                await asyncio.sleep(self.pause)


class LiveHandler(Asking, Listener):
    """A page that is open."""

    pause = _AT_MOST_EVERY

    def news(self) -> str:
        return CHANGED

    def sources(self) -> list[Coroutine[Any, Any, None]]:
        hearing = [self._hear(node) for node in self._heard()]
        if self.site.hosts is not None:
            hearing.append(self._follow_pool(self.site.hosts))
        if self.audience.look_again is not None:
            hearing.append(self._look_again(self.audience.look_again))
        return hearing

    async def _hear(self, node: str) -> None:
        try:
            async with self.link(node) as link:
                await self.hear(link, self._hearing(link))
        except NodeProblem as problem:
            self.close(1013, problem.message[:100])

    def _heard(self) -> list[str]:
        """The host whose details the page shows, and others, as many as are allowed.

        The page learns of changes on the rest when it asks by itself.
        """
        shown = self.get_argument("host", "")
        # A pool hears all hosts itself.
        most = MOST_HEARD if self.site.hosts is None else 1
        return sorted(self.site.nodes, key=lambda name: name != shown)[:most]

    async def _follow_pool(self, pool: Pool) -> None:
        """Tell at once of hosts that come, go or change state; of figures, which change all the
        time, every few seconds.
        """
        loop, told = asyncio.get_running_loop(), 0.0
        before: Sequence[Host] = ()
        while True:
            now = pool.hosts(self.viewer)
            due = loop.time() - told >= _FIGURES_EVERY
            if now != before and (due or _is_urgent(before, now)):
                before, told = now, loop.time()
                self._changed.set()
            await asyncio.sleep(_AT_MOST_EVERY)

    def _hearing(self, link: NodeLink) -> Callable[[], None]:
        """Told of each new status of ``link``; measurements alone are no news."""
        before = fingerprint(link.state.status)

        def hear() -> None:
            nonlocal before
            if (now := fingerprint(link.state.status)) != before:
                before = now
                self._changed.set()

        return hear

    async def _look_again(self, pause: float) -> None:
        while True:
            await asyncio.sleep(pause)
            if not await self.is_let_in():
                self.close(LOGGED_OUT, "Your login has ended.")
                return

    async def is_let_in(self) -> bool:
        """Whether the login is still good, if the server can say so."""
        return True
