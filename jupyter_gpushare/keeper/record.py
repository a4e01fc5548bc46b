"""What a keeper notes of its program, so that a successor finds it where the keeper was killed.

One file for each name, in the folder of its owner that nobody else can open, since the secret of
the lease is in it. It is written when the program starts and when it has GPUs again, and goes when
the program has ended. The file is locked as long as the keeper lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from ..client.errors import GpuShareError
from ..protocol.checkpoint import Target
from ..protocol.privateplace import lock_file, private_file
from ..protocol.processes import start_time


@dataclass(frozen=True, slots=True)
class Noted:
    """``place`` is the socket of the helper that started the ``root``; ``grant`` as it was told.

    ``more`` is what the keeper of this kind of program needs beside.
    """

    place: str
    helper: int
    root: Target
    grant: Mapping[str, Any]
    secret: str
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def lives(self) -> bool:
        """Whether the program runs."""
        return start_time(self.root.pid) == self.root.start_time


class Record:
    """The file of one keeper. Raises :class:`GpuShareError` where another keeper has it."""

    def __init__(self, environ: Mapping[str, str], name: str, what: str = "") -> None:
        """``what`` is kept, in words for people."""
        self._path = _place(environ, name)
        lock = lock_file(f"{self._path}.lock")
        if lock is None:
            raise GpuShareError(f"Another process keeps {what or name} already.")
        self._lock = lock
        self._writes = threading.Lock()

    def read(self) -> Noted | None:
        """The program of a keeper that was killed, if it runs."""
        return _read(self._path)

    def write(self, noted: Noted) -> None:
        """Whole, or not at all. From any thread."""
        new = f"{self._path}.new"
        with self._writes:
            with open(new, "w", encoding="utf-8", opener=_private) as file:
                json.dump(asdict(noted), file)
            os.replace(new, self._path)

    def close(self) -> None:
        """The program has ended."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def noted(environ: Mapping[str, str], name: str) -> Noted | None:
    """The program that a keeper has noted, if it runs; for who is no keeper."""
    return _read(_place(environ, name))


def forget(environ: Mapping[str, str], name: str) -> None:
    """Take away what a keeper has left that was killed, and is to have no successor."""
    for path in (_place(environ, name), f"{_place(environ, name)}.lock"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _place(environ: Mapping[str, str], name: str) -> str:
    return private_file(environ, f"keeper-{name}.json")


def _read(path: str) -> Noted | None:
    try:
        with open(path, encoding="utf-8") as file:
            told = json.load(file)
        noted = Noted(**{**told, "root": Target(**told["root"])})
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
    return noted if noted.lives else None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
