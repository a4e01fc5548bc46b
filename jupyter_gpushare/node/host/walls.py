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
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ...policy.books import shares
from ...policy.books.state import State
from ...policy.words.model import EnvironmentName, GpuUuid
from ...protocol import documents as doc
from .processes import control_groups

#: Seconds for the helper's answer. Meanwhile nothing is decided, so one that failed is left alone.
_PATIENCE: Final = 2.0
_LEFT_ALONE: Final = 5.0
#: Bytes of its longest answer: some hundred for each group.
_LONGEST: Final = 2**26
#: No wall is between root and anybody, so nothing is said of it. Who uses sudo has it beside them.
_ROOT: Final = EnvironmentName("root")

#: Whose a group is, and the GPUs that it may open: bytes protected there, and the most.
Wall = tuple[list[EnvironmentName], dict[GpuUuid, list[int]]]


class WallsDown(Exception):
    """A wall does not stand as it is to; the text says why and what to do."""


def wanted(
    state: State, whose: Mapping[str, Iterable[EnvironmentName]], tolerance: int
) -> dict[str, Wall]:
    """The wall that each group is to have. Pure.

    What its environment may use on a GPU is protected, and ``tolerance`` bytes more can be had:
    the CUDA context counts, too, and nobody plans it to the byte.
    """
    walls: dict[str, Wall] = {}
    for group, names in whose.items():
        walls[group] = sorted(names), {}
        for name, gpu in state.reservations:
            if name in names:
                may = shares.entitled(state, name, gpu)
                soft, hard = walls[group][1].get(gpu, (0, 0))
                walls[group][1][gpu] = [soft + may, hard + may + tolerance]
    return walls


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
    """The walls of this host, by the helper that listens at ``place``. For one asyncio loop.

    ``tolerance`` is in bytes (:func:`wanted`).
    """

    def __init__(self, place: str, tolerance: int) -> None:
        self._place = place
        self._tolerance = tolerance
        self._level = ""
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._patterns: list[str] = []
        self._stand: dict[str, Wall] = {}
        self._whose: dict[str, set[EnvironmentName]] = {}
        # Who came, with the group of the process, since the walls were looked at last.
        self._came: set[tuple[EnvironmentName, str]] = set()
        self._outside: set[EnvironmentName] = set()
        # What the walls are made of, where they are exactly as that needs.
        self._exact: tuple[object, object] | None = None
        self._again_at = 0.0
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
            "outside": sorted(self._outside - {_ROOT}),
        }

    def met(self, environment: EnvironmentName, pid: int) -> None:
        """A process of this environment is here: its group is its environment's."""
        if (path := control_groups(pid).get("0")) is not None:
            self._came.add((environment, path))
            self._exact = None

    async def widen(self, state: State) -> None:
        """Open what this state needs open. Raises :class:`WallsDown`."""
        await self._follow(state, closing=False)

    async def narrow(self, state: State) -> None:
        """Have exactly what this state needs open. Raises :class:`WallsDown`."""
        await self._follow(state, closing=True)

    async def _follow(self, state: State, *, closing: bool) -> None:
        if self._stream is not None and self._stream[0].at_eof():
            self.close()  # another helper may stand there now, and have no record
            self._exact = None
        of = (state.reservations, state.gpus)
        if self._exact is not None and all(map(operator.is_, of, self._exact)):
            return
        if self._stream is None:
            if self.problem is not None and asyncio.get_running_loop().time() < self._again_at:
                raise WallsDown(self.problem)
            await self._greet()
        self._place_all()
        walls = wanted(state, self._whose, self._tolerance)
        if not closing:
            walls = {group: _wider(wall, self._stand.get(group)) for group, wall in walls.items()}
        changed = {g: wall for g, wall in walls.items() if self._stand.get(g) != wall}
        if changed:
            told = await self._ask({"do": "set", "walls": changed})
            failed = told["failed"]
            for group in told["gone"]:
                del changed[group], self._whose[group]
                self._stand.pop(group, None)
            self._stand |= {group: wall for group, wall in changed.items() if group not in failed}
            if failed:
                raise self._down("; ".join(f"{group}: {why}" for group, why in failed.items()))
        self.problem, self._exact = None, of if closing else None

    async def _greet(self) -> None:
        told = await self._ask({"do": "hello"})
        if not told["on"]:
            raise self._down("they are off. `jupyter gpushare walls on` puts them up again")
        self._patterns = told["patterns"]
        self._level = told["level"]
        self._stand = {group: (names, gpus) for group, (names, gpus) in told["walls"].items()}
        for group, (names, _gpus) in self._stand.items():
            if names:
                self._whose.setdefault(group, set()).update(names)

    def _place_all(self) -> None:
        """Note whose the groups are; only who has asked the helper knows which are walled."""
        for environment, path in self._came:
            group = group_of(path, self._patterns)
            if group is None:
                self._outside.add(environment)
                continue
            self._whose.setdefault(group, set()).add(environment)
            # The group may be a new one of the same name, which the helper closed at its birth.
            self._stand.pop(group, None)
        self._came.clear()

    async def _ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(_PATIENCE):
                if self._stream is None:
                    self._stream = await asyncio.open_unix_connection(self._place, limit=_LONGEST)
                reader, writer = self._stream
                writer.write(json.dumps(what).encode() + b"\n")
                told: dict[str, Any] = json.loads(await reader.readline())
        except (OSError, ValueError) as error:
            raise self._down(f"no helper answers at {self._place}. {error}") from error
        if "error" in told:
            raise self._down(told["error"])
        return told

    def _down(self, why: str) -> WallsDown:
        self.close()
        self._exact = None
        self._again_at = asyncio.get_running_loop().time() + _LEFT_ALONE
        self.problem = f"The walls do not stand: {why.strip().removesuffix('.')}."
        return WallsDown(self.problem)

    def close(self) -> None:
        """Hang up; the walls stay as they are."""
        if self._stream is not None:
            self._stream[1].close()
        self._stream = None


def _wider(wall: Wall, stands: Wall | None) -> Wall:
    """The wall without closing or lowering anything that stands."""
    names, gpus = wall
    for gpu, sizes in () if stands is None else stands[1].items():
        gpus[gpu] = list(map(max, sizes, gpus.get(gpu, sizes)))
    return names, gpus
