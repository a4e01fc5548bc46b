"""``jupyter gpushare serve -- CMD…``: a model server that sleeps while others need its GPU."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from jupyter_core.paths import jupyter_data_dir

from ..client.words.settings import Ask
from ..console.verb import COMMAND, Refused, UsageError, WithCommand, flag, number, option, options
from ..protocol.privateplace import UnsafePlace
from ..protocol.sizes import Memory, parse_gpus, parse_memory, parse_size
from ..protocol.times import parse_duration
from .gate import Bounds

RUNGS: tuple[str, ...] = ("sleep", "driver", "restart")
_LOCAL = ("127.0.0.1", "::1", "localhost")


def read_rungs(text: str) -> tuple[str, ...]:
    """Which ways there are to free the server's memory. Raises `ValueError`."""
    given = tuple(word.strip() for word in text.split(","))
    if not set(given) <= set(RUNGS):
        raise ValueError(f"name some of {', '.join(RUNGS)}, with commas between them")
    return tuple(rung for rung in RUNGS if rung in given)


def matching(pattern: str, words: str) -> Callable[[str], str]:
    """Reads a text that is of this form."""

    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(words)
        return text

    return read


class ServeApp(WithCommand):
    """Start a model server under a lease, and answer for it at --port. While nobody
    has asked it for --idle and somebody else waits for its GPU, it sleeps: by its own means, by the
    driver's checkpoint, or by being ended (--rungs). The next request waits, has it woken, and is
    answered. The server gets a port of its own: {port} in its command, or the variable PORT; or,
    as {socket}, a Unix socket that nobody else can open. Callers need its token, as clients of
    OpenAI's kind send it; `%gpushare servers` shows it to whoever may use the server."""

    name = "serve"
    arguments = "-- COMMAND [ARGUMENT...]"
    examples = """
    jupyter gpushare serve --memory 24GiB -- vllm serve Qwen/Qwen3-8B --uds {socket} \\
        --enable-sleep-mode
    jupyter gpushare serve --share group:lab -- llama-server --models-dir ./models --port {port}
    jupyter gpushare serve --idle 5m --rungs driver -- python -m uvicorn app:app --port {port}

    The exit code is the server's when it ends by itself; 0 after Ctrl-C or SIGTERM; 1 when no lease
    could be had, or the server was not ready in time; 2 for wrong usage.
    """

    port = option(8000, "Where it is answered for. Default: 8000.", number(1, 65535))
    host = option("127.0.0.1", "The address for that. Default: 127.0.0.1, this host only.")
    idle = option(30.0, "Idle after so long without a request. Default: 30s.", parse_duration)
    gpus: int | str | None = option(None, "GPUs to ask for. Default: 1.", parse_gpus)
    memory: Memory | None = option(
        None, "Memory on each GPU, such as 24GiB. Default: what the quota gives.", parse_memory
    )
    rungs: tuple[str, ...] = option(
        RUNGS,
        "How its memory may be freed, the first that does is taken: sleep (its own way), driver (a "
        "checkpoint), restart (ended, and started again). Default: sleep,driver,restart.",
        read_rungs,
    )
    hold = option(
        120.0, "A request waits at most so long for it to wake. Default: 120s.", parse_duration
    )
    hold_requests = option(
        64, "So many wait at most. Default: 64.", number(1, 100000), name="hold-requests"
    )
    hold_bytes = option(
        64 * 2**20,
        "Bytes of their bodies that are read at most. Default: 64MiB.",
        lambda text: parse_size(text, 1),
        name="hold-bytes",
    )
    adapter: str | None = option(
        None,
        "What the server is: vllm, vllm-discard (loads its weights again), sglang, llama.cpp, "
        "ollama, transformers, generic. Default: what its command looks like, or it answers like.",
    )
    ready: str | None = option(
        None,
        "The path that tells whether it is well. Default: /health, or its own.",
        matching("/[!-~]*", "write a path, such as /health"),
    )
    ready_within = option(
        600.0, "How long it may take to start. Default: 10m.", parse_duration, name="ready-within"
    )
    share = options(
        "Let a group's members find it and use it: group:lab.",
        read=matching("group:.+", "write group: and its name"),
    )
    token = flag(
        "Ask callers for no token: whoever reaches it may use it.", name="no-token", default=True
    )
    task_name = option("", "The name shown to people. Default: the command's.", name="name")

    def run(self, arguments: list[str]) -> int:
        if not arguments:
            raise UsageError(f"serve what? {COMMAND} serve -- vllm serve MODEL --port {{port}}")
        path = shutil.which(arguments[0])
        if path is None:
            raise Refused(f"{arguments[0]} was not found, or is not executable.", "bad_request")
        if not self.token and self.host not in _LOCAL:
            raise UsageError("without a token it can be for this host only: leave --host out")
        try:
            from .serving import Serving, Wanted
        except ModuleNotFoundError as error:
            raise Refused(f"serve needs {error.name}: pip install 'aiohttp>=3.12'") from error
        program = os.path.basename(arguments[0])
        wanted = Wanted(
            arguments,
            {
                "task": {
                    "name": (self.task_name or program)[:256],
                    "kind": "server",
                    "path": os.path.abspath(path)[:4096],
                },
                "gpus": self.gpus,
                **Ask(memory=self.memory).sizes,
                "priority_class": "interactive",
                "keeper": True,
                "wait": True,
            },
            self.rungs,
            self.host,
            self.port,
            self.idle,
            Bounds(self.hold_requests, self.hold_bytes, self.hold),
            self.adapter,
            self.ready,
            self.ready_within,
            self.share,
            self.token,
        )
        folder = Path(jupyter_data_dir(), "gpushare", "servers")

        async def serve() -> int:
            return await Serving(wanted, os.environ, folder).run()

        try:
            return asyncio.run(serve())
        except UnsafePlace as error:
            raise Refused(str(error)) from error
        except OSError as error:
            raise Refused(f"{arguments[0]}: {error.strerror or error}") from error
