"""What a keeper notes of its program, so that a successor finds it where the keeper was killed.

One file for each name, in the folder of its owner that nobody else can open, since the secret of
the lease is in it. It is written when the program starts, and when its memory goes and comes, and
goes itself when the program has ended. The file is locked as long as the keeper lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..client.errors import GpuShareError
from ..protocol.checkpoint import Target
from ..protocol.privateplace import UnsafePlace, lock_file, private_file, replace_private
from ..protocol.processes import is_same


@dataclass(frozen=True, slots=True)
class Noted:
    """``place`` is the socket of the helper that started the ``root``; ``grant`` as it was told.

    ``checkpointed``: the driver has its memory, or was about to take it. ``more`` is what the
    keeper of this kind of program needs beside.
    """

    place: str
    helper: int
    root: Target
    grant: Mapping[str, Any]
    secret: str
    checkpointed: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)


class Record:
    """The file of one keeper. Raises :class:`GpuShareError` where another keeper has it."""

    def __init__(self, environ: Mapping[str, str], name: str, what: str = "") -> None:
        """``what`` is kept, in words for people."""
        self._path = private_place(environ, f"keeper-{name}.json")
        lock = lock_file(f"{self._path}.lock")
        if lock is None:
            raise GpuShareError(f"Another process keeps {what or name} already.")
        self._lock = lock
        self._writes = threading.Lock()

    def write(self, noted: Noted) -> None:
        """Whole, or not at all. From any thread."""
        with self._writes:
            # Not forced to the disk: after the host has gone down there is no program to be found.
            replace_private(self._path, json.dumps(asdict(noted)).encode(), lasting=False)

    def close(self) -> None:
        """The program has ended."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._lock)


def noted(environ: Mapping[str, str], name: str) -> Noted | None:
    """The program of a keeper, if it runs."""
    try:
        with open(private_place(environ, f"keeper-{name}.json"), encoding="utf-8") as file:
            told = json.load(file)
        found = Noted(**{**told, "root": Target(**told["root"])})
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
    return found if is_same(found.root.pid, found.root.start_time) else None


def forget(environ: Mapping[str, str], name: str) -> None:
    """Take away what a keeper has left that was killed, and is to have no successor."""
    path = private_place(environ, f"keeper-{name}.json")
    for left in (path, f"{path}.lock"):  # how long a name is says where it lies
        with contextlib.suppress(FileNotFoundError):
            os.unlink(left)


def private_place(environ: Mapping[str, str], name: str) -> str:
    """As `private_file`. Raises :class:`GpuShareError`."""
    try:
        return private_file(environ, name)
    except UnsafePlace as error:
        raise GpuShareError(str(error)) from error
