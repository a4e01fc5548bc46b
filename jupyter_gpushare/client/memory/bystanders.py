"""Finds code of the user that may run while no cell does: threads, timers, asyncio tasks.

A parked tensor has no memory, and a thread that used it would end the process, or its CUDA. A
process that the driver has checkpointed blocks in every CUDA call: a thread then only waits, but a
task in the kernel's own event loop would stop the kernel, and with it the cell that was to bring
the memory back. So we look for such code before any memory is moved. Code that does not run yet,
such as a library's callback, is not found: docs/how-to/keep-my-variables.md says so.
"""

from __future__ import annotations

import asyncio
import functools
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Final

from ..adapters.parkers.steps import frames
from ..adapters.parkers.walk import live_objects

_OURS: Final = os.path.join(Path(__file__).absolute().parents[2], "")
#: Callbacks that a kernel's event loop runs by itself.
_MACHINERY: Final = frozenset(
    {"ipykernel", "IPython", "tornado", "zmq", "comm", "jupyter_client", "debugpy", "anyio"}
)


@dataclass(frozen=True, slots=True)
class Bystanders:
    """By name: ``threads`` with the user's code, and ``tasks`` that wait in an event loop."""

    threads: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()


def tasks_object(found: Bystanders) -> str | None:
    """Why no memory may be moved at all, as a sentence; ``None``: no task is in the way."""
    if not found.tasks:
        return None
    return (
        f"The asyncio task {_named(found.tasks)} has not ended, and may use the GPU at any time "
        "though no cell runs: end it (`.cancel()`) to have the memory moved."
    )


def threads_object(found: Bystanders) -> str | None:
    """Why tensors may not be moved one by one, as a sentence; ``None``: no thread is in the way."""
    if not found.threads:
        return None
    return (
        f"Code of yours runs in the thread {_named(found.threads)} and may use the GPU at any "
        "time though no cell runs."
    )


def look() -> Bystanders:
    """Find such code now, without the calling thread and the task that it runs.

    Walks all objects (0.1 s and more).
    """
    places = _Places()
    return Bystanders(tuple(_threads(places)), tuple(_tasks(places)))


def _threads(places: _Places) -> Iterator[str]:
    tops = sys._current_frames()
    for thread in threading.enumerate():
        if thread.ident == threading.get_ident():
            continue
        timed = getattr(thread, "function", None) if isinstance(thread, threading.Timer) else None
        running = (frame.f_code for frame in frames(tops.get(thread.ident or 0)))
        if (timed is not None and places.is_users(_code_of(timed))) or any(
            places.is_users(code) or places.computes(code) for code in running
        ):
            yield thread.name


def _tasks(places: _Places) -> Iterator[str]:
    (tasks,) = live_objects(asyncio.Task)
    runs_here = None
    with suppress(RuntimeError):  # this thread runs no event loop
        runs_here = asyncio.current_task()
    main = threading.main_thread().ident
    for task in tasks:
        if task.done() or task is runs_here:
            continue
        in_main = getattr(task.get_loop(), "_thread_id", None) == main
        codes = list(_awaited(task.get_coro()))
        # In the kernel's own loop a library's task counts, too: blocked in CUDA it stops the
        # kernel. In a loop of its own it stops only itself.
        foreign = in_main and codes and not places.is_machinery(codes[0])
        if foreign or any(map(places.is_users, codes)):
            yield codes[0].co_name


def _awaited(coroutine: Any) -> Iterator[CodeType]:
    """The code of a coroutine and of what it waits for, from the outside in."""
    seen: set[int] = set()
    while coroutine is not None and id(coroutine) not in seen:
        seen.add(id(coroutine))
        code = getattr(coroutine, "cr_code", None) or getattr(coroutine, "gi_code", None)
        if isinstance(code, CodeType):
            yield code
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


def _code_of(function: Any) -> CodeType | None:
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


class _Places:
    """Tells the user's code from libraries' by its file: code not installed is the user's."""

    def __init__(self) -> None:
        paths = sysconfig.get_paths()
        packages = [paths["purelib"], paths["platlib"], *site.getsitepackages()]
        packages.append(site.getusersitepackages())
        library = [paths["stdlib"], paths["platstdlib"]]
        self._packages = tuple(os.path.join(one, "") for one in dict.fromkeys(packages))
        self._library = tuple(os.path.join(one, "") for one in dict.fromkeys(library))

    def is_users(self, code: CodeType | None) -> bool:
        # Ours is listed apart: installed for development it lies in a folder like the user's.
        known = (*self._packages, *self._library, _OURS, "<frozen ")
        return code is not None and not code.co_filename.startswith(known)

    def is_machinery(self, code: CodeType) -> bool:
        """Whether a kernel's event loop runs it by itself."""
        file = code.co_filename
        if (package := self._package(file)) is not None:
            return package.removesuffix(".py") in _MACHINERY
        return file.startswith((*self._library, _OURS, "<frozen "))

    def computes(self, code: CodeType) -> bool:
        """Whether it belongs to a model, so that a library computes in a thread of its own."""
        file = code.co_filename
        return self._package(file) == "torch" and f"torch{os.sep}nn{os.sep}" in file

    def _package(self, file: str) -> str | None:
        inside = (file.removeprefix(place) for place in self._packages if file.startswith(place))
        return next((path.split(os.sep, 1)[0] for path in inside), None)


def _named(names: tuple[str, ...]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
