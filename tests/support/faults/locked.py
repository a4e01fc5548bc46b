"""A client without a gate: it computes on, and the driver's lock pauses it while others compute.

It uses the product's own ``Broker``, and names no framework that has steps. It writes down each
call of the driver that came back. While the driver has it locked none does.
"""

from __future__ import annotations

import time
from typing import Any

from jupyter_gpushare.client.memory import locking

from .observed import Saw, boot
from .pretend import DriverSaid
from .tenant import Tenant, stands_for

STEP = 0.02  # seconds


class Locked(Tenant):
    """One life."""

    def __init__(self, spec: dict[str, Any]) -> None:
        # A task has ten seconds to show that it has a gate; this one never will.
        for name, seconds in (("PATIENCE", 0.0), ("LOOK_EVERY", 0.2), ("AGAIN", 0.1)):
            stands_for(locking, name, seconds)
        super().__init__(spec)

    def run(self) -> None:
        """Compute for some time, by one lease."""
        self._begin()
        if self._fill() and self._compute(self.rng.uniform(*self.spec["hold"])):
            self._release()
        self.log.note(Saw.LET_GO, lease=self.lease)
        self.broker.close()

    def _compute(self, seconds: float) -> bool:
        """False: its life is over."""
        self.log.note(Saw.LAUNCHES, lease=self.lease)
        return self._steps(seconds, self._step)

    def _step(self) -> bool:
        t0 = boot()
        try:
            self.framework.cuda.step()
        except DriverSaid as error:
            self.log.note(Saw.GAVE_UP, t0, request="step", why=str(error))
            return False
        self.log.note(Saw.STEPPED, t0)
        time.sleep(STEP)  # the pretend GPU computes
        return True
