"""A process over its limit, step by step: warn, trim, park when idle, the last resort.

Some frameworks' limits cannot be enforced, and some processes do not return below a limit that was
lifted. Each stage is due some time after the process was flagged; a task that computes is never
parked. The setting `audit_action` is the last resort: nothing, by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Final

from ..books.state import Flag, FlagKey, State
from ..recall import plan
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import Bytes, FlagKind, LeaseId, LeasePhase, OverLimitStage
from ..words.recalls import Give, RecallPhase, Why

#: The stages in order; each comes after all before it.
ORDER: Final = tuple(OverLimitStage)


def due(config: PolicyConfig, stage: OverLimitStage) -> float:
    """Seconds after a process was flagged from which ``stage`` is due."""
    return {
        OverLimitStage.WARNED: 0.0,
        OverLimitStage.TRIM: config.over_limit_trim,
        OverLimitStage.PARK: config.over_limit_park,
        OverLimitStage.LAST: max(config.over_limit_last, config.audit_grace),
    }[stage]


def following(stage: OverLimitStage | None) -> OverLimitStage | None:
    """The stage after ``stage``."""
    at = 0 if stage is None else ORDER.index(stage) + 1
    return ORDER[at] if at < len(ORDER) else None


def step(
    state: State,
    over: Mapping[FlagKey, tuple[LeaseId, Bytes]],
    works: Set[LeaseId],
    at: float,
    config: PolicyConfig,
) -> Iterator[ev.Event]:
    """The steps due at ``at`` for flagged processes that are still ``over`` their limits.

    Each with its lease, and its environment's use in bytes. For those that ``works`` has the GPUs
    were at work.
    """
    # Once, also where it is over its limit on several GPUs.
    trimmed, asked = set[LeaseId](), set[LeaseId]()
    for key, (name, used) in sorted(over.items(), key=lambda entry: repr(entry[0])):
        gpu, process, _kind = key
        flag, lease = state.flags.get(key), state.leases[name]
        if flag is None or lease.phase is LeasePhase.ENDED:
            continue
        stage = following(flag.stage)
        if stage is not None and at - flag.since >= due(config, stage):
            held = state.reservations[(lease.environment, gpu)].memory
            yield ev.OverLimitStaged(
                at, lease.id, lease.environment, gpu, process, stage, used, held
            )
            trims = stage is OverLimitStage.TRIM and lease.phase is LeasePhase.HELD
            if trims and lease.id not in trimmed:
                trimmed.add(lease.id)
                yield ev.RecallMoved(at, lease.id, Give.CACHE, RecallPhase.TOLD, Why.OVER_LIMIT)
        parks = flag.stage in (OverLimitStage.PARK, OverLimitStage.LAST)
        if parks and name not in works | asked:
            asked.add(lease.id)
            yield from plan.over_limit(state, lease.id, config, at)


def may_act(flag: Flag, key: FlagKey, at: float, config: PolicyConfig) -> bool:
    """Whether the configured action against a flagged process is due."""
    grace = config.audit_grace
    if key[2] is FlagKind.OVER_LIMIT:
        if flag.stage is not OverLimitStage.LAST:
            return False
        grace = due(config, OverLimitStage.LAST)
    return at - flag.since >= grace
