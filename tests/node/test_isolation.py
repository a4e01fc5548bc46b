"""One user does his worst; another one, measured meanwhile, works on. `make hostile` has figures.

What is compared was measured in the same run: beside somebody who takes as much of the processor
and calls nobody.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.hostile import scene
from support.node import RunningNode, needs_root, open_directory

SECONDS = 3.0
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
def beside_a_busy_processor(node: RunningNode) -> scene.Seen:
    return scene.play(node, "burn", SECONDS)


@needs_root
@pytest.mark.parametrize(
    "attack", ["nonsense", "leases", "refused requests", "reads of the ledger", "answers not read"]
)
def test_another_users_worst_costs_a_bounded_delay(
    node: RunningNode, beside_a_busy_processor: scene.Seen, attack: str
) -> None:
    seen = scene.play(node, attack, SECONDS)
    assert seen.refused == ()
    assert seen.grants > 0
    # Half of the honest calls, since a processor that others use, too, makes single ones late.
    assert seen.p50 < 5 * beside_a_busy_processor.p50 + 0.05
    assert seen.memory < 64 * MIB
