"""What a model is predicted to need, and what others leave of a host's GPUs, ranks that host.

A real node manager tells it; `test_where` has the ranking, docs/allocation.md the source's example.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.node import GIB, NodeClient, token_file
from support.pool import Pool, PoolNode
from support.predictor import PLANT

from jupyter_gpushare.policy.words.model import EnvironmentName
from jupyter_gpushare.pool.evolve import evolve
from jupyter_gpushare.pool.pki import Authority
from jupyter_gpushare.pool.state import State
from jupyter_gpushare.pool.where import newest, rank
from jupyter_gpushare.pool.words import events as ev
from jupyter_gpushare.pool.words.hosts import Wish, read_report
from jupyter_gpushare.protocol.messages import Method

ALICE = EnvironmentName("alice")
#: Of every GPU a model needs so many hundredths as its batch is large.
TOLD = PLANT.replace("kind.name, 50,", "kind.name, features.batch,")


def predicts(client: NodeClient, share: int) -> None:
    """A task says which model it will run."""
    node = {"kind": "MatMul", "largest": 64, "count": 1, "flops": 1, "bytes": 1}
    told: dict[str, Any] = {"operations": [node], "batch": share, "inputs": 1, "peak": GIB}
    task = {"name": "n.ipynb", "kind": "process"}
    client.call(Method.PREDICT, task=task, framework="torch", iterations=1, training=False, **told)


def test_a_host_tells_the_pool_what_is_left_of_its_gpus_and_what_a_model_needs(
    tmp_path: Path,
) -> None:
    authority = Authority.create(tmp_path / "authority", "lab", time.time())
    people = token_file(tmp_path, "alice", "bob")
    options: dict[str, Any] = {"simulate": "1xA100,1xT4", "config": TOLD, "arguments": [people]}
    with PoolNode(tmp_path, authority, "b", **options) as node, ExitStack() as stack:
        pool = Pool(node, authority)
        stack.callback(pool.client.close)
        pool.lend(alice=1, bob=1)

        def left() -> list[int]:
            return [gpu["free_share"] for gpu in pool.fresh()["gpus"]]

        def ranked() -> Any:
            state = evolve(State(), ev.HostAdded(0.0, "b", "root"))
            state = evolve(state, ev.HostSpoke(0.0, "b", read_report(pool.fresh())))
            hosts = [*state.hosts.values()]
            return rank(hosts, Wish(ALICE, 1, GIB, None, newest(hosts, ALICE)))[0]

        assert left() == [100, 100]
        with node.client("bob") as bob, node.client("alice") as alice:
            predicts(bob, 70)
            bob.request(memory=GIB)
            assert sorted(left()) == [30, 100]
            predicts(alice, 20)
            assert ranked().fits_now
            alice.request(memory=GIB)
            assert sorted(left()) == [30, 80], "she has the GPU that nobody has"
            predicts(alice, 90)
            assert not ranked().fits_now, "of her newest model"
