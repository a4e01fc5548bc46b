"""Takes our frames out of the tracebacks that people see.

Our frames are in the middle if a framework is imported, and at the end if we raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Final

from ..errors import GpuShareError

_OURS: Final = "jupyter_gpushare"
_IMPORTING: Final = (
    "importlib._bootstrap",
    "importlib._bootstrap_external",
    "_frozen_importlib",
    "_frozen_importlib_external",
)
#: Modules in which we wait, or through which we are called.
_BETWEEN: Final = ("threading", "contextlib", "asyncio.threads", *_IMPORTING)
_MARK: Final = "_gpushare_stopped"
_MOST: Final = 100  # errors in a chain


def stopped_waiting(interrupt: KeyboardInterrupt, text: str) -> KeyboardInterrupt:
    """The same interrupt, shown as one line: the place where we waited does not help."""
    interrupt.args = (text,)
    interrupt.__dict__[_MARK] = True
    interrupt.__dict__["_render_traceback_"] = lambda: [f"KeyboardInterrupt: {text}"]
    return interrupt


def says_all(error: Exception) -> None:
    """The error names the slip of who called us: where we noticed it does not help, either."""
    error.__dict__[_MARK] = True


def chain_of(error: BaseException) -> Sequence[BaseException]:
    """The error, those that it came from, and those of a group."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting and len(found) < _MOST:
        one = waiting.pop()
        if one is None or id(one) in found:
            continue
        found[id(one)] = one
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
    return tuple(found.values())


def tidy(error: BaseException) -> None:
    """Take our frames out of what will be shown of ``error`` and of those before it."""
    for one in chain_of(error):
        if one.__traceback__ is not None:
            ends_here = isinstance(one, GpuShareError) or _MARK in getattr(one, "__dict__", {})
            one.__traceback__ = without_us(one.__traceback__, ends_here=ends_here)


def without_us(traceback: TracebackType, *, ends_here: bool) -> TracebackType:
    """The traceback without the import hook and, with ``ends_here``, without our last frames.

    It is unchanged if it has no frames of ours, or only ours.
    """
    entries = []
    entry: TracebackType | None = traceback
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    kept = [_name(one.tb_frame) != f"{_OURS}._boot" for one in entries]
    # Both ways from each frame of the hook: the import's own frames stand on both sides of it.
    for order in (range(1, len(kept)), range(len(kept) - 2, -1, -1)):
        step = order.step
        for place in order:
            importing = _name(entries[place].tb_frame) in _IMPORTING
            kept[place] = kept[place] and (kept[place - step] or not importing)
    if ends_here:
        for place in reversed(range(len(kept))):
            name = _name(entries[place].tb_frame)
            if name not in _BETWEEN and name.partition(".")[0] != _OURS:
                break
            kept[place] = False
    if all(kept) or not any(kept):
        return traceback
    made: TracebackType | None = None
    for one, stays in reversed(list(zip(entries, kept, strict=True))):
        if stays:
            made = TracebackType(made, one.tb_frame, one.tb_lasti, one.tb_lineno)
    assert made is not None
    return made


def _name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
