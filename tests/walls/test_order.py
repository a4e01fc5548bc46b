"""A wall is open from before a grant is on disk until after its end is, and was told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from support.loop import soon
from support.managing import CLOCK, managing
from support.policy_walls import Walled
from support.policy_world import plain_config, process

from jupyter_gpushare.ledger.ledger import Ledger
from jupyter_gpushare.node.host.outcome import Outcome
from jupyter_gpushare.node.manager import Failpoint
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import Request, Task, TaskKind


async def test_a_wall_is_wider_than_the_leases_at_each_instant_of_a_step(tmp_path: Path) -> None:
    walls = Walled(plain_config(), {"user-ann": (["ann"], {})})
    opened = defaultdict[str, list[bool]](list)

    def look(point: Failpoint, outcomes: Sequence[Outcome]) -> None:
        for kind in {type(event).__name__ for outcome in outcomes for event in outcome.events}:
            opened[kind].append(bool(walls.stands["user-ann"][1]))

    ledger = Ledger.open(tmp_path / "ledger.sqlite", history=1e6, wall=CLOCK.wall())
    async with managing(ledger, walls=walls, failpoint=look, measure_interval=0.05) as manager:
        task = Task(process(1), "t", TaskKind.PROCESS)
        await manager.submit(cmd.RequestLease(CLOCK.boot(), "L", "ann", task, Request()))
        await manager.submit(cmd.Release(CLOCK.boot(), "L", "ann"))
        await soon(lambda: not walls.stands["user-ann"][1])
    assert opened["LeaseGranted"] == [True] * len(Failpoint)
    assert opened["ClaimMoved"] == [True] * len(Failpoint), "what was given back is measured"
