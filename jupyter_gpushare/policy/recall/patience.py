"""One clock and one back-off for all recalls. Times are in seconds."""

from __future__ import annotations

from typing import Final

from ..books.links import is_under_way
from ..words.config import PolicyConfig
from ..words.recalls import Give, Recall, RecallPhase

#: Time to wait for an answer before other tasks are asked, too.
ANSWER: Final = 10.0
#: Time after which a task that gave no answer is asked again.
AGAIN: Final = 60.0
#: The longest pause: each further ask of these comes after twice the pause, up to this one.
SELDOM: Final = {Give.CACHE: 16 * AGAIN, Give.PROCESS: 3600.0, Give.STOP: 3600.0}
#: Time for which a task that emptied its cache is held up for the measurement.
HELD_FOR: Final = 5.0
#: Time between two looks at which tasks could help the waiting requests.
LOOK_EVERY: Final = 1.0
#: Time after which a warning that led to no ask is forgotten.
WARNING_HOLDS: Final = 30.0


def answer(give: Give, config: PolicyConfig) -> float:
    """How long the node manager waits for a task's answer."""
    if give in (Give.CACHE, Give.TURN):
        return config.turn_bound  # it comes at the end of a step
    if give is Give.STOP:
        return config.stop_grace
    return min(ANSWER, config.burst_return) if give is Give.LIFT else ANSWER


def is_coming(give: Give, recall: Recall, config: PolicyConfig, at: float) -> bool:
    """Whether the planner can count on it, so that no other task is asked for the same memory.

    Gigabytes on the way to host memory may take longer than an answer. A task that never tells
    the end of that is not counted on for ever: somebody waits.
    """
    told = recall.phase is RecallPhase.TOLD and recall.asked_at is not None
    return (
        is_under_way(recall, at)
        or recall.phase is RecallPhase.ANSWERED
        or (told and at - recall.since < answer(give, config))
    )


def next_ask(give: Give, recall: Recall | None, idle: float = AGAIN) -> float:
    """Boot time from which a task may be asked (again).

    After a refusal the task's ``idle`` time-out begins anew. An unanswered ask may have got lost.
    """
    if recall is None or recall.asked_at is None:
        return -float("inf")
    if give in SELDOM:
        # Six doublings reach the longest pause of all, and a power without a bound would overflow
        # one day.
        pause = min(SELDOM[give], AGAIN * 2.0 ** min(recall.tries - 1, 6))
    else:
        pause = idle if recall.phase is RecallPhase.KEPT else min(idle, AGAIN)
    return recall.asked_at + pause
