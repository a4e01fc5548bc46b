"""A wall is open from before a grant is on disk until after its end is, and was told."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.loop import soon
from support.managing import CLOCK, managing
from support.policy_walls import Walled
from support.policy_world import World, gpu, plain_config

from jupyter_gpushare.ledger.ledger import Ledger, Record
from jupyter_gpushare.node.host import walls as walls_of
from jupyter_gpushare.node.host.processes import identify
from jupyter_gpushare.policy.books.state import Rebuild, State
from jupyter_gpushare.policy.books.table import Map
from jupyter_gpushare.policy.decide.draft import Grant, Wait
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import Quota, Request, Task, TaskKind


class Falls(Walled):
    """The helper takes so many walls less that are to be wider; others stand as they are to."""

    def __init__(self, times: int) -> None:
        super().__init__(plain_config(), {"user-ann": (["ann"], {})})
        self._times = times

    async def _ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        opens = any(gpus for _names, gpus in what.get("walls", {}).values())
        self.is_away = opens and self._times > 0
        self._times -= self.is_away
        return await super()._ask(what)


@pytest.mark.parametrize("falls", [0, 1, 3])
async def test_a_wall_is_wider_than_the_leases_at_each_instant_of_a_step(
    tmp_path: Path, falls: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever dies at such an instant leaves it so. Who cannot be granted behind a wall waits.

    That it stands again is said when somebody was granted, not at each try.
    """
    walls = Falls(falls)
    was_open = defaultdict[str, list[bool]](list)

    def look(kinds: Iterable[str]) -> None:
        for kind in set(kinds):
            was_open[kind].append(bool(walls.stands["user-ann"][1]))

    class Looked:
        """Before and after each append."""

        real = Ledger.open(tmp_path / "ledger.sqlite", history=1e6, wall=CLOCK.wall())

        def append(self, records: Sequence[Record], *more: Any, **named: Any) -> int:
            look(record.kind for record in records)
            count = self.real.append(records, *more, **named)
            look(record.kind for record in records)
            return count

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    async with managing(Looked(), walls=walls, measure_interval=0.05) as manager:
        manager.listeners.append(lambda told, _: look(type(one).__name__ for one in told.events))
        me = identify(os.getpid(), CLOCK.boot_id())
        assert me is not None
        task = Task(me, "t", TaskKind.PROCESS)
        command = cmd.RequestLease(CLOCK.boot(), "L", "ann", task, Request())
        assert isinstance(await manager.submit(command), Wait if falls else Grant)
        await soon(lambda: len(was_open["LeaseGranted"]) == 3)
        await manager.submit(cmd.Release(CLOCK.boot(), "L", "ann"))
        await soon(lambda: not walls.stands["user-ann"][1])
    assert was_open["LeaseGranted"] == [True] * 3
    assert was_open["ClaimMoved"] == [True] * 3, "what was given back is measured"
    assert caplog.text.count("The walls stand again") == (falls > 0)


async def test_no_wall_gets_narrower_while_leases_may_be_presented_that_the_ledger_lost() -> None:
    """Or who computes would be shut out by the node manager's start."""
    world = World().start([gpu(0)], Quota(1, None))
    world.request("ann", 1)
    walls = Walled(plain_config(), world.walled.stands)
    had = dict(walls.stands)
    lost = replace(world.state, reservations=Map(), claims=Map(), rebuild=Rebuild(60.0))
    await walls.narrow(lost)
    assert walls.stands == had
    await walls.narrow(replace(lost, rebuild=None))
    assert not walls.stands["user-ann"][1]


async def test_who_had_several_groups_has_them_no_longer_when_they_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walls_of, "_LOOK_AGAIN", 0.0)
    walls = Walled(plain_config(), {"user-ann": ([], {}), "user-ann+": ([], {})})
    walls._came.update(("ann", group) for group in walls.stands)
    await walls.narrow(State())
    assert walls_of.Walls.told(walls)["several"] == ["ann"]
    del walls.stands["user-ann+"]
    await walls.narrow(State())
    told = walls_of.Walls.told(walls)
    assert (told["several"], told["groups"]) == ([], 1)
