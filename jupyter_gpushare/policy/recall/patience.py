"""One clock and one back-off for everything that is asked back. Times in seconds."""

from __future__ import annotations

from typing import Final

from ..words.config import PolicyConfig
from ..words.recalls import Give, Recall, RecallPhase

#: An answer is waited for so long before others are asked, too.
ANSWER: Final = 10.0
#: Who gave no answer is asked again after so long.
AGAIN: Final = 60.0
#: At last so seldom: each ask of these comes half as often as the one before.
SELDOM: Final = {Give.CACHE: 16 * AGAIN, Give.PROCESS: 3600.0}
#: Who has emptied its cache waits so long for the measurement of it.
HELD_FOR: Final = 5.0
#: Between two looks at who could help those who wait.
LOOK_EVERY: Final = 1.0
#: A warning that nothing came of is forgotten after so long.
WARNING_HOLDS: Final = 30.0


def answer(give: Give, config: PolicyConfig) -> float:
    """How long a task's answer is waited for."""
    if give in (Give.CACHE, Give.TURN):
        return config.turn_bound  # it comes at the end of a step
    return min(ANSWER, config.burst_return) if give is Give.LIFT else ANSWER


def is_coming(give: Give, recall: Recall, config: PolicyConfig, at: float) -> bool:
    """Whether it can be counted on: nobody else need be asked for the same.

    Gigabytes on the way to host memory may take longer than an answer.
    """
    told = recall.phase is RecallPhase.TOLD and recall.asked_at is not None
    return (
        recall.moving > 0
        or recall.phase is RecallPhase.ANSWERED
        or (told and at - recall.since < answer(give, config))
    )


def next_ask(give: Give, recall: Recall | None, idle: float = AGAIN) -> float:
    """Boot time from which a task may be asked (again).

    After a no its ``idle`` time-out begins anew. An ask that nobody answered may have gone astray.
    """
    if recall is None or recall.asked_at is None:
        return -float("inf")
    if give in SELDOM:
        pause = min(SELDOM[give], AGAIN * 2.0 ** min(recall.tries - 1, 6))
    else:
        pause = idle if recall.phase is RecallPhase.KEPT else min(idle, AGAIN)
    return recall.asked_at + pause
