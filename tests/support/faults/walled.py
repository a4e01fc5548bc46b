"""A helper that plays walls in a storm: it notes what was to stand, and when.

All clients are in one control group, so it has the memory of all leases together.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from pathlib import Path
from typing import Any

from .observed import Log, Saw


class WallHelper:
    """Answers one node manager after the other, until it is closed."""

    def __init__(self, directory: Path) -> None:
        self.log = Log(directory / "walls.log")
        self.place = directory / "walls.sock"
        self._left = directory / "walls.away"
        self._may_answer = threading.Lock()
        self._walls: dict[str, Any] = {}
        self._line: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.place))
        self._listener.listen()
        self._serving = threading.Thread(target=self._serve)
        self._serving.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                self._line, _ = self._listener.accept()
                with contextlib.suppress(OSError), self._line as line, line.makefile() as asked:
                    for one in asked:
                        with self._may_answer:
                            told = self._answer(json.loads(one))
                        line.sendall(json.dumps(told).encode() + b"\n")

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["do"] == "set":
            self._walls |= asked["walls"]
            (wall,) = self._walls.values()
            self.log.note(Saw.WALLED, gpus=wall[1])
            return {"failed": {}, "gone": []}
        return {"on": True, "patterns": ["*"], "level": "memory", "walls": self._walls}

    def cut(self) -> bool:
        """As if it were another one of a sudden; whether there was anybody to hear of it."""
        line = self._line
        if line is None:
            return False
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)
        return True

    def leave(self) -> bool:
        """Nobody listens until it is back; whether there was anybody to hear of it."""
        if self._left.exists() or not self.cut():
            return False
        self.place.rename(self._left)
        return True

    def come_back(self) -> None:
        self._left.rename(self.place)

    def hang(self) -> bool:
        """It answers nothing until it goes on; whether it did not hang already."""
        return self._may_answer.acquire(blocking=False)

    def go_on(self) -> None:
        self._may_answer.release()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._serving.join()
        self.log.close()
