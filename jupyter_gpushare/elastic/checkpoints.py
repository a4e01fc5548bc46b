"""The states of a job on disk: the newest few, each whole or not there.

A file's name says the step, and a checksum of what is in it; so a damaged one is known, and the one
before is taken. It is a plain file of torch's: ``torch.load`` reads it.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

#: How many are kept.
KEPT: Final = 3
_NAME: Final = re.compile(r"step-(\d+)-([0-9a-f]{8})\.pt")


class _Summed:
    """A file that is written from its begin to its end, and its checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sum = 0

    def write(self, part: bytes | memoryview) -> int:
        self.sum = zlib.crc32(part, self.sum)
        return self._file.write(part)

    def flush(self) -> None:
        self._file.flush()


def write(folder: Path, step: int, save: Callable[[_Summed], object]) -> Path:
    """Let ``save`` write it whole, and delete those that are too old."""
    made = folder / f".made-{os.getpid()}"
    with made.open("wb") as file:
        summed = _Summed(file)
        save(summed)
    path = folder / f"step-{step:09d}-{summed.sum:08x}.pt"
    # Only now has it the name of one that is whole: a writer that is killed leaves none.
    os.replace(made, path)
    for old in found(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def found(folder: Path) -> list[Path]:
    """Those that are there, the newest first."""
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)


def newest(folder: Path, say: Callable[[str], object]) -> bytes | None:
    """What the newest one has that is whole. ``say`` hears of each that is damaged."""
    for path in found(folder):
        content = path.read_bytes()
        match = _NAME.fullmatch(path.name)
        if match and f"{zlib.crc32(content):08x}" == match[2]:
            return content
        say(f"The checkpoint of step {step_of(path)} is damaged. The one before it is taken.")
        path.rename(path.with_suffix(".damaged"))
    return None


def step_of(path: Path) -> int:
    """The step after which it was saved."""
    return int(path.name.split("-")[1])
