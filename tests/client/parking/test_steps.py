"""The step meter tells what a step needs and is a gate, and optimizers work as without it.

Real optimizers, with the CPU in the GPU's place.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.torch_cpu import CPU, CpuAllocator

from jupyter_gpushare.client.adapters.parkers.allocator import Figures
from jupyter_gpushare.client.adapters.parkers.steps import MemoryUse, StepMeter
from jupyter_gpushare.client.adapters.parkers.torch import TorchParker

Trains = Callable[[], None]


class Told(CpuAllocator):
    """An allocator whose figures a test sets."""

    def __init__(self, told: Figures | None = None) -> None:
        super().__init__()
        self.told = told

    def figures(self, device: Any) -> Figures | None:
        return self.told


@pytest.fixture
def meters() -> Iterator[list[StepMeter]]:
    made: list[StepMeter] = []
    yield made
    for one in made:
        one.uninstall()


@pytest.fixture
def time() -> Any:
    return SimpleNamespace(now=100.0)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def meter(told: Told, time: Any, meters: list[StepMeter]) -> StepMeter:
    one = StepMeter(torch, told, clock=lambda: time.now)
    one.install()
    meters.append(one)
    return one


def layer() -> torch.nn.Linear:
    return torch.nn.Linear(64, 64)


def step(optimizer: torch.optim.Optimizer, net: torch.nn.Module) -> None:
    optimizer.zero_grad()
    net(torch.ones(2, 64)).sum().backward()
    optimizer.step()


@pytest.fixture
def trains() -> Trains:
    """Makes one step of an ordinary training."""
    net = layer()
    return partial(step, torch.optim.AdamW(net.parameters()), net)


def used(meter: StepMeter) -> MemoryUse:
    use = meter.use
    assert use is not None
    return use


def test_persistent_is_what_is_alive_at_a_steps_end(time: Any, meters: list[StepMeter]) -> None:
    """Gradients that the program keeps, data, and what no module or optimizer knows, too."""
    allocator = CpuAllocator()
    meter = StepMeter(torch, allocator, clock=lambda: time.now)
    meter.install()
    meters.append(meter)
    (before,) = (allocator.figures(CPU),)
    assert before is not None
    with allocator.user():
        net = layer()
        optimizer = torch.optim.AdamW(net.parameters())
        data = torch.ones(2, 64)
        for _ in range(2):
            optimizer.zero_grad()
            net(data).sum().backward()
            optimizer.step()
    blocks = 4 * (64 * 256 + 512) + 512 + 2 * 512  # weights, gradients, two of AdamW; data, steps
    (device,) = used(meter).devices
    assert blocks <= device.persistent - before.allocated <= blocks + 4 * 512
    assert net.weight.grad is not None


def test_temporary_and_cache(meter: StepMeter, told: Told, trains: Trains) -> None:
    told.told = Figures(None, allocated=10**6, reserved=10**6 + 500, peak=5 * 10**6)
    trains()
    assert used(meter).devices == (("cpu", 10**6, 4 * 10**6, 500),)
    # The user resets the peak: his figure, and the most that we have seen stays.
    told.told = told.told._replace(peak=2 * 10**6)
    trains()
    assert used(meter).devices == (("cpu", 10**6, 4 * 10**6, 500),)
    told.told = told.told._replace(peak=9 * 10**6)
    trains()
    assert used(meter).devices == (("cpu", 10**6, 8 * 10**6, 500),)


def test_figures_are_the_most_of_half_a_minute_and_the_one_before(
    meter: StepMeter, told: Told, time: Any, trains: Trains
) -> None:
    for seconds, alive, shown in (
        (0, 500, 500),
        (1, 900, 900),
        (1, 100, 900),
        (29, 100, 900),
        (29, 100, 900),
        (2, 100, 100),  # the large one was in the last but one
    ):
        time.now += seconds
        told.told = Figures(None, allocated=alive, reserved=2000, peak=2000)
        trains()
        (device,) = used(meter).devices
        assert (device.persistent, device.persistent + device.temporary) == (shown, 2000)
    told.told = told.told._replace(allocated=700)
    looked = meter.look()
    assert looked is not None
    assert (looked.steps, looked.devices[0].persistent) == (6, 700), "without a step"


def test_the_next_step_fits_in_what_is_free_and_in_its_own_cache(
    meter: StepMeter, told: Told, trains: Trains
) -> None:
    assert meter.next_step_fits(), "nothing is known yet, so waiting helps nobody"
    told.told = Figures(None, allocated=10**6, reserved=10**6, peak=5 * 10**6)
    trains()
    needed = used(meter).devices[0].temporary
    assert meter.next_step_fits(), "what is free cannot be measured"
    told.room = needed - 1
    assert not meter.next_step_fits()
    told.room = needed
    assert meter.next_step_fits()
    told.room, told.told = needed - 500, told.told._replace(reserved=10**6 + 500)
    assert meter.next_step_fits(), "its cache is its own"


def test_peaks_are_never_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the user's figures, too."""
    from jupyter_gpushare.client.adapters.parkers.allocator import CudaAllocator

    def reset(*_: Any) -> None:
        raise AssertionError("nobody may reset this")

    stats = {
        "allocated_bytes": {"all": {"current": 7, "peak": 9}},
        "requested_bytes": {"all": {"current": 5}},
        "reserved_bytes": {"all": {"current": 20}},
    }
    for name in ("reset_peak_memory_stats", "reset_accumulated_memory_stats", "memory_stats"):
        monkeypatch.setattr(torch.cuda, name, reset)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: stats)
    allocator = CudaAllocator(torch)
    assert allocator.figures(0) == Figures(5, 7, 20, 9)
    del stats["requested_bytes"]
    assert allocator.figures(0) == Figures(None, 7, 20, 9)
    stats.clear()
    assert allocator.figures(0) is None
    assert allocator.devices() == ()


class Outer(torch.optim.Optimizer):
    """As SAM and Lookahead do: its step makes another optimizer's."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})
        self.seen: list[bool] = []
        self.meter: StepMeter | None = None

    def step(self, closure: Any = None) -> None:
        self.inner.step()
        assert self.meter is not None
        self.seen.append(self.meter.in_step)
        self.inner.step()


def test_a_step_inside_a_step_is_one(meter: StepMeter) -> None:
    net = layer()
    outer = Outer(torch.optim.SGD(net.parameters()))
    outer.meter = meter
    gates: list[bool] = []
    meter.gate = lambda: gates.append(meter.in_step)
    step(outer, net)
    step(outer, net)
    assert used(meter).steps == 2
    assert gates == [False, False]
    assert outer.seen == [True, True]


def test_lbfgs_computes_inside_its_step(meter: StepMeter) -> None:
    net = layer()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    inside: list[bool] = []

    def closure() -> torch.Tensor:
        inside.append(meter.in_step)
        optimizer.zero_grad()
        loss: torch.Tensor = net(torch.ones(2, 64)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert set(inside) == {True}
    assert used(meter).steps == 1


def test_a_step_that_raises_is_over(meter: StepMeter) -> None:
    """Out of memory in a step is common; torch tells nobody that the step has ended."""
    net = layer()
    optimizer = torch.optim.SGD(net.parameters())

    def fail() -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError):
            optimizer.step(fail)
        assert not meter.in_step
    assert meter.use is None
    step(optimizer, net)
    assert used(meter).steps == 1
    step(torch.optim.SGD(net.parameters()), net)
    assert used(meter).steps == 2


def test_threads_step_for_themselves(meter: StepMeter) -> None:
    nets = [layer(), layer()]
    optimizers = [torch.optim.SGD(net.parameters()) for net in nets]
    meet = threading.Barrier(2, timeout=60)

    def closure() -> float:
        meet.wait()
        return 0.0

    def work(which: int) -> None:
        for _ in range(20):
            optimizers[which].step(closure)  # both are in their steps at once

    threads = [threading.Thread(target=work, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert used(meter).steps == 40
    assert not meter.in_step


def test_the_gate_is_the_last_thing_of_a_step(meter: StepMeter) -> None:
    net = layer()
    optimizer = torch.optim.SGD(net.parameters())
    order: list[str] = []
    meter.on_step = lambda use: order.append(f"on_step {use.steps}")
    meter.gate = lambda: order.append("gate")
    optimizer.register_step_post_hook(lambda *_: order.append("the user's"))
    step(optimizer, net)
    assert order == ["the user's", "on_step 1", "gate"]


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_step_inside_the_backward_pass_is_none(meter: StepMeter, checkpointed: bool) -> None:
    """Each parameter's optimizer steps as soon as its gradient is there; others are to come."""
    from torch.distributed.optim import _apply_optimizer_in_backward
    from torch.utils.checkpoint import checkpoint

    net = torch.nn.Sequential(layer(), layer())
    _apply_optimizer_in_backward(torch.optim.SGD, net.parameters(), {"lr": 0.5})
    gates: list[int] = []
    meter.gate = lambda: gates.append(used(meter).steps)
    before = [one.detach().clone() for one in net.parameters()]
    data = torch.ones(2, 64, requires_grad=True)
    # Recomputed by a backward pass within the backward pass.
    out = checkpoint(net, data, use_reentrant=True) if checkpointed else net(data)
    out.sum().backward()
    changed = [not old.equal(new) for old, new in zip(before, net.parameters(), strict=True)]
    assert all(changed), "they have stepped"
    assert (meter.use, gates) == (None, [])
    assert meter.stepped_at is not None, "it is work all the same"
    # A step after it is one, whatever has stepped within.
    rest = layer()
    step(torch.optim.SGD(rest.parameters()), rest)
    assert gates == [1]


def test_ctrl_c_in_the_gate_reaches_the_user(meter: StepMeter, trains: Trains) -> None:

    def gate() -> None:
        raise KeyboardInterrupt

    meter.gate = gate
    with pytest.raises(KeyboardInterrupt):
        trains()
    meter.gate = None
    trains()
    assert used(meter).steps == 2


@pytest.mark.parametrize("which", ["on_step", "gate"])
def test_our_errors_never_reach_the_user(
    meter: StepMeter, trains: Trains, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise LookupError("our bug")

    setattr(meter, which, broken)
    for _ in range(6):
        trains()
    assert caplog.text.count("our bug") == 3
    assert "measured no more" in caplog.text
    assert used(meter).steps == 3


class TestDropCache:
    """At a gate only caches go. Whoever reads a gradient after the step finds it."""

    @pytest.mark.parametrize("counts", [True, False])
    def test_nothing_of_the_programs_is_touched(
        self, meters: list[StepMeter], counts: bool
    ) -> None:
        allocator = CpuAllocator(counts=counts)
        meter = StepMeter(torch, allocator)
        meter.install()
        meters.append(meter)
        parker = TorchParker(torch, allocator, meter=meter, others=tuple)
        meter.gate = parker.drop_cache
        with allocator.user():
            net = layer()
            optimizer = torch.optim.AdamW(net.parameters())
            for _ in range(3):
                step(optimizer, net)
                norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                assert norm > 0.0, "read after the step"
        assert "clear_workspaces" not in allocator.calls, "a CUDA graph may have their addresses"
        assert allocator.calls == ["synchronize", "empty_cache"] * 3

    def test_garbage_of_the_programs_is_left_to_python(self) -> None:
        """A finalizer runs when it would have run undisturbed."""
        allocator = CpuAllocator()
        ended: list[int] = []

        class Cycle:
            def __init__(self) -> None:
                self.itself = self

            def __del__(self) -> None:
                ended.append(1)

        gc.disable()
        try:
            Cycle()
            TorchParker(torch, allocator, others=tuple).drop_cache()
            assert not ended
        finally:
            gc.enable()
            gc.collect()
