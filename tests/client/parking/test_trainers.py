"""Other people's trainers have gates too, by what they do with torch, and train as without us."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.torch_cpu import CpuAllocator

from jupyter_gpushare.client.adapters.parkers.forwards import ForwardGate
from jupyter_gpushare.client.adapters.parkers.steps import StepMeter

BATCHES = 8
DATA = [torch.ones(2, 4) * number for number in range(BATCHES)]


class Gates:
    """Where a program could have stopped."""

    def __init__(self) -> None:
        self.meter = StepMeter(torch, CpuAllocator(counts=False))
        self.steps = self.forwards = 0
        self.meter.gate = self._step
        main = threading.current_thread()
        self.watch = ForwardGate(
            torch,
            self.meter,
            gate=self._forward,
            is_closed=lambda: True,
            is_wanted=lambda: True,
            runs_here=lambda: threading.current_thread() is main,
        )

    def _step(self) -> None:
        self.steps += 1

    def _forward(self) -> None:
        self.forwards += 1

    def of(self, program: Callable[[], object]) -> tuple[int, int]:
        """At ends of steps, and at modules' calls."""
        self.steps = self.forwards = 0
        program()
        return self.steps, self.forwards


@pytest.fixture
def gates() -> Iterator[Gates]:
    made = Gates()
    made.meter.install()
    made.watch.cell_begins()
    yield made
    made.watch.stop_watching()
    made.meter.uninstall()


def parts() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    net = torch.nn.Linear(4, 1)
    return net, torch.optim.AdamW(net.parameters(), lr=0.01)


class Wrapped(torch.optim.Optimizer):
    """As accelerate's: an optimizer around another, that skips steps while gradients add up."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.every = 2
        self.calls = 0

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.inner.param_groups

    def step(self, closure: Any = None) -> None:
        self.calls += 1
        if self.calls % self.every == 0:
            self.inner.step(closure)


def test_an_optimizer_around_another(gates: Gates) -> None:
    net, inner = parts()
    optimizer = Wrapped(inner)
    schedule = torch.optim.lr_scheduler.StepLR(inner, 1)

    def train() -> None:
        for batch in DATA:
            net(batch).sum().backward()
            optimizer.step()
            if optimizer.calls % 2 == 0:
                schedule.step()
                inner.zero_grad()

    steps, forwards = gates.of(train)
    assert steps == BATCHES // 2
    assert forwards == 2, "only before the first step was seen"


def test_a_scaler(gates: Gates) -> None:
    net, optimizer = parts()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def train() -> None:
        for number, batch in enumerate(DATA):
            optimizer.zero_grad()
            loss = net(batch).sum() * (float("inf") if number == 3 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    steps, _ = gates.of(train)
    assert steps == BATCHES - 1, "the scaler left one step out"


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 2 * BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(4) * index


def loader() -> torch.utils.data.DataLoader[torch.Tensor]:
    return torch.utils.data.DataLoader(Numbers(), batch_size=2)


@pytest.mark.filterwarnings("ignore")
def test_lightning(gates: Gates) -> None:
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, _number: int) -> Any:
            return self.net(batch).square().mean()

        validation_step = training_step

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, accumulate_grad_batches=2, gradient_clip_val=1.0, **quiet
    )
    model = Model()
    assert gates.of(lambda: trainer.fit(model, loader())) == (BATCHES // 2, 1)
    checked = gates.of(lambda: trainer.validate(model, loader(), verbose=False))
    assert checked == (0, BATCHES)
