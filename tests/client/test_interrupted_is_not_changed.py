"""A program whose gates close at random moments computes what it would undisturbed.

Each program runs twice with real torch, the second time with a node manager's notices at random
moments from another thread, as a session brings them. Everything that it can see is compared bit
for bit. At each gate the real parker drops the caches.
"""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.node import WITHIN
from support.taking_turns import program, turns_of
from support.torch_cpu import CpuAllocator

from jupyter_gpushare.client.adapters.parkers.forwards import ForwardGate
from jupyter_gpushare.client.adapters.parkers.steps import StepMeter
from jupyter_gpushare.client.adapters.parkers.torch import TorchParker
from jupyter_gpushare.client.session.session import Link
from jupyter_gpushare.client.words.grant import Grant, GrantedGpu
from jupyter_gpushare.protocol.messages import Method

GIB = 2**30
GRANT = Grant("L", (GrantedGpu("GPU-0", 0, "Pretend", 8 * GIB, 24 * GIB),))
STEPS = 24
#: Pauses that a run must have had, else the test would show nothing.
ENOUGH = 5


@pytest.fixture(scope="module", autouse=True)
def only_the_programs_objects() -> Iterator[None]:
    """Each move collects and surveys all objects, most of which are of pytest and of libraries."""
    torch.optim.SGD([torch.zeros(1)])  # the first optimizer loads much
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Restless:
    """A node manager that asks for the turn at once and gives it again after a random while."""

    def __init__(self, seed: int) -> None:
        self.link = Link.UP
        self.hello: dict[str, Any] = {}
        self.pauses = 0
        self._random = random.Random(seed)
        self._asked, self._over = threading.Event(), threading.Event()
        self.program = program()
        line = SimpleNamespace(session=self)
        self.turns = turns_of(line, GRANT, program=self.program, say=print)

    def tell(self, method: Method, **_params: Any) -> Callable[[], Any]:
        if method is Method.TURN_ASK:
            self._asked.set()
        return lambda: None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self._play)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._asked.set()
            self.turns.given({}, is_shared=False)
            thread.join(60)

    def _play(self) -> None:
        while not self._over.wait(self._random.uniform(0.0, 0.004)):
            self.turns.recalled({"GPU-0": self._random.randrange(GIB, 8 * GIB)})
            self._asked.wait()
            self._asked.clear()
            self.pauses += not self._over.is_set()
            self._over.wait(self._random.uniform(0.0, 0.004))
            self.turns.given({"GPU-0": 8 * GIB}, is_shared=True)


@contextmanager
def disturbed(seed: int) -> Iterator[Restless]:
    """Gates are connected as `Gates` does, and close at random moments."""
    node, allocator = Restless(seed), CpuAllocator(counts=False)
    meter, turns = StepMeter(torch, allocator), node.turns
    parker = TorchParker(torch, allocator, meter=meter, others=tuple)
    forwards = ForwardGate(
        torch,
        meter,
        gate=turns.checkpoint,
        is_closed=lambda: turns.is_closed,
        is_wanted=lambda: turns.wants_gates,
        runs_here=lambda: threading.current_thread() is threading.main_thread(),
    )
    here = node.program
    here.drop_caches, here.look, here.may_stop = parker.drop_cache, meter.look, meter.may_stop
    here.watch, here.cell_begins = forwards.watch, forwards.cell_begins
    meter.on_step, meter.gate = turns.report, turns.gate
    meter.install()
    try:
        with node.at_work():
            yield node
    finally:
        meter.uninstall()
        forwards.stop_watching()


def seen_of(optimizer: torch.optim.Optimizer, net: torch.nn.Module) -> list[Any]:
    """All that a program could read after its training."""
    return [
        [one.detach().clone() for one in net.parameters()],
        [None if one.grad is None else one.grad.clone() for one in net.parameters()],
        [one.clone() for one in net.buffers()],
        optimizer.state_dict(),
        torch.get_rng_state(),
        random.getstate(),
    ]


def same(one: Any, other: Any) -> bool:
    """Bit for bit, whatever it is."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.numpy().tobytes() == other.numpy().tobytes()
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def network() -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.BatchNorm1d(16),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(16, 1),
    )


class Noise(torch.utils.data.Dataset[torch.Tensor]):
    """Random where it is read: in a worker, with the seed that torch gives it."""

    def __len__(self) -> int:
        return STEPS * 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(8) + index + random.random()


def batches(**how: Any) -> Iterator[torch.Tensor]:
    return iter(torch.utils.data.DataLoader(Noise(), batch_size=4, shuffle=True, **how))


# -- the programs ------------------------------------------------------------------------

Step = Callable[[torch.nn.Module, torch.optim.Optimizer, torch.Tensor, int], Any]


def trained(make: Callable[[Any], torch.optim.Optimizer], step: Step, **how: Any) -> list[Any]:
    """What all steps gave, and all else that can be seen of a training."""
    net, curve = network(), []
    optimizer = make(net.parameters())
    for number, batch in enumerate(batches(**how), 1):
        curve.append(step(net, optimizer, batch, number))
    return [curve, *seen_of(optimizer, net)]


def plain(**how: Any) -> list[Any]:
    """Dropout, a schedule, and what is read after the step: gradients and their norms."""
    schedules: list[Any] = []

    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(parameters, lr=0.01)
        schedules.append(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS))
        return optimizer

    def step(net: Any, optimizer: Any, batch: torch.Tensor, _number: int) -> Any:
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        schedules[0].step()
        norm = torch.nn.utils.get_total_norm([one.grad for one in net.parameters()])
        return batch.clone(), loss.item(), norm.item(), schedules[0].get_last_lr()

    return trained(make, step, **how)


def with_workers() -> list[Any]:
    """The batches are made in other processes."""
    return plain(num_workers=2, multiprocessing_context="fork", prefetch_factor=2)


def accumulated() -> list[Any]:
    """Gradients of several passes, that are clipped; never let go by ``zero_grad``'s default."""

    def step(net: Any, optimizer: Any, batch: torch.Tensor, number: int) -> Any:
        loss = net(batch).square().mean() / 3
        loss.backward()
        if number % 3:
            return loss.item()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        gradients = sum(float(one.grad.sum()) for one in net.parameters())
        optimizer.zero_grad(set_to_none=False)
        return loss.item(), gradients

    return trained(partial(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True), step)


def closures() -> list[Any]:
    """LBFGS calls the model as often as it likes inside its step."""

    def step(net: Any, optimizer: Any, batch: torch.Tensor, _number: int) -> Any:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = net(batch).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure).item()

    return trained(partial(torch.optim.LBFGS, max_iter=4), step)


def checkpointed() -> list[Any]:
    """The backward pass calls the model again, with the random state of the first time."""
    from torch.utils.checkpoint import checkpoint

    def step(net: Any, optimizer: Any, batch: torch.Tensor, _number: int) -> Any:
        optimizer.zero_grad()
        out: Any = checkpoint(net, batch, use_reentrant=False)
        out.square().mean().backward()
        optimizer.step()
        return out.sum().item()

    return trained(partial(torch.optim.SGD, lr=0.01), step)


def evaluated() -> list[Any]:
    """No optimizer at all: the gates are the model's calls, with dropout on."""
    net, scores = network(), []
    with torch.no_grad():
        for batch in batches():
            scores.append(net(batch))
    with torch.inference_mode():
        scores.extend(net(batch).clone() for batch in batches())
    return [scores, torch.get_rng_state(), [one.clone() for one in net.buffers()]]


PROGRAMS = (plain, with_workers, accumulated, closures, checkpointed, evaluated)


def run(program: Callable[[], list[Any]]) -> list[Any]:
    torch.manual_seed(7)
    random.seed(7)
    gc.collect()
    return program()


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own
@pytest.mark.filterwarnings("ignore:.*use of fork\\(\\) may lead:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step:UserWarning")  # of a step that was skipped
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_the_same_bits(program: Callable[[], list[Any]]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        undisturbed = run(program)
        pauses, seed, begun = 0, 0, time.monotonic()
        while pauses < ENOUGH:
            # On a busy machine the other thread gets few chances in each run.
            is_early = seed < 10 or time.monotonic() - begun < WITHIN
            assert is_early, f"only {pauses} pauses in {seed} runs"
            with disturbed(seed) as node:
                result = run(program)
            pauses, seed = pauses + node.pauses, seed + 1
            assert same(undisturbed, result)
    finally:
        torch.set_num_threads(threads)
