"""Models run on the host that their predicted share chooses, among three real node managers.

The source's example D, whose table is in docs/allocation.md; `test_where` has all three.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.node import GIB, NodeClient, until
from support.runningpool import PoolHost, RunningPool

from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.poolcalls import PoolMethod

#: The source's A1, A2 and A3.
KINDS = ("T4", "A100", "H100")
#: A predictor that is told the shares: three digits of the batch size for each kind; 0: unknown.
TOLD = f"""
from jupyter_gpushare.predict import estimates as _words

class _Told:
    @classmethod
    def load(cls, path=None):
        return cls()

    def predict(self, features, kinds):
        shares = {{
            name: features.batch // 1000**place % 1000 for place, name in enumerate({KINDS!r})
        }}
        found = ((kind, share) for kind in kinds for name, share in shares.items()
                 if name in kind.name and share)
        return tuple(
            _words.Estimates(
                kind.name, share, 2**30, 2**30, 60.0, 60.0, 0.2, _words.Basis.PREDICTED
            )
            for kind, share in found
        )

from jupyter_gpushare.node.wire import predictions as _asked
_asked.Predictor = _Told
"""
QUOTAS = {"default": {"gpus": 1, "memory": "2GiB"}}
#: One for each task that computes already.
OTHERS = tuple(f"p{number}" for number in range(12))
HOSTS = {"a": "3xT4", "b": "2xT4,1xA100,1xH100", "c": "1xT4,1xA100,1xH100"}
Left = dict[str, tuple[int, ...]]


class Host(PoolHost):
    more = TOLD
    people = ("alice", "root", *OTHERS)


class Lab:
    """The three hosts, on which others compute, and alice wants to begin."""

    def __init__(self, pool: RunningPool, hosts: dict[str, Host], stack: ExitStack) -> None:
        self.pool, self.hosts = pool, hosts
        self._tasks = ExitStack()
        stack.push(self._tasks)

    def left(self, **hosts: Left) -> None:
        """Have others compute until that is left of the GPUs of each kind of each host."""
        self._tasks.close()
        others = iter(OTHERS)
        for name, kinds in hosts.items():
            for kind, shares in kinds.items():
                for share in shares:
                    if share < 100:
                        self.computes(name, next(others), **{kind: 100 - share})
        self.until_seen(hosts)

    def computes(self, name: str, who: str, **shares: int) -> None:
        """Somebody's task of so much of a kind begins; it ends with the example."""
        client = self._tasks.enter_context(self.hosts[name].client(who))
        predicts(client, **shares)
        lease = client.request(memory=GIB)["lease"]
        self._tasks.callback(client.call, Method.RELEASE, lease=lease)

    def until_seen(self, hosts: dict[str, Left]) -> None:
        def seen(name: str) -> dict[str, list[int]]:
            found: dict[str, list[int]] = {kind: [] for kind in KINDS}
            for gpu in self.pool.host(name)["report"]["gpus"]:
                found[next(kind for kind in KINDS if kind in gpu["kind"])].append(gpu["free_share"])
            return {kind: sorted(shares) for kind, shares in found.items() if shares}

        for name, kinds in hosts.items():
            wanted = {kind: sorted(shares) for kind, shares in kinds.items()}
            until(lambda n=name, w=wanted: seen(n) == w, f"the pool sees {name}: {wanted}")

    def ranked(self, at: int) -> list[tuple[str, bool]]:
        """Where alice would begin, once the pool knows her newest model."""

        def knows() -> bool:
            hosts = self.pool.ask(PoolMethod.HOSTS)["hosts"]
            told = [one for host in hosts for one in host["report"]["estimates"]]
            alices = [one for one in told if one["environment"] == "alice"]
            newest = max(alices, key=lambda one: one["at"], default=None)
            return newest is not None and at in {one["share"] for one in newest["kinds"]}

        until(knows, "the pool knows her newest model")
        found = self.pool.ask(PoolMethod.WHERE, environment="alice")["hosts"]
        return [(one["host"], one["fits_now"]) for one in found]


def predicts(client: NodeClient, **shares: int) -> None:
    """A task says which model it will run."""
    figures = {kind: shares.get(kind, 0) for kind in KINDS}
    batch = sum(share * 1000**place for place, share in enumerate(figures.values()))
    node = {"kind": "MatMul", "largest": 64, "count": 1, "flops": 1, "bytes": 1}
    told: dict[str, Any] = {"operations": [node], "batch": batch, "inputs": 1, "peak": GIB}
    task = {"name": "n.ipynb", "kind": "process"}
    client.call(Method.PREDICT, task=task, framework="torch", iterations=1, training=False, **told)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        pool = stack.enter_context(RunningPool(tmp_path / "pool", QUOTAS))
        hosts = {
            name: stack.enter_context(Host(tmp_path / name, pool, name, simulate))
            for name, simulate in HOSTS.items()
        }
        pool.sees(*hosts)
        yield Lab(pool, hosts, stack)


def gets(lab: Lab, name: str, **shares: int) -> tuple[str, int, int]:
    """Alice's task begins on a host: the kind of its GPU, what was left of it, and what is left."""

    def seen() -> dict[str, dict[str, Any]]:
        return {gpu["uuid"]: gpu for gpu in lab.pool.host(name)["report"]["gpus"]}

    before = seen()
    with lab.hosts[name].client("alice") as alice:
        predicts(alice, **shares)
        granted = alice.request(memory=GIB)
        uuid = granted["gpus"][0]["uuid"]
        left = before[uuid]["free_share"]
        until(lambda: seen()[uuid]["free_share"] != left, "the pool sees that it computes")
        after = seen()[uuid]
        alice.call(Method.RELEASE, lease=granted["lease"])
    return next(kind for kind in KINDS if kind in after["kind"]), left, after["free_share"]


@pytest.mark.story("jupyter_gpushare/pool/", "jupyter_gpushare/node/views/report.py")
@pytest.mark.timeout(300)
def test_the_sources_example(lab: Lab) -> None:
    # The host a is chosen for its best GPU, and the task gets its share of that.
    lab.left(
        a={"T4": (90, 100, 30)},
        b={"T4": (90, 0), "A100": (40,), "H100": (80,)},
        c={"T4": (10,), "A100": (20,), "H100": (50,)},
    )
    with lab.hosts["c"].client("alice") as alice:
        predicts(alice, T4=40, A100=50, H100=70)
    assert lab.ranked(40) == [("a", True), ("b", True), ("c", False)]
    assert gets(lab, "a", T4=40, A100=50, H100=70) == ("T4", 100, 60)
