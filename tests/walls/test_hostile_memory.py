"""Behind walls, who takes all GPU memory that can be had takes nobody else's, on the doubles.

`make hostile` has a thousand requests.
"""

from __future__ import annotations

from pathlib import Path

from support.cuda_fixtures import cuda_stubs
from support.hostile import walled
from support.node import WITHIN
from support.walls import needs_walls

__all__ = ["cuda_stubs"]

pytestmark = needs_walls


def test_who_takes_all_memory_fails_alone_and_only_behind_walls(cuda_stubs: Path) -> None:
    with walled.gpus(cuda_stubs) as (host, world):
        seen = walled.play(host, world, 5, 4, WITHIN, walls=True)
        bare = walled.play(host, world, 5, 4, 1.0, walls=False)
    assert seen["ends"] == {"served": 20}
    assert seen["without a lease"]["taken"] == seen["without a lease"]["most"] == 0
    assert seen["without a lease"]["no device"] > 0
    assert walled.people.LEASE // 2 < seen["with a lease"]["most"] <= walled.ALLOWED
    assert seen["with a lease"]["out of memory"] > 0
    assert bare["ends"].get("served", 0) < 20
    assert bare["without a lease"]["most"] > 0
