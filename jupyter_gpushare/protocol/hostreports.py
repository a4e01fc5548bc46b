"""What a host says of itself to its pool, and what it answers to a loan.

The host's node manager makes a report, the pool reads it. It may come from a host that was taken
over: the reader bounds every value, and lets nothing in that is not declared here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..quota import EnvironmentName
from .calls import Id, Name, Whole
from .messages import NAME, TEXT
from .shapes import Range, Text, words
from .sizes import MOST_GPUS

_Environment = Annotated[EnvironmentName, Text(NAME)]
_Sentence = Annotated[str, Text(TEXT)]
_Count = Annotated[int, Range(0, 2**31)]
_Share = Annotated[int, Range(0, 100)]
_Gpus = Annotated[int, Range(0, MOST_GPUS)]
_Seconds = Annotated[float, Range(0.0, 1e12)]


@dataclass(frozen=True, slots=True)
class HostGpu:
    """A GPU of a host, as the pool needs to know it."""

    uuid: Id
    index: _Count
    kind: Annotated[Name, "its name"]
    memory: Annotated[Whole, "bytes"]
    free_memory: Annotated[Whole, "bytes that may still be promised"]
    free_share: Annotated[_Share, "hundredths of its compute that nobody was given"]
    out: Annotated[_Sentence | None, "why it cannot be used; null: it can"]
    exclusive_free: Annotated[bool, "nobody has anything there"]
    batch_share: Annotated[
        int,
        Range(0, 10_000),
        "hundredths of its compute with which batch tasks there make way for a person",
    ] = 0


@dataclass(frozen=True, slots=True)
class KindShare:
    """What somebody's newest model is predicted to need on a kind of GPU."""

    kind: Annotated[Name, "the GPU's name, or the kind's as predictors name it"]
    share: Annotated[_Share, "hundredths of its compute"]
    memory: Annotated[Whole, "bytes that are enough in nine of ten cases"]


@dataclass(frozen=True, slots=True)
class HostEstimate:
    """The newest prediction of an environment on a host."""

    environment: _Environment
    at: Annotated[_Seconds, "Unix seconds"]
    kinds: tuple[KindShare, ...]


@dataclass(frozen=True, slots=True)
class HostEnvironment:
    """What an environment has on a host."""

    environment: _Environment
    held: Annotated[_Gpus, "GPUs"]
    parked: Annotated[_Count, "leases"]
    parked_bytes: Annotated[Whole, "bytes of their GPUs' memory in the host's"]
    waiting: Annotated[_Count, "requests"]
    gpu_hours: Annotated[_Seconds, "GPU-hours that it has spent here in its period"]
    lent: Annotated[_Gpus, "GPUs that the pool lends it here now; an expired loan is 0"]
    short: Annotated[
        bool,
        "its longest waiting request is for one GPU, and lacks neither GPU-hours nor a loan: a "
        "free GPU on another host would do",
    ] = False


@dataclass(frozen=True, slots=True)
class Want:
    """A request that waits because the pool lends its environment too little here."""

    environment: _Environment
    gpus: _Gpus
    memory: Annotated[Whole | None, "bytes on each GPU; null: whole GPUs"]
    priority_class: Annotated[str, words("interactive", "batch")]
    since: Annotated[_Seconds, "when it began to wait, seconds on the host's boot clock"]
    groups: Annotated[tuple[str, ...], Text(NAME), "the environment's, as identity told them"] = ()


@dataclass(frozen=True, slots=True)
class Lacking:
    """Requests that lack free GPUs only, neither GPU-hours nor a loan: another host would do."""

    gpus: Annotated[int, Range(1, MOST_GPUS), "for so many GPUs each"]
    requests: Annotated[int, Range(1, 2**31)]


@dataclass(frozen=True, slots=True)
class HostReport:
    """A host as its pool sees it."""

    name: Name
    boot_id: Id
    at: Annotated[_Seconds, "seconds on the host's boot clock"]
    version: Name
    seconds: Annotated[_Seconds, "for which the last loan is still valid; 0: none is"]
    draining: Annotated[_Sentence | None, "why the whole host is out of service; null: it serves"]
    empty: Annotated[bool, "no lease has anything on a GPU"]
    gpus: tuple[HostGpu, ...]
    environments: Annotated[tuple[HostEnvironment, ...], "with a lease, a request or a loan"]
    wants: Annotated[tuple[Want, ...], "the longest waiting first"]
    queue: Annotated[_Count, "requests that wait"]
    expected_wait: Annotated[
        _Seconds | None,
        "seconds that a new request for one GPU is expected to wait; null: nobody can tell",
    ]
    talking: Annotated[
        tuple[str, ...],
        Text(NAME),
        "environments of which a server or task is connected now",
    ] = ()
    estimates: Annotated[
        tuple[HostEstimate, ...], "the newest first, of the people asked about last"
    ] = ()
    lacking: tuple[Lacking, ...] = ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """What an environment has of the pool after a loan."""

    environment: _Environment
    gpus: Annotated[_Gpus, "lent now: what was asked for, and never less than it holds"]
    held: Annotated[_Gpus, "GPUs that it holds"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The host's answer to a loan."""

    environments: tuple[Accepted, ...]
