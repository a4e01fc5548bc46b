"""Tells this server's kernels about their notebooks, when they ask.

The socket lies in a directory of its own that only this OS user can enter. Each question is
answered from the present session and the saved notebook; nothing is watched or cached.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

from jupyter_gpushare.protocol.errors import ProtocolError
from jupyter_gpushare.protocol.notebook import LONGEST_QUESTION, Notebook, answer, read_question
from jupyter_gpushare.protocol.sockets import KEEPS_FILE, short_name

_ASK_WITHIN = 2.0  # seconds from the connection to the question
_MOST = 64  # kernels that may ask at once


class NotebookDoor:
    """The socket at which kernels ask. ``find`` returns the notebook of a kernel id."""

    def __init__(
        self,
        find: Callable[[str], Awaitable[Notebook]],
        log: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self.path: str | None = None
        self._find = find
        self._log = log
        self._ends = contextlib.ExitStack()
        self._asking = asyncio.Semaphore(_MOST)

    async def open(self) -> None:
        """Begin to listen. If that fails, kernels have the settings from their start."""
        try:
            place = tempfile.TemporaryDirectory(prefix="gpushare-", ignore_cleanup_errors=True)
            path = os.path.join(self._ends.enter_context(place), "notebook.sock")
            with short_name(path) as name:
                server = await asyncio.start_unix_server(
                    self._serve, name, limit=LONGEST_QUESTION, **KEEPS_FILE
                )
            self._ends.callback(server.close)
            self.path = path
        except OSError as error:
            self._log.warning(
                "gpushare: kernels cannot ask for their notebooks' wishes (%s); those that are "
                "saved when a kernel starts count",
                error,
            )

    def close(self) -> None:
        """Listen no more."""
        self.path = None
        self._ends.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._asking:
                async with asyncio.timeout(_ASK_WITHIN):
                    kernel_id = read_question(await reader.readline())
                writer.write(answer(await self._find(kernel_id)))
                async with asyncio.timeout(_ASK_WITHIN):
                    await writer.drain()
        except (OSError, TimeoutError, ValueError, ProtocolError):
            pass  # the caller has gone, or its question is unknown
        except Exception:  # noqa: BLE001 - managers are pluggable: they may raise anything
            self._log.warning("gpushare could not read a notebook's metadata for its kernel")
            self._log.debug("gpushare: the reason", exc_info=True)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
