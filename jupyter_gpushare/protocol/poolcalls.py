"""The calls that administrators make on the pool's own socket, and what each may say.

The socket speaks the node manager's protocol: the same lines, the same ``hello``, the same calls
about quotas. Only root and the pool's own OS user may connect.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

from .calls import PARAMS as NODE_PARAMS, Call, Id, Name, NoParams, methods, parse_call
from .messages import LINE_PATTERN, MOST_MEMORY, NAME, Method
from .secured import HOST_NAME
from .shapes import NullIsLeftOut, Range, Text
from .sizes import MOST_GPUS

#: Where a pool that root runs listens.
POOL_SOCKET: Final = "/run/jupyter-gpushare/pool.sock"
HostName = Annotated[
    str,
    Text(
        63,
        HOST_NAME,
        "a host's name: up to {} letters, digits, '.', '_' and '-', a letter or digit at each end",
    ),
]
Seconds = Annotated[float, Range(1.0, 366 * 86400.0)]
#: Seconds for which a token can be used at most.
TOKEN_LASTS: Final = 3600.0


class PoolMethod(Enum):
    """The calls that only a pool knows."""

    HOSTS = "pool.hosts"
    WHERE = "pool.where"
    TOKEN = "pool.token"
    HELD = "pool.held"
    DRAIN = "pool.drain"
    RESUME = "pool.resume"
    FORGET = "pool.forget"
    GROUP_LIST = "pool.group.list"
    GROUP_SET = "pool.group.set"
    GROUP_UNSET = "pool.group.unset"
    LEND_GPUS = "pool.lend_gpus"
    RETURN_GPUS = "pool.return_gpus"
    HISTORY = "pool.history"
    ROTATE = "pool.rotate"


@dataclass(frozen=True, slots=True)
class WhereParams:
    """What a server or a kernel needs."""

    environment: Annotated[Name, "whose it is"]
    gpus: Annotated[int, Range(0, MOST_GPUS), NullIsLeftOut()] = 1
    memory: Annotated[
        int | None, Range(1, MOST_MEMORY), "bytes on each; null: as the quota says"
    ] = None
    kind: Annotated[Name | None, "the GPUs' name; null: any"] = None


@dataclass(frozen=True, slots=True)
class HostParams:
    """A host by its name."""

    host: HostName


@dataclass(frozen=True, slots=True)
class HeldParams(HostParams):
    """What holds a host for the pool: a piece of an engine, such as a job of Slurm."""

    engine: Name
    piece: Name
    until: Annotated[float | None, Range(0.0), "Unix time; null: nobody knows"] = None
    place: Annotated[HostName | None, "what the engine calls the host; null: the same"] = None


@dataclass(frozen=True, slots=True)
class TokenParams:
    """A token for a new host, or for one that the pool has."""

    host: Annotated[HostName | None, "only this host may use it, also if it joined before"] = None
    seconds: Annotated[
        float, Range(1.0, TOKEN_LASTS), NullIsLeftOut(), "for how long it can be used"
    ] = TOKEN_LASTS
    engine: Annotated[Name | None, "of what holds the host that joins by it"] = None
    piece: Annotated[Name | None, "which part of the engine it is"] = None
    until: Annotated[float | None, Range(0.0), "Unix time; null: nobody knows"] = None
    place: Annotated[HostName | None, "what the engine calls the host; null: the same"] = None


@dataclass(frozen=True, slots=True)
class DrainHostParams(HostParams):
    """The host to take out of service, and the reason for everybody."""

    reason: Annotated[str, Text(NAME, LINE_PATTERN), "one line; everybody who waits reads it"]
    gives_back: Annotated[bool, "its engine asks, which has it back once it is empty"] = False


@dataclass(frozen=True, slots=True)
class GroupName:
    """A group by its name."""

    group: Name


@dataclass(frozen=True, slots=True)
class GroupParams(GroupName):
    """A group whose GPUs breathe."""

    nominal: Annotated[int, Range(0, MOST_GPUS), "GPUs of its own"]
    borrowing: Annotated[
        int | None, Range(0, MOST_GPUS), "most GPUs that it may borrow; null: no bound"
    ] = None
    lending: Annotated[
        int | None, Range(0, MOST_GPUS), "most of its own that it lends; null: all"
    ] = None


@dataclass(frozen=True, slots=True)
class LoanParams:
    """Whole GPUs for a time."""

    environment: Name
    gpus: Annotated[int, Range(1, MOST_GPUS)]
    seconds: Seconds
    host: HostName | None = None


@dataclass(frozen=True, slots=True)
class ReturnParams:
    """A loan by its id."""

    loan: Id


@dataclass(frozen=True, slots=True)
class AuditParams:
    """The newest ``limit`` things that people did."""

    limit: Annotated[int, Range(1, 1000), NullIsLeftOut()] = 50


#: The node manager's calls that a pool answers, too.
SHARED: Final = (Method.HELLO, Method.QUOTA_LIST, Method.QUOTA_SET, Method.QUOTA_UNSET)
PARAMS: Final[dict[Enum, type]] = {
    **{method: NODE_PARAMS[method] for method in SHARED},
    PoolMethod.HOSTS: NoParams,
    PoolMethod.WHERE: WhereParams,
    PoolMethod.TOKEN: TokenParams,
    PoolMethod.HELD: HeldParams,
    PoolMethod.DRAIN: DrainHostParams,
    PoolMethod.RESUME: HostParams,
    PoolMethod.FORGET: HostParams,
    PoolMethod.GROUP_LIST: NoParams,
    PoolMethod.GROUP_SET: GroupParams,
    PoolMethod.GROUP_UNSET: GroupName,
    PoolMethod.LEND_GPUS: LoanParams,
    PoolMethod.RETURN_GPUS: ReturnParams,
    PoolMethod.HISTORY: AuditParams,
    PoolMethod.ROTATE: NoParams,
}
_METHODS: Final = methods(PARAMS)


def parse_pool_call(line: bytes) -> Call:
    """The call on one line. Raises as :func:`.calls.parse_call`."""
    return parse_call(line, _METHODS)
