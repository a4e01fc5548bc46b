"""What the step meter costs: the time in its hook over the time of the training step around it.

``python benchmarks/step_meter.py`` prints one JSON object. The model is small
on purpose: the hook does the same for every model, so this is close to the
worst case. Both are timed in the same steps, and medians are taken. On a GPU
the driver's counters are read in addition; here a constant stands for them.
"""

from __future__ import annotations

import json
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from jupyter_gpushare.client.adapters.parkers.allocator import Figures
from jupyter_gpushare.client.adapters.parkers.steps import StepMeter

STEPS = 600


class Still:
    """An allocator that always says the same: reading real counters is not in the figure."""

    name = "native"

    def devices(self) -> tuple[Any, ...]:
        return (torch.device("cpu"),)

    def figures(self, device: Any) -> Figures:
        return Figures(1, 1, 1, 1)

    def free(self, device: Any) -> int | None:
        return None

    def empty_cache(self) -> None: ...

    def clear_workspaces(self) -> None: ...

    def synchronize(self, device: Any) -> None: ...

    def default_stream(self, device: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def own_streams(self, device: Any) -> int:
        return 0

    def pools(self, device: Any) -> int:
        return 0

    def capturing(self) -> bool:
        return False

    def host_buffer(self, size: int) -> Any:
        return torch.empty(size, dtype=torch.uint8)

    def forget_host_buffers(self) -> None: ...


def measure() -> dict[str, float]:
    """Median seconds of a step and of the hook in it, and their ratio."""
    torch.set_num_threads(1)
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    optimizer = torch.optim.AdamW(net.parameters())
    x = torch.randn(32, 64)
    meter = StepMeter(torch, Still())
    hook, hooks, steps = meter._after_step, [], []

    def timed(*arguments: Any) -> None:
        began = time.perf_counter()
        hook(*arguments)
        hooks.append(time.perf_counter() - began)

    meter._after_step = timed  # type: ignore[method-assign]
    meter.gate = lambda: None
    meter.install()
    for _ in range(STEPS):
        began = time.perf_counter()
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        steps.append(time.perf_counter() - began)
    meter.uninstall()
    step, in_hook = statistics.median(steps[50:]), statistics.median(hooks[50:])
    return {"step_seconds": step, "meter_seconds": in_hook, "ratio": in_hook / step}


if __name__ == "__main__":
    print(json.dumps({key: float(f"{value:.4g}") for key, value in measure().items()}))
