"""The state after events about processes that the audit flags."""

from __future__ import annotations

from ..books.copies import replace
from ..books.index import drop
from ..books.state import Flag, FlagKey, State
from ..words import events as ev
from ..words.model import FlagKind
from .registry import evolves


def _flag_key(event: ev.OfFlag) -> FlagKey:
    return (event.gpu, event.process, event.kind)


@evolves(ev.ProcessFlagged)
def process_flagged(state: State, event: ev.ProcessFlagged) -> State:
    old = state.flags.get(_flag_key(event))
    flag = Flag(event.at, event.memory) if old is None else replace(old, memory=event.memory)
    return replace(state, flags=state.flags.set(_flag_key(event), flag))


@evolves(ev.OverLimitStaged)
def over_limit_staged(state: State, event: ev.OverLimitStaged) -> State:
    key = (event.gpu, event.process, FlagKind.OVER_LIMIT)
    flag = state.flags.get(key)
    if flag is None:  # the ledger tells of a flag that is measured anew
        return state
    flag = replace(flag, stage=event.stage, memory=event.used, lease=event.lease)
    return replace(state, flags=state.flags.set(key, flag))


@evolves(ev.FlagActed)
def flag_acted(state: State, event: ev.FlagActed) -> State:
    flag = state.flags.get(_flag_key(event))
    if flag is None:  # the ledger tells of a flag that is measured anew
        return state
    flag = replace(flag, acted=True)
    return replace(state, flags=state.flags.set(_flag_key(event), flag))


@evolves(ev.FlagCleared)
def flag_cleared(state: State, event: ev.FlagCleared) -> State:
    return replace(state, flags=drop(state.flags, _flag_key(event)))
