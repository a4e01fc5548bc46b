"""``python benchmarks/training.py``: is a program that trains as fast with us as without?

Each program runs three times with us and three times with ``JUPYTER_GPUSHARE=off``, in turns, on
one node manager with simulated GPUs: a small transformer, scalars that differentiate themselves, a
compiled model, and data loaders whose workers are forked, spawned or served. More than 2 % and
50 ms is a defect. ``--before FOLDER`` also runs them with another checkout of this repository.
Processor time is of the program and all its children; on a busy machine it says more.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from run import node, serving

SLOWER, ALLOWED = 0.02, 0.05  # a share of the time, and seconds

_IMPORT = "import torch\n"

_TRANSFORMER = """
import torch
from torch import nn
torch.manual_seed(1)
layer = nn.TransformerEncoderLayer(48, 4, 192, dropout=0.0, batch_first=True, norm_first=True)
model = nn.Sequential(nn.Embedding(32, 48), nn.TransformerEncoder(layer, 3), nn.Linear(48, 32))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
for step in range(60):
    words = torch.randint(0, 32, (64, 16))
    loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.roll(-1, 1).flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
"""

_SCALARS = """
import random, torch
class Scalar:
    def __init__(self, value, parents=()):
        self.value, self.slope, self.parents = value, 0.0, parents
    def __add__(self, other):
        return Scalar(self.value + other.value, ((self, 1.0), (other, 1.0)))
    def __mul__(self, other):
        return Scalar(self.value * other.value, ((self, other.value), (other, self.value)))
    def bent(self):
        return Scalar(max(0.0, self.value), ((self, float(self.value > 0)),))
    def back(self):
        order, seen, todo = [], set(), [(self, False)]
        while todo:
            one, done = todo.pop()
            if done:
                order.append(one)
            elif id(one) not in seen:
                seen.add(id(one))
                todo += [(one, True), *((parent, False) for parent, _ in one.parents)]
        self.slope = 1.0
        for one in reversed(order):
            for parent, by in one.parents:
                parent.slope += by * one.slope
random.seed(1)
weights = [[Scalar(random.uniform(-1, 1)) for _ in range(8)] for _ in range(16)]
for step in range(60):
    total = Scalar(0.0)
    for _ in range(8):
        inputs = [Scalar(random.random()) for _ in range(8)]
        for row in weights:
            total = total + sum((a * b for a, b in zip(row, inputs)), Scalar(0.0)).bent()
    total.back()
    for one in (one for row in weights for one in row):
        one.value, one.slope = one.value - 1e-4 * one.slope, 0.0
"""

_COMPILED = """
import torch
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
fast = torch.compile(model, backend="aot_eager")
for step in range(60):
    loss = fast(torch.randn(128, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_LOADER = """
import torch
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 256
    def __getitem__(self, at): return torch.full((16,), float(at))
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=16, num_workers=2, multiprocessing_context="{how}")
    for _ in range({epochs}):
        for batch in loader:
            batch.sum()
"""

PROGRAMS = {
    "import torch": _IMPORT,
    "a transformer, 60 steps": _TRANSFORMER,
    "scalars, 60 steps": _SCALARS,
    "torch.compile, 60 steps": _COMPILED,
    "2 loader workers, fork": _LOADER.format(how="fork", epochs=3),
    "2 loader workers, spawn": _LOADER.format(how="spawn", epochs=1),
    "2 loader workers, forkserver": _LOADER.format(how="forkserver", epochs=1),
}


def timed(script: Path, **environment: str) -> tuple[float, float]:
    """Seconds that it took, and seconds of processor time of it and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run([sys.executable, str(script)], check=True, env={**os.environ, **environment})
    took = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, sum((after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", help="another checkout of this repository")
    parser.add_argument("--only", nargs="*", default=[], help="part of a program's name")
    parser.add_argument("--json", help="keep the figures in this file")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    figures = []
    with tempfile.TemporaryDirectory() as folder, serving(node(folder)):
        # What gets no GPU ends with an error, and gives no figure.
        with_us = {
            "JUPYTER_GPUSHARE": "on",
            "JUPYTER_GPUSHARE_SOCKET": f"{folder}/node.sock",
            "JUPYTER_GPUSHARE_FALLBACK": "error",
        }
        ways = {"off": {"JUPYTER_GPUSHARE": "off"}, "on": with_us}
        if arguments.before:
            ways["before"] = {**with_us, "PYTHONPATH": arguments.before}
        for name, program in PROGRAMS.items():
            if arguments.only and not any(part in name for part in arguments.only):
                continue
            script = Path(folder, "program.py")
            script.write_text(program)
            took: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            for number in range(arguments.rounds + 1):
                for way in list(ways) if number % 2 else reversed(ways):
                    one = timed(script, **ways[way])
                    if number:  # the first time, files are read for all
                        took[way].append(one)
            for way in ways:
                for at, what in enumerate(("wall", "processor")):
                    without = statistics.median(one[at] for one in took["off"])
                    value = statistics.median(one[at] for one in took[way])
                    more = value - without
                    bad = way == "on" and more > SLOWER * without + ALLOWED
                    print(
                        f"{name:30} {way:6} {what:9} {value:7.3f} s {more * 1e3:+7.0f} ms"
                        f"{'  more than allowed' if bad else ''}",
                        flush=True,
                    )
                    row = {"program": name, "way": way, "what": what, "seconds": value}
                    figures.append({**row, "more": more, "all": [one[at] for one in took[way]]})
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
