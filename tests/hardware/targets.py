"""Processes that use a GPU and do as they are told: what the hardware script parks and measures.

``python -m hardware.targets KIND`` is one. Kinds: ``bindings`` (the driver through cuda-bindings
alone, which also runs on the tests' pretend driver), ``torch`` (a model with AdamW's state, the
random generator's and a CUDA graph), ``jax_cupy`` (both in one process). :class:`Target` is the
other end.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from support.cuda import Told
from support.cudaprogram import CHUNK, Bindings, serve

ROOT = Path(__file__).resolve().parents[2]


class Target(Told):
    """A target process, in a control group where one is named.

    One that was restored must be checkpointed before it ends: `Bench.end`.
    """

    def __init__(self, kind: str, group: Path | None = None) -> None:
        paths = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        command = [sys.executable, "-P", "-m", "hardware.targets", kind]
        if group is not None:
            enter = 'echo $$ > "$0" && exec "$@"'
            command = ["sh", "-c", enter, str(group / "cgroup.procs"), *command]
        pipe = subprocess.PIPE
        environ = {**os.environ, "PYTHONPATH": paths}
        super().__init__(subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environ))
        self.pid = self._process.pid


# -- the kinds ----------------------------------------------------------------------------------


class Torch:
    """A model of many parameters after one AdamW step, a generator, and a captured graph."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._parameters: list[Any] = []
        self._optimizer: Any = None
        self._graph: Any = None

    def start(self) -> dict[str, Any]:
        free, total = self._torch.cuda.mem_get_info()
        return {"free": free, "total": total}

    def build(self, size: int) -> None:
        torch = self._torch
        torch.manual_seed(7)
        self._parameters, self._optimizer = adamw_state(torch, "cuda", size)
        self._still_input = torch.randn(256, 256, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._still_input @ self._still_input
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._result = (self._still_input @ self._still_input).relu()
        torch.cuda.synchronize()

    def digest(self) -> dict[str, str]:
        torch = self._torch
        self._graph.replay()
        tensors = tensors_of(self._parameters, self._optimizer)
        generator = bytes(torch.cuda.get_rng_state().tolist())
        return {
            "memory": digest_of(torch, tensors),
            "random": hashlib.sha256(generator).hexdigest()[:16],
            "graph": digest_of(torch, [self._result]),
        }

    def pinned(self, size: int) -> dict[str, float]:
        return pinned_rates(self._torch, "cuda", size)

    def step(self) -> float:
        """One more training step, as after coming back; its seconds."""
        began = time.monotonic()
        train(self._torch, self._parameters, self._optimizer)
        self._torch.cuda.synchronize()
        return time.monotonic() - began


class JaxCupy:
    """Two frameworks on one GPU."""

    def start(self) -> dict[str, Any]:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import cupy
        import jax

        self._cupy, self._jax = cupy, jax
        free, total = cupy.cuda.runtime.memGetInfo()
        return {"free": free, "total": total, "jax": str(jax.devices()[0])}

    def build(self, size: int) -> None:
        count = size // 8
        self._theirs = self._jax.random.normal(self._jax.random.key(3), (count,))
        self._compiled = self._jax.jit(lambda x: (x * 2 + 1).sum())
        self._compiled(self._theirs).block_until_ready()
        self._cupy.random.seed(3)
        self._ours = self._cupy.random.standard_normal(count, dtype="float32")

    def digest(self) -> dict[str, str]:
        return {
            "jax": str(float(self._compiled(self._theirs))),
            "cupy": str(float(self._ours.sum())),
        }


# -- torch's state, also used by the sections themselves ------------------------------------------


def adamw_state(torch: Any, device: str, size: int) -> tuple[list[Any], Any]:
    """Parameters with AdamW's two moments: ``size`` bytes together; after one step."""
    each = max(1, min(CHUNK // 4, size // 12))
    count = max(1, size // (12 * each))
    parameters = [torch.nn.Parameter(torch.randn(each, device=device) * 0.01) for _ in range(count)]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=False)
    train(torch, parameters, optimizer)
    return parameters, optimizer


def train(torch: Any, parameters: list[Any], optimizer: Any) -> None:
    """One step, with gradients one after the other."""
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter) * 1e-3
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def tensors_of(parameters: list[Any], optimizer: Any) -> list[Any]:
    found = [parameter.detach() for parameter in parameters]
    for state in optimizer.state.values():
        found += [value for value in state.values() if hasattr(value, "is_cuda")]
    return found


def digest_of(torch: Any, tensors: list[Any]) -> str:
    """One number of all bytes of all tensors, computed where they are."""
    from jupyter_gpushare.client.adapters.parkers.checksum import Checksums

    checksums = Checksums(torch)

    sums = [int(checksums.of(tensor.reshape(-1).view(torch.uint8))) for tensor in tensors]
    return hashlib.sha256(repr(sums).encode()).hexdigest()[:16]


def pinned_rates(torch: Any, device: str, size: int) -> dict[str, float]:
    """Bytes a second of one large copy between pinned memory and the GPU, the median of five."""
    cuda = device == "cuda"
    here = torch.ones(size, dtype=torch.uint8, pin_memory=cuda)
    there = torch.zeros(size, dtype=torch.uint8, device=device)

    def rate(to: Any, source: Any) -> float:
        seconds = []
        for _ in range(5):
            if cuda:
                torch.cuda.synchronize()
            began = time.monotonic()
            to.copy_(source, non_blocking=True)
            if cuda:
                torch.cuda.synchronize()
            seconds.append(time.monotonic() - began)
        return size / statistics.median(seconds)

    return {"to_gpu": rate(there, here), "to_host": rate(here, there)}


if __name__ == "__main__":
    serve({"bindings": Bindings, "torch": Torch, "jax_cupy": JaxCupy}[sys.argv[1]]())
