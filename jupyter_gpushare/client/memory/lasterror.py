"""Gives back the memory that only the last error keeps.

After an error Python and IPython keep its traceback, for `%debug`. Its frames keep their variables,
so a cell that ran out of memory leaves too little for the next one. So the traceback is forgotten
and its frames are cleared, when the next cell begins, or at once. What the notebook names is not
touched: a function's variable that has a name there, too, stays; so does all of an error that has a
name.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_OPTIMIZED
from itertools import islice
from types import (
    AsyncGeneratorType,
    CoroutineType,
    FrameType,
    GeneratorType,
    ModuleType,
    TracebackType,
)
from typing import Any, Final

from ...figures import format_size
from ...protocol.sizes import LEAST_MEMORY
from ..adapters.holdings import Holdings
from ..words.settings import AfterError
from ..words.tracebacks import chain_of
from .frameworks import Frameworks
from .holders import held_by_name

_GENERATORS: Final = (GeneratorType, CoroutineType, AsyncGeneratorType)
_OF_GENERATORS: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_NAMES: Final = 5  # that are told
_MEMBERS: Final = 1000  # of a container that may keep an error
#: Cells of such lines look at the error.
_LOOKS: Final = ("%debug", "debug", "%tb", "tb", "%pdb", "%xmode")
#: Where Python keeps the last error that nobody handled.
_LAST: Final = ("last_type", "last_value", "last_traceback", "last_exc")
_DEBUGGERS: Final = ("pdb.pm(", "pdb.post_mortem(")


class LastError:
    """Of one process; ``tell`` shows a quiet line in the cell that runs."""

    def __init__(
        self, frameworks: Frameworks, when: Callable[[], AfterError], tell: Callable[[str], None]
    ) -> None:
        self._frameworks = frameworks
        self._when = when
        self._tell = tell
        self._error: BaseException | None = None
        self._is_tight = False

    def shown(self, error: BaseException, shell: Any, *, is_tight: bool) -> None:
        """A person was shown this error. ``is_tight``: memory ran out; else it may be dropped."""
        when = self._when()
        # A process without data on a GPU keeps its traceback, as Python would.
        if when is AfterError.KEEP or not (is_tight or self._frameworks.holdings()):
            return
        self._error, self._is_tight = error, is_tight
        if when is AfterError.AT_ONCE:
            self._give_back(shell)

    def before_cell(self, cell: str, shell: Any) -> None:
        """A cell is about to run: what only the error keeps goes, unless it looks at the error."""
        if self._error is not None and not looks_at_error(cell):
            self._give_back(shell)

    def _give_back(self, shell: Any) -> None:
        error, self._error = self._error, None
        if error is None:
            return
        holdings = self._frameworks.holdings()
        before = _used(holdings)
        keepers = names_of(error, shell.user_ns)
        if not keepers:
            forget(error, shell)
        # This function's own name would keep it beyond the collection.
        del error
        gc.collect()
        self._frameworks.empty_caches()
        used = _used(holdings)
        freed = max(0, before - used)
        # Silence where nothing came of it, unless memory ran out: then it helps to know what has
        # the rest.
        if freed < LEAST_MEMORY and not (self._is_tight and used):
            return
        strangers = (shell, shell.user_ns, sys.modules)
        names = held_by_name(_names(shell), holdings, strangers) if self._is_tight else {}
        self._tell(words(freed, used, names, keepers))


def _used(holdings: Sequence[Holdings]) -> int:
    """Bytes of data on GPUs; 0 where a driver that failed cannot tell."""
    with suppress(Exception):
        return sum(one.used() for one in holdings)
    return 0


def words(freed: int, used: int, names: Mapping[str, int], keepers: Sequence[str]) -> str:
    """What came back, and what keeps the rest, for a person (bytes).

    ``names`` keep so much each, ``keepers`` the error itself.
    """
    text = "The last error alone kept no GPU memory."
    if keepers:
        text = f"`{keepers[0]}` keeps the last error, and so what its functions had."
    elif freed >= LEAST_MEMORY:
        text = f"{format_size(freed)} of GPU memory came back that only the last error kept."
    if used < LEAST_MEMORY:
        return text
    told = dict(islice(names.items(), _NAMES))
    parts = [f"`{name}` {format_size(size)}" for name, size in told.items()]
    others = used - sum(told.values())
    if others >= LEAST_MEMORY:
        parts.append(f"{format_size(others)} that none of your largest variables has")
    return f"{text} Still in use: {', '.join(parts)}."


def looks_at_error(cell: str) -> bool:
    """Whether a cell only looks at the last error."""
    lines = [line.split() for line in cell.splitlines()]
    only_looks = all(line[0] in _LOOKS or line[0].startswith("#") for line in lines if line)
    return only_looks or any(call in cell for call in _DEBUGGERS)


# -- the error -----------------------------------------------------------------------------------


def frames_of(error: BaseException) -> Sequence[FrameType]:
    """The frames of the tracebacks of the error and of those that it came from."""
    return tuple({id(entry.tb_frame): entry.tb_frame for entry in _entries(error)}.values())


def _entries(error: BaseException) -> Iterator[TracebackType]:
    for one in chain_of(error):
        entry = one.__traceback__
        while entry is not None:
            yield entry
            entry = entry.tb_next


def forget(error: BaseException, shell: Any) -> None:
    """Python and IPython keep the error's traceback no longer, nor whoever else keeps the error.

    The variables of its functions are cleared, too, for who has the frames themselves. That does
    not reach what an inner function shares with an outer one.
    """
    chain, frames = chain_of(error), frames_of(error)
    if any(one is getattr(sys, "last_value", None) for one in chain):
        for name in _LAST:
            sys.__dict__.pop(name, None)
    if (shown := getattr(shell, "InteractiveTB", None)) is not None:
        shown.tb = shown.pdb = None  # `%debug` makes another one
    for one in chain:
        one.__traceback__ = None
    clear(frames)


def clear(frames: Sequence[FrameType]) -> None:
    """Let go of the variables of functions that have ended.

    A suspended generator is left alone, because it goes on: until Python 3.12 `frame.clear` closes
    it.
    """
    for frame in frames:
        flags = frame.f_code.co_flags
        if not flags & CO_OPTIMIZED:
            continue  # of a cell, a module or a class: its variables are names there
        if flags & _OF_GENERATORS and _is_suspended(frame):
            continue
        with suppress(RuntimeError):  # it still runs, in another thread or below us
            frame.clear()


def _is_suspended(frame: FrameType) -> bool:
    """A generator that has not ended refers to its frame."""
    return any(type(one) in _GENERATORS for one in gc.get_referrers(frame))


# -- names ---------------------------------------------------------------------------------------


def names_of(error: BaseException, names: Mapping[str, Any]) -> Sequence[str]:
    """The names that keep the error or a part of it, themselves or one level below."""
    entries = tuple(_entries(error))
    frames = [entry.tb_frame for entry in entries]
    parts = set(map(id, (*chain_of(error), *entries, *frames)))
    return [
        name
        for name, value in tuple(names.items())
        if id(value) in parts or any(id(one) in parts for one in _inside(value))
    ]


def _inside(value: Any) -> Iterator[Any]:
    kind = type(value)
    if issubclass(kind, ModuleType | type):
        return  # `sys` keeps the last error, which is not the person's doing
    if kind in (list, tuple, set, frozenset, dict):
        yield from islice(value.values() if kind is dict else value, _MEMBERS)
    elif hasattr(kind, "__dictoffset__") and kind.__dictoffset__:
        with suppress(Exception):  # a class of the user's may forbid it
            yield from islice(object.__getattribute__(value, "__dict__").values(), _MEMBERS)


def _names(shell: Any) -> Iterator[tuple[str, Any]]:
    """The notebook's names, the person's own first, then the results that IPython keeps."""
    hidden = shell.user_ns_hidden
    space = tuple(shell.user_ns.items())
    yield from ((n, v) for n, v in space if n not in hidden and not n.startswith("_"))
    if isinstance(results := shell.user_ns.get("_oh"), dict):
        yield from ((f"Out[{number}]", value) for number, value in tuple(results.items()))
    yield from ((n, v) for n, v in space if n not in hidden and n.startswith("_") and n != "_oh")
