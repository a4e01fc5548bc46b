"""A keeper of one program, in a process of its own: ``python keeps.py NAME COMMAND…``.

The program has this process's standard input and output. It rests from the beginning.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from jupyter_gpushare.keeper import kept
from jupyter_gpushare.keeper.holding import Holding
from jupyter_gpushare.keeper.record import Record, noted

REQUEST = {"task": {"name": "kept", "kind": "process"}, "memory": 3 * 2**30, "keeper": True}


class Kept(kept.Kept):
    """A keeper with all that is around it; standard error has what it tells people."""

    def __init__(self, environ: Mapping[str, str], name: str, command: Sequence[str]) -> None:
        self.notes, self.name = Record(environ, name), name
        holding = Holding(environ, on_lost=self.lost, on_notice=self.noticed)
        super().__init__(holding, REQUEST, command, record=self.notes)

    def begin(self) -> None:
        """Ask for the GPU, and start the program."""
        self.holding.ask(REQUEST, 60.0)
        self.tree.start()
        self.keeper.set_busy(False)

    def take_over(self) -> None:
        """From a keeper that was killed."""
        found = noted(self.holding.environ, self.name)
        assert found is not None
        self.succeed(found)


if __name__ == "__main__":
    Kept(os.environ, sys.argv[1], sys.argv[2:]).begin()
    signal.pause()
