"""One user does his worst; another one, measured meanwhile, works on. `make hostile` has figures.

The delay is compared with that beside somebody who takes as much of the processor and calls nobody.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.hostile import scene
from support.node import RunningNode, needs_root, open_directory

ATTACKS = ("nonsense", "leases", "refused requests", "reads of the ledger", "answers not read")
CONTROL = "burn"
ROUNDS, SECONDS = 2, 1.5
MIB = 2**20


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    ledger = tmp_path_factory.mktemp("private") / "ledger.sqlite"
    with open_directory() as place:
        node = RunningNode(
            place, simulate="8x24GiB", config=scene.CONFIG, shared=True, ledger=ledger
        )
        with node:
            yield node
            assert "Traceback" not in node.story()


@pytest.fixture(scope="module")
def seen(node: RunningNode) -> dict[str, list[scene.Seen]]:
    """In turns, since the tests beside this one come and go."""
    found: dict[str, list[scene.Seen]] = {name: [] for name in (CONTROL, *ATTACKS)}
    for _ in range(ROUNDS):
        for name, plays in found.items():
            plays.append(scene.play(node, name, SECONDS))
    return found


@needs_root
@pytest.mark.parametrize("attack", ATTACKS)
def test_another_users_worst_costs_a_bounded_delay(
    attack: str, seen: dict[str, list[scene.Seen]]
) -> None:
    plays = seen[attack]
    assert [one.refused for one in plays] == [()] * ROUNDS
    assert all(one.grants for one in plays)
    # Half of the honest calls, since a processor that others use, too, makes single ones late.
    slowest = max(one.p50 for one in seen[CONTROL])
    assert min(one.p50 for one in plays) < 5 * slowest + 0.05
    assert sum(one.memory for one in plays) < 64 * MIB
