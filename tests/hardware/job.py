"""A training job for the section on turns: counts its steps; waits at their end for its turn.

``job.py FOLDER NUMBER COUNT DEVICE SECONDS QUANTUM``; with a quantum of 0 it never waits.
The turn is a file in the folder with the number of the job whose turn it is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT, ROOT / "tests"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


class Turn:
    """Whose turn it is, told by a file."""

    def __init__(self, torch: Any, folder: Path, number: int, count: int, quantum: float) -> None:
        self._torch = torch
        self._file = folder / "turn"
        self._number = number
        self._count = count
        self._quantum = quantum
        self._until = 0.0
        self.over = 0.0  # monotonic time at which nobody waits any more

    def gate(self) -> None:
        """At the end of a step: hand over when the quantum is used up, and wait for the next."""
        if self._quantum == 0 or time.monotonic() < self._until:
            return
        if self._until:
            if self._torch.cuda.is_available():
                self._torch.cuda.synchronize()
                self._torch.cuda.empty_cache()  # what is temporary goes; the rest stays
            scratch = self._file.with_name(f"turn.{self._number}")
            scratch.write_text(str((self._number + 1) % self._count))
            scratch.replace(self._file)
        while self._file.read_text() != str(self._number) and time.monotonic() < self.over:
            time.sleep(0.0005)
        self._until = time.monotonic() + self._quantum


def main() -> None:
    folder, number, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    device, seconds, quantum = sys.argv[4], float(sys.argv[5]), float(sys.argv[6])
    import torch

    if device == "cuda":
        from jupyter_gpushare.client.adapters.parkers.allocator import CudaAllocator

        allocator: Any = CudaAllocator(torch)
        width, batch = 4096, 1024
    else:
        from support.torch_cpu import CpuAllocator

        torch.set_num_threads(1)
        allocator = CpuAllocator(counts=False)
        width, batch = 128, 32
    from jupyter_gpushare.client.adapters.parkers.steps import StepMeter

    model = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(batch, width, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    for _ in range(10):
        step()
    turn = Turn(torch, folder, number, count, quantum)
    if number == 0:
        (folder / "turn").write_text("0")
    (folder / f"ready.{number}").touch()
    while not all((folder / f"ready.{each}").exists() for each in range(count)):
        time.sleep(0.001)
    meter = StepMeter(torch, allocator)
    meter.gate = turn.gate
    meter.install()
    if device == "cuda":
        torch.cuda.synchronize()
    steps = 0
    began = time.monotonic()
    turn.over = began + seconds
    turn.gate()
    while time.monotonic() < turn.over:
        step()
        steps += 1
        if device == "cuda" and steps % 20 == 0:
            torch.cuda.synchronize()  # or the clock would only count what was queued
    if device == "cuda":
        torch.cuda.synchronize()
    print(json.dumps({"rate": steps / (time.monotonic() - began), "pid": os.getpid()}))


if __name__ == "__main__":
    main()
