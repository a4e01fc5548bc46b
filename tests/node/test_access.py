"""No method lets another user act on a lease, and his worst costs others a bounded delay.

Nor does one let an administrator act beyond the list. `make hostile` has times.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from support.hostile.scene import CONFIG, play
from support.leasecalls import CALLS
from support.node import (
    NodeClient,
    Puppet,
    RemoteError,
    RunningNode,
    needs_root,
    open_directory,
    until,
)

from jupyter_gpushare.node.wire.transport import Limits
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method

pytestmark = needs_root

ALICE, MALLORY = 54321, 54322


class Gets(Enum):
    """What comes of a call that is aimed at alice's lease."""

    UNKNOWN = "unknown_lease"
    FORBIDDEN = "not_allowed"
    BLIND = "an answer in which nothing of alice's shows"
    SEES = "an answer that shows alice's lease"
    DONE = "carried out; alice's lease goes on"
    ENDS = "carried out; alice's lease is over"


@dataclass(frozen=True)
class Row:
    """``LEASE``, ``SECRET``, ``REQUEST`` and ``GPU`` in ``params`` stand for alice's own."""

    method: Method
    params: dict[str, Any]
    other: Gets
    admin: Gets


UNKNOWN, FORBIDDEN, BLIND, SEES, DONE, ENDS = Gets
WHOSE = {"environment": f"uid-{ALICE}"}
TASK = {"name": "n", "kind": "process"}
COUNTS = {"operations": [], "batch": 1, "iterations": 1, "inputs": 1, "peak": 1}

TABLE = [
    *(
        Row(one, {"lease": "LEASE", **more}, UNKNOWN, ENDS if one is Method.RELEASE else UNKNOWN)
        for one, more in CALLS.items()
    ),
    Row(Method.GAVE, {"lease": "LEASE", "give": "cache"}, UNKNOWN, UNKNOWN),
    Row(Method.GAVE, {"lease": "LEASE", "give": "lift"}, UNKNOWN, UNKNOWN),
    Row(
        Method.HELLO, {"protocol": 1, "client": {"name": "n", "version": "v"}}, FORBIDDEN, FORBIDDEN
    ),
    Row(Method.REQUEST, {"task": TASK, "request_id": "REQUEST"}, BLIND, BLIND),
    # Even the right secret opens nothing to another environment.
    Row(Method.ATTACH, {"lease": "LEASE", "secret": "SECRET"}, UNKNOWN, UNKNOWN),
    Row(Method.ATTACH, {"lease": "LEASE", "secret": "SECRET", "keeper": True}, UNKNOWN, UNKNOWN),
    # What opens a server is told to its users, and to no administrator: test_servers.py.
    Row(Method.SERVERS, {}, BLIND, BLIND),
    Row(Method.PREDICT, {"task": TASK, "framework": "torch", **COUNTS}, BLIND, BLIND),
    Row(Method.RELEASE, {"request_id": "REQUEST"}, UNKNOWN, UNKNOWN),
    Row(Method.STATUS, {}, BLIND, SEES),
    Row(Method.WATCH, {}, BLIND, SEES),
    Row(Method.USAGE, WHOSE, BLIND, SEES),
    Row(Method.USAGE, {}, BLIND, SEES),
    Row(Method.USAGE_DAILY, WHOSE, BLIND, SEES),
    Row(Method.USAGE_DAILY, {}, BLIND, BLIND),
    Row(Method.READINGS, {}, BLIND, SEES),
    Row(Method.READINGS, {"gpu": "GPU", "since": 86400, "step": 0}, BLIND, SEES),
    Row(Method.HISTORY, {**WHOSE, "limit": 1000}, BLIND, SEES),
    Row(Method.HISTORY, {"limit": 1000}, BLIND, SEES),
    Row(Method.TASK_ENDED, {"kernel_id": "alices-kernel"}, BLIND, BLIND),
    Row(
        Method.TASK_RENAMED, {"kernel_id": "alices-kernel", "name": "b", "path": "b"}, BLIND, BLIND
    ),
    Row(Method.QUOTA_LIST, {}, FORBIDDEN, SEES),
    Row(Method.QUOTA_SET, {**WHOSE, "gpus": 2}, FORBIDDEN, DONE),
    Row(Method.QUOTA_UNSET, WHOSE, FORBIDDEN, DONE),
    Row(Method.LEASE_REVOKE, {"lease": "LEASE", "reason": "r"}, FORBIDDEN, ENDS),
    Row(Method.GPU_DRAIN, {"gpu": "GPU", "reason": "r"}, FORBIDDEN, DONE),
    Row(Method.GPU_RESUME, {"gpu": "GPU"}, FORBIDDEN, DONE),
    Row(Method.NODE_DRAIN, {"reason": "r"}, FORBIDDEN, DONE),
    Row(Method.NODE_RESUME, {}, FORBIDDEN, DONE),
    # Nobody on the host itself is the pool, an administrator neither.
    Row(Method.POOL_FOLLOW, {"pool": "p"}, FORBIDDEN, FORBIDDEN),
    Row(
        Method.POOL_LEND,
        {"as_of": {"boot_id": "b", "at": 0}, "seconds": 1, "budgets": []},
        FORBIDDEN,
        FORBIDDEN,
    ),
    Row(Method.POOL_HINT, {"hints": []}, FORBIDDEN, FORBIDDEN),
    Row(Method.POOL_CERTIFY, {}, FORBIDDEN, FORBIDDEN),
    Row(Method.LEDGER_BACKUP, {"offset": 0}, FORBIDDEN, DONE),
    Row(Method.LEDGER_CHECK, {}, FORBIDDEN, DONE),
    Row(Method.LEDGER_VACUUM, {}, FORBIDDEN, DONE),
]


@dataclass(frozen=True)
class Scene:
    node: RunningNode
    alice: Puppet
    mallory: Puppet


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with (
        open_directory() as directory,
        RunningNode(
            directory,
            simulate="4x24GiB",
            shared=True,
            config="c.Policy.max_tasks_per_gpu = 1\nc.NodeManagerApp.measure_interval = 0.1\n",
        ) as node,
        Puppet(uid=ALICE) as alice,
        Puppet(uid=MALLORY) as mallory,
    ):
        yield Scene(node, alice, mallory)


@pytest.fixture
def alice(scene: Scene) -> Iterator[NodeClient]:
    with scene.alice.client(scene.node.socket) as client:
        yield client


@pytest.fixture
def mallory(scene: Scene) -> Iterator[NodeClient]:
    with scene.mallory.client(scene.node.socket) as client:
        yield client


@pytest.fixture
def grant(alice: NodeClient) -> dict[str, Any]:
    return alice.request(
        name="alices-diary.ipynb", kernel_id="alices-kernel", request_id="alices-request"
    )


def test_the_table_has_every_method() -> None:
    assert {row.method for row in TABLE} == set(Method)


def ids(row: Row) -> str:
    return f"{row.method.value}-{'-'.join(row.params)}"


@pytest.mark.parametrize("row", TABLE, ids=ids)
def test_another_user(
    row: Row, alice: NodeClient, grant: dict[str, Any], mallory: NodeClient
) -> None:
    assert not mallory.hello["admin"]
    act(row, row.other, alice, grant, mallory)


@pytest.mark.parametrize("row", TABLE, ids=ids)
def test_an_administrator(row: Row, alice: NodeClient, grant: dict[str, Any], scene: Scene) -> None:
    with scene.node.client() as admin:
        assert admin.hello["admin"]
        act(row, row.admin, alice, grant, admin)


def has_sample(client: NodeClient, gpu: str) -> bool:
    (told,) = client.call(Method.READINGS, gpu=gpu, step=0.0)["gpus"]
    return any(told["mine"])


def act(row: Row, gets: Gets, alice: NodeClient, grant: dict[str, Any], caller: NodeClient) -> None:
    words = {"LEASE": grant["lease"], "SECRET": grant["secret"], "REQUEST": "alices-request"}
    words["GPU"] = grant["gpus"][0]["uuid"]
    params = {name: words.get(str(value), value) for name, value in row.params.items()}
    if gets in (UNKNOWN, FORBIDDEN):
        refused = caller.refused(row.method, **params)
        assert refused.reason is Reason(gets.value)
        said = json.dumps([refused.message, dict(refused.data)])
        assert "diary" not in said
    else:
        if row.method is Method.READINGS:
            until(lambda: has_sample(alice, words["GPU"]), "what alice has is in a sample")
        answer = caller.call(row.method, **params)
        said = json.dumps(answer)
        if row.method is Method.NODE_DRAIN:  # nobody would get a GPU after this
            assert caller.call(Method.NODE_RESUME)["count"] == answer["count"] > 0
        if row.method is Method.REQUEST:  # it got a lease of its own
            caller.call(Method.RELEASE, lease=answer["lease"])
        secrets = (grant["lease"], grant["secret"], "alices", f"uid-{ALICE}")
        shown = [word for word in secrets if word in said]
        if gets is BLIND:
            assert not shown, "something of alice's is told to another"
        if gets is SEES:
            assert shown, "an administrator must see it"
        assert grant["secret"] not in said, "nobody but the holder is told the secret"
    if gets is ENDS:
        over = alice.refused(Method.HEARTBEAT, lease=grant["lease"])
        assert over.reason is Reason.UNKNOWN_LEASE
    else:
        beat = alice.call(Method.HEARTBEAT, lease=grant["lease"])
        assert beat["state"] == "held"
        mine = next(x for x in alice.call(Method.STATUS)["leases"] if x["id"] == grant["lease"])
        assert mine["activity"] == "busy"
        alice.call(Method.RELEASE, lease=grant["lease"])


@pytest.mark.parametrize(
    "method", [Method.ATTACH, Method.HEARTBEAT, Method.ACTIVITY, Method.RELEASE]
)
def test_a_guessed_lease_is_answered_as_one_that_is_not(
    method: Method, grant: dict[str, Any], mallory: NodeClient
) -> None:
    """The answer to a wrong guess is the answer to a right one: nothing can be learnt by trying."""
    answers = []
    for lease in (grant["lease"], "0" * 32):
        params = {"secret": "0" * 64} if method is Method.ATTACH else {}
        params |= {"state": "busy"} if method is Method.ACTIVITY else {}
        refused = mallory.refused(method, lease=lease, **params)
        answers.append((refused.code, refused.message, dict(refused.data)))
    assert answers[0] == answers[1]


def test_only_a_process_of_the_callers_own_joins_by_its_word(
    grant: dict[str, Any], alice: NodeClient
) -> None:
    """A stranger's process would answer for the lease when the one that asked is gone."""
    named = {"lease": grant["lease"], "secret": grant["secret"]}
    nobody = 2**22 + 1  # beyond the largest process id that there can be
    for pid in (1, os.getpid(), os.getppid(), nobody):
        assert alice.refused(Method.ATTACH, **named, pid=pid).reason is Reason.NOT_ALLOWED


def test_a_users_subordinate_users_share_the_users_quota(tmp_path: Path) -> None:
    """`newuidmap` makes anybody 65,536 users; and one that nobody has is nobody."""
    subuid = tmp_path / "subuid"
    subuid.write_text("nobody:100000:65536\n")
    config = f"""
c.Quotas.default = {{"gpus": 1}}
c.NodeManagerApp.subordinate_users = {str(subuid)!r}
"""
    with (
        open_directory() as place,
        RunningNode(place, config=config, simulate="4x8GiB", shared=True, nameless=False) as node,
        Puppet(uid=100000) as first,
        Puppet(uid=165535) as last,
        Puppet(uid=165536) as beyond,
    ):
        one, other = first.client(node.socket), last.client(node.socket)
        assert one.hello["environment"] == other.hello["environment"] == "nobody"
        mine = one.request(gpus=1)["gpus"][0]["uuid"]
        assert other.request(gpus=1)["gpus"][0]["uuid"] == mine, "one GPU for all of them"
        with pytest.raises(RemoteError, match="not a person's subordinate user") as refused:
            beyond.client(node.socket)
        assert refused.value.reason is Reason.NOT_ALLOWED


# -- his worst -------------------------------------------------------------------------------------

SECONDS = 3.0
MIB = 2**20
#: Of an attacker here.
MOST_CONNECTIONS = 200
LIMITS = Limits()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    ledger = tmp_path_factory.mktemp("private") / "ledger.sqlite"
    with open_directory() as place:
        node = RunningNode(place, simulate="8x24GiB", config=CONFIG, shared=True, ledger=ledger)
        with node:
            yield node
            assert "Traceback" not in node.story()


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
def test_another_users_worst_is_no_more_than_the_allowance(
    attacked: RunningNode, attack: str
) -> None:
    seen = play(attacked, attack, SECONDS)
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
