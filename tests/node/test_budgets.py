"""A budget of GPU-hours is told, waited for and raised in time, and no restart forgets it.

In the real node manager, measured from the ledger.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from support.ledgers import BOOT, ended, granted, open_ledger
from support.node import NodeClient, RemoteError, RunningNode, token_file

from jupyter_gpushare.ledger.ledger import Ledger
from jupyter_gpushare.ledger.usage import DAY
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method, Notice

SECONDS = 1 / 3600.0  # of a GPU, in GPU-hours
CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.Policy.max_tasks_per_gpu = 1\n"
    # Between the warning and the end of a budget lies more than one look, on slow machines too.
    "c.Policy.budget_interval = 0.1\nc.Policy.budget_warning = 0.1\n"
)


@contextlib.contextmanager
def node(directory: Path, hours: float, *, window: float = 3600.0) -> Iterator[RunningNode]:
    """One GPU for one task; alice has a budget, bob has none."""
    config = (
        f"{CONFIG}c.Quotas.users = {{'alice': {{'gpus': 1, 'gpu_hours': {hours}}}}}\n"
        f"c.Policy.budget_window = {window}\n"
    )
    arguments = [token_file(directory, "alice", "bob", "root")]
    with RunningNode(directory, simulate="1x24GiB", config=config, arguments=arguments) as running:
        yield running


def budget(client: NodeClient) -> dict[str, Any]:
    found: dict[str, Any] = client.call(Method.STATUS)["quota"]["budget"]
    return found


def kinds(client: NodeClient) -> list[str]:
    return [event["text"] for event in client.call(Method.HISTORY)["events"]]


def test_a_budget_is_warned_of_spent_waited_for_and_raised(tmp_path: Path) -> None:
    with (
        node(tmp_path, 1.5 * SECONDS) as running,
        running.client("alice") as alice,
        running.client("bob") as bob,
        running.client("root") as root,
    ):
        assert bob.call(Method.STATUS)["quota"]["budget"] is None
        assert budget(alice)["level"] == "ok"
        first = alice.request()
        assert alice.wait_notice(Notice.BUDGET)["level"] == "warned"
        told = alice.wait_notice(Notice.BUDGET)
        assert told["level"] == "spent"
        assert "GPU-hour budget is spent" in told["message"]
        now = budget(alice)
        assert now["spent"] >= now["hours"] == 1.5 * SECONDS
        state = alice.call(Method.HEARTBEAT, lease=first["lease"])["state"]
        assert state == "held", "what computes goes on"
        alice.call(Method.RELEASE, lease=first["lease"])

        waiting = alice.ask()
        notice = alice.wait_notice(Notice.QUEUED)
        assert notice["reason"] == "budget_spent"
        assert "GPU-hours in the last hour" in notice["message"]
        later = alice.wait_notice(Notice.QUEUED, where=lambda n: "in about" in n["message"])
        assert "again in about 60 minutes, when" in later["message"]
        with pytest.raises(RemoteError) as refused:
            alice.request(wait=False)
        assert refused.value.reason is Reason.NO_RESOURCES
        assert "budget is spent" in refused.value.message
        bobs = bob.request(wait=False)  # passes: nobody is held up by her
        bob.call(Method.RELEASE, lease=bobs["lease"])
        assert not alice.answered(waiting)

        raised = root.call(Method.QUOTA_SET, environment="alice", gpus=1, gpu_hours=10.0)
        assert raised["budget"]["hours"] == 10.0
        assert alice.wait(waiting)["state"] == "held"
        texts = kinds(alice)
        assert any("nearly spent" in text for text in texts)
        assert any("the budget is spent" in text for text in texts)
        kept = root.call(Method.QUOTA_SET, environment="alice", gpus=1)
        assert kept["budget"]["hours"] == 10.0, "a new count must not lift the budget"
        lifted = root.call(Method.QUOTA_SET, environment="alice", gpus=1, gpu_hours=None)
        assert lifted["budget"] is None
        still = root.call(Method.QUOTA_SET, environment="alice", gpus=1)
        assert still["budget"] is None, "left out is as it is now, and there is none"
        back = root.call(Method.QUOTA_UNSET, environment="alice")
        assert back["budget"]["hours"] == 1.5 * SECONDS


def test_a_restart_grants_nothing_before_it_knows_what_was_spent(tmp_path: Path) -> None:
    with node(tmp_path, 1.0, window=7200.0) as running, running.client("alice") as alice:
        lease = alice.request()["lease"]
        alice.call(Method.RELEASE, lease=lease)
        running.kill9()
        # What the time until now would have left there, had it been an hour and a half.
        ledger = Ledger.open(running.ledger, history=1e6, wall=time.time())
        wall, at = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
        held = (granted(at - 6000, "old"), ended(at - 600, "old"))
        ledger.append([replace(one, wall=one.at - at + wall) for one in held])
        _skip_for_the_policy(ledger)
        ledger.close()
        running.start()
        with running.client("alice") as again, pytest.raises(RemoteError) as refused:
            again.request(wait=False)
        assert "1.5 of 1 GPU-hours" in refused.value.message


def _skip_for_the_policy(ledger: Ledger) -> None:
    """The two records are for the usage tables: the state in the snapshot is the one before."""
    snapshot, after = ledger.load()
    ledger.write_snapshot([*snapshot, *(r for r in after if r.lease != "old")])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    spans=st.lists(
        st.tuples(st.floats(0, 9 * 86400), st.floats(60, 86400), st.integers(1, 4), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    share=st.floats(0.01, 0.99),
    rolled=st.booleans(),
)
def test_when_so_much_will_have_left_the_window(
    tmp_path_factory: pytest.TempPathFactory,
    spans: list[tuple[float, float, int, bool]],
    share: float,
    rolled: bool,
) -> None:
    """What the window that far on lacks is what was asked for, spans, hours and running leases."""
    age = 10 * DAY  # of the boot
    now, since = BOOT + age, BOOT + age - 7 * DAY
    records = []
    for number, (back, length, gpus, ends) in enumerate(spans):
        start, name = age - back, f"l{number}"
        records += [granted(start, name, gpus=gpus)]
        records += [ended(min(age, start + length), name)] if ends else []
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    with contextlib.closing(open_ledger(path, history=90 * DAY)) as ledger:
        ledger.append(records)
        if rolled:
            ledger.prune(now)

        def held(begin: float) -> float:
            return sum(row.gpu_seconds_held for row in ledger.usage(begin, now, "alice"))

        total = held(since)
        wait = ledger.usage_leaves(since, now, "alice", total * share)
        assert ledger.usage_leaves(since, now, "bob", 1.0) is None
        assert ledger.usage_leaves(since, now, "alice", total + 1000.0) is None
        if total > 1.0:
            assert wait is not None
            left = total - held(since + wait)
            assert left == pytest.approx(total * share, rel=0.01, abs=60.0)
