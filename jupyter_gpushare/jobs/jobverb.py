"""What ``sweep`` and ``elastic`` have in common: a job is begun, gone on with, listed, deleted."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from ..console.verb import COMMAND, UsageError, Verb, flag, option
from ..protocol.sizes import Memory, parse_memory
from ..protocol.tables import listing
from .store import Stored


class JobVerb(Verb, ABC):
    """A verb that begins a job and follows it to its end, or looks at those that there are."""

    #: The class of such jobs' records.
    records: ClassVar[type[Stored]]
    #: The key of the list of all with --json, and what is said after Ctrl-C.
    listed_as: ClassVar[str]
    stopping: ClassVar[str]
    #: Options of which there may be one, and no argument with it.
    alone: ClassVar[tuple[str, ...]] = ("resume", "delete", "listed")

    memory: Memory | None = option(
        None,
        "Memory on each, such as 8GiB, or 8GiB..40GiB. Default: what the quota gives.",
        parse_memory,
    )
    job_name = option("", "What it is called. Default: the time.", name="name")
    resume = option("", "Go on with the one of this name; it has its program and settings.")
    listed = flag("List yours, the newest first, and do nothing else.", name="list")
    delete = option("", "Remove the one of this name, with its results, and do nothing else.")

    def run(self, arguments: list[str]) -> int:
        wishes = [name for name in self.alone if getattr(self, name)]
        if len(wishes) > 1:
            raise UsageError("say one thing at a time: go on with one, show or delete it, or list")
        try:
            if wishes:
                self.no_arguments(arguments)
            if (looked := self.looked()) is not None:
                return looked
            running = self.begun(arguments)
        except ValueError as error:
            raise UsageError(str(error)) from error
        try:
            self.follow(running)
        except KeyboardInterrupt:
            print(f"\n{COMMAND}: stopping{self.stopping}", file=sys.stderr)
            running.stop()
            print(f"Go on: {self.command()} --resume {running.name}", file=sys.stderr)
            return 130
        return self.told(running)

    def looked(self) -> int | None:
        """Do what an option asks for instead of a job; the exit code, or ``None`` if none does."""
        if self.delete:
            return self._deleted()
        return self._listed() if self.listed else None

    def _deleted(self) -> int:
        records = self.records(self.delete)
        records.delete()
        kind = records.kind.capitalize()
        return self.say({"deleted": self.delete}, f"{kind} {self.delete} is deleted.")

    def _listed(self) -> int:
        said = [self.row(self.records(name)) for name in self.records.names()]
        none = f"There is no {self.records.kind}."
        return self.say({self.listed_as: said}, listing(said, none))

    @abstractmethod
    def row(self, records: Any) -> dict[str, Any]:
        """A job's line in the list."""

    @abstractmethod
    def begun(self, arguments: list[str]) -> Any:
        """The job, begun or gone on with: it has a name, and can be stopped."""

    @abstractmethod
    def follow(self, running: Any) -> None:
        """Print how it goes, until it is over."""

    @abstractmethod
    def told(self, running: Any) -> int:
        """Print what came of it; the exit code."""
