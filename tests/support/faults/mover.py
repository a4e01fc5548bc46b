"""A kernel with memory on its GPU that computes in steps, by turns, and may be moved in mid-cell.

It comes to a gate after each step. There it gives its turn, or its memory, and goes on where it has
both. After each such gate it looks whether all of its memory is as it was.
"""

from __future__ import annotations

import time

from .observed import Saw, boot
from .pretend import DriverSaid
from .tenant import Tenant


class Mover(Tenant):
    """One life."""

    _is_paused = False  # its memory was elsewhere, at this gate

    def _hears(self, text: str) -> None:
        super()._hears(text)
        self._is_paused |= "Paused: its memory" in text

    def _idle(self) -> bool:
        self.broker.turns.rest()
        return super()._idle()

    def _look(self, seconds: float) -> bool:
        """Compute for some time. False: its life is over."""
        look = super()._look
        return look(0.0) and self._steps(6.0 * seconds, self._step) and look(0.0)

    def _step(self) -> bool:
        t0 = boot()
        try:
            self.framework.cuda.step()
        except DriverSaid as error:
            self.log.note(Saw.GIVEN_UP, t0, why=str(error))
            return False
        time.sleep(self.rng.uniform(0.01, 0.06))  # the pretend GPU computes
        return self._gate()

    def _gate(self) -> bool:
        """False: its life is over."""
        turns = self.broker.turns
        turns.announce()
        if not turns.is_closed:
            return True
        before, self._is_paused = self._gpus, False
        # From here on it may have nothing, and nobody writes down since when.
        t0 = self.log.note(Saw.PARKING, lease=self.lease)
        turns.checkpoint()
        if self._dead is not None:
            self.log.note(Saw.GIVEN_UP, t0, why=self._dead)
            return False
        after = self._gpus
        if self._is_paused and after:
            self.log.note(Saw.MOVED, t0, lease=self.lease, before=before, after=after)
        return super()._look(0.0)

    @property
    def _gpus(self) -> list[str]:
        grant = self.broker.grant
        return [] if grant is None else [gpu.uuid for gpu in grant.gpus]
