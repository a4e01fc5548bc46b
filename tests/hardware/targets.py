"""Processes that use a GPU and do as they are told: what the hardware script parks and measures.

``python targets.py KIND`` reads one JSON command a line and answers
each with one. Kinds: ``bindings`` (the driver through cuda-bindings alone, which
also runs on the tests' pretend driver), ``torch`` (a model with AdamW's state,
the random generator's and a CUDA graph), ``jax_cupy`` (both in one process).
:class:`Target` is the other end.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import select
import subprocess
import sys
import time
import traceback
import zlib
from pathlib import Path
from typing import Any, Protocol, Self

CHUNK = 64 * 2**20


class Trouble(Exception):
    """A target answered with an error, or not at all."""


# -- the end in the sections --------------------------------------------------------------------


class Target:
    """A target process; a context manager."""

    def __init__(self, kind: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, os.fspath(Path(__file__).resolve()), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, name: str, *arguments: Any, within: float = 120.0) -> Any:
        """Raises :class:`Trouble`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([name, list(arguments)]) + "\n")
        if not select.select([self._process.stdout], [], [], within)[0]:
            raise Trouble(f"{name} did not answer within {within:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise Trouble(f"the target ended with {self._process.wait(10)} in {name}")
        answer = json.loads(line)
        if "error" in answer:
            raise Trouble(f"{name}: {answer['error']}")
        return answer["value"]

    def end(self) -> None:
        """End it. One that was restored must be checkpointed again first: see `Bench.end`."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


# -- the kinds ----------------------------------------------------------------------------------


class Kind(Protocol):
    """What a target can be told; sizes in bytes."""

    def start(self) -> dict[str, Any]: ...
    def build(self, size: int) -> None: ...
    def digest(self) -> dict[str, str]: ...


class Bindings:
    """Plain driver allocations with known contents."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._blocks: list[tuple[Any, int]] = []

    def _must(self, answer: Any) -> Any:
        if int(answer[0]):
            raise RuntimeError(f"the driver said {answer[0].name}")
        return answer[1] if len(answer) == 2 else answer[1:]

    def start(self) -> dict[str, Any]:
        self._must(self._driver.cuInit(0))
        context = self._must(self._driver.cuDevicePrimaryCtxRetain(0))
        self._must(self._driver.cuCtxSetCurrent(context))
        free, total = self.memory()
        return {"free": free, "total": total}

    def memory(self) -> tuple[int, int]:
        free, total = self._must(self._driver.cuMemGetInfo())
        return int(free), int(total)

    def allocate(self, size: int) -> None:
        """Memory whose contents nobody looks at."""
        self._must(self._driver.cuMemAlloc(size))

    def build(self, size: int) -> None:
        for begin in range(0, size, CHUNK):
            part = min(CHUNK, size - begin)
            pointer = self._must(self._driver.cuMemAlloc(part))
            pattern = _pattern(begin)[:part]
            self._must(self._driver.cuMemsetD8(pointer, begin // CHUNK % 251, part))
            self._must(self._driver.cuMemcpyHtoD(pointer, pattern, len(pattern)))
            self._blocks.append((pointer, part))

    def digest(self) -> dict[str, str]:
        """Of the first and the last MiB of each block: all of it would take minutes."""
        import ctypes

        sum_ = 0
        for pointer, size in self._blocks:
            part = min(size, 2**20)
            for offset in (0, size - part):
                here = bytearray(part)
                address = ctypes.addressof((ctypes.c_char * part).from_buffer(here))
                there = self._driver.CUdeviceptr(int(pointer) + offset)
                self._must(self._driver.cuMemcpyDtoH(address, there, part))
                sum_ = zlib.crc32(here, sum_)
        return {"memory": f"{sum_:08x}"}


def _pattern(seed: int) -> bytes:
    block = hashlib.sha256(str(seed).encode()).digest()
    return block * (2**20 // len(block))


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


# -- the process ---------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["bindings", "torch", "jax_cupy"])
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # frameworks print as they like
    kinds: dict[str, type[Kind]] = {"bindings": Bindings, "torch": Torch, "jax_cupy": JaxCupy}
    target = kinds[options.kind]()
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"value": getattr(target, name)(*arguments)}
        except Exception as error:  # noqa: BLE001 - whatever a framework raises is the answer
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(Path(__file__).resolve().parents[2]))
    raise SystemExit(main())
