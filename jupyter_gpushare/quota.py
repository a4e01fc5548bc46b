"""What a quota says: each field is described once, here, beside its name and type.

The policy obeys a quota, a client sends one, a page shows one and an administrator types one. All
of them need the same facts of a field: its bounds, what an empty one means, and how it is called.
Therefore this file lies below the policy and the protocol, and imports nothing of ours. Checks, the
parameters of calls, documents, options, forms and sentences are made from it
(:mod:`.protocol.quota`). A new field needs its lines in :class:`Quota`, and the code that obeys it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum, auto
from typing import Any, Final, NewType

Bytes = NewType("Bytes", int)
#: Whose a quota is: a user, or one of their servers.
EnvironmentName = NewType("EnvironmentName", str)
#: What a budget is for: a calendar ``week`` or ``month``, or a term's first day: ``2026-10-01``.
Period = NewType("Period", str)
WEEK: Final = Period("week")
MONTH: Final = Period("month")


class Reserve(Enum):
    """How much of a GPU is reserved for a request that names no memory.

    ``WHOLE``: what the quota gives, all the time. ``QUOTA``: the same, until the task is measured;
    from then on the reservation follows the measurement. ``ESTIMATE``: what earlier runs of the
    same code needed, where they are known, else as ``QUOTA``.
    """

    WHOLE = "whole"
    QUOTA = "quota"
    ESTIMATE = "estimate"


class Unit(Enum):
    """What a field counts, and so how people and programs write it."""

    COUNT = auto()
    HUNDREDTHS = auto()
    NUMBER = auto()
    HOURS = auto()
    SECONDS = auto()
    BYTES = auto()
    #: Up to 1 a share of a GPU, above it bytes.
    PART = auto()
    PERIOD = auto()
    #: One of :attr:`Field.words`.
    WORD = auto()


#: What an empty field leaves to the node manager's own configuration is written with this word.
OF_NODE: Final = "default"


@dataclass(frozen=True, slots=True)
class Field:
    """The description of a field. ``about`` is a phrase that others go on with ``; 0: never``.

    ``null`` is the word that people write for a field without a value, and ``empty`` what that
    means; a field without that word must have a value. ``zero``: what 0 means. ``most``: where it
    is less than any value of its unit may be. ``words``: what may be said, and what each means.
    ``merge`` makes one value of those of several groups. ``later``: it came when quotas were no
    longer recorded as a whole.
    """

    unit: Unit
    label: str
    about: str
    merge: Callable[[Sequence[Any]], Any]
    null: str | None = None
    empty: str = ""
    zero: str = ""
    least: float = 0
    most: float | None = None
    words: Mapping[str, str] = field(default_factory=dict)
    later: bool = False


def most_set(values: Sequence[Any]) -> Any:
    """The most of those that are set."""
    return max((value for value in values if value is not None), default=None)


def most_or_unbounded(values: Sequence[Any]) -> Any:
    """No bound if one of them has none, else the most."""
    return None if None in values else max(values)


def longest(values: Sequence[Any]) -> Any:
    """The node's own if one of them leaves it so, else never (0) if one does, else the longest."""
    return 0.0 if 0 in values and None not in values else most_or_unbounded(values)


def most_reserved(values: Sequence[Any]) -> Any:
    """The one that reserves most of those that are set."""
    said = [value for value in values if value is not None]
    return min(said, key=list(Reserve).index, default=None)


def _field(default: Any, *about: Any, since: int = 0, **more: Any) -> Any:
    """A field with its description. ``since``: see `versions.since`."""
    metadata = {"quota": Field(*about, **more), **({"since": since} if since else {})}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Quota:
    """The most an environment may hold. Sizes are in bytes, times in seconds."""

    gpus: int = _field(
        ...,
        Unit.COUNT,
        "GPUs",
        "GPUs that may be held at once",
        most_set,
        zero="none",
    )
    memory: Bytes | None = _field(
        None,
        Unit.BYTES,
        "Memory on each GPU",
        "memory on each GPU",
        most_or_unbounded,
        null="none",
        empty="the whole GPU",
        least=1,
    )
    weight: float = _field(
        1.0,
        Unit.NUMBER,
        "Weight",
        "fair share among those who wait: with weight 2 one gets twice as much as with weight 1",
        most_set,
        least=1e-6,
        most=1e6,
    )
    gpu_hours: float | None = _field(
        None,
        Unit.HOURS,
        "GPU-hours",
        "a budget of GPU-hours in each period; when it is spent, new requests wait",
        most_or_unbounded,
        null="none",
        empty="no budget",
    )
    idle_timeout: float | None = _field(
        None,
        Unit.SECONDS,
        "Idle time-out",
        "for how long a kernel may be idle before its GPUs are asked back",
        longest,
        null=OF_NODE,
        empty="the node's own",
        zero="never",
    )
    burst_memory: float | None = _field(
        None,
        Unit.PART,
        "Limits lifted up to",
        "up to what memory limits are lifted on a nearly empty GPU",
        most_set,
        null=OF_NODE,
        empty="the node's own",
        zero="not at all",
    )
    per: Period | None = _field(
        None,
        Unit.PERIOD,
        "Period of the GPU-hours",
        "what the GPU-hours are for: week, month, or the first day of a term, which goes on until "
        "the next one is set; days begin at midnight in the node's time zone",
        most_set,
        null="window",
        empty="the node's rolling window",
    )
    turn_offset: Bytes | None = _field(
        None,
        Unit.BYTES,
        "Head-room in turns",
        "head-room before the part of each later task on a GPU that is used by turns",
        most_set,
        null=OF_NODE,
        empty="the node's own",
        zero="none",
        since=3,
    )
    reserve: Reserve | None = _field(
        None,
        Unit.WORD,
        "Reserves",
        "what a request reserves that names no memory",
        most_reserved,
        null=OF_NODE,
        empty="the node's own",
        words={
            Reserve.WHOLE.value: "all that the quota gives",
            Reserve.QUOTA.value: "that, until the task is measured",
            Reserve.ESTIMATE.value: "what earlier runs of its code needed",
        },
        since=3,
    )
    pin_turn_limit: float | None = _field(
        None,
        Unit.SECONDS,
        "Pins keep a turn for",
        "for how long a pin keeps a task's turn from being asked back where tasks take turns",
        most_set,
        null=OF_NODE,
        empty="the node's own",
        zero="not at all",
        since=3,
    )
    interactive: int | None = _field(
        None,
        Unit.COUNT,
        "GPUs for interactive requests",
        "GPUs that interactive requests may have or wait for at once; what is asked beyond them is "
        "batch",
        most_or_unbounded,
        null="none",
        empty="no bound",
        since=3,
    )
    share: int | None = _field(
        None,
        Unit.HUNDREDTHS,
        "Share for promises",
        "hundredths of one GPU that promises (deadlines and rates that people name) may claim at "
        "once",
        most_set,
        null=OF_NODE,
        empty="the node's own",
        zero="no promises",
        most=10_000,
        since=3,
    )
    max_wait: float | None = _field(
        None,
        Unit.SECONDS,
        "Longest wait",
        "how long a request may wait in the queue before it is refused, so that its program goes "
        "on or ends; a parked task keeps its place",
        most_or_unbounded,
        null="none",
        empty="no bound",
        least=1,
        later=True,
        since=3,
    )


FIELDS: Final[Mapping[str, Field]] = {one.name: one.metadata["quota"] for one in fields(Quota)}
WHOLE: Final = frozenset(FIELDS)
_BEFORE: Final = frozenset(name for name, field in FIELDS.items() if not field.later)


@dataclass(frozen=True, slots=True)
class Own:
    """The parts ``named`` of a quota were set for somebody; the rest is what holds without them."""

    quota: Quota
    named: frozenset[str] = WHOLE

    @classmethod
    def recorded(cls, quota: Quota, named: Iterable[str] | None) -> Own:
        """As an event has it; those that name nothing set all fields that there were."""
        return cls(quota, _BEFORE if named is None else frozenset(named))

    @property
    def record(self) -> tuple[str, ...] | None:
        """What an event says is named; the other way round than :meth:`recorded`."""
        return None if self.named == _BEFORE else self.names

    @property
    def names(self) -> tuple[str, ...]:
        """The parts that were set, in the order of the fields."""
        return tuple(name for name in FIELDS if name in self.named)

    def over(self, rest: Quota) -> Quota:
        """The quota in force, where ``rest`` holds otherwise; without a budget it has no period."""
        quota = replace(rest, **{part: getattr(self.quota, part) for part in self.named})
        return quota if quota.gpu_hours is not None else replace(quota, per=None)

    def then(self, later: Own) -> Own:
        """This, and what was set later. A budget that ends takes its own period with it."""
        parts = {part: getattr(later.quota, part) for part in later.named}
        ends = {"per"} if parts.get("gpu_hours", 0) is None else set()
        return Own(replace(self.quota, **parts), (self.named | later.named) - ends)

    def without(self, parts: frozenset[str]) -> Own:
        """This, where some parts follow the rest again; a period goes with its hours."""
        gone = parts | {"per"} if "gpu_hours" in parts else parts
        return replace(self, named=self.named - gone)


def best(quotas: Iterable[Quota]) -> Quota:
    """The most generous of several: each part on its own, and a period with its hours."""
    several = tuple(quotas)
    if len(several) == 1:
        return several[0]
    if not several:
        raise ValueError("best() needs at least one quota")
    parts = {n: one.merge([getattr(q, n) for q in several]) for n, one in FIELDS.items()}
    hours = parts["gpu_hours"]
    periods = [quota.per for quota in several if hours is not None and quota.gpu_hours == hours]
    return Quota(**parts | {"per": FIELDS["per"].merge(periods)})


def made_of(told: Mapping[str, Any]) -> Quota:
    """The quota of what its fields are in JSON; without ``gpus`` it has none."""
    reserve = told.get("reserve")
    return Quota(**{"gpus": 0, **told, "reserve": None if reserve is None else Reserve(reserve)})


def plain(quota: Quota) -> dict[str, Any]:
    """What its fields are in JSON."""
    told = {name: getattr(quota, name) for name in FIELDS}
    return {n: value.value if isinstance(value, Enum) else value for n, value in told.items()}
