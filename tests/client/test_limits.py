"""A running framework's limit is lifted and lowered, and what it was told last is in force.

A real kernel, a torch of a few lines.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from queue import Queue
from types import ModuleType, SimpleNamespace
from typing import Any

from support.node import GIB, WITHIN, until
from support.scripted_node import GPU, LEASE, SECRET, ScriptedNode, Visitor

from jupyter_gpushare.client.memory.frameworks import Frameworks
from jupyter_gpushare.client.memory.limits import Limits, with_limits
from jupyter_gpushare.client.memory.worker import Worker
from jupyter_gpushare.client.requests.broker import Broker
from jupyter_gpushare.client.words.grant import Grant, GrantedGpu
from jupyter_gpushare.client.words.recalls import Give, limits_of, read_needs
from jupyter_gpushare.client.words.settings import Ask
from jupyter_gpushare.protocol.messages import Method


def nobody() -> Frameworks:
    """The frameworks of a process that has none yet."""
    return Frameworks(print)


def answering(answer: Callable[[Mapping[str, int], bool], object]) -> Any:
    """A line to a node manager that hears of limits by GPU, and whether they can change."""

    def gave(_give: Give, _lease: str, *, limits: list[dict[str, Any]], live: bool) -> None:
        answer({one["uuid"]: one["memory"] for one in limits}, live)

    return SimpleNamespace(session=SimpleNamespace(gave=gave))


def limits_over(frameworks: Any, answer: Callable[[Mapping[str, int], bool], object]) -> Limits:
    return Limits(Worker(), frameworks, answering(answer), SimpleNamespace(grant=None))  # type: ignore[arg-type]


def is_held_off() -> bool:
    """Whether the thread that carries recalls out stands where frameworks are told of limits."""
    for thread in threading.enumerate():
        if thread.name == "gpushare-recalls":
            frame = sys._current_frames().get(thread.ident or 0)
            return frame is not None and frame.f_code is Frameworks.limit.__code__
    return False


def test_the_newest_limit_is_told_last() -> None:
    """An import tells what was granted, and a lift comes between its look and its word."""
    grant = Grant("lease", (GrantedGpu("GPU-1", 0, "Some GPU", 8 * GIB, 24 * GIB),))
    frameworks, answered, told = nobody(), threading.Event(), list[int]()
    limits = limits_over(frameworks, lambda _limits, _live: answered.set())
    adapter = SimpleNamespace(
        live_limits=True, after=lambda _module, now: told.append(now.gpus[0].memory)
    )
    frameworks.add("pretend", adapter, SimpleNamespace())  # type: ignore[arg-type]

    looks = 0

    def is_through_or_held_off() -> bool:
        """Who only passes by is not seen there ten times."""
        nonlocal looks
        looks = looks + 1 if is_held_off() else 0
        return answered.is_set() or looks >= 10

    def looked_up(_adapter: Any) -> Grant | None:
        now = limits.of(grant)
        limits.changed(grant, {"GPU-1": 20 * GIB})
        until(is_through_or_held_off, "the lift is through, or is held off")
        return now

    frameworks.tell(looked_up)
    until(answered.is_set, "the lift is carried out")
    assert told == [8 * GIB, 20 * GIB]


def test_a_framework_that_comes_after_the_lift_can_be_lifted_later() -> None:
    grant = Grant("lease", (GrantedGpu("GPU-1", 0, "Some GPU", 8 * GIB, 24 * GIB),))
    answers: Queue[tuple[Mapping[str, int], bool]] = Queue()
    frameworks, told = nobody(), list[int]()
    limits = limits_over(frameworks, lambda *told: answers.put(told))
    adapter = SimpleNamespace(
        live_limits=True, after=lambda _module, now: told.append(now.gpus[0].memory)
    )
    limits.changed(grant, {"GPU-1": 20 * GIB})
    assert answers.get(timeout=WITHIN) == ({}, False)
    until(lambda: "gpushare-recalls" not in {one.name for one in threading.enumerate()}, "it ends")
    frameworks.arrive("pretend", adapter, SimpleNamespace(), lambda _: limits.of(grant))  # type: ignore[arg-type]
    limits.can_change()
    limits.can_change()
    assert answers.get(timeout=WITHIN) == ({}, True)
    limits.changed(grant, {"GPU-1": 20 * GIB})
    assert answers.get(timeout=WITHIN) == ({"GPU-1": 20 * GIB}, True)
    assert told == [8 * GIB, 20 * GIB]
    assert answers.empty()


def test_a_framework_that_comes_during_the_lift_has_it() -> None:
    """Not when it was looked for, but before it was said that there is none."""
    grant = Grant("lease", (GrantedGpu("GPU-1", 0, "Some GPU", 8 * GIB, 24 * GIB),))
    answers: Queue[tuple[Mapping[str, int], bool]] = Queue()
    told: list[int | None] = []

    def carry_out(now: Callable[[], Grant | None]) -> bool:
        current = now()
        told.append(None if current is None else current.gpus[0].memory)
        return len(told) > 1

    here = SimpleNamespace(limit=carry_out, live=False)
    limits = limits_over(here, lambda *told: answers.put(told))
    limits.changed(grant, {"GPU-1": 20 * GIB})
    assert answers.get(timeout=WITHIN) == ({"GPU-1": 20 * GIB}, True)
    assert told == [20 * GIB, 8 * GIB, 20 * GIB]


def test_limits_of_another_grant_are_not_carried_out() -> None:
    """The lease was given back, and granted anew, before the thread came to it."""
    grant = Grant("lease", (GrantedGpu("GPU-1", 0, "Some GPU", 8 * GIB, 24 * GIB),))
    answers: list[bool] = []
    asked = threading.Event()
    found: list[Grant | None] = []

    def carry_out(now: Callable[[], Grant | None]) -> bool:
        limits.forget()
        found.append(now())
        asked.set()
        return True

    here = SimpleNamespace(limit=carry_out, live=False)
    limits = limits_over(here, lambda _limits, live: answers.append(live))
    limits.changed(grant, {"GPU-1": 20 * GIB})
    until(asked.is_set, "it comes to it")
    until(lambda: "gpushare-recalls" not in {one.name for one in threading.enumerate()}, "it ends")
    assert found == [None]
    assert answers == []


def test_limits_that_make_no_sense_change_nothing() -> None:
    gpu = GrantedGpu("GPU-1", 0, "Some GPU", 20 * GIB, 24 * GIB)
    grant = Grant("lease", (gpu,))
    for nonsense in (None, 3, [3], [{"uuid": 3}], [{"uuid": "GPU-1", "memory": -1}]):
        assert limits_of(read_needs({"gpus": nonsense})) == {}
    assert with_limits(grant, {"GPU-2": 5}) == grant
    assert with_limits(grant, {"GPU-1": 90 * GIB}).gpus[0].memory == 24 * GIB


def test_a_limit_told_during_an_import_waits_for_the_framework() -> None:
    """It is not refused: who is imported is told the limits in force."""
    grant = Grant("lease", (GrantedGpu("GPU-1", 0, "Some GPU", 8 * GIB, 24 * GIB),))
    frameworks, answers = nobody(), Queue[tuple[Mapping[str, int], bool]]()
    limits = limits_over(frameworks, lambda *told: answers.put(told))
    told: list[int] = []
    adapter: Any = SimpleNamespace(
        live_limits=True, after=lambda _module, now: told.append(now.gpus[0].memory)
    )
    assert frameworks.live is None
    limits.changed(grant, {"GPU-1": 20 * GIB})
    assert answers.get(timeout=WITHIN) == ({}, False), "nothing here has a limit"
    limits.forget()
    frameworks.add("pretend", adapter)
    limits.changed(grant, {"GPU-1": 20 * GIB})
    assert answers.get(timeout=WITHIN) == ({"GPU-1": 20 * GIB}, True)
    frameworks.arrive("pretend", adapter, SimpleNamespace(), lambda _adapter: limits.of(grant))  # type: ignore[arg-type]
    assert told == [20 * GIB]
    fixed: Any = SimpleNamespace(live_limits=False)
    frameworks.add("fixed", fixed)
    assert frameworks.live is False


def test_a_range_needs_no_framework_yet() -> None:
    """The first one that comes keeps to it; only one whose limit is fixed cannot."""
    gpu = GrantedGpu("GPU-1", 0, "Some GPU", 8 * GIB, 24 * GIB)
    grant = Grant("lease", (gpu,), memory_most=24 * GIB)
    answers: Queue[tuple[Mapping[str, int], bool]] = Queue()
    frameworks = nobody()
    limits = limits_over(frameworks, lambda *told: answers.put(told))
    limits.changed(grant, {"GPU-1": 20 * GIB})
    assert answers.get(timeout=WITHIN) == ({"GPU-1": 20 * GIB}, True)
    fixed = SimpleNamespace(live_limits=False, after=lambda *_: None)
    frameworks.add("pretend", fixed, SimpleNamespace())  # type: ignore[arg-type]
    limits.changed(grant, {"GPU-1": 22 * GIB})
    assert answers.get(timeout=WITHIN) == ({}, False)


def test_a_range_is_had_with_its_grant_and_it_is_said_that_it_can_fall() -> None:
    def script(visitor: Visitor) -> None:
        visitor.welcome()
        lifted = {"gpus": [{**GPU, "limit": 20 * GIB}], "memory_most": 24 * GIB}
        held = {"lease": LEASE, "secret": SECRET, "state": "held"}
        visitor.answer(visitor.expect(Method.REQUEST), {**held, **lifted})
        visitor.live()

    told: list[int] = []
    adapter: Any = SimpleNamespace(
        live_limits=True, after=lambda _module, now: told.append(now.gpus[0].memory)
    )
    with ScriptedNode(script) as node:
        broker = Broker({"JUPYTER_GPUSHARE_SOCKET": os.fspath(node.socket)}, say=print)
        broker._frameworks.look_around = lambda: None  # type: ignore[method-assign] # other tests'
        broker._frameworks.add("pretend", adapter, ModuleType("pretend"))
        broker.request(Ask())
        gave = [call.params for call in node.wait_for(Method.GAVE, 2)]
        broker.close()
    assert {one.live for one in gave} == {True}
    assert sorted([len(one.limits) for one in gave]) == [0, 1], "what it can, and what it has"
    assert told[-1] == 20 * GIB
