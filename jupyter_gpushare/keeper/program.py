"""A program that nobody speaks for, parked while it rests and woken when it computes again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from ..client.errors import GpuShareError, LeaseLost, NotGranted
from .holding import Holding, say
from .keeper import Rest
from .kept import Kept
from .resting import Used, processor_time, rate, wants

#: Seconds over which its usual rate is measured, and between two tries to have a free GPU.
USUALLY: Final = 10.0


class RestingProgram(Kept):
    """Keeps one program. `look` is called all the time, ``every`` so many seconds."""

    every: Final = 1.0

    def __init__(
        self,
        holding: Holding,
        request: Mapping[str, Any],
        command: Sequence[str],
    ) -> None:
        super().__init__(holding, request, command)
        self._usual, self._since = 0.0, Used(0.0, time.monotonic())
        self._last, self._tried_at = self._since, 0.0

    def look(self) -> None:
        """Wake it where it computes more than it did while it rested. Never waits."""
        now = Used(processor_time(self.tree.processes()), time.monotonic())
        before, self._last = self._last, now
        if self.keeper.rest is not Rest.ASLEEP:
            # While it is awake. The node manager parks what rests, so the last rate is that of its
            # rest.
            if now.at - self._since.at >= USUALLY:
                self._usual, self._since = rate(self._since, now), now
            return
        wanted = wants(before, now, self._usual)
        # Without a sign, too, now and then: a free GPU costs nobody anything, and it wakes faster.
        if wanted or now.at - self._tried_at >= USUALLY:
            self._tried_at = now.at
            self.wakes(partial(self._wake, wanted))

    def _wake(self, wanted: bool) -> None:
        if wanted:
            say("The command computes again, and waits for its GPU.")
        try:
            self.keeper.wake(wait=wanted)
            say("The command has its GPU memory again.")
        except NotGranted:
            pass  # no GPU is free, and it does not need one yet
        except LeaseLost as error:
            say(str(error))
        except GpuShareError as error:
            say(f"{error} It is tried again.")
