"""A call of an outermost module is a gate, which changes nothing for the program."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.torch_cpu import CpuAllocator

from jupyter_gpushare.client.adapters.parkers import forwards
from jupyter_gpushare.client.adapters.parkers.forwards import ForwardGate
from jupyter_gpushare.client.adapters.parkers.steps import StepMeter

MODULES: Any = torch.nn.modules.module
DATA = torch.ones(2, 4)
Net = torch.nn.Sequential


class Scene:
    """A program of one thread; ``gates`` counts how often it could have stopped."""

    def __init__(self) -> None:
        self.allocator = CpuAllocator(counts=False)
        self.meter = StepMeter(torch, self.allocator)
        self.meter.install()
        self.gates = 0
        self.at_gate: Callable[[], None] = lambda: None
        self.closed = self.wanted = True
        me = threading.get_ident()
        self.forwards = ForwardGate(
            torch,
            self.meter,
            gate=self.gate,
            is_closed=lambda: self.closed,
            is_wanted=lambda: self.wanted,
            runs_here=lambda: threading.get_ident() == me,
        )

    def gate(self) -> None:
        self.gates += 1
        self.at_gate()

    def count(self, program: Callable[[], object]) -> int:
        before = self.gates
        program()
        return self.gates - before

    @property
    def is_watching(self) -> bool:
        return self.forwards._before_forward in MODULES._global_forward_pre_hooks.values()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    made.forwards.watch()
    yield made
    made.forwards.stop_watching()
    made.meter.uninstall()
    torch._dynamo.reset()
    made.forwards._compiled = forwards._compiled()
    made.forwards.stop_watching()
    assert not made.is_watching


@pytest.fixture
def net() -> Net:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 4))
    )


def test_each_outermost_call_is_a_gate(scene: Scene, net: Net) -> None:
    with torch.no_grad():
        assert scene.count(lambda: [net(DATA) for _ in range(5)]) == 5
    with torch.inference_mode():
        assert scene.count(lambda: net(DATA)) == 1
    assert scene.count(lambda: net(DATA)) == 1, "with gradients too, as nobody trains"


def test_a_call_that_raised_leaves_nothing_behind(scene: Scene, net: Net) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            net(torch.ones(3, 5))
    assert scene.count(lambda: net(DATA)) == 1


def test_where_steps_are_seen_they_are_the_gates(scene: Scene, net: Net) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def train() -> None:
        for _ in range(4):
            optimizer.zero_grad()
            net(DATA).sum().backward()
            optimizer.step()

    def evaluate() -> None:
        with torch.no_grad():
            net(DATA)

    assert scene.count(train) == 1, "the first, before any step was seen"
    assert scene.count(train) == 0
    assert scene.count(evaluate) == 1
    scene.forwards.cell_begins()
    assert scene.count(lambda: net(DATA)) == 1, "what an earlier cell did does not count"


def test_no_gate_inside_a_step_or_a_backward_pass(scene: Scene, net: Net) -> None:
    from torch.utils.checkpoint import checkpoint

    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    inside: list[int] = []

    def closure() -> torch.Tensor:
        before = scene.gates
        optimizer.zero_grad()
        loss: torch.Tensor = net(DATA).square().sum()
        loss.backward()
        inside.append(scene.gates - before)
        return loss

    optimizer.step(closure)
    assert inside
    assert not any(inside)
    scene.forwards.cell_begins()
    data = torch.ones(2, 4, requires_grad=True)
    out = checkpoint(net, data, use_reentrant=False)
    assert isinstance(out, torch.Tensor)
    assert scene.count(out.sum().backward) == 0, "it calls the model again"


def test_no_gate_in_other_threads(scene: Scene, net: Net) -> None:
    thread = threading.Thread(target=lambda: net(DATA))
    assert scene.count(lambda: (thread.start(), thread.join(60))) == 0


def test_no_gate_while_a_graph_is_recorded(scene: Scene, net: Net) -> None:
    scene.allocator.recording = True
    assert scene.count(lambda: net(DATA)) == 0


@pytest.mark.filterwarnings("ignore")  # torch's own, of what it keeps for tests
def test_no_gate_where_other_processes_wait_for_this_one(scene: Scene, net: Net) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for size, gates in ((4, 0), (1, 1)):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
        try:
            assert scene.count(lambda: net(DATA)) == gates
            assert ("one of 4 processes" in str(scene.meter.hindrance())) is (size > 1)
        finally:
            torch.distributed.destroy_process_group()
    assert scene.meter.hindrance() is None


class Backend:
    """Of torch.compile; counts what is compiled."""

    count = 0

    def __call__(self, graph: Any, _examples: Any) -> Any:
        self.count += 1
        return graph.forward


@pytest.fixture
def backend() -> Backend:
    torch._dynamo.reset()
    return Backend()


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("whole", [False, True])
def test_compiled_modules_work_and_are_compiled_once(
    scene: Scene, net: Net, backend: Backend, whole: bool
) -> None:
    fast = torch.compile(net, backend=backend, fullgraph=whole)
    scene.forwards.stop_watching()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of global hooks; ours is not the user's
        expected = fast(DATA)
        scene.forwards.watch()
        assert scene.count(lambda: fast(DATA)) == 1, "the outermost, which is not compiled"
        assert torch.equal(fast(DATA), expected)
        scene.forwards.stop_watching()
        assert torch.equal(fast(DATA), expected)
    assert backend.count == 1


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own
def test_compiled_while_we_watch(scene: Scene, net: Net, backend: Backend) -> None:
    """If the hook went, torch would compile all of it again."""

    @torch.compile(backend=backend, fullgraph=True)
    def twice(data: torch.Tensor) -> torch.Tensor:
        return net(net(data))  # type: ignore[no-any-return]

    with torch.no_grad():
        assert scene.count(lambda: twice(DATA)) == 0
        result = twice(DATA)
        scene.forwards.stop_watching()
        assert torch.equal(twice(DATA), result)
        assert backend.count == 1
        assert scene.count(lambda: net(DATA)) == 0, "it is there and does nothing"
        scene.forwards.watch()
        assert scene.count(lambda: net(DATA)) == 1
        assert torch.equal(twice(DATA), result)
    assert backend.count == 1


@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_a_compiled_step_stops_before_the_next_forward_pass(scene: Scene, net: Net) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")

    def train() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            net(DATA).sum().backward()
            step()

    assert scene.count(train) == 3


def test_the_users_own_hooks_are_told_of_as_before(scene: Scene) -> None:
    assert not MODULES._has_any_global_hook()
    handle = MODULES.register_module_forward_hook(lambda *_: None)
    assert MODULES._has_any_global_hook()
    handle.remove()
    assert not MODULES._has_any_global_hook()
    scene.forwards.stop_watching()
    assert MODULES._has_any_global_hook.__module__ == MODULES.__name__


def test_ctrl_c_in_the_gate_reaches_the_user(scene: Scene, net: Net) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    scene.at_gate = interrupted
    with pytest.raises(KeyboardInterrupt):
        net(DATA)
    assert scene.is_watching


def test_our_errors_never_reach_the_user(
    scene: Scene, net: Net, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise LookupError("our bug")

    scene.at_gate = broken
    net(DATA)
    assert "our bug" in caplog.text
    assert not scene.is_watching


class TestWhileNobodyWaits:
    """The hook is there until the node manager knows that there are gates."""

    def test_the_second_call_of_a_loop_says_so(self, scene: Scene, net: Net) -> None:
        scene.closed = False
        assert scene.count(lambda: net(DATA)) == 0, "a single call is no loop"

        def told() -> None:
            scene.wanted = False

        scene.at_gate = told
        assert scene.count(lambda: net(DATA)) == 1
        assert scene.count(lambda: net(DATA)) == 0
        assert not scene.is_watching
        scene.forwards.watch()
        assert not scene.is_watching, "nobody wants it"

    def test_who_never_comes_to_a_gate_is_not_watched_for_ever(
        self, scene: Scene, net: Net, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(forwards, "_PATIENCE", 10)
        scene.closed = False
        thread = threading.Thread(target=lambda: [net(DATA) for _ in range(5)])
        thread.start()
        thread.join(60)
        assert not scene.is_watching
        scene.forwards.watch()
        assert scene.is_watching

    def test_closed_later_it_stops_at_the_next_call(self, scene: Scene, net: Net) -> None:
        scene.closed = False
        assert scene.count(lambda: [net(DATA) for _ in range(5)]) == 1
        scene.closed = True
        assert scene.count(lambda: net(DATA)) == 1


def test_a_torch_without_the_question_is_served(
    scene: Scene, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.forwards.stop_watching()
    monkeypatch.delattr(MODULES, "_has_any_global_hook")
    scene.forwards.watch()
    assert scene.count(lambda: net(DATA)) == 1
    scene.forwards.stop_watching()
    assert not hasattr(MODULES, "_has_any_global_hook")
