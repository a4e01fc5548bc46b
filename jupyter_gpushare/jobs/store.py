"""What a person's jobs have on disk, sweeps and elastic jobs alike: a place, a name and a lock.

What a job is gets unpickled, and that runs what is in the file. So a name is checked whenever it is
used, also by whoever loads or deletes a job, and a file is looked at before it is read.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import stat
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Final

from jupyter_core.paths import jupyter_data_dir

from ..client.errors import GpuShareError
from ..protocol.privateplace import lock_within

_NAME: Final = re.compile(r"\w[\w.-]{0,99}")
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
#: Seconds in which whoever holds a lock to look only lets it go.
_LOOKING: Final = 0.1


class Stored(ABC):
    """One job's records, in the user's own data folder. Whoever runs the job holds its lock."""

    #: What people call it, and what they load it with.
    kind: ClassVar[str]
    verb: ClassVar[str]
    error: ClassVar[type[GpuShareError]]
    #: Said where another process runs it.
    runs: ClassVar[str]
    #: The folder of all, and below it what each has: the files to be looked at, and the lock.
    place: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]
    locks: ClassVar[str]

    def __init__(self, name: str) -> None:
        """Raises ``error`` where there is no such job, or it is not one's own."""
        self.name, self._folder = self.checked(name), self.folder()
        try:
            for part in self.parts:
                self._must_be_own(self.at(part))
        except FileNotFoundError:
            known = ", ".join(self.names()[:5]) or "none"
            raise self.error(
                f"There is no {self.kind} {name!r} in {self._folder} (there: {known})."
            ) from None

    @classmethod
    def folder(cls) -> Path:
        """Where this user's jobs of this kind are."""
        return Path(jupyter_data_dir(), "gpushare", cls.place)

    @classmethod
    def names(cls) -> list[str]:
        """This user's jobs of this kind, the newest first."""
        folder, first = cls.folder(), cls.parts[0]
        # With a dot at the beginning it is just being made, or removed.
        found = sorted(folder.glob(first.format("[!.]*")), key=lambda one: -one.stat().st_mtime)
        end = first.removeprefix("{}")
        return [str(path.relative_to(folder)).removesuffix(end) for path in found]

    def at(self, part: str) -> Path:
        """One of its files."""
        return self._folder / part.format(self.name)

    @classmethod
    def checked(cls, name: object) -> str:
        """The name of a job. Raises ``error`` where it could lead out of the folder."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise cls.error(
                f"{name!r} is no name for a job: use letters, digits, '-', '_' and '.', and one of "
                "the first two or '_' at the beginning."
            )
        return name

    @classmethod
    def is_taken(cls, name: str) -> GpuShareError:
        """What is to be said where another job has this name."""
        return cls.error(
            f"There is a {cls.kind} {name!r} already. Go on with it (in a notebook "
            f"`{cls.verb}.load({name!r})`, in a terminal `jupyter gpushare {cls.verb} --resume "
            f"{name}`), or take another name."
        )

    @classmethod
    def _must_be_own(cls, path: Path) -> None:
        """Raises ``error`` where another user owns the file or its folder, or may write into them.

        Raises :class:`FileNotFoundError`.
        """
        for place in (path.parent, path):
            try:
                there = place.stat()
            except PermissionError:
                raise cls.error(f"{place} cannot be read: it is another user's.") from None
            if there.st_uid != os.geteuid():
                raise cls.error(
                    f"{place} belongs to another user (user id {there.st_uid}), and what it says "
                    "would be run as you. Nothing was read."
                )
            if there.st_mode & _OTHERS_WRITE:
                raise cls.error(
                    f"Other users may write into {place}, and what it says would be run as you. "
                    "Nothing was read. If you know that nobody did, take that right away: "
                    f"chmod go-w {shlex.quote(str(place))}"
                )

    def lock(self, within: float = _LOOKING) -> int:
        """A descriptor that keeps other processes from running it.

        Raises ``error`` where another one runs it for longer than ``within`` seconds.
        """
        held = lock_within(self.at(self.locks), within)
        if held is None:
            raise self.error(f"{self.kind.capitalize()} {self.name!r} {self.runs}")
        return held

    def is_run(self) -> bool:
        """Whether some process runs it now."""
        try:
            held = os.open(self.at(self.locks), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            # Shared: two who look do not take each other for whoever runs it.
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(held)
        return False

    def delete(self) -> None:
        """Remove it, with all that came of it. Raises ``error`` where it runs."""
        held = self.lock()
        try:
            self._remove()
        finally:
            os.close(held)

    @abstractmethod
    def _remove(self) -> None:
        """Remove its files; called under its lock."""
