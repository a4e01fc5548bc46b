"""What hosts report (declared in the protocol), what is lent to them, and what people wish for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ...policy.words.model import EnvironmentName
from ...protocol.hostreports import (
    Accepted as Accepted,
    Answer,
    HostEnvironment as HostEnvironment,
    HostEstimate as HostEstimate,
    HostGpu as HostGpu,
    HostReport as HostReport,
    KindShare as KindShare,
    Want as Want,
)
from ...protocol.reading import reader

Host = str
Environment = EnvironmentName
GroupName = str

#: Read a report, and the answer to ``pool.lend``; both raise
#: :class:`...protocol.reading.BadParameter`, a sentence.
read_report: Final[Callable[[dict[str, Any]], HostReport]] = reader(HostReport)
read_answer: Final[Callable[[dict[str, Any]], Answer]] = reader(Answer)


@dataclass(frozen=True, slots=True)
class Group:
    """A group whose quota breathes.

    ``nominal`` GPUs are its own. It may use up to ``borrowing`` more while other groups leave
    theirs unused (``None`` for any number), and others may use up to ``lending`` of its own that it
    leaves unused (``None`` for all of them).
    """

    name: GroupName
    nominal: int
    borrowing: int | None = None
    lending: int | None = None


@dataclass(frozen=True, slots=True)
class Holding:
    """What holds a host for the pool: a ``piece`` of an ``engine``, such as a job of Slurm.

    It has the host ``until`` then, in Unix time; ``None``: nobody knows. ``place`` is what the
    engine calls the host, of which several pieces may each have a part; empty: as the pool.
    """

    engine: str
    piece: str
    until: float | None = None
    place: str = ""


@dataclass(frozen=True, slots=True)
class Loan:
    """Whole GPUs of one host that an environment has for a time, whether it asks there or not."""

    id: str
    environment: Environment
    host: Host
    gpus: int
    until: float


@dataclass(frozen=True, slots=True)
class Wish:
    """What a server or a kernel needs where it starts.

    Without ``memory`` whole GPUs are meant. ``expected`` is what it is predicted to need on a GPU
    of each kind. ``by_estimate``: without a size it is to have the memory that is expected.
    ``until``: a host should last until then (Unix time).
    """

    environment: Environment
    gpus: int = 1
    memory: int | None = None
    kind: str | None = None
    expected: tuple[KindShare, ...] = ()
    by_estimate: bool = False
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class Ranked:
    """A host in the order of preference. ``reasons`` are sentences; ``wait`` is in seconds.

    ``possible``: it may fit there at some time, if not now. ``place``: as :class:`Holding` has it.
    """

    host: Host
    fits_now: bool
    reasons: tuple[str, ...]
    wait: float | None = None
    possible: bool = True
    place: str = ""
