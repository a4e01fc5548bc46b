"""The promise that a cell, or a program, of this process has named: made, heard of, over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ...protocol.errors import Reason
from ...protocol.messages import Method
from ..errors import GpuShareError, NotGranted
from ..session.session import Session
from ..words.promises import News, Wish, share_words, too_late


class Promises:
    """``lease()`` is the one that this process holds for itself, if any.

    ``begins`` is called when what was promised begins, for steps are counted from there, and
    ``ends`` when it is over.
    """

    def __init__(
        self,
        session: Callable[[], Session],
        lease: Callable[[], str | None],
        *,
        begins: Callable[[], object],
        ends: Callable[[], object],
        what: Callable[[], str],
        say: Callable[[str], None],
    ) -> None:
        self._session = session
        self._lease = lease
        self._begins = begins
        self._ends = ends
        self._what = what
        self._say = say
        self._news: News | None = None

    @contextmanager
    def kept(self, wish: Wish | None, waited: float = 0.0) -> Iterator[str]:
        """What is promised while the block runs, in words; "" without a ``wish``.

        ``waited`` are seconds of the deadline that have passed. Raises `NotGranted` where it
        cannot be kept; then nothing is promised.
        """
        if wish is None:
            yield ""
            return
        words = self._make(wish, waited)
        try:
            yield words
        finally:
            self._over()

    def heard(self, told: Mapping[str, Any]) -> None:
        """How it stands with it; on the session's thread."""
        news = self._news
        if news is not None and (text := news.text(told, time.time())):
            self._say(text)

    def _make(self, wish: Wish, waited: float) -> str:
        lease = self._lease()
        if lease is None:
            raise GpuShareError(
                "Only the process that holds the lease can name a promise, and this one shares "
                "its parent's: name it there, as `jupyter gpushare run --deadline`."
            )
        deadline = wish.deadline
        # The deadline counts from the person's word, and the node manager's from now.
        if deadline is not None:
            deadline -= waited
            if deadline <= 0:
                raise NotGranted(too_late(wish.deadline or 0.0, waited), Reason.INFEASIBLE)
        session = self._session()
        self._begins()
        # What is told of it may come before the answer.
        self._news = News(self._what())
        try:
            result = session.call(Method.PROMISE, lease=lease, deadline=deadline, rate=wish.rate)
        except BaseException:
            self._news = None
            raise
        words = Wish(deadline, wish.rate).words(time.time())
        return " ".join(filter(None, (f"Promised: {words}.", share_words(result.get("share")))))

    def _over(self) -> None:
        """What was promised is over; it is the node manager who knows whether it was kept."""
        self._news = None
        self._ends()
        lease = self._lease()
        if lease is not None:
            with suppress(GpuShareError):  # its lease has ended, and the promise with it
                self._session().tell_surely(Method.PROMISE, lease=lease)
