"""A wall is open from before a grant is on disk until after its end is, and was told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.loop import soon
from support.managing import CLOCK, managing
from support.policy_walls import Walled
from support.policy_world import World, gpu, plain_config, process

from jupyter_gpushare.ledger.ledger import Ledger, Record
from jupyter_gpushare.policy.books.state import Rebuild
from jupyter_gpushare.policy.books.table import Map
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import Quota, Request, Task, TaskKind


async def test_a_wall_is_wider_than_the_leases_at_each_instant_of_a_step(tmp_path: Path) -> None:
    """Whoever dies at such an instant leaves it so."""
    walls = Walled(plain_config(), {"user-ann": (["ann"], {})})
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
        task = Task(process(1), "t", TaskKind.PROCESS)
        await manager.submit(cmd.RequestLease(CLOCK.boot(), "L", "ann", task, Request()))
        await manager.submit(cmd.Release(CLOCK.boot(), "L", "ann"))
        await soon(lambda: not walls.stands["user-ann"][1])
    assert was_open["LeaseGranted"] == [True] * 3
    assert was_open["ClaimMoved"] == [True] * 3, "what was given back is measured"


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
