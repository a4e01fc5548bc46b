"""Places that a program names itself, where another task may have its turn on the GPU.

The end of a PyTorch optimizer's step and the call of a model are such places anyway. These are for
all other loops, for example those of other frameworks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import suppress
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar

from . import acquire

Item = TypeVar("Item")
P = ParamSpec("P")
R = TypeVar("R")
Save = TypeVar("Save", bound="Callable[[], object] | None")


def checkpoint() -> None:
    """Here this program may be interrupted: its memory stays, and it goes on in its next turn.

    On a GPU that tasks use by turns it waits here, visibly, while another task has the turn.
    Before that it waits for all that PyTorch, TensorFlow (also Keras), JAX and CuPy have queued on
    the GPU; for another library's work wait yourself. Without a lease, or alone on the GPU, it does
    nothing, and that quickly.

    Raises only :class:`KeyboardInterrupt`, for Ctrl-C ends the wait, and :class:`Preempted` in a
    program that said :func:`on_preempt`.
    """
    acquire.checkpoint()


def gated(function: Callable[P, R]) -> Gated[P, R]:
    """``function`` with a :func:`checkpoint` before each of its calls: for a step of ``jax.jit``.

    Use it as ``step = gated(jax.jit(step))``, or as a decorator above ``@jax.jit``. What it returns
    is called as ``function``, gives the same results, and has its attributes (``lower``,
    ``trace``, ``clear_cache``).

    In a program that said :func:`on_preempt` each call counts as the end of a step.

    There is no gate while JAX traces: inside another jitted function, ``grad``, ``vmap`` or
    ``scan``. Nor in a thread other than the one that runs the cell (or the program), nor where
    several processes of ``jax.distributed`` compute together. Do not call it from a callback of
    JAX's, for the work that it would wait for waits for the callback.
    """
    return Gated(function)


class Gated(Generic[P, R]):
    """What :func:`gated` returns."""

    __wrapped__: Callable[P, R]

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function, updated=())

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        acquire.before_call()
        return self.__wrapped__(*args, **kwargs)

    def __get__(self, owner: Any, _kind: type | None = None) -> Any:
        """As a method it is bound, as a function is."""
        return self if owner is None else MethodType(self, owner)

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # an instance that is just being made
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __repr__(self) -> str:
        return f"<gated {self.__wrapped__!r}>"


def on_preempt(save: Save) -> Save:
    """From now on this batch program may be stopped for an interactive request: ``save()`` first.

    ``save`` writes all that the program needs to go on later. It is called where the program is at
    its next :func:`checkpoint` (or item of :func:`steps`), on the same thread; then
    :class:`Preempted` ends the program with the exit code 75. ``jupyter gpushare run --requeue``
    starts it again when GPUs are free; another may do so who sent SIGTERM, as Slurm does. A program
    that names no gate is stopped at the end of an optimizer's step or before a :func:`gated` call,
    where the rest of its loop has not run yet; one without these where SIGTERM meets it. One that
    waits for its turn or for a GPU is stopped there. If ``save`` raises, the program goes on. The
    second SIGTERM ends it, and the first one after a minute without a gate.

    It can be used as a decorator. ``None``: the program cannot be stopped any more. Call it in the
    main thread, or SIGTERM is not heeded.
    """
    acquire.on_preempt(save)
    return save


def steps(loader: Iterable[Item], total: int | None = None) -> Steps[Item]:
    """The items of ``loader``, with a :func:`checkpoint` after the work on each.

    Use it as ``for batch in steps(loader): ...``. Its length is that of ``loader``. An item counts
    as a step of this cell, or program, and by ``total``, else by the length, it is known how many
    there will be. Of nested ones the innermost counts.
    """
    return Steps(loader, total)


class Steps(Generic[Item]):
    """What :func:`steps` returns."""

    def __init__(self, loader: Iterable[Item], total: int | None = None) -> None:
        self._loader = loader
        self._total = total

    def __iter__(self) -> Iterator[Item]:
        with acquire.loop(self._total_or_length()) as turn_ended:
            for item in self._loader:
                yield item
                turn_ended()

    def __len__(self) -> int:
        """Raises :class:`TypeError` where ``loader`` has no length."""
        if not isinstance(self._loader, Sized):
            raise TypeError(f"{type(self._loader).__name__} has no length")
        return len(self._loader)

    def _total_or_length(self) -> int | None:
        if self._total is None:
            with suppress(Exception):  # some know their length only at times, and raise else
                return len(self)
        return self._total
