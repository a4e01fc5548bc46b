"""The lease that a keeper holds: asked for, waited for, shown to the program, given back."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..client.errors import GpuShareError, NodeUnavailable
from ..client.session.session import Link, Session
from ..client.words.display import TerminalDisplay
from ..client.words.grant import Grant, read_grant
from ..client.words.settings import read_settings, read_token
from ..console.node import NOT_SET_UP, PATIENCE
from ..console.verb import COMMAND
from ..protocol import names
from ..protocol.address import find_socket
from ..protocol.batchjob import leave_behind, set_here
from ..protocol.errors import Reason
from ..protocol.messages import Method, Notification
from ..protocol.said import plain

#: Seconds for which the node manager's word of a keeper's end is waited for, and between two looks.
_SUCCEEDS_WITHIN: Final = 10.0
_LOOK: Final = 0.1


def say(text: str) -> None:
    """To people, by standard error; from any thread, which must go on where nobody reads it.

    What others said is in some of it, and is no order to a terminal.
    """
    with contextlib.suppress(OSError, ValueError):
        print(f"{COMMAND}: {plain(text, 1000)}", file=sys.stderr, flush=True)


class Holding:
    """A lease of this process, and the session that it hangs on.

    ``on_lost(message)`` and ``on_notice`` are told of this lease, on the session's thread; while it
    is waited for, the answer to that says why it ends. ``heed()`` is called some times a second
    meanwhile, and ends the wait by what it raises. ``by_index``: the program is told its GPUs by
    number.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        on_lost: Callable[[str], None],
        on_notice: Callable[[Notification], None],
        heed: Callable[[], None] = lambda: None,
        by_index: bool = False,
    ) -> None:
        """Raises :class:`GpuShareError`."""
        found = find_socket(environ)
        if found is None:
            raise NodeUnavailable(NOT_SET_UP, Reason.UNAVAILABLE)
        self.environ, self._heed, self._by_index = environ, heed, by_index
        self._on_lost, self._on_notice = on_lost, on_notice
        self.grant: Grant | None = None
        self.secret = ""
        #: The grant as it was told.
        self.told: Mapping[str, Any] = {}
        self._program: int | None = None  # the pid of one that has joined
        # Nobody waits at a screen: a node manager that is away is waited for as the queue is.
        self.session = Session(
            found.path,
            lambda: read_token(environ, found),
            PATIENCE,
            outage=math.inf,
            on_lost=self._lost,
            on_notice=self._noticed,
        )
        self.session.open(read_settings(environ).answer_timeout)

    def _lost(self, lease: str, message: str, _released: bool) -> None:
        if lease == self.lease:
            self._on_lost(message)

    def _noticed(self, told: Notification) -> None:
        if self.lease is not None and told.params.get("lease") == self.lease:
            self._on_notice(told)

    @property
    def lease(self) -> str | None:
        """The id of the lease, if there is one."""
        return None if self.grant is None else self.grant.lease

    @property
    def words(self) -> str:
        """What was granted."""
        return "" if self.grant is None else self.grant.words

    def ask(self, request: Mapping[str, Any], timeout: float | None) -> None:
        """Request the lease and wait for it, visibly on standard error; ``timeout`` in seconds.

        Raises :class:`GpuShareError`.
        """
        shown, last, granted = TerminalDisplay(sys.stderr), dict[str, Any](), None

        def waiting() -> None:
            self._heed()
            if last:
                shown.update(last)

        def away(left: float) -> None:
            self._heed()
            shown.away(left)

        try:
            self.ask_for(request, timeout or 0.0, last.update, waiting, away)
            granted = f"Granted: {self.words}."
        finally:
            shown.done(granted)

    def ask_for(
        self,
        request: Mapping[str, Any],
        timeout: float,
        on_queued: Callable[[Mapping[str, Any]], None],
        on_waiting: Callable[[], None],
        on_away: Callable[[float], None],
    ) -> None:
        """The same, where somebody else shows it; as `Session.request`."""
        request = {**request, "request_id": f"run-{os.getpid()}-{time.monotonic_ns()}"}
        self.take(self.session.request(request, on_queued, on_waiting, timeout, on_away))
        if self._program is not None:
            self.joined_by(self._program)

    def take(self, result: Mapping[str, Any]) -> Grant:
        """What was granted, at first or again. Raises :class:`NodeUnavailable` for nonsense."""
        self.grant, self.told = read_grant(result), result
        self.secret = str(result.get("secret") or self.secret)
        return self.grant

    def environ_of_program(self) -> dict[str, str]:
        """The environment by which a program uses the GPUs, if any, and joins the lease."""
        if self.grant is None:
            return {**self.environ}
        visible, naming = self.grant.visible_devices, {}
        if self._by_index:
            visible, naming = self.grant.indices, {names.VISIBLE_DEVICES: "indices"}
        # What came along from elsewhere must not pass for ours, as all does that we mark.
        environ = {**self.environ}
        leave_behind(environ)
        return {
            **environ,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": visible,
            **naming,
            names.LEASE: self.grant.lease,
            names.SECRET: self.secret,
            names.SOCKET: self.session.path,
            names.RUN: str(os.getpid()),
            names.SET_IN: set_here(self.environ, self.session.path),
        }

    def joined_by(self, pid: int) -> bool:
        """A program has begun, and joins: it goes on with the lease if this process is killed.

        Returns whether the lease is still ours: it may have been taken back before.
        """
        grant, self._program = self.grant, pid
        if grant is None:
            return False
        shown = {"lease": grant.lease, "secret": self.secret, "pid": pid}
        self.session.tell_surely(Method.ATTACH, **shown)
        return self.session.holds(grant.lease)

    def succeed(self, told: Mapping[str, Any], secret: str, program: int) -> bool:
        """Keep the lease of a keeper that was killed; whether it has its GPUs.

        Raises :class:`GpuShareError`: the lease has ended, or that keeper lives.
        """
        lease = self.take({**told, "secret": secret}).lease
        until = time.monotonic() + _SUCCEEDS_WITHIN
        while True:
            try:
                answer = self.session.call(
                    Method.ATTACH, again=True, lease=lease, secret=secret, keeper=True
                )
                break
            except GpuShareError as error:
                # The node manager hears of the other's end in a moment.
                if error.reason is not Reason.NOT_ALLOWED or time.monotonic() > until:
                    self.grant = None
                    raise
            time.sleep(_LOOK)  # it tells nobody when it has heard
        self.session.hold(lease, secret)
        self._program = program
        return answer.get("state") != "parked"

    def forget(self) -> None:
        """The lease has ended."""
        self.grant = None

    def give_back(self, *, ends: bool = False) -> None:
        """Give it back, if anybody is there to take it; the kernel tells of our end otherwise."""
        lease = self.lease
        if lease is not None and self.session.holds(lease) and self.session.link is Link.UP:
            self.session.give_back(lease, ends=ends)

    def close(self) -> None:
        """Give it back, unless others have joined it and go on, and hang up."""
        self.give_back(ends=True)
        self.session.close()
