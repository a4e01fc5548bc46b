"""A task waits at a step's end only where another has the turn, and each wait ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from support.node import until
from support.taking_turns import program, turns_of

from jupyter_gpushare.client.memory.turns import GRAIN, Turns
from jupyter_gpushare.client.requests.broker import Broker
from jupyter_gpushare.client.session.lease import OwnState
from jupyter_gpushare.client.session.session import Link
from jupyter_gpushare.client.words.grant import Grant, GrantedGpu
from jupyter_gpushare.protocol.messages import Method, Notice, Notification

GIB = 2**30
GRANT = Grant("L", (GrantedGpu("GPU-0", 0, "Pretend", 8 * GIB, 24 * GIB),))


class FakeWire:
    """Stands for the session: keeps what is told."""

    def __init__(self) -> None:
        self.link = Link.UP
        self.hello: dict[str, Any] = {}
        self.told: list[tuple[Method, dict[str, Any]]] = []
        self.answer: dict[str, Any] | None = {"state": "held"}

    def tell(self, method: Method, **params: Any) -> Callable[[], Any]:
        self.told.append((method, params))
        return lambda: self.answer

    def count(self, method: Method) -> int:
        return sum(one is method for one, _params in self.told)


@dataclass
class Scene:
    wire: FakeWire
    program: Any
    turns: Turns
    said: list[str]
    dropped: list[int]
    limits: list[Any]

    def recalled(self) -> None:
        self.turns.recalled({})

    def given(self, *, is_shared: bool = True, **limits: int) -> None:
        self.turns.given(limits, is_shared=is_shared)

    @contextmanager
    def waits(self, at: Callable[[], object] | None = None) -> Iterator[threading.Thread]:
        """A thread waits at a gate, and goes on by what is done inside."""
        thread = threading.Thread(target=at or self.turns.gate, daemon=True)
        thread.start()
        until(lambda: self.wire.count(Method.TURN_ASK), "it asks")
        yield thread
        thread.join(60)
        assert not thread.is_alive()

    def heard_while_it_waits(
        self, monkeypatch: pytest.MonkeyPatch, told: Callable[[], object]
    ) -> None:
        """This is told in the midst of the wait."""

        def wait(_seconds: float) -> bool:
            told()
            return False

        monkeypatch.setattr(self.turns._opened, "wait", wait)


@pytest.fixture
def scene() -> Scene:
    wire, said, dropped, limits = FakeWire(), [], [], list[Any]()
    here = program(drop_caches=lambda: dropped.append(1))
    turns = turns_of(
        SimpleNamespace(session=wire),
        GRANT,
        program=here,
        limited=limits.append,
        say=said.append,
        unreachable=0.3,
    )
    return Scene(wire, here, turns, said, dropped, limits)


def use(steps: int, kept: int = GIB, step: int = GIB) -> Any:
    device = SimpleNamespace(device="cuda:0", persistent=kept, temporary=step, cache=0)
    return SimpleNamespace(steps=steps, devices=(device,))


def test_a_task_alone_sends_its_figures_a_few_times_and_is_never_held_up(scene: Scene) -> None:
    for steps in range(1, 1000):
        scene.turns.report(use(steps))
        scene.turns.gate()
    assert [method for method, _params in scene.wire.told] == [Method.MEMORY] * 6
    for steps, (_method, told) in zip((1, 2, 4, 8, 16, 32), scene.wire.told, strict=True):
        same = {"uuid": "GPU-0", "persistent": GIB, "temporary": GIB, "cache": 0}
        assert told["figures"] == [same]
        assert (told["steps"], told["can_take_turns"]) == (steps, True), (
            "relied on from 2 on, and each doubling more"
        )
    assert not scene.dropped


@pytest.mark.parametrize("named", [False, True])
def test_a_newcomer_asks_before_its_next_step_where_another_task_has_the_turn(
    scene: Scene, named: bool
) -> None:
    scene.wire.answer = {"state": "held", "gate": True}
    scene.turns.report(use(1)) if not named else None
    at_gate = scene.turns.checkpoint if named else scene.turns.gate
    with scene.waits(at_gate):
        scene.given()
    scene.turns.report(use(2))
    scene.turns.gate()
    assert scene.wire.count(Method.TURN_ASK) == 1, "from now on it is told when to ask"


def test_who_is_not_answered_goes_on(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.wire.answer = None
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    scene.turns.report(use(1))
    scene.turns.gate()
    assert 0 < sum(naps) < 1.0
    assert not scene.turns.is_closed


def test_only_news_are_told_and_again_after_a_reconnect(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    scene.turns.report(use(2))
    clock.now += 6.0
    scene.turns.report(use(3, kept=GIB + GRAIN - 1))
    assert scene.wire.count(Method.MEMORY) == 1, "less than a grain"
    scene.turns.report(use(4, kept=GIB + GRAIN))
    assert scene.wire.count(Method.MEMORY) == 2
    clock.now += 1.0
    scene.turns.report(use(5, kept=GIB // 2))
    assert scene.wire.count(Method.MEMORY) == 2, "what it needs less is not told so often"
    scene.wire.hello = {}
    scene.turns.report(use(6, kept=GIB // 2))
    assert scene.wire.count(Method.MEMORY) == 3, "a new node manager is told at once"
    scene.turns.report(use(7, kept=GIB))
    assert scene.wire.count(Method.MEMORY) == 3, "not with every step"
    clock.now += 0.25
    scene.turns.report(use(8, kept=GIB // 2 + GRAIN, step=GIB - GRAIN))
    assert scene.wire.count(Method.MEMORY) == 4, "it keeps more: somebody may be placed by it"
    clock.now += 0.25
    scene.turns.report(use(9, kept=GIB // 2 + GRAIN, step=GIB))
    assert scene.wire.count(Method.MEMORY) == 5, "its step needs more"
    scene.recalled()
    scene.turns.report(use(10, kept=GIB // 2, step=GIB // 2))
    assert scene.wire.count(Method.MEMORY) == 6, "before it gives its turn back all is told"


def test_a_gate_of_the_users_own_is_told_once_and_waits_like_any_other(scene: Scene) -> None:
    for _ in range(3):
        scene.turns.checkpoint()
    assert scene.wire.told == [(Method.MEMORY, NAMED)]
    scene.wire.hello = {}
    scene.turns.checkpoint()
    assert scene.wire.count(Method.MEMORY) == 2, "a new node manager is told, too"
    scene.recalled()
    with scene.waits(scene.turns.checkpoint):
        assert scene.dropped == [1]
        scene.given()


def test_without_a_lease_the_users_gates_do_nothing() -> None:
    """Also in a program that has nothing to do with GPUs, and where no node manager is."""
    program = (
        "from jupyter_gpushare import checkpoint, steps\n"
        "checkpoint()\n"
        "assert list(steps(n for n in range(3))) == [0, 1, 2]\n"
        "assert len(steps([1, 2])) == 2\n"
        "try:\n    len(steps(iter([])))\nexcept TypeError as error:\n    print(error)\n"
        "import sys; assert not any('broker' in name for name in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "list_iterator has no length\n"


def test_before_it_waits_it_tells_what_stays(scene: Scene) -> None:
    """More may be alive at a gate of the user's own than at the end of a step."""
    scene.program.look = lambda: use(9, kept=3 * GIB)
    scene.turns.checkpoint()
    scene.recalled()
    with scene.waits():
        (*_, (_, memory), (asks, _)) = scene.wire.told
        assert memory["figures"][0]["persistent"] == 3 * GIB
        assert asks is Method.TURN_ASK
        scene.given()


def test_asked_to_yield_it_drops_asks_and_waits_for_its_turn(scene: Scene) -> None:
    scene.recalled()
    assert scene.turns.is_gated
    with scene.waits() as waiting:
        assert scene.dropped == [1]
        assert waiting.is_alive()
        scene.turns.given({"GPU-0": 5}, is_shared=True)
    assert scene.limits == [{}, {"GPU-0": 5}]
    waited = scene.turns._progress.waited
    assert waited > 0.0, "a step's seconds are those of computing"
    scene.turns.gate()
    assert scene.turns._progress.waited == waited
    assert scene.dropped == [1], "in its turn it is not held up"
    scene.given(is_shared=False)
    assert not scene.turns.is_gated


def test_asked_while_no_cell_runs_only_the_cache_is_emptied_and_once(scene: Scene) -> None:
    trimmed: list[int] = []
    scene.program.trim = lambda: trimmed.append(1)
    scene.recalled()
    scene.turns.rest()
    assert (trimmed, scene.dropped) == ([1], []), "the cell ended before any step did"
    scene.turns.rest()
    scene.recalled()
    scene.turns.rest()
    assert trimmed == [1]
    scene.given(is_shared=False)
    scene.recalled()
    scene.turns.rest()
    assert trimmed == [1, 1]


def test_an_idle_kernel_empties_its_cache_when_asked() -> None:
    broker, done = Broker({}), threading.Event()
    broker.own.grant, broker.own.state = GRANT, OwnState.HELD
    broker.turns._program.trim = done.set  # type: ignore[method-assign]
    asked = {"lease": "L", "give": "cache", "why": "contended", "gate": True, "gpus": []}
    told = Notification(Notice.RECALL, "recall", asked)
    broker._noticed(told)
    assert not done.is_set(), "nobody said that no cell runs: it is for the end of a step"
    broker.activity.set_busy(False)
    broker._noticed(told)
    assert done.wait(60)


def test_what_it_asks_names_the_turn_that_it_heard_of_last(scene: Scene) -> None:
    scene.turns.recalled({}, number=7)
    with scene.waits():
        asked = scene.wire.told[-1]
        assert asked == (Method.TURN_ASK, {"lease": "L", "number": 7})
        scene.turns.recalled({}, number=9)
        until(lambda: scene.wire.told[-1] != asked, "it asks again at once", 2.0)
        assert scene.wire.told[-1] == (Method.TURN_ASK, {"lease": "L", "number": 9})
        scene.wire.hello = {}
        until(lambda: scene.wire.told[-1][1]["number"] == 0, "another one counts anew", 2.0)
        scene.turns.given({}, is_shared=True, number=1)


def test_a_turn_that_is_asked_back_at_once_has_one_step(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given, and asked back, before the thread that waits has looked."""
    scene.turns.recalled({}, number=7)

    def told() -> None:
        scene.turns.given({}, is_shared=True, number=8)
        scene.turns.recalled({}, number=8)

    scene.heard_while_it_waits(monkeypatch, told)
    scene.turns.gate()
    assert scene.turns.is_closed
    assert [params for _method, params in scene.wire.told] == [{"lease": "L", "number": 7}]


def test_who_may_not_stop_for_long_goes_on_and_stops_again_when_it_is_asked(scene: Scene) -> None:
    scene.recalled()
    began = time.monotonic()
    scene.turns.gate(at_most=0.3)
    assert 0.3 <= time.monotonic() - began < 60
    assert "may not stop for longer" in scene.said[-1]
    assert scene.wire.count(Method.TURN_DONE) == 0, "it still waits for its turn, and computes"
    scene.turns.gate()
    scene.given()
    scene.recalled()
    with scene.waits() as waiting:
        assert waiting.is_alive()
        scene.given()


@pytest.mark.parametrize("was_given", [False, True])
def test_leaving_the_wait_gives_the_place_up_but_no_turn_that_was_just_given(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, was_given: bool
) -> None:
    scene.turns.recalled({}, number=7)

    def interrupted() -> None:
        if was_given:
            scene.turns.given({}, is_shared=True, number=8)
        raise KeyboardInterrupt

    scene.heard_while_it_waits(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        scene.turns.gate()
    gives_up = (Method.TURN_DONE, {"lease": "L", "number": 7})
    assert (gives_up in scene.wire.told) is not was_given
    assert scene.wire.count(Method.TURN_DONE) == (not was_given)
    assert scene.turns.is_closed is not was_given


def test_without_a_node_manager_it_goes_on(scene: Scene) -> None:
    scene.recalled()
    with scene.waits():
        scene.wire.link = Link.DOWN
    assert "goes on without waiting" in scene.said[-1]
    scene.turns.gate()
    assert scene.dropped == [1]


def test_without_a_node_manager_it_waits_for_room(scene: Scene) -> None:
    """Tasks that all went on at once would run out of memory: that is why they took turns."""
    looked: list[int] = []
    room = threading.Event()

    def fits() -> bool:
        looked.append(1)
        return room.is_set()

    scene.program.next_step_fits = fits
    scene.recalled()
    with scene.waits() as waiting:
        scene.wire.link = Link.DOWN
        until(lambda: len(looked) > 1, "it looks again and again")
        assert waiting.is_alive()
        assert not any("goes on" in said for said in scene.said)
        room.set()
    assert "fits in the memory that is free" in scene.said[-1]


def test_a_node_manager_that_comes_back_decides_again(scene: Scene) -> None:
    scene.program.next_step_fits = lambda: False
    scene.recalled()
    with scene.waits():
        scene.wire.link = Link.DOWN
        until(lambda: scene.said, "it says why it waits")
        assert "does not answer" in scene.said[-1]
        scene.wire.hello, scene.wire.link = {}, Link.UP
        asked = scene.wire.count(Method.TURN_ASK)
        until(lambda: scene.wire.count(Method.TURN_ASK) > asked, "it asks again")
        scene.given()


def test_about_how_long_is_said_with_a_pause_and_nothing_where_nobody_can_tell(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)

    def waits(answer: object, times: int = 1) -> str:
        """What is said last when something was said so often."""
        enough = len(scene.said) + times
        scene.wire.answer = answer  # type: ignore[assignment]
        scene.turns.before_cell()
        scene.recalled()

        def wait(_seconds: float) -> bool:
            clock.now += 1.0
            if len(scene.said) >= enough:
                scene.given()
            return len(scene.said) >= enough

        monkeypatch.setattr(scene.turns._opened, "wait", wait)
        scene.turns.gate()
        return scene.said[-1]

    where = "Paused while another task computes on GPU 0"
    assert waits({"state": "held", "seconds": 21.0}) == f"{where}, about 20 s more (Ctrl-C stops)."
    assert waits({"state": "held", "seconds": 4.0}) == f"{where}, about 3 s more (Ctrl-C stops)."
    for answer in (None, {"state": "held"}, {"seconds": 0.5}, {"seconds": "soon"}, {"seconds": -1}):
        assert waits(answer) == f"{where} (Ctrl-C stops)."
    took, before = -clock.now, scene.said[:]
    waits(None, 3)
    took += clock.now
    assert scene.said == [*before, *[f"{where} (Ctrl-C stops)."] * 3]
    assert took == 2.0 + 60.0 + 60.0, "a terminal is told once a minute"


def test_who_is_to_stop_at_a_later_gate_goes_on_to_it_and_gives_the_place_up(scene: Scene) -> None:
    scene.turns._stopping.while_waiting = lambda _place, _fits: True  # type: ignore[method-assign]
    scene.recalled()
    scene.turns.gate()
    assert scene.wire.told == [(Method.TURN_DONE, {"lease": "L", "number": 0})]


def test_a_cell_that_ends_gives_the_turn_away_and_the_next_asks_when_it_computes(
    scene: Scene,
) -> None:
    trimmed, watched = [], []
    scene.program.trim = lambda: trimmed.append(1)
    scene.program.watch = lambda: watched.append("watch")
    scene.program.cell_begins = lambda: watched.append("cell")
    scene.turns.rest()
    assert not trimmed, "alone, it is left alone"
    assert not scene.turns.is_closed
    scene.given()
    assert watched == ["watch"], "modules' calls may be gates now"
    scene.turns.rest()
    assert trimmed == [1]
    scene.turns.before_cell()
    assert watched == ["watch", "cell"]
    assert scene.wire.count(Method.TURN_ASK) == 0, "a cell that does not compute never waits"
    assert scene.turns.is_closed
    with scene.waits():
        scene.given()


def test_gates_are_of_use_until_they_are_known_and_while_turns_are_taken(scene: Scene) -> None:
    assert scene.turns.wants_gates
    scene.turns.checkpoint()
    assert not scene.turns.wants_gates
    scene.recalled()
    assert scene.turns.wants_gates
    scene.given(is_shared=False)
    assert not scene.turns.wants_gates
    scene.wire.hello = {}
    assert scene.turns.wants_gates, "a new node manager knows of none"
    scene.turns.report(use(2))
    assert not scene.turns.wants_gates
    scene.turns.checkpoint()
    assert scene.wire.count(Method.MEMORY) == 2, "steps were told"


def test_where_it_may_not_stop_it_stops_at_the_next_gate(scene: Scene) -> None:
    scene.program.may_stop = lambda: False
    scene.recalled()
    scene.turns.gate()
    assert not scene.dropped
    scene.program.may_stop = lambda: True
    with scene.waits():
        assert scene.dropped == [1]
        scene.given()


def test_who_can_never_stop_takes_no_turns_and_says_why_once(scene: Scene) -> None:
    scene.program.hindrance = lambda: "others wait for it"
    scene.turns.report(use(2))
    scene.turns.checkpoint()
    ((method, told),) = scene.wire.told
    assert (method, told["can_take_turns"]) == (Method.MEMORY, False)
    for _ in range(2):
        scene.recalled()
        assert not scene.turns.is_gated
        scene.turns.gate()
    (said,) = scene.said
    assert said == "Another task waits for this GPU. This one goes on, because others wait for it."


def test_the_frameworks_limit_follows_the_turn() -> None:
    broker = Broker({})
    broker.own.grant = GRANT
    seen: list[int] = []
    adapter = SimpleNamespace(
        live_limits=True, after=lambda _module, grant: seen.append(grant.gpus[0].memory)
    )
    broker._frameworks.add("pretend", adapter, SimpleNamespace())  # type: ignore[arg-type]
    broker._limits.in_turn({"GPU-0": 3 * GIB})
    broker._limits.in_turn({"GPU-0": 8 * GIB})
    broker._limits.in_turn({})
    assert seen == [3 * GIB, 8 * GIB, 8 * GIB]


def member(scene: Scene) -> Turns:
    """The turns of a process that has joined a lease of `run`: it has a grant while it leads."""
    return turns_of(
        SimpleNamespace(session=scene.wire),
        own=SimpleNamespace(grant=GRANT, state=OwnState.JOINED),
        environ={"JUPYTER_GPUSHARE_RUN": str(os.getpid())},
        say=scene.said.append,
    )


NAMED = {"lease": "L", "figures": [], "steps": 0, "can_take_turns": True}
ALONE = {**NAMED, "alone": True}


def test_a_program_under_run_leads_from_its_first_gate_on(scene: Scene) -> None:
    turns = member(scene)
    turns.recalled({})
    assert not turns.is_closed, "what is told of the lease is not for it yet"
    scene.wire.answer = {"state": "held", "gate": False, "leads": True}
    for _ in range(3):
        turns.checkpoint()
    assert scene.wire.told == [(Method.MEMORY, ALONE)]
    turns.recalled({})
    assert turns.is_closed


@pytest.mark.parametrize("answer", [{"gate": True, "leads": False}, {"gate": True}])
def test_where_another_program_leads_it_computes_as_always(
    scene: Scene, answer: dict[str, bool]
) -> None:
    """Also where an older node manager does not say whether it leads."""
    turns = member(scene)
    scene.wire.answer = {"state": "held", **answer}
    for _ in range(3):
        turns.checkpoint()
    assert scene.wire.told == [(Method.MEMORY, ALONE)], "it asks once, and does not wait"
    turns.recalled({})
    assert not turns.is_closed
    scene.wire.hello = {}
    scene.wire.answer = {"state": "held", "gate": False, "leads": True}
    turns.checkpoint()
    assert turns.leads, "a node manager that was started anew may know better"


def test_a_program_that_becomes_a_rank_says_so(scene: Scene) -> None:
    turns = member(scene)
    scene.wire.answer = {"state": "held", "gate": False, "leads": True}
    turns.checkpoint()
    turns.alone = False
    turns.announce()
    assert "alone" not in scene.wire.told[-1][1]
    assert scene.wire.count(Method.MEMORY) == 2


def test_who_may_lead_for_run(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"JUPYTER_GPUSHARE_RUN": str(os.getpid())}
    gone = {"JUPYTER_GPUSHARE_RUN": "x"}
    ranks = {**here, "WORLD_SIZE": "2"}
    for environ, state, may in (
        (here, OwnState.JOINED, True),
        ({**here, "WORLD_SIZE": "1"}, OwnState.JOINED, True),
        (here, OwnState.HELD, False),
        (gone, OwnState.JOINED, False),
        (ranks, OwnState.JOINED, False),
    ):
        broker = Broker(dict(environ))
        broker.own.state = state
        assert broker.turns._may_lead() is may
    monkeypatch.setattr("jupyter_gpushare.client.memory.turns.running_kernel", lambda: object())
    broker = Broker(dict(here))
    broker.own.state = OwnState.JOINED
    assert not broker.turns._may_lead(), "a kernel has gates between cells, too"
