"""Places that a program names itself, where another task may have its turn on the GPU.

The end of a PyTorch optimizer's step and the call of a model are such places anyway. These are for
all other loops, for example those of other frameworks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Generic, TypeVar

from . import acquire

Item = TypeVar("Item")


def checkpoint() -> None:
    """Here this program may be interrupted: its memory stays, and it goes on in its next turn.

    On a GPU that tasks use by turns it waits here, visibly, while another task has the turn.
    Before that it waits for all that PyTorch, TensorFlow (also Keras), JAX and CuPy have queued on
    the GPU; for another library's work wait yourself. Without a lease, or alone on the GPU, it does
    nothing, and that quickly.

    Raises only :class:`KeyboardInterrupt`: Ctrl-C ends the wait.
    """
    acquire.checkpoint()


def steps(loader: Iterable[Item]) -> Steps[Item]:
    """The items of ``loader``, with a :func:`checkpoint` after the work on each.

    Use it as ``for batch in steps(loader): ...``. Its length is that of ``loader``.
    """
    return Steps(loader)


class Steps(Generic[Item]):
    """What :func:`steps` returns."""

    def __init__(self, loader: Iterable[Item]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Item]:
        for item in self._loader:
            yield item
            checkpoint()

    def __len__(self) -> int:
        """Raises :class:`TypeError` where ``loader`` has no length."""
        if not isinstance(self._loader, Sized):
            raise TypeError(f"{type(self._loader).__name__} has no length")
        return len(self._loader)
