"""Measured runs, kept for training predictors: only where the administrator wants it.

A line tells what a dry run told of a model (counts and sizes; no code, no name, no person), the
kind of GPU, and what was measured. The file is bounded: the oldest lines go first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ..predict.records import Record
from ..protocol.privateplace import replace_private

#: Bytes of the file at most. When it is full the newest half is kept.
MOST: Final = 16 * 2**20


class Learned:
    """The file. Its methods wait for the disk: call them on one thread."""

    def __init__(self, path: Path, most: int = MOST) -> None:
        self._path = path
        self._most = most

    def add(self, record: Record) -> None:
        """Append a run. Raises :class:`OSError`."""
        line = record.line().encode() + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self._path, flags, 0o600), "ab") as file:
            file.write(line)
            size = file.tell()
        if size > self._most:
            self._keep_newest()

    def _keep_newest(self) -> None:
        content = self._path.read_bytes()[-self._most // 2 :]
        # The first line is perhaps cut.
        replace_private(self._path, content.partition(b"\n")[2])
