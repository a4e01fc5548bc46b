"""The step meter over real optimizers, with the CPU in the GPU's place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.torch_cpu import CPU, CpuAllocator

from jupyter_gpushare.client.adapters.parkers.allocator import Figures
from jupyter_gpushare.client.adapters.parkers.steps import MemoryUse, StepMeter, persistent
from jupyter_gpushare.client.adapters.parkers.torch import TorchParker

SIZE = 4 * (64 * 64 + 64)  # bytes of one layer


class Told(CpuAllocator):
    """An allocator whose figures a test sets."""

    def __init__(self, told: Figures | None = None) -> None:
        super().__init__()
        self.told = told

    def figures(self, device: Any) -> Figures | None:
        return self.told


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def meters() -> Iterator[list[StepMeter]]:
    made: list[StepMeter] = []
    yield made
    for one in made:
        one.uninstall()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def meter(told: Told, time: Time, meters: list[StepMeter]) -> StepMeter:
    one = StepMeter(torch, told, clock=time)
    one.install()
    meters.append(one)
    return one


def layer() -> torch.nn.Linear:
    return torch.nn.Linear(64, 64)


def step(optimizer: torch.optim.Optimizer, net: torch.nn.Module) -> None:
    optimizer.zero_grad()
    net(torch.ones(2, 64)).sum().backward()
    optimizer.step()


def used(meter: StepMeter) -> MemoryUse:
    use = meter.use
    assert use is not None
    return use


def test_without_an_allocators_figures(meter: StepMeter, time: Time) -> None:
    assert meter.use is None
    others = persistent(torch, (CPU,))[CPU]
    net = layer()
    optimizer = torch.optim.AdamW(net.parameters())
    step(optimizer, net)
    use = used(meter)
    # AdamW keeps two tensors of each parameter's size, and its count of steps
    assert use.persistent - others == 3 * SIZE + 2 * 4
    assert (use.temporary, use.cache, use.steps, meter.stepped_at) == (None, None, 1, 100.0)


def test_buffers_views_and_ties_count_once() -> None:
    before = persistent(torch, (CPU,))[CPU]
    net = torch.nn.Sequential(layer(), layer(), torch.nn.BatchNorm1d(64))
    net[1].weight = net[0].weight
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    again = torch.optim.SGD(list(net.parameters()))
    found = persistent(torch, (CPU,))[CPU] - before
    assert found == SIZE + 64 * 4 + 4 * 64 * 4 + 8
    step(optimizer, net)
    assert persistent(torch, (CPU,))[CPU] - before == found + SIZE + 64 * 4 + 2 * 64 * 4
    assert again is not None


def test_temporary_and_cache(meter: StepMeter, told: Told, time: Time) -> None:
    net = layer()
    optimizer = torch.optim.AdamW(net.parameters())
    told.told = Figures(None, allocated=10**6, reserved=10**6 + 500, peak=5 * 10**6, allocations=1)
    step(optimizer, net)
    first = used(meter)
    assert first.cache == 500
    assert first.temporary == 5 * 10**6 - first.persistent
    # The user resets the peak: his figure, and the most that we have seen stays.
    told.told = told.told._replace(peak=2 * 10**6)
    step(optimizer, net)
    assert used(meter).temporary == first.temporary
    told.told = told.told._replace(peak=9 * 10**6)
    step(optimizer, net)
    assert used(meter).temporary == 9 * 10**6 - first.persistent
    (device,) = used(meter).devices
    assert (device.device, device.cache) == ("cpu", 500)


def test_the_next_step_fits_in_what_is_free_and_in_its_own_cache(
    meter: StepMeter, told: Told
) -> None:
    net = layer()
    optimizer = torch.optim.AdamW(net.parameters())
    assert meter.next_step_fits(), "nothing is known yet, so waiting helps nobody"
    told.told = Figures(None, allocated=10**6, reserved=10**6, peak=5 * 10**6, allocations=1)
    step(optimizer, net)
    needed = used(meter).temporary
    assert needed is not None
    assert meter.next_step_fits(), "what is free cannot be measured"
    told.room = needed - 1
    assert not meter.next_step_fits()
    told.room = needed
    assert meter.next_step_fits()
    told.room, told.told = needed - 500, told.told._replace(reserved=10**6 + 500)
    assert meter.next_step_fits(), "its cache is its own"


def test_state_is_added_up_when_it_changes_and_seldom(
    meter: StepMeter, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_gpushare.client.adapters.parkers import steps

    walks = [0]

    def slow(torch: Any, devices: Any) -> dict[Any, int]:
        walks[0] += 1
        time.now += 0.2
        return persistent(torch, devices)

    monkeypatch.setattr(steps, "persistent", slow)
    net = layer()
    optimizer = torch.optim.SGD(net.parameters())
    for _ in range(50):
        step(optimizer, net)
    assert walks[0] == 1
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(5000))]})
    for _ in range(50):
        step(optimizer, net)
        time.now += 0.1
    assert walks[0] == 1  # not more than a hundredth of the time: in 20 s
    before = used(meter).persistent
    for _ in range(200):
        step(optimizer, net)
        time.now += 0.1
    assert walks[0] == 2
    assert used(meter).persistent - before == 20_000
    time.now += 61
    step(optimizer, net)
    assert walks[0] == 3


def test_peaks_are_never_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the user's figures, too."""
    from jupyter_gpushare.client.adapters.parkers.allocator import CudaAllocator

    def reset(*_: Any) -> None:
        raise AssertionError("nobody may reset this")

    stats = {
        "allocated_bytes": {"all": {"current": 7, "peak": 9}},
        "requested_bytes": {"all": {"current": 5}},
        "reserved_bytes": {"all": {"current": 20}},
        "allocation": {"all": {"allocated": 3}},
    }
    for name in ("reset_peak_memory_stats", "reset_accumulated_memory_stats", "memory_stats"):
        monkeypatch.setattr(torch.cuda, name, reset)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: stats)
    allocator = CudaAllocator(torch)
    assert allocator.figures(0) == Figures(5, 7, 20, 9, 3)
    del stats["requested_bytes"]
    assert allocator.figures(0) == Figures(None, 7, 20, 9, 3)
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
    meet = threading.Barrier(2, timeout=30)

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


def test_ctrl_c_in_the_gate_reaches_the_user(meter: StepMeter) -> None:
    net = layer()
    optimizer = torch.optim.SGD(net.parameters())

    def gate() -> None:
        raise KeyboardInterrupt

    meter.gate = gate
    with pytest.raises(KeyboardInterrupt):
        step(optimizer, net)
    meter.gate = None
    step(optimizer, net)
    assert used(meter).steps == 2


@pytest.mark.parametrize("which", ["on_step", "gate"])
def test_our_errors_never_reach_the_user(
    meter: StepMeter, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise LookupError("our bug")

    setattr(meter, which, broken)
    net = layer()
    optimizer = torch.optim.SGD(net.parameters())
    for _ in range(6):
        step(optimizer, net)
    assert caplog.text.count("our bug") == 3
    assert "measured no more" in caplog.text
    assert used(meter).steps == 3


def test_installed_once_and_taken_away(told: Told) -> None:
    one = StepMeter(torch, told)
    one.install()
    one.install()
    net = layer()
    optimizer = torch.optim.SGD(net.parameters())
    step(optimizer, net)
    assert used(one).steps == 1
    one.uninstall()
    step(optimizer, net)
    assert used(one).steps == 1


@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_a_compiled_step_works(meter: StepMeter) -> None:
    net = layer()
    optimizer = torch.optim.SGD(net.parameters())
    compiled = torch.compile(optimizer.step, backend="eager")
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(2, 64)).sum().backward()
        before = net.weight.detach().clone()
        compiled()
        assert not torch.equal(net.weight, before)
    assert not meter.in_step


class TestDropTemporary:
    """Rung 2: gradients that are used up, and only those."""

    @pytest.fixture
    def parts(self, meters: list[StepMeter]) -> tuple[CpuAllocator, StepMeter, TorchParker]:
        allocator = CpuAllocator()
        meter = StepMeter(torch, allocator)
        meter.install()
        meters.append(meter)
        return allocator, meter, TorchParker(torch, allocator, meter=meter, others=tuple)

    def test_in_the_gate(self, parts: tuple[CpuAllocator, StepMeter, TorchParker]) -> None:
        allocator, meter, parker = parts
        freed: list[int] = []
        meter.gate = lambda: freed.append(parker.drop_temporary())
        with allocator.user():
            net = layer()
            optimizer = torch.optim.AdamW(net.parameters())
            for _ in range(3):
                step(optimizer, net)
                assert all(one.grad is None for one in net.parameters())
        assert freed[-1] >= SIZE

    def test_an_idle_kernel_after_its_last_step(
        self, parts: tuple[CpuAllocator, StepMeter, TorchParker]
    ) -> None:
        allocator, _, parker = parts
        with allocator.user():
            net = layer()
            optimizer = torch.optim.SGD(net.parameters())
            step(optimizer, net)
        assert net.weight.grad is not None
        assert parker.drop_temporary() >= SIZE
        assert net.weight.grad is None

    def test_gradients_that_are_still_needed_stay(
        self, parts: tuple[CpuAllocator, StepMeter, TorchParker]
    ) -> None:
        """Accumulated after the step, of another optimizer, or of none."""
        allocator, _, parker = parts
        with allocator.user():
            net, other, free = layer(), layer(), layer()
            optimizer = torch.optim.SGD(net.parameters())
            waits = torch.optim.SGD(other.parameters())
            other(torch.ones(2, 64)).sum().backward()
            free(torch.ones(2, 64)).sum().backward()
            step(optimizer, net)
            assert parker.drop_temporary() >= 0
            assert net.weight.grad is None
            assert other.weight.grad is not None
            assert free.weight.grad is not None
            step(optimizer, net)
            net(torch.ones(2, 64)).sum().backward()  # the next step's first half
        kept = net.weight.grad
        parker.drop_temporary()
        assert net.weight.grad is kept
        assert waits is not None

    def test_never_inside_a_step(self, parts: tuple[CpuAllocator, StepMeter, TorchParker]) -> None:
        allocator, _, parker = parts
        with allocator.user():
            net = layer()
            optimizer = torch.optim.SGD(net.parameters())
            step(optimizer, net)
            seen: list[bool] = []

            def closure() -> float:
                parker.drop_temporary()
                seen.append(net.weight.grad is not None)
                return 0.0

            optimizer.step(closure)
        assert seen == [True]

    def test_where_nobody_counts_nothing_is_dropped(self, meters: list[StepMeter]) -> None:
        allocator = CpuAllocator(counts=False)
        meter = StepMeter(torch, allocator)
        meter.install()
        meters.append(meter)
        net = layer()
        step(torch.optim.SGD(net.parameters()), net)
        TorchParker(torch, allocator, meter=meter, others=tuple).drop_temporary()
        assert net.weight.grad is not None
