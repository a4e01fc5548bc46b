"""Where a job's processes on a host meet: a folder that only their user can open.

The leader writes down who trains; ranks find each other through a file of torch's. A network store
would serve everybody on the host: it asks nobody who they are, and what it says makes processes of
this user unpickle and connect.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..protocol.privateplace import replace_private

if TYPE_CHECKING:
    from torch.distributed import FileStore


@dataclass(frozen=True, slots=True)
class Word:
    """Who trains in a generation: ``members``, by rank. ``leaving`` are to end.

    ``gentle``: workers come to the end of their step first. ``ends``: the job does.
    """

    generation: int
    members: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    gentle: bool = True
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Meeting:
    """The place of one leader's job."""

    folder: Path

    @classmethod
    def make(cls) -> Meeting:
        """A new one, on a local disk, for nobody else."""
        made = cls(Path(tempfile.mkdtemp(prefix="gpushare-elastic-")))
        made.say(Word(0))
        return made

    def remove(self) -> None:
        """The job is over: remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def say(self, word: Word) -> None:
        """The leader's newest word."""
        replace_private(self.folder / "word", msgspec.json.encode(word), lasting=False)

    def heard(self) -> Word:
        """The newest word of the leader."""
        return msgspec.json.decode((self.folder / "word").read_bytes(), type=Word)

    def store(self, generation: int) -> FileStore:
        """Through which the ranks of a generation meet. One for each: what a killed process was
        writing disturbs no later one."""
        from torch.distributed import FileStore

        return FileStore(os.fspath(self.folder / f"generation-{generation}"), -1)
