"""One user does his worst; another one, watched meanwhile, works on. `make hostile` has times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.hostile import scene
from support.node import RunningNode, needs_root, open_directory

SECONDS = 3.0
MIB = 2**20
#: Calls of one owner that are decided together, those of the batch before, and what is read and
#: refused by turns meanwhile. Without turns it was hundreds and more.
MOST_BETWEEN = 40


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


@needs_root
@pytest.mark.parametrize(
    "attack", ["nonsense", "leases", "refused requests", "reads of the ledger", "answers not read"]
)
def test_another_users_worst_goes_before_few_calls(node: RunningNode, attack: str) -> None:
    seen = scene.play(node, attack, SECONDS)
    assert seen.refused == ()
    assert seen.grants > 0
    assert seen.between < MOST_BETWEEN
    assert seen.memory < 64 * MIB
