"""This process's line to the node manager: where it is, and the session with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from ...protocol import names
from ...protocol.address import SYSTEM_SOCKET, Found, find_socket
from ...protocol.messages import Notification
from ..errors import GpuShareError, NodeUnavailable
from ..words.settings import read_token
from .preferences import Preferences
from .session import Link, OnLost, Session


class Line:
    """Makes the session when it is needed, and a new one where it was closed."""

    def __init__(
        self,
        environ: Mapping[str, str],
        preferences: Preferences,
        *,
        on_lost: OnLost,
        on_notice: Callable[[Notification], None],
    ) -> None:
        self._environ = environ
        self._preferences = preferences
        self._on_lost = on_lost
        self._on_notice = on_notice
        self._lock = threading.Lock()
        self._found: Found | None = find_socket(environ)
        self._deserted = False
        #: The session that there is.
        self.session: Session | None = None

    @property
    def configured(self) -> bool:
        """Whether there is a node manager to ask."""
        if self._found is None:
            self._found = find_socket(self._environ)
        return self._found is not None and not self._deserted

    @property
    def is_promised(self) -> bool:
        """Whether a node manager is expected here: it is configured, or it is the system's."""
        found = self._found
        return found is not None and (found.configured or found.path == SYSTEM_SOCKET)

    def desert(self) -> None:
        """Its server is gone and left the socket: nobody shares GPUs."""
        self._deserted = True

    def connect(self, patience: float | None = None) -> Session:
        """The session, connected. ``patience`` in seconds; ``None``: as the settings say."""
        session = self.any()
        session.open(self._preferences.settings.answer_timeout if patience is None else patience)
        return session

    def any(self) -> Session:
        """The session; a new one connects with its first call, in one round trip."""
        with self._lock:
            if self.session is None or self.session.link is Link.CLOSED:
                self.session = self._new()
            return self.session

    def is_simulated(self) -> bool:
        """Whether the node's GPUs are. Where it does not answer, they are not."""
        try:
            node = self.connect(patience=0.0).hello.get("node")
        except GpuShareError:
            return False
        return isinstance(node, Mapping) and node.get("simulated") is True

    def _new(self) -> Session:
        # Somebody asks outright, so the socket is tried again.
        self._deserted = False
        if not self.configured or self._found is None:
            raise NodeUnavailable(
                "No GPU node manager is set up for this process. In Jupyter it comes with "
                "the server; elsewhere start `jupyter gpushare node` or set "
                f"{names.SOCKET}."
            )
        settings, found = self._preferences.settings, self._found
        return Session(
            found.path,
            lambda: read_token(self._environ, found),
            settings.answer_timeout,
            outage=settings.outage_timeout,
            on_lost=self._on_lost,
            on_notice=self._on_notice,
        )

    def hang_up(self, ours: str | None) -> None:
        """The process ends: give back the lease ``ours``. The node manager sees it die anyway."""
        session, self.session = self.session, None
        if session is None:
            return
        if ours is not None and session.link is Link.UP:
            session.give_back(ours, ends=True)
        session.close()

    def abandon_in_child(self) -> None:
        """After a fork, in the child: the session is the parent's."""
        if self.session is not None:
            self.session.abandon_in_child()
        self.session = None
