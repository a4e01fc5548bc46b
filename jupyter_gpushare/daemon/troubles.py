"""Logs a lasting trouble once, then now and then how often it came, and when it is over.

On a full disk a write is tried again each second: a line for each try would fill the log,
which may be on the same disk.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ..figures import often

#: Seconds until a trouble that lasts is told again: each pause is twice the one before.
FIRST_PAUSE: Final = 60.0
LONGEST_PAUSE: Final = 3600.0
#: The most kinds of one trouble that are told apart; further ones (numbers in their texts make
#: many) count as one.
MOST_KINDS: Final = 8


@dataclass(slots=True)
class _Told:
    """When a sentence was told last, how long it is quiet now, and how often it came since."""

    at: float
    pause: float = FIRST_PAUSE
    untold: int = 0


class Trouble:
    """One thing that may fail again and again; ``over`` is what is told when it works again.

    ``clock`` gives boot time in seconds. Not thread-safe.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float], over: str) -> None:
        self._log = log
        self._clock = clock
        self._over = over
        self._told: dict[str, _Told] = {}
        self._began = 0.0
        self._times = 0

    @property
    def lasts(self) -> bool:
        """Whether it failed when it was tried last."""
        return bool(self._told)

    def came(self, sentence: str, *, with_story: bool = False) -> None:
        """It failed: ``sentence`` says how, in the same words each time.

        ``with_story``: the exception that is handled just now is told, too.
        """
        now = self._clock()
        if not self._told:
            self._began, self._times = now, 0
        self._times += 1
        key = sentence if sentence in self._told or len(self._told) < MOST_KINDS else ""
        told = self._told.get(key)
        if told is None:
            self._told[key] = _Told(now)
            self._log.error("%s", sentence, exc_info=with_story)
        elif now - told.at < told.pause:
            told.untold += 1
        else:
            more = f" ({told.untold + 1} times more in {now - told.at:.0f} s)"
            self._log.error("%s%s", sentence, more, exc_info=with_story)
            self._told[key] = _Told(now, min(LONGEST_PAUSE, 2 * told.pause))

    @contextlib.contextmanager
    def about(self, kind: type[Exception], what: str) -> Iterator[None]:
        """What fails with an error of this ``kind`` in here has failed, and else it worked."""
        try:
            yield
        except kind as error:
            self.came(f"{what}: {error}")
        else:
            self.is_over()

    def is_over(self) -> None:
        """It worked."""
        if not self._told:
            return
        self._told.clear()
        lasted = self._clock() - self._began
        self._log.warning(
            "%s, after it failed %s in %.0f s", self._over, often(self._times), lasted
        )
