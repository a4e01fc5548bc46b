"""Has the wall helper open a GPU to the processes of an environment, and close it again.

The helper (:mod:`jupyter_gpushare.walls.helper`) has the rights and knows no leases; here it is the
other way round. What an environment may open is what it has reserved: a reservation is there from
the grant until a measurement shows that the memory is gone. So a GPU is opened before the grant is
on disk, and before anybody hears of it; a grant whose GPU cannot be opened is not made. It is
closed after the state moved on. Meanwhile the wall is wider than the leases, and never narrower.

The processes that connect show whose a control group is: the kernel says in which group each is,
and the node manager knows whose process it is. No wall can tell apart several environments in one
group, so that group may open what any of them has. It may not open more, or two people who trade
tokens could open everything.

An environment with several groups, such as a login and a server of the Hub, may open its GPUs in
all of them. Its memory there it has once: it is for the groups whose own processes hold a lease on
the GPU, and the helper takes what is used in the others off.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import json
import operator
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ...policy.books.room import comes_back
from ...policy.books.state import ReservationKey, State
from ...policy.words.config import PolicyConfig
from ...policy.words.model import (
    EnvironmentName,
    GpuReading,
    GpuUuid,
    LeaseId,
    LeasePhase,
    ProcessId,
)
from ...protocol import documents as doc
from .processes import control_groups

#: Seconds for the helper's answer. Meanwhile nothing is decided, so one that failed is left alone,
#: and then asked what takes it no time.
_PATIENCE: Final = 5.0
_LEFT_ALONE: Final = 5.0
_AGAIN: Final = 1.0
#: Seconds until it is asked again which groups are gone, where somebody has several.
_LOOK_AGAIN: Final = 10.0
#: Bytes of its longest answer: some hundred for each group.
_LONGEST: Final = 2**26
#: No wall is between root and anybody, so that is not said. Who uses sudo has it beside them.
_ROOT: Final = EnvironmentName("root")

#: Whose a group is, and the GPUs that it may open: bytes protected there, and the most.
Wall = tuple[list[EnvironmentName], dict[GpuUuid, list[int]]]
#: Bytes of an environment on a GPU: protected, and the most.
Limits = dict[ReservationKey, tuple[int, int]]


class WallsDown(Exception):
    """A wall does not stand as it is to; the text says why and what to do."""


def limits(config: PolicyConfig, *states: State) -> Limits:
    """Bytes of each environment on each GPU, protected and the most, for all these states. Pure.

    What is reserved is protected. Beyond it there can be what a parked task brings back, the region
    of tasks that take turns, and head-room: the CUDA context counts, too, and nobody plans it to
    the byte. Head-room is an equal part of what is free, without what the driver may take for
    itself. So the most of all is never more than there is, but for the region, which each has in
    its turn. Where two states together are more, one gave what another gets, and the last counts.
    """
    each = [_needs(state) for state in states]
    found: Limits = {}
    for gpu in {gpu for one in each for _name, gpu in one}:
        room, needs = _together(gpu, states, each)
        if room < 0:
            room, needs = _together(gpu, states[-1:], each[-1:])
        for name, need in needs.items():
            more = min(need["back"], max(0, room))
            room -= more
            found[name, gpu] = (need["soft"], need["own"] + need["turn"] + more)
        spare = max(0, room - config.driver_tolerance) // max(1, len(needs))
        for name in needs:
            soft, most = found[name, gpu]
            found[name, gpu] = (soft, most + min(spare, config.over_limit_tolerance))
    return found


def _needs(state: State) -> dict[ReservationKey, Counter[str]]:
    """Bytes of each environment on each GPU.

    Its ``own`` are the ``soft`` ones, which are reserved, and what is coming back beyond them as
    :func:`jupyter_gpushare.policy.measure.observe.coming_back` counts it. All of that may come
    beside what other tasks use: ``back`` more. ``turn`` is the region.
    """
    needs = {}
    for (name, gpu), held in state.reservations.items():
        books = state.gpus.get(gpu)
        turn = 0 if held.full is None or books is None else books.shared - books.offset
        needs[name, gpu] = Counter(soft=held.memory, own=held.memory, turn=turn)
    for claim, gpu in state.claims:
        lease = state.leases[claim]
        if lease.is_resuming:
            need, size = needs[lease.environment, gpu], comes_back(lease)
            beyond = max(0, size - need["soft"])
            need.update(own=beyond, back=size - beyond)
    return needs


def _together(
    gpu: GpuUuid, states: Iterable[State], each: Iterable[dict[ReservationKey, Counter[str]]]
) -> tuple[int, dict[EnvironmentName, Counter[str]]]:
    """What is free on a GPU in all these states, and the most that each environment needs."""
    needs: dict[EnvironmentName, Counter[str]] = {}
    capacity = taken = 0
    for state, one in zip(states, each, strict=True):
        here = {name: need for (name, where), need in one.items() if where == gpu}
        if (books := state.gpus.get(gpu)) is not None:
            coming = sum(need["own"] - need["soft"] for need in here.values())
            taken = max(taken, books.shared + max(0, books.unleased - coming))
            capacity = books.gpu.memory
        for name, need in here.items():
            needs[name] = needs.get(name, Counter()) | need
    return capacity - taken - sum(need["own"] for need in needs.values()), needs


def wanted(
    limits: Limits,
    whose: Mapping[str, Iterable[EnvironmentName]],
    held: Mapping[ReservationKey, set[str]],
) -> dict[str, Wall]:
    """The wall that each group is to have. Pure.

    ``held`` are the groups whose processes hold leases of an environment on a GPU, where it has
    several groups. The others get no memory there; if there is no such group, each gets what there
    is.
    """
    walls: dict[str, Wall] = {group: (sorted(names), {}) for group, names in whose.items()}
    groups: dict[EnvironmentName, set[str]] = defaultdict(set)
    for group, names in whose.items():
        for name in names:
            groups[name].add(group)
    for (name, gpu), (soft, most) in limits.items():
        holding = groups[name] & held.get((name, gpu), set()) or groups[name]
        for group in groups[name]:
            sizes = (soft // len(holding), most) if group in holding else (0, 0)
            gpus = walls[group][1]
            gpus[gpu] = list(map(operator.add, sizes, gpus.get(gpu, (0, 0))))
    return walls


def lowered(stand: Mapping[str, Wall], walls: Mapping[str, Wall]) -> dict[str, Wall]:
    """What stands, without all that these walls do not have. Pure.

    It is set first: nobody gets more before all others have less.
    """
    return {
        group: (
            names,
            {
                gpu: list(map(min, sizes, gpus[gpu]))
                for gpu, sizes in stand[group][1].items()
                if gpu in gpus
            },
        )
        for group, (names, gpus) in walls.items()
        if group in stand
    }


def group_of(path: str, patterns: Iterable[str]) -> str | None:
    """The group that is walled for a process in the group ``path``, such as that of its user."""
    parts = path.strip("/").split("/")
    for pattern in patterns:
        first = parts[: pattern.count("/") + 1]
        if len(first) == pattern.count("/") + 1 and all(
            map(fnmatch.fnmatchcase, first, pattern.split("/"))
        ):
            return "/".join(first)
    return None


class Walls:
    """The walls of this host, by the helper that listens at ``place``. For one asyncio loop."""

    def __init__(self, place: str, config: PolicyConfig) -> None:
        self._place = place
        self._config = config
        self._level = ""
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._patterns: list[str] = []
        self._stand: dict[str, Wall] = {}
        self._whose: dict[str, set[EnvironmentName]] = {}
        # Who came, with the group of the process, since the walls were looked at last.
        self._came: set[tuple[EnvironmentName, str]] = set()
        self._outside: set[EnvironmentName] = set()
        # Groups that may be new ones of the same name, which the helper closed at their birth.
        self._anew: set[str] = set()
        # What the walls are made of, where they are exactly as that needs.
        self._exact: tuple[object, ...] | None = None
        self._again_at = self._greeted_at = 0.0
        #: Why the walls do not stand as they are to; ``None``: they do, as the kernel confirmed.
        self.problem: str | None = "The wall helper was not asked yet."

    def told(self) -> doc.Walls:
        """How they stand, for administrators."""
        people = [sorted(names - {_ROOT}) for names in self._whose.values()]
        return {
            "stand": self.problem is None,
            "level": self._level,
            "groups": len(self._stand),
            "shared": sorted(list(map(str, names)) for names in people if len(names) > 1),
            "outside": sorted(self._outside),
            "several": sorted(self._several() - {_ROOT}),
        }

    def met(self, environment: EnvironmentName, pid: int) -> None:
        """A process of this environment is here: its group is its environment's."""
        if (path := control_groups(pid).get("0")) is not None:
            self._came.add((environment, path))
            self._exact = None

    def measured(self, state: State, readings: Iterable[GpuReading]) -> None:
        """Note whether root has a lease, or uses a GPU without one, where no wall is."""
        held = [lease for lease in state.leases.values() if lease.phase is LeasePhase.HELD]
        holders = {one.pid: lease.environment for lease in held for one in lease.members}
        roots = {pid for pid, name in holders.items() if name == _ROOT}
        for one in (process for reading in readings for process in reading.processes):
            line = [process.pid for process in one.lineage]
            if line and not one.system and holders.keys().isdisjoint(line) and _is_roots(line[0]):
                roots.add(line[0])
        paths = [path for pid in roots if (path := control_groups(pid).get("0")) is not None]
        is_outside = any(group_of(path, self._patterns) is None for path in paths)
        (self._outside.add if is_outside else self._outside.discard)(_ROOT)

    async def widen(self, before: State, after: State) -> None:
        """Open what each of these states needs open. Raises :class:`WallsDown`."""
        await self._follow(before, after)

    async def narrow(self, state: State) -> None:
        """Have exactly what this state needs open. Raises :class:`WallsDown`."""
        await self._follow(state)

    async def _follow(self, *states: State) -> None:
        if self._stream is not None and self._stream[0].at_eof():
            self.close()  # another helper may stand there now, and have no record
            self._exact = None
        members = self._members(states)
        last = states[-1]
        # A table of the books is never changed in place: the same object holds the same entries.
        of = (last.reservations, last.gpus, last.leases, last.rebuild)
        is_due = time.monotonic() >= self._greeted_at + _LOOK_AGAIN and bool(self._several())
        exact = None if is_due else self._exact
        if exact is not None and exact[-1] == members and all(map(operator.is_, of, exact)):
            return
        is_new = self._stream is None
        if is_new and self.problem is not None and time.monotonic() < self._again_at:
            raise WallsDown(self.problem)
        if is_new or is_due:
            await self._greet()
        self._place_all()
        walls = wanted(limits(self._config, *states), self._whose, self._held(states, members))
        if last.rebuild is not None:  # there may be leases that the ledger does not know yet
            walls = {group: _wider(wall, self._stand.get(group)) for group, wall in walls.items()}
        await self._set(lowered(self._stand, walls))
        await self._set(walls)
        # Made for two states, the walls are wider than either needs: the next look must not leave
        # them so.
        self.problem, self._exact = None, (*of, members) if len(states) == 1 else None

    def _several(self) -> set[EnvironmentName]:
        """The environments with several groups."""
        counts = Counter(name for names in self._whose.values() for name in names)
        return {name for name, count in counts.items() if count > 1}

    def _members(self, states: Iterable[State]) -> dict[LeaseId, frozenset[ProcessId]]:
        """The processes of the leases of environments with several groups."""
        several = self._several()
        leases = [one for state in states for one in state.leases.values()] if several else ()
        return {one.id: one.members for one in leases if one.environment in several}

    def _held(
        self, states: Iterable[State], members: Mapping[LeaseId, Iterable[ProcessId]]
    ) -> dict[ReservationKey, set[str]]:
        held: dict[ReservationKey, set[str]] = defaultdict(set)
        for state in states:
            for lease, gpu in state.claims:
                for member in members.get(lease, ()):
                    group = group_of(control_groups(member.pid).get("0", ""), self._patterns)
                    if group is not None:
                        held[state.leases[lease].environment, gpu].add(group)
        return held

    async def _set(self, walls: Mapping[str, Wall]) -> None:
        changed = {
            group: wall
            for group, wall in walls.items()
            if group in self._whose and (group in self._anew or self._stand.get(group) != wall)
        }
        if not changed:
            return
        told = await self._ask({"do": "set", "walls": changed})
        failed, self._level = told["failed"], told.get("level", self._level)
        for group in told["gone"]:
            del changed[group], self._whose[group]
            self._stand.pop(group, None)
        self._stand |= {group: wall for group, wall in changed.items() if group not in failed}
        self._anew.difference_update(changed)
        if failed:
            raise self._down("; ".join(f"{group}: {why}" for group, why in failed.items()))

    async def _greet(self) -> None:
        told = await self._ask({"do": "hello"})
        if not told["on"]:
            raise self._down("they are off. `jupyter gpushare walls on` puts them up again")
        self._patterns = told["patterns"]
        self._level = told["level"]
        self._greeted_at = time.monotonic()
        for group in self._stand.keys() - told["walls"].keys():  # gone, or it is met again
            self._whose.pop(group, None)
        self._stand = {group: (names, gpus) for group, (names, gpus) in told["walls"].items()}
        for group, (names, _gpus) in self._stand.items():
            if names:
                self._whose.setdefault(group, set()).update(names)

    def _place_all(self) -> None:
        """Note whose the groups are; only who has asked the helper knows which are walled."""
        for environment, path in self._came:
            group = group_of(path, self._patterns)
            if group is None:
                if environment != _ROOT:
                    self._outside.add(environment)
                continue
            self._whose.setdefault(group, set()).add(environment)
            self._anew.add(group)
        self._came.clear()

    async def _ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        looks = self.problem is not None and what["do"] == "hello"
        try:
            async with asyncio.timeout(_AGAIN if looks else _PATIENCE):
                if self._stream is None:
                    self._stream = await asyncio.open_unix_connection(self._place, limit=_LONGEST)
                reader, writer = self._stream
                writer.write(json.dumps(what).encode() + b"\n")
                told: dict[str, Any] = json.loads(await reader.readline())
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise self._down(f"no helper answers at {self._place}. {why}") from error
        if "error" in told:
            raise self._down(told["error"])
        return told

    def _down(self, why: str) -> WallsDown:
        self.close()
        self._exact = None
        # Each call would hold up all decisions for the patience of one, so a helper that failed has
        # a rest.
        self._again_at = time.monotonic() + _LEFT_ALONE
        self.problem = f"The walls do not stand: {why.strip().removesuffix('.')}."
        return WallsDown(self.problem)

    def close(self) -> None:
        """Hang up; the walls stay as they are."""
        if self._stream is not None:
            self._stream[1].close()
        self._stream = None


def _is_roots(pid: int) -> bool:
    with contextlib.suppress(OSError):  # it has ended
        return os.stat(f"/proc/{pid}").st_uid == 0
    return False


def _wider(wall: Wall, stands: Wall | None) -> Wall:
    """The wall without closing or lowering anything that stands."""
    names, gpus = wall
    for gpu, sizes in () if stands is None else stands[1].items():
        gpus[gpu] = list(map(max, sizes, gpus.get(gpu, sizes)))
    return names, gpus
