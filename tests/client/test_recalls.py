"""What is asked back is read with care, and carried out one by one, the cheapest first.

A running framework's limit is lifted and lowered, and what it was told last is in force.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from queue import Queue
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support import scripted_process
from support.node import GIB, WITHIN, until
from support.scripted_node import GPU, LEASE, SECRET, Visitor

from jupyter_gpushare.client.memory.frameworks import Frameworks
from jupyter_gpushare.client.memory.limits import Limits, with_limits
from jupyter_gpushare.client.memory.worker import Worker
from jupyter_gpushare.client.words.grant import Grant, GrantedGpu
from jupyter_gpushare.client.words.recalls import (
    Give,
    Need,
    Recall,
    limits_of,
    read_needs,
    read_recall,
)
from jupyter_gpushare.client.words.settings import Ask
from jupyter_gpushare.policy.words import recalls as policy
from jupyter_gpushare.protocol.messages import GIVES, Method, Notice, Notification


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


# -- limits ---------------------------------------------------------------------------------

GRANT = Grant("lease", (GrantedGpu("GPU-1", 0, "Some GPU", 8 * GIB, 24 * GIB),))
LIFT = {"GPU-1": 20 * GIB}
#: Of a framework whose limit cannot be changed.
FIXED: Any = SimpleNamespace(live_limits=False, after=lambda *_: None)


class Process:
    """Limits over frameworks, what one of these was told, and what the node manager hears."""

    def __init__(self, frameworks: Any = None) -> None:
        self.frameworks = frameworks or Frameworks(print)
        self.told: list[int | None] = []
        self.adapter: Any = SimpleNamespace(live_limits=True, after=lambda _, now: self.tell(now))
        self.answers: Queue[tuple[dict[str, int], bool]] = Queue()
        line, own = SimpleNamespace(session=self), SimpleNamespace(grant=None)
        self.limits = Limits(Worker(), self.frameworks, line, own)  # type: ignore[arg-type]

    def tell(self, now: Grant | None) -> None:
        self.told.append(None if now is None else now.gpus[0].memory)

    def gave(self, _give: Give, _lease: str, *, limits: list[dict[str, Any]], live: bool) -> None:
        """As a session's."""
        self.answers.put(({one["uuid"]: one["memory"] for one in limits}, live))

    def answer(self) -> tuple[dict[str, int], bool]:
        """The limits that it has now, by GPU, and whether they can change."""
        return self.answers.get(timeout=WITHIN)


@pytest.fixture
def process() -> Process:
    return Process()


def nothing_is_carried_out() -> bool:
    return "gpushare-recalls" not in {one.name for one in threading.enumerate()}


def is_held_off() -> bool:
    """Whether the thread that carries recalls out stands where frameworks are told of limits."""
    for thread in threading.enumerate():
        if thread.name == "gpushare-recalls":
            frame = sys._current_frames().get(thread.ident or 0)
            return frame is not None and frame.f_code is Frameworks.limit.__code__
    return False


def test_the_newest_limit_is_told_last(process: Process) -> None:
    """An import tells what was granted, and a lift comes between its look and its word."""
    process.frameworks.add("pretend", process.adapter, SimpleNamespace())
    looks = 0

    def is_through_or_held_off() -> bool:
        """Who only passes by is not seen there ten times."""
        nonlocal looks
        looks = looks + 1 if is_held_off() else 0
        return not process.answers.empty() or looks >= 10

    def looked_up(_adapter: Any) -> Grant | None:
        now = process.limits.of(GRANT)
        process.limits.changed(GRANT, LIFT)
        until(is_through_or_held_off, "the lift is through, or is held off")
        return now

    process.frameworks.tell(looked_up)
    process.answer()
    assert process.told == [8 * GIB, 20 * GIB]


def test_a_framework_that_comes_after_the_lift_can_be_lifted_later(process: Process) -> None:
    limits = process.limits
    limits.changed(GRANT, LIFT)
    assert process.answer() == ({}, False), "nothing here has a limit"
    until(nothing_is_carried_out, "it ends")
    process.frameworks.arrive(
        "pretend", process.adapter, SimpleNamespace(), lambda _: limits.of(GRANT)
    )
    limits.can_change()
    limits.can_change()
    assert process.answer() == ({}, True)
    limits.changed(GRANT, LIFT)
    assert process.answer() == (LIFT, True)
    assert process.told == [8 * GIB, 20 * GIB]
    assert process.answers.empty()


def carries_out(done: Callable[[Process], bool]) -> Process:
    """A process that carries a limit out by hand; ``done`` tells whether a framework took it."""
    here = SimpleNamespace(live=False)
    process = Process(here)

    def carry_out(now: Callable[[], Grant | None]) -> bool:
        is_done = done(process)
        process.tell(now())
        return is_done

    here.limit = carry_out
    return process


def test_a_framework_that_comes_during_the_lift_has_it() -> None:
    """Not when it was looked for, but before it was said that there is none."""
    process = carries_out(lambda process: len(process.told) > 0)
    process.limits.changed(GRANT, LIFT)
    assert process.answer() == (LIFT, True)
    assert process.told == [20 * GIB, 8 * GIB, 20 * GIB]


def test_limits_of_another_grant_are_not_carried_out() -> None:
    """The lease was given back, and granted anew, before the thread came to it."""
    process = carries_out(lambda process: process.limits.forget() is None)
    process.limits.changed(GRANT, LIFT)
    until(lambda: process.told, "it comes to it")
    until(nothing_is_carried_out, "it ends")
    assert process.told == [None]
    assert process.answers.empty()


def test_limits_that_make_no_sense_change_nothing() -> None:
    for nonsense in (None, 3, [3], [{"uuid": 3}], [{"uuid": "GPU-1", "memory": -1}]):
        assert limits_of(read_needs({"gpus": nonsense})) == {}
    assert with_limits(GRANT, {"GPU-2": 5}) == GRANT
    assert with_limits(GRANT, {"GPU-1": 90 * GIB}).gpus[0].memory == 24 * GIB


def test_a_limit_told_during_an_import_waits_for_the_framework(process: Process) -> None:
    """It is not refused: who is imported is told the limits in force."""
    frameworks, limits = process.frameworks, process.limits
    assert frameworks.live is None
    frameworks.add("pretend", process.adapter)
    limits.changed(GRANT, LIFT)
    assert process.answer() == (LIFT, True)
    frameworks.arrive("pretend", process.adapter, SimpleNamespace(), lambda _: limits.of(GRANT))
    assert process.told == [20 * GIB]
    frameworks.add("fixed", FIXED)
    assert frameworks.live is False


def test_a_range_needs_no_framework_yet(process: Process) -> None:
    """The first one that comes keeps to it; only one whose limit is fixed cannot."""
    grant = GRANT._replace(memory_most=24 * GIB)
    process.limits.changed(grant, LIFT)
    assert process.answer() == (LIFT, True)
    process.frameworks.add("pretend", FIXED, SimpleNamespace())
    process.limits.changed(grant, {"GPU-1": 22 * GIB})
    assert process.answer() == ({}, False)


def test_a_range_is_had_with_its_grant_and_it_is_said_that_it_can_fall(process: Process) -> None:
    def script(visitor: Visitor) -> None:
        visitor.welcome()
        lifted = {"gpus": [{**GPU, "limit": 20 * GIB}], "memory_most": 24 * GIB}
        held = {"lease": LEASE, "secret": SECRET, "state": "held"}
        visitor.answer(visitor.expect(Method.REQUEST), {**held, **lifted})
        visitor.live()

    with scripted_process.process(script) as real:
        frameworks = real.broker._frameworks
        frameworks.look_around = lambda: None  # type: ignore[method-assign] # other tests'
        frameworks.add("pretend", process.adapter, ModuleType("pretend"))
        real.broker.request(Ask())
        gave = [call.params for call in real.node.wait_for(Method.GAVE, 2)]
    assert {one.live for one in gave} == {True}
    assert sorted([len(one.limits) for one in gave]) == [0, 1], "what it can, and what it has"
    assert process.told[-1] == 20 * GIB


def test_one_adapter_that_fails_is_said_and_the_others_have_their_limit(
    process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    broken: Any = SimpleNamespace(live_limits=True, after=lambda *_: 1 / 0)
    process.frameworks.add("broken", broken, ModuleType("broken"))
    assert not process.frameworks.limit(lambda: GRANT)
    process.frameworks.add("fixed", FIXED, ModuleType("fixed"))
    process.frameworks.add("pretend", process.adapter, ModuleType("pretend"))
    capsys.readouterr()
    assert process.frameworks.limit(lambda: GRANT)
    assert process.told == [8 * GIB]
    assert capsys.readouterr().out.count("broken could not set a memory limit") == 1
