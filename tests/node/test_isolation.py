"""A user who does his worst costs another one, who works on, a bounded delay.

`make hostile` has times.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.hostile import scene
from support.node import RunningNode, needs_root, open_directory

from jupyter_gpushare.node.wire.transport import Limits

SECONDS = 3.0
MIB = 2**20
#: Of an attacker here.
MOST_CONNECTIONS = 200
LIMITS = Limits()


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
    "attack",
    [
        "nonsense",
        "leases",
        "leases kept",
        "refused requests",
        "predictions",
        "reads of the ledger",
        "answers not read",
    ],
)
def test_another_users_worst_is_no_more_than_the_allowance(node: RunningNode, attack: str) -> None:
    seen = scene.play(node, attack, SECONDS)
    assert seen.refused == ()
    assert seen.grants > 0
    # Between any request and its grant the attacker gets answers to no more calls than were let in
    # before (a burst) or may come meanwhile, however slow this machine is now. An attacker that
    # reads no answers has none to count: the bound on memory is the test of that attack.
    # Two bursts: the OS user's before an environment is known, and the environment's. The first
    # line of each connection, hello, costs nothing yet.
    beyond = max(count - LIMITS.calls_per_second * seconds for seconds, count in seen.between)
    assert beyond <= 2 * LIMITS.burst + MOST_CONNECTIONS
    assert seen.memory < 64 * MIB
