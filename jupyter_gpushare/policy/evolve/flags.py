"""The state after events about processes that the audit flags."""

from __future__ import annotations

from ..books.copies import replace
from ..books.state import Flag, State
from ..words import events as ev
from ..words.model import FlagKind, FlagPhase
from .registry import evolves
from .steps import drop


@evolves(ev.FlagMoved)
def flag_moved(state: State, event: ev.FlagMoved) -> State:
    key = (event.gpu, event.process, event.kind)
    if event.phase is FlagPhase.CLEARED:
        return replace(state, flags=drop(state.flags, key))
    flag = state.flags.get(key)
    if event.phase is FlagPhase.RAISED:
        flag = Flag(event.at, event.memory) if flag is None else replace(flag, memory=event.memory)
    elif flag is None:  # the ledger tells of a flag that is measured anew
        return state
    else:
        flag = replace(flag, acted=True)
    return replace(state, flags=state.flags.set(key, flag))


@evolves(ev.OverLimitStaged)
def over_limit_staged(state: State, event: ev.OverLimitStaged) -> State:
    key = (event.gpu, event.process, FlagKind.OVER_LIMIT)
    flag = state.flags.get(key)
    if flag is None:  # the ledger tells of a flag that is measured anew
        return state
    flag = replace(flag, stage=event.stage, memory=event.used, lease=event.lease)
    return replace(state, flags=state.flags.set(key, flag))
