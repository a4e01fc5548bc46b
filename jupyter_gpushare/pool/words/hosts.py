"""What hosts report, what is lent to them, and what people wish for.

A report comes from a host that may have been taken over: the reader bounds every value, and lets
nothing in that is not declared here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from ...policy.words.model import EnvironmentName
from ...protocol.messages import IDENTIFIER, NAME, TEXT
from ...protocol.reading import reader
from ...protocol.shapes import Range, Text, words
from ...protocol.sizes import MOST_GPUS

Host = str
Environment = EnvironmentName
GroupName = str

_Name = Annotated[str, Text(NAME)]
_Environment = Annotated[EnvironmentName, Text(NAME)]
_Id = Annotated[str, Text(IDENTIFIER)]
_Sentence = Annotated[str, Text(TEXT)]
_Count = Annotated[int, Range(0, 2**31)]
_Gpus = Annotated[int, Range(0, MOST_GPUS)]
_Bytes = Annotated[int, Range(0, 2**53)]
_Seconds = Annotated[float, Range(0.0, 1e12)]


@dataclass(frozen=True, slots=True)
class HostGpu:
    """A GPU of a host. Shares are in hundredths of its compute: ``batch_share`` is what batch tasks
    make way with for a person. ``out``: why it is out of service. ``exclusive_free``: nobody has
    any of it."""

    uuid: _Id
    index: _Count
    kind: _Name
    memory: _Bytes
    free_memory: _Bytes
    free_share: Annotated[int, Range(0, 100)]
    out: _Sentence | None
    exclusive_free: bool
    batch_share: Annotated[int, Range(0, 10_000)] = 0


@dataclass(frozen=True, slots=True)
class KindShare:
    """What a model is predicted to need on a kind of GPU: hundredths of its compute, and bytes."""

    kind: _Name
    share: Annotated[int, Range(0, 100)]
    memory: _Bytes


@dataclass(frozen=True, slots=True)
class HostEstimate:
    """The newest prediction of an environment on a host; ``at`` is in Unix seconds."""

    environment: _Environment
    at: _Seconds
    kinds: tuple[KindShare, ...]


@dataclass(frozen=True, slots=True)
class HostEnvironment:
    """What an environment has on a host. ``lent`` is the sub-budget that the host knows of.

    ``short``: the request that waits longest there could begin on a free GPU of another host.
    """

    environment: _Environment
    held: _Gpus
    parked: _Count
    parked_bytes: _Bytes
    waiting: _Count
    gpu_hours: _Seconds
    lent: _Gpus
    short: bool = False


@dataclass(frozen=True, slots=True)
class Want:
    """A request that waits on a host for a sub-budget. ``since`` is on the host's boot clock."""

    environment: _Environment
    gpus: _Gpus
    memory: _Bytes | None
    priority_class: Annotated[str, words("interactive", "batch")]
    since: _Seconds
    groups: Annotated[tuple[str, ...], Text(NAME)] = ()


@dataclass(frozen=True, slots=True)
class HostReport:
    """All that a host says of itself; ``at`` is on the boot clock of the boot ``boot_id``."""

    name: _Name
    boot_id: _Id
    at: _Seconds
    version: _Name
    seconds: _Seconds
    draining: _Sentence | None
    empty: bool
    gpus: tuple[HostGpu, ...]
    environments: tuple[HostEnvironment, ...]
    wants: tuple[Want, ...]
    queue: _Count
    expected_wait: _Seconds | None
    #: The environments of which a server or task is connected there.
    talking: Annotated[tuple[str, ...], Text(NAME)] = ()
    estimates: tuple[HostEstimate, ...] = ()


#: Reads a HostReport document; raises :class:`...protocol.reading.BadParameter`, a sentence.
read_report: Final[Callable[[dict[str, Any]], HostReport]] = reader(HostReport)


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a host answered for an environment: the GPUs of the sub-budget, and those held."""

    environment: _Environment
    gpus: _Gpus
    held: _Gpus


@dataclass(frozen=True, slots=True)
class Answer:
    """A host's answer to what was lent to it."""

    environments: tuple[Accepted, ...]


#: Reads the result of ``pool.lend``.
read_answer: Final[Callable[[dict[str, Any]], Answer]] = reader(Answer)


@dataclass(frozen=True, slots=True)
class Group:
    """A group whose quota breathes.

    ``nominal`` GPUs are its own. It may use up to ``borrowing`` more while other groups leave
    theirs unused (``None``: no bound), and others may use up to ``lending`` of its own that it
    leaves unused (``None``: all of them).
    """

    name: GroupName
    nominal: int
    borrowing: int | None = None
    lending: int | None = None


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
    """

    environment: Environment
    gpus: int = 1
    memory: int | None = None
    kind: str | None = None
    expected: tuple[KindShare, ...] = ()
    by_estimate: bool = False


@dataclass(frozen=True, slots=True)
class Ranked:
    """A host in the order of preference. ``reasons`` are sentences; ``wait`` is in seconds.

    ``possible``: it may fit there at some time, if not now.
    """

    host: Host
    fits_now: bool
    reasons: tuple[str, ...]
    wait: float | None = None
    possible: bool = True
