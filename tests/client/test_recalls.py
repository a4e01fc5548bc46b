"""What is asked back is read with care, and carried out one by one, the cheapest first."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, strategies as st

from jupyter_gpushare.client.memory.worker import Worker
from jupyter_gpushare.client.words.recalls import Give, Need, Recall, read_needs, read_recall
from jupyter_gpushare.policy.words import recalls as policy
from jupyter_gpushare.protocol.messages import GIVES, Notice, Notification

WITHIN = 20.0


def test_the_cheapest_is_first_and_the_newest_takes_the_place_of_one_that_has_not_begun() -> None:
    recalls, begun, go_on, done = Worker(), threading.Event(), threading.Event(), list[str]()
    ended = threading.Event()

    def slow() -> None:
        begun.set()
        assert go_on.wait(WITHIN)
        done.append("slow")

    recalls.told(Give.TENSORS, slow)
    assert begun.wait(WITHIN)
    recalls.told(Give.TENSORS, ended.set)
    recalls.told(Give.LIFT, lambda: done.append("old limit"))
    recalls.told(Give.LIFT, lambda: done.append("new limit"))
    recalls.told(Give.CACHE, lambda: done.append("cache"))
    go_on.set()
    assert ended.wait(WITHIN)
    assert done == ["slow", "cache", "new limit"]
    again = threading.Event()
    recalls.told(Give.CACHE, again.set)
    assert again.wait(WITHIN), "its thread had ended, or was about to"


def test_what_fails_keeps_nothing_else_from_being_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recalls, begun, ended = Worker(), threading.Event(), threading.Event()
    failed = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _args: failed.set())

    def broken() -> None:
        assert begun.wait(WITHIN)
        raise SystemError("a bug")

    recalls.told(Give.CACHE, broken)
    recalls.told(Give.TENSORS, ended.set)
    begun.set()
    assert ended.wait(WITHIN)
    assert failed.wait(WITHIN), "and it is told as of any thread"


def told(notice: Notice, **params: object) -> Recall | None:
    return read_recall(Notification(notice, notice.value, {"lease": "L", **params}))


def test_policy_wire_and_client_have_the_same_ladder() -> None:
    assert [give.value for give in policy.Give] == list(GIVES) == [give.word for give in Give]
    assert [give.name for give in policy.Give] == [give.name for give in Give]


def test_a_recall_is_read() -> None:
    asked = [{"uuid": "GPU-1", "may_stay": 5, "used": 7}]
    now = told(Notice.RECALL, give="tensors", why="idle", gate=False, gpus=asked, message="m")
    assert now == Recall("L", Give.TENSORS, False, (Need("GPU-1", 5, 7),), "m", why="idle")
    turn = told(Notice.RECALL, give="turn", gate=True, gpus=[], number=7)
    assert turn == Recall("L", Give.TURN, True, (), "", number=7)
    lift = told(Notice.LIMIT, gpus=[{"uuid": "GPU-1", "memory": 5}])
    assert lift is not None
    assert (lift.give, lift.gate, lift.limits) == (Give.LIFT, False, {"GPU-1": 5})


def test_what_asks_for_nothing_is_no_recall() -> None:
    assert told(Notice.OVER_LIMIT, stage="warned") is None
    assert told(Notice.TURN, gpus=[]) is None
    assert told(Notice.RECALL, give="everything of a later release") is None
    assert read_recall(Notification(None, "unknown", {"give": "cache"})) is None


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(
    st.sampled_from(Notice),
    st.dictionaries(
        st.sampled_from(["lease", "give", "gate", "gpus", "stage", "message"]),
        ANY | st.sampled_from(GIVES),
    ),
)
def test_any_notice_is_safe(notice: Notice, params: dict[str, object]) -> None:
    recall = read_recall(Notification(notice, notice.value, params))
    if recall is not None:
        assert all(isinstance(size, int) and size > 0 for size in recall.limits.values())


def test_what_is_said_of_gpus_is_read_carefully() -> None:
    said = {"gpus": [{"uuid": "GPU-1", "may_stay": 5, "used": None}, {"uuid": 7}, None, {}]}
    assert read_needs(said) == (Need("GPU-1", 5, None),)
    assert read_needs({}) == read_needs({"gpus": 3}) == ()
