"""What a server or a kernel wishes for, and the hosts that the pool ranks for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from ..console.node import Node, NodeRefused, NodeSilent
from ..figures import counted, format_size
from ..protocol.names import POOL_URL
from ..protocol.poolcalls import POOL_SOCKET, PoolMethod
from ..protocol.sizes import MOST_GPUS, parse_size

#: Seconds for the pool's answer: a start waits for it.
PATIENCE: Final = 5.0
#: The longest answer: a ranking of many hosts, with sentences.
_LONGEST: Final = 4 * 2**20
ANY_KIND: Final = "any"


class PoolAway(Exception):
    """The pool did not answer; the text says why."""


class PoolRefused(Exception):
    """The pool answered that this cannot be; the text is its sentence."""


@dataclass(frozen=True, slots=True)
class Wish:
    """GPUs, the memory on each in bytes (by default the quota's), and their kind, if any."""

    gpus: int = 1
    memory: int | None = None
    kind: str | None = None

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Wish:
        """From the ``gpus``, ``gpu_memory`` and ``gpu_kind`` of a spawner's ``user_options``.

        (Batch systems put options of people into their scripts, where ``memory`` is the host's.)
        Raises ``ValueError`` with a sentence.
        """
        gpus = str(options.get("gpus", 1)).strip() or "1"
        if not (gpus.isascii() and gpus.isdigit() and len(gpus) < 9 and int(gpus) <= MOST_GPUS):
            raise ValueError(f"{gpus!r} is no number of GPUs: write one like 0, 1 or 2.")
        memory, kind = options.get("gpu_memory") or "", str(options.get("gpu_kind") or "").strip()
        return cls(
            gpus=int(gpus),
            memory=parse_size(memory) if str(memory).strip() else None,
            kind=None if kind.lower() in ("", ANY_KIND, "any kind") else kind,
        )

    def __str__(self) -> str:
        told = [counted(self.gpus, "GPU")]
        told += [format_size(self.memory)] if self.memory is not None else []
        return ", ".join([*told, self.kind or "any kind"])


@dataclass(frozen=True, slots=True)
class Choice:
    """A host, in the pool's order. ``possible``: it may fit there at some time, if not now.

    ``place`` is the host's own name, where the pool knows a part of it by another; empty: the same.
    """

    host: str
    fits_now: bool = False
    possible: bool = True
    reasons: tuple[str, ...] = ()
    place: str = ""

    @property
    def at(self) -> str:
        """By what name it is reached."""
        return self.place or self.host

    def __str__(self) -> str:
        return f"{self.host}: {' '.join(self.reasons)}" if self.reasons else self.host


async def where(environment: str, wish: Wish, socket: str = POOL_SOCKET) -> tuple[Choice, ...]:
    """All hosts, the best first. Raises :class:`PoolAway`, or :class:`PoolRefused`."""

    def ask() -> Any:
        with Node(socket, None, "pool") as pool:
            return pool.call(PoolMethod.WHERE, environment=environment, **asdict(wish))["hosts"]

    try:
        async with asyncio.timeout(PATIENCE):
            return choices(await asyncio.to_thread(ask))
    except NodeRefused as refused:
        raise PoolRefused(str(refused)) from refused
    except (NodeSilent, TimeoutError) as error:
        why = str(error) or f"within {PATIENCE:g} s"
        raise PoolAway(f"the pool at {socket} did not answer ({why})") from error


async def where_over_http(url: str, token: str, wish: Wish) -> tuple[Choice, ...]:
    """The same for a person's server, which shows its token at the Hub's pages.

    Raises :class:`PoolAway`, or :class:`PoolRefused`.
    """
    if not url:
        raise PoolAway(f"the pool cannot be asked: ${POOL_URL} is not set")
    query = urlencode({name: value for name, value in asdict(wish).items() if value is not None})
    request = Request(f"{url.rstrip('/')}/api/where?{query}")
    request.add_header("Authorization", f"token {token}")
    try:
        return choices(json.loads(await asyncio.to_thread(_read, request))["hosts"])
    except HTTPError as error:
        with error:
            said = error.read(_LONGEST)
        try:
            message = str(json.loads(said)["message"])
        except (ValueError, KeyError, TypeError):
            message = ""
        if error.code < 500 and message:
            raise PoolRefused(message) from None
        raise PoolAway(f"the pool at {url} answered {error.code} {message}".rstrip()) from None
    except (OSError, ValueError, KeyError) as error:
        raise PoolAway(f"the pool at {url} did not answer ({error})") from error


def _read(request: Request) -> bytes:
    with urlopen(request, timeout=PATIENCE) as answer:
        return bytes(answer.read(_LONGEST))


def choices(told: Any) -> tuple[Choice, ...]:
    """Read the ranking of a pool's answer."""
    return tuple(
        Choice(
            host=str(one["host"]),
            fits_now=bool(one["fits_now"]),
            possible=bool(one.get("possible", True)),
            reasons=tuple(map(str, one.get("reasons", ()))),
            place=str(one.get("place", "")),
        )
        for one in told
    )
