"""Reaches the program on another host: ``PREFIX… PYTHON -m jupyter_gpushare.starts.there``.

``PREFIX`` is what makes a command run there: ``ssh -o BatchMode=yes b --``, or ``nsenter …`` for a
host that is a namespace, or nothing for this host. A prefix that ends with :data:`GONE` says that
the host is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

MODULE: Final = "jupyter_gpushare.starts.there"
#: A prefix ends with this (EX_UNAVAILABLE) where the host is gone, with all that ran there.
GONE: Final = 69
#: Seconds for an answer; ssh alone may take some of them.
PATIENCE: Final = 30.0
#: Seconds that the other side may take to hang up, too; ssh waits for ever for a host that is away.
HANG_UP: Final = 10.0


class HostAway(Exception):
    """The host cannot be reached; the text says what was tried and what came back."""


class HostGone(HostAway):
    """The prefix says that the host is gone, with all that ran there."""


class NotStarted(Exception):
    """The host was reached, and says why it did not do it."""


@dataclass(frozen=True, slots=True)
class Started:
    """A process on a host, such that no other is ever taken for it."""

    pid: int
    started: int
    boot: str

    @classmethod
    def read(cls, told: dict[str, Any]) -> Started:
        """From the answer of a start, or from what a spawner stored."""
        return cls(int(told["pid"]), int(told["started"]), str(told["boot"]))


class Reached:
    """An open connection to a host. Calls are answered one after the other."""

    def __init__(self, host: str, process: asyncio.subprocess.Process) -> None:
        self.host = host
        self._process = process
        self._one = asyncio.Lock()

    @classmethod
    async def open(cls, host: str, prefix: Sequence[str], python: str = sys.executable) -> Reached:
        """Run the program there. Raises :class:`HostAway`."""
        if prefix and os.path.basename(prefix[0]) == "ssh":
            python = shlex.quote(python)  # ssh hands its words to a shell of that host
        line = [*prefix, python, "-m", MODULE]
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *line, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            raise HostAway(f"{host} cannot be reached: {line[0]}: {error.strerror}") from error
        return cls(host, process)

    async def call(self, do: str, *, patience: float = PATIENCE, **params: Any) -> dict[str, Any]:
        """The answer. Raises :class:`HostAway`, or :class:`NotStarted`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._one:
            try:
                async with asyncio.timeout(patience):
                    self._process.stdin.write(json.dumps({"do": do, **params}).encode() + b"\n")
                    await self._process.stdin.drain()
                    line = await self._process.stdout.readline()
            except TimeoutError:
                # A late answer would be taken for the next call's.
                await self.close(kill=True)
                raise HostAway(f"{self.host} did not answer within {patience:g} s") from None
            except ConnectionError:
                line = b""
        try:
            answer = json.loads(line)
        except ValueError:
            why = await self._why()
            raise (HostGone if self.gone == GONE else HostAway)(why) from None
        if "error" in answer:
            raise NotStarted(f"{self.host}: {answer['error']}")
        return dict(answer)

    def tell(self, do: str, **params: Any) -> None:
        """Say it, and expect no answer; nothing happens where the connection has ended."""
        if self.gone is None and self._process.stdin is not None:
            said = {"do": do, "quiet": True, **params}
            self._process.stdin.write(json.dumps(said).encode() + b"\n")

    @property
    def gone(self) -> int | None:
        """The exit status of the connection, once it ended."""
        return self._process.returncode

    async def close(self, *, kill: bool = False) -> None:
        """Hang up. What was attached ends, on a host that cannot be reached once it can be."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not kill:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HANG_UP):
                    await self._process.wait()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()

    async def _why(self) -> str:
        await self.close(kill=True)
        assert self._process.stderr is not None
        said = (await self._process.stderr.read()).decode(errors="replace").strip()
        last = said.splitlines()[-1] if said else f"exit status {self._process.returncode}"
        return f"{self.host} cannot be reached: {last}"


async def ask(
    host: str, prefix: Sequence[str], do: str, *, python: str = sys.executable, **params: Any
) -> dict[str, Any]:
    """One call over a connection of its own. Raises as :meth:`Reached.call`."""
    reached = await Reached.open(host, prefix, python)
    try:
        return await reached.call(do, **params)
    finally:
        await reached.close()
