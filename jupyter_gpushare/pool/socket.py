"""The pool's Unix socket for administrators: root, and the OS user who runs the pool."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from ..link.errors import NodeProblem
from ..protocol import sockets
from ..protocol.background import Background
from ..protocol.calls import Call
from ..protocol.errors import DOMAIN_ERROR, INTERNAL_ERROR, Reason, RemoteProtocolError
from ..protocol.framing import MAX_LINE, encode
from ..protocol.messages import answer, error_answer
from ..protocol.poolcalls import parse_pool_call

_MOST: Final = 64  # connections at once


#: Gives the result of a call that an OS user made. Raises :class:`NodeProblem`.
Answering = Callable[[Call, str], Awaitable[Any]]

_BUG: Final = "The pool could not do it; its log says why."


class PoolSocket:
    """Listens at ``path``, whose folder is made where it is not there."""

    def __init__(self, path: Path, answering: Answering, log: logging.Logger) -> None:
        self.path = path
        self._answering = answering
        self._log = log
        self._server: asyncio.Server | None = None
        self._guests = Background()

    async def start(self) -> None:
        """Listen. Raises :class:`OSError`."""
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            # Only the process that has the pool's ledger listens here: an old socket is nobody's.
            if stat.S_ISSOCK(self.path.lstat().st_mode):
                self.path.unlink()
        sock = sockets.bound(self.path, 0o177)
        self._server = await asyncio.start_unix_server(
            self._accept, sock=sock, limit=MAX_LINE, **sockets.KEEPS_FILE
        )

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        await self._guests.cancel()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._guests) >= _MOST:
            writer.transport.abort()
            return
        self._guests.start(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, uid, _ = sockets.peer(writer.get_extra_info("socket"))
        try:
            if uid not in (0, os.geteuid()):
                why = "Only root and the OS user who runs the pool may use this socket."
                writer.write(encode(error_answer(None, Reason.NOT_ALLOWED, why)))
                return
            by = await asyncio.to_thread(sockets.user_name, uid)

            def asks(call: Call) -> Awaitable[Any]:
                return self._answering(call, by)

            while line := await reader.readline():
                told = await answered(line, parse_pool_call, asks, self._log, _BUG)
                writer.write(encode(told))
                await writer.drain()
        except (OSError, ValueError):
            pass  # it went away, or its line is longer than any call
        finally:
            writer.close()


async def answered(
    line: bytes,
    parse: Callable[[bytes], Call],
    answering: Callable[[Call], Awaitable[Any]],
    log: logging.Logger | logging.LoggerAdapter[Any],
    bug: str,
) -> dict[str, Any]:
    """What is sent for a line, be it an error; ``bug`` is the sentence about one of ours."""
    try:
        call = parse(line)
    except RemoteProtocolError as error:
        return error_answer(error.call_id, error.reason, str(error), code=error.code)
    try:
        return answer(call.id, await answering(call))
    except NodeProblem as refused:
        return error_answer(call.id, Reason(refused.reason), str(refused), code=DOMAIN_ERROR)
    except Exception:
        # The border to the pool's books: whoever asks hears that it failed, and the pool goes on.
        log.exception("A call could not be answered")
        return error_answer(call.id, Reason.UNAVAILABLE, bug, code=INTERNAL_ERROR)
