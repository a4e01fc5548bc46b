"""The walls of a small world, moved as the node manager moves them, and looked at at each instant.

They are the product's; the helper behind them is a double that sets one group after another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from jupyter_gpushare.node.host import walls
from jupyter_gpushare.policy.books import shares
from jupyter_gpushare.policy.books.room import comes_back
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.recall import lifts
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import GpuUuid, LeasePhase


class _Line:
    """The connection to the helper, which is there."""

    def at_eof(self) -> bool:
        return False

    def close(self) -> None:
        """The helper goes on."""


class Walled(walls.Walls):
    """Each environment has a group. What ``stands`` lasts, whoever is killed."""

    def __init__(self, config: PolicyConfig, stands: dict[str, walls.Wall]) -> None:
        super().__init__("", config)
        self.stands = stands
        self.problem = None
        #: Whether the helper is away: what stands stays as it is.
        self.is_away = False
        #: The state that people were told of, the one that is next, and the last one of all.
        self.told = self.next = self.last = State()

    def moves(self, before: State, after: State, *, dies: bool = False) -> Walled:
        """A step of a node manager, which may be killed before it is on disk; the one that is."""
        if before is not self.last:  # another node manager, perhaps with an old ledger
            another = Walled(self._config, self.stands)
            is_old = before.reservations != self.last.reservations
            another.last = State() if is_old else before
            another.is_away = self.is_away
            return another.moves(another.last, after)
        self.last = after
        for name in {name for name, _gpu in after.reservations}:
            if _group(name) not in self.stands:
                self.stands[_group(name)] = [], {}
                self._came.add((name, _group(name)))
                self._exact = None
        self.told, self.next = before, after
        if self.is_away:
            self.has_all(after)
            return self
        _done(self.widen(before, after))
        if dies:
            another = Walled(self._config, self.stands)
            another.told, another.next = before, after  # so much may be lowered already
            another.last = before
            _done(another.narrow(before))
            another.has_all(before)
            return another.moves(before, after)
        self.has_all(after)  # before anybody is told
        self.told = after
        _done(self.narrow(after))
        self.has_all(after)
        self.has_no_more(after)
        return self

    async def _ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        if self.is_away:
            down = self._down("the helper is away")
            self._again_at = 0.0  # a test waits for nothing
            raise down
        self._stream = cast(Any, (_Line(), _Line()))
        if what["do"] == "hello":
            told = {group: wall for group, wall in self.stands.items() if wall[0]}
            return {"on": True, "patterns": ["user-*"], "level": "memory", "walls": told}
        for group, wall in what["walls"].items():
            self.stands[group] = wall
            self.looks()
        return {"failed": {}, "gone": [], "level": "memory"}

    def looks(self) -> None:
        """Everybody has what was told, and all together have no more than there is.

        Where one gave what another gets, it has what is left to it already.
        """
        for uuid, gpu in self.told.gpus.items():
            was, comes = _needs(self.told, uuid), _needs(self.next, uuid)
            most = sum(self.wall(name, uuid)[1] for name in was | comes)
            if not gpu.shares and uuid in self.next.gpus and not self.next.gpus[uuid].shares:
                there = max(gpu.gpu.memory, was.total(), comes.total())
                assert most <= there, "more than there is"
            taken = max(_taken(state, uuid) for state in (self.told, self.next))
            fits = (was | comes).total() + taken <= gpu.gpu.memory
            fits &= self.told.rebuild is None  # else what is known may be old
            for name, size in (was if fits else was & comes).items():
                assert self.wall(name, uuid)[1] >= size, "less than it was told"

    def wall(self, name: str, uuid: GpuUuid) -> list[int]:
        return self.stands[_group(name)][1].get(uuid, [0, 0])

    def has_all(self, state: State) -> None:
        """What is reserved is protected, and what a task was told can be had."""
        for (name, uuid), held in state.reservations.items():
            assert self.wall(name, uuid)[0] >= held.memory, "less is protected than is reserved"
        for lease in state.leases.values():
            turns = dict(shares.limits(state, lease.id))
            for part in lease.allocations if lease.phase is LeasePhase.HELD else ():
                in_turns = lease.id in state.gpus[part.gpu].shares
                told = turns[part.gpu] if in_turns else lifts.limit(state, lease, part)
                back = comes_back(lease) if lease.is_resuming else 0
                assert self.wall(lease.environment, part.gpu)[1] >= max(told, back)

    def has_no_more(self, state: State) -> None:
        """No GPU is open for no lease, and what others use there is counted."""
        if state.rebuild is not None:
            return  # somebody may have more than is known yet
        open_to = {(x, gpu) for names, gpus in self.stands.values() for x in names for gpu in gpus}
        assert open_to == set(state.reservations)
        for uuid, gpu in state.gpus.items():
            needs = _needs(state, uuid)
            if not gpu.shares:
                most = sum(self.wall(name, uuid)[1] for name in needs) + _taken(state, uuid)
                assert most <= max(gpu.gpu.memory, needs.total() + _taken(state, uuid))


class WallsFall:
    """A part of a machine of random histories: walls do not stand for some of its steps."""

    world: Any
    falls = 0

    @precondition(lambda self: not self.falls)
    @rule(steps=st.integers(1, 6))
    def walls_fall(self, steps: int) -> None:
        """As the node manager does where the helper is away."""
        self.falls = steps
        self.world.walled.is_away = True
        self.world.run(cmd.SetGranting(self.world.at, "They do not stand.", may_wait=True))
        self.world.observe()

    @precondition(lambda self: self.falls)
    @invariant()
    def walls_stand_again(self) -> None:
        self.falls -= 1
        if not self.falls:
            self.world.walled.is_away = False
            self.world.run(cmd.SetGranting(self.world.at, None))


def _group(name: str) -> str:
    """A named server has one of its own, too."""
    return f"user-{name.replace('/', '+')}"


def _needs(state: State, uuid: GpuUuid) -> Counter[str]:
    """Bytes of each environment there: reserved, and coming back beyond that."""
    needs = Counter(
        {n: int(held.memory) for (n, gpu), held in state.reservations.items() if gpu == uuid}
    )
    reserved = Counter(needs)
    for name, gpu in state.claims:
        lease = state.leases[name]
        if gpu == uuid and lease.is_resuming:
            needs[lease.environment] += max(0, comes_back(lease) - reserved[lease.environment])
    return needs


def _taken(state: State, uuid: GpuUuid) -> int:
    """Bytes there that are for nobody: used by others, or by turns."""
    if uuid not in state.gpus:
        return 0
    reserved = sum(held.memory for (_n, gpu), held in state.reservations.items() if gpu == uuid)
    coming = _needs(state, uuid).total() - reserved
    return state.gpus[uuid].shared + max(0, state.gpus[uuid].unleased - coming)


def _done(call: Coroutine[Any, Any, None]) -> None:
    """Run what waits for nothing."""
    try:
        call.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")
