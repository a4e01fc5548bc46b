"""Cells whose people name a deadline, expected times that are wrong, and batch sessions: made up.

The dice are the session's own, as those of :mod:`.need`: who is replayed beside it, and by which
policy, changes nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from .trace import Session

#: A person's deadline is this many times what the cell computes, any as likely as any other.
#: Assumed: no published figures are known to us.
SLACK: Final = (1.5, 6.0)
#: Seconds: nobody names a shorter deadline.
SHORTEST: Final = 60.0
#: Share of a GPU's compute, in hundredths, that each task is predicted to use. Assumed.
SHARE: Final = 20
#: Up to this factor the error of an expected time counts as small: half of the times that are wrong
#: by up to twice are wrong by 40 %, as the node manager allows.
SURE: Final = 2.0


@dataclass(frozen=True, slots=True)
class Promising:
    """``part`` of the cells that people wait for have a deadline; ``batch`` of the sessions are
    batch. An expected time is wrong by a factor of up to ``error``, in both directions.

    ``told``: the node manager is told of deadlines and expected times, otherwise only what came of
    them is counted. ``classed``: it knows which sessions are batch.
    """

    part: float = 0.0
    error: float = 1.0
    batch: float = 0.0
    told: bool = True
    classed: bool = True

    def is_batch(self, session: Session) -> bool:
        return random.Random(f"{session.name}:class").random() < self.batch

    def deadline(self, session: Session, cell: int) -> float | None:
        """Seconds after a cell was sent by which it is to end, or ``None`` if nobody minds."""
        dice = random.Random(f"{session.name}:{cell}:deadline")
        if self.is_batch(session) or dice.random() >= self.part:
            return None
        return max(SHORTEST, dice.uniform(*SLACK) * session.seconds[cell])

    def expected(self, session: Session, cell: int) -> float:
        """Seconds that a cell is expected to compute."""
        dice = random.Random(f"{session.name}:{cell}:expected")
        return float(session.seconds[cell] * self.error ** dice.uniform(-1.0, 1.0))
