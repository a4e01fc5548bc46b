"""The Hub's last answer about its groups' quotas, in a file beside the ledger.

A node manager that starts while the Hub is away would not know them, and everybody would have the
default quota until the Hub is back.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

#: Bytes of a file that are read at most: as many as of an answer of the Hub's.
LARGEST: Final = 16 * 2**20
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class LastAnswer:
    """Quotas by group as they are written, and when the Hub said so (Unix seconds)."""

    groups: dict[str, Any]
    at: float


class LastQuotas:
    """Keeps the newest answer of the Hub at ``hub`` in the file ``path``, for the owner only.

    The file's time is the answer's: the same answer each minute writes nothing. Nothing raises;
    what cannot be kept or read is told in the log, once for each reason.
    """

    def __init__(self, path: Path, hub: str, log: logging.Logger) -> None:
        self._path = path
        self._hub = hub
        self._log = log
        self._kept: dict[str, Any] | None = None
        self._told = ""

    def keep(self, answer: LastAnswer) -> None:
        """Write it down."""
        try:
            if answer.groups != self._kept:
                self._write(answer.groups)
                self._kept = answer.groups
            os.utime(self._path, (answer.at, answer.at))
        except OSError as error:
            self._kept = None
            self._tell(f"The quotas of JupyterHub's groups could not be kept: {error}.")
        else:
            self._told = ""

    def recall(self) -> LastAnswer | None:
        """The last answer; ``None`` where there is none of this Hub's that can be trusted."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(self._path, flags), "rb") as file:
                there = os.fstat(file.fileno())
                _check(there)
                document = json.loads(file.read(LARGEST))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            self._tell(f"{self._path} is not used: {error}.")
            return None
        if not isinstance(document, dict) or document.get("version") != _VERSION:
            self._tell(f"{self._path} is not used: another release wrote it.")
            return None
        groups = document.get("groups")
        if document.get("hub") != self._hub or not isinstance(groups, dict):
            return None
        self._kept = groups
        return LastAnswer(groups, there.st_mtime)

    def _write(self, groups: dict[str, Any]) -> None:
        document = {"version": _VERSION, "hub": self._hub, "groups": groups}
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()  # of one that had our pid and was killed
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)

    def _tell(self, sentence: str) -> None:
        if sentence != self._told:
            self._told = sentence
            self._log.error("%s", sentence)


def _check(there: os.stat_result) -> None:
    """Raises :class:`ValueError` for what others could have written."""
    if not stat.S_ISREG(there.st_mode):
        raise ValueError("it is no file")
    if there.st_uid != os.getuid():
        raise ValueError(f"it belongs to user {there.st_uid}")
    if stat.S_IMODE(there.st_mode) & 0o077:
        raise ValueError(f"it is open to others (mode {there.st_mode & 0o777:o})")
