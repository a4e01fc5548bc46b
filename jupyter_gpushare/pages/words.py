"""Figures and states as people read them. Pure; the words are those of the panel in JupyterLab."""

from __future__ import annotations

from typing import Final

from jupyter_gpushare.protocol.sizes import format_size
from jupyter_gpushare.protocol.times import format_duration

#: The name of each state, and its meaning for the owner of the lease.
STATES: Final[dict[str, tuple[str, str]]] = {
    "queued": ("Queued", "Waits for a GPU; the code goes on when it is granted."),
    "active": ("Active", "Holds its GPU and runs code."),
    "idle": ("Idle", "Holds its GPU and runs no code."),
    "parking": (
        "Parking",
        "It is idle and gives its GPU back; what is on the GPU goes to host memory.",
    ),
    "resuming": (
        "Resuming",
        "It has a GPU again; what was in host memory is brought back to it.",
    ),
    "parked": (
        "Parked",
        "Its GPU was given to others and its variables are kept; the next cell takes a GPU again.",
    ),
    "stalled": (
        "Stalled",
        "Its process gives no sign of life. It keeps its memory until the process ends.",
    ),
    "over_limit": ("Over its limit", "Uses more GPU memory than its lease reserves."),
    "draining": (
        "Draining",
        "The lease has ended, but its process still holds GPU memory. Restart the kernel to free "
        "it.",
    ),
    "ended": ("Ended", "Over."),
}
#: States in which restarting the kernel is what helps.
RESTART_HELPS: Final = frozenset({"stalled", "draining", "over_limit"})
#: The way in which a parked task gave its GPUs back; ``{}`` is the host memory that it takes.
RUNGS: Final = {
    "release": "Released: nothing was on the GPU.",
    "trim": "Caches emptied; what the code uses stayed on the GPU.",
    "storage": "Tensors moved to host memory: {}.",
    "driver": "Moved to host memory by the driver: {}.",
}
#: The state of a task's turn on a GPU that several use by turns.
TURNS: Final = {
    "holds": "It has the turn.",
    "yields": "It ends its turn.",
    "rest": "It asks for a turn when it computes.",
}
#: The next step against a stalled task, while a request waits for its memory and before.
STALL_NOW: Final = {
    "interrupt": "Somebody waits for its memory: it is interrupted in {} unless it goes on.",
    "kill": "Somebody waits for its memory: it is ended in {} unless it goes on.",
}
STALL_LATER: Final = {
    "interrupt": "It is interrupted after {} without progress, if somebody waits for its memory.",
    "kill": "It is ended after {} without progress, if somebody waits for its memory.",
}
#: The next step against a task over its limit, and its time.
OVER_LIMIT: Final = {
    "trim": "Its caches are emptied in at most {}.",
    "park": "Its GPU is taken back when idle, in {} at the earliest.",
    "last": "The configured action (interrupt or kill) follows in {} at the earliest.",
}
#: Why an idle GPU is about to be taken back.
WARNINGS: Final = {
    "contended": "it is idle and others wait",
    "idle": "it reaches its idle time-out",
    "budget_spent": "it is idle and the GPU-hours are spent",
}


def state_word(state: str) -> str:
    """The name of a state; a state newer than this page keeps its own word."""
    return STATES[state][0] if state in STATES else state.replace("_", " ").capitalize()


def state_hint(state: str) -> str:
    return STATES[state][1] if state in STATES else ""


def rung_text(rung: str | None, memory: int | None) -> str:
    """How a task was parked; empty for one that was not."""
    return RUNGS.get(rung or "", "").format(size(memory or 0))


def counted(count: int, one: str, many: str = "") -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def gpus(count: int) -> str:
    return counted(count, "GPU")


def size(count: int) -> str:
    """Bytes: ``8 GiB``."""
    return format_size(count)


def memory_each(limit: int | None) -> str:
    """A quota's memory on each GPU, bytes."""
    return "the whole GPU" if limit is None else size(limit)


#: A length of time as a person says it; the same everywhere.
duration: Final = format_duration


def gpu_hours(gpu_seconds: float) -> str:
    """With as many figures as say something."""
    hours = gpu_seconds / 3600
    if hours == 0:
        return "0"
    if hours < 0.01:
        return "< 0.01"
    return f"{hours:.2f}" if hours < 10 else f"{hours:.1f}" if hours < 100 else f"{hours:.0f}"


def percent(share: float | None) -> str:
    """A share of one; unknown stays unknown."""
    return "?" if share is None else f"{round(share * 100)} %"
