"""Programs of people that compute in steps, and write down when each of them began and ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .node import RunningNode, until


class Task:
    """A process of somebody's that runs ``code``. A context manager, which kills it."""

    def __init__(
        self, node: RunningNode, place: Path, who: str, code: str, environ: Mapping[str, str] = {}
    ) -> None:
        self.file = place / f"{who}.steps"
        with self.file.open("w") as out:
            self.process = node.program(who, "-c", code, environ=environ, stdout=out)

    def lines(self, kind: str = "step") -> list[list[float]]:
        """The times of all whole lines of this kind (monotonic seconds)."""
        lines = [line.split() for line in self.file.read_text().split("\n")[:-1]]
        return [[float(at) for at in line[1:]] for line in lines if line[:1] == [kind]]

    def more(self, count: int, kind: str = "step") -> None:
        """Wait for so many lines more."""
        enough = len(self.lines(kind)) + count
        until(lambda: len(self.lines(kind)) >= enough, f"{count} more of {kind}", 90.0)

    def __enter__(self) -> Task:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
