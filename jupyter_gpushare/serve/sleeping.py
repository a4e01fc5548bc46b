"""Puts a server to sleep by its own means, and checks that it wakes as what it was.

It is a `Parker` to the keeper's ladder. What an adapter claims is measured: its memory by the node
manager, and its mind by a fixed prompt, answered before and after. A server that gives another
answer than before, or none, is started anew by its keeper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..client.adapters.parkers.base import ParkedDamaged, ParkFailed, ParkRefused, ResumeFailed
from .adapters.base import Adapter
from .upstream import NONSENSE, Control, ControlFailed


class OwnSleep:
    """A server's own way to give its GPU memory back."""

    def __init__(
        self,
        adapter: Adapter,
        control: Control,
        memory: Callable[[], int],
        damaged: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        """``memory``: the bytes that the server has on GPUs now. ``damaged`` is called where it
        must be started anew before anybody is answered.
        """
        self.adapter = adapter
        self._control, self._memory, self._damaged, self._say = control, memory, damaged, say
        #: Whether what it parks lies in host memory.
        self.copies = adapter.copies
        #: What it answered before it slept; ``None``: nothing, or not the same each time.
        self.answer: str | None = None
        self._steady: bool | None = None
        self.is_parked = False

    def _tries(self, what: Callable[[Control], Any]) -> Any:
        try:
            return what(self._control)
        except NONSENSE as error:
            words = f"The server's answer is not one of {self.adapter.name}: {error!r}"
            raise ControlFailed(words[:300]) from error

    def trim(self) -> int:
        """A server has no cache that it would empty for us."""
        return 0

    def drop_cache(self) -> None:
        """As `trim`."""

    def bytes_to_park(self) -> int:
        """As much as it has on GPUs: what of that goes to host memory, only the server knows."""
        return self._memory()

    def park(self) -> int:
        """Have it sleep; the bytes that it keeps in host memory."""
        try:
            self.answer = None if self._steady is False else self._tries(self.adapter.ask)
            if self._steady is None and self.answer is not None:
                self._steady = self._tries(self.adapter.ask) == self.answer
                if not self._steady:
                    self.answer = None
                    self._say(
                        "The server answers the same prompt differently each time, so it is not "
                        "checked whether it wakes as what it was."
                    )
        except ControlFailed as error:
            raise ParkRefused(str(error)) from error
        amount = self._memory() if self.copies else 0
        try:
            self._tries(self.adapter.sleep)
        except ControlFailed as error:
            self._undo(error)
        self.is_parked = True
        return amount

    def _undo(self, error: ControlFailed) -> None:
        """Some of it may sleep already."""
        try:
            self._tries(self.adapter.wake)
        except ControlFailed:
            self.is_parked = True
        raise ParkFailed(str(error)) from error

    def resume(self) -> None:
        """Have it wake, and see whether it is what it was."""
        try:
            self._tries(self.adapter.wake)
            again = None if self.answer is None else self._tries(self.adapter.ask)
        except ControlFailed as error:
            raise ResumeFailed(str(error)) from error
        self.is_parked = False
        if again != self.answer:
            self._damaged()
            raise ParkedDamaged(
                f"The server ({self.adapter.name}) does not answer as before it slept; it is "
                "started anew."
            )
