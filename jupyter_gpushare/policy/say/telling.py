"""Events in sentences: fills in the texts that their classes declare.

A text is a template as of :meth:`str.format`, with the fields of the event. After the colon stands
how a field is said: a word of :data:`WORDS`, or what comes before it unless it is empty, as in
``ended{by: by }``. A word of an enum is said as :data:`SAID` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from string import Formatter
from typing import Any, Final

from ...figures import counted, format_hours
from ..words.described import Happening, OneOf, chosen
from ..words.model import Allocation, EndReason, HolderAction, OverLimitStage, Request
from ..words.promises import PromiseState, ShareWhy
from . import texts

#: The words of enums whose own are not for people.
SAID: Final[Mapping[Enum, str]] = texts.CAUSES | {
    EndReason.RELEASED: "released",
    EndReason.CANCELLED: "its request left the queue",
    EndReason.REVOKED: "taken back",
    EndReason.PROCESS_GONE: "its process has ended",
    EndReason.HEARTBEAT_LOST: "it gave no sign of life and held no GPU memory",
    EndReason.KERNEL_ENDED: "its kernel was shut down or restarted",
    EndReason.REFUSED: "its quota let it wait no longer",
    EndReason.REBOOTED: "the host was restarted",
    EndReason.UNUSED: "the process that asked has ended, and the others used no GPU",
    HolderAction.INTERRUPT: "interrupted",
    HolderAction.KILL: "killed",
    OverLimitStage.WARNED: "its people were warned",
    OverLimitStage.TRIM: "it is asked to empty its caches",
    OverLimitStage.PARK: "it is asked for its GPUs when it is idle",
    OverLimitStage.LAST: "the last measure is due (audit_action)",
    PromiseState.ON_TIME: "its promise will be kept",
    PromiseState.LATE: "its promise will not be kept as things are",
    PromiseState.KEPT: "its promise was kept",
    PromiseState.MISSED: "its promise was missed",
    PromiseState.ENDED: "it ended, and nobody can tell whether its promise was kept",
    ShareWhy.RAISED: "its promise needs more",
    ShareWhy.SHRUNK: "a promise or a waiting request needs the rest",
    ShareWhy.RETURNED: "nobody needs the rest any more",
    ShareWhy.MEASURED: "that is what it was measured to use",
    ShareWhy.LEFT: "others have the rest, and it computes by turns with them",
}


def _request(asked: Request) -> str:
    memory = "" if asked.memory is None else f" with {texts.size(asked.memory)} on each"
    return texts.gpus(asked.gpus) + memory


def _tasks(several: tuple[object, ...]) -> str:
    return counted(len(several), "task computes", "tasks compute")


#: How fields may be said. What a GPU is called, and times, are for the caller to add.
WORDS: Final[Mapping[str, Callable[[Any], str]]] = {
    "hours": lambda count: format_hours(count or 0.0),
    "list": ", ".join,
    "predicted": lambda many: ", ".join(f"{one.share} % of a {one.kind}" for one in many),
    "request": _request,
    "size": texts.size,
    "tasks": _tasks,
}


class Telling(Formatter):
    """Tells events. ``gpu`` gives a GPU's name for people, and ``more`` are other words."""

    def __init__(
        self, gpu: Callable[[str], str] = str, more: Mapping[str, Callable[[Any], str]] = {}
    ) -> None:
        self._gpu = gpu
        self._words = {**WORDS, "gpu": gpu, "parts": self._parts, **more}

    def of(self, event: Happening, text: str | OneOf[str] = "") -> str:
        """The sentence about an event: ``text``, or the one that it declares."""
        return self.vformat(chosen(event, text or event.ABOUT.text), (event,), {})

    def get_value(self, key: int | str, args: Any, _kwargs: Any) -> Any:
        """What an event has by that name: a field, or what it makes of them."""
        return getattr(args[0], str(key))

    def format_field(self, value: Any, spec: str) -> str:
        """A field as people read it."""
        if spec.isidentifier():
            return self._words[spec](value)
        if isinstance(value, Enum):
            value = SAID.get(value, value.value)
        # The words before a value go with it: "by" alone would be no sentence.
        return f"{spec}{value}" if value not in (None, "") else ""

    def _parts(self, parts: tuple[Allocation, ...]) -> str:
        return ", ".join(f"{texts.size(one.memory)} of {self._gpu(one.gpu)}" for one in parts)
