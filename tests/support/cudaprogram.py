"""A program that uses CUDA through cuda-bindings and does as it is told, one JSON command a line.

:class:`support.cuda.CudaProgram` is the other end on the tests' pretend driver. On a real one the
hardware script has it beside programs of frameworks, which it serves, too.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
import sys
import traceback
import zlib
from typing import Any

CHUNK = 64 * 2**20


class Bindings:
    """Plain driver allocations."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._blocks: dict[int, tuple[Any, int]] = {}
        self._children: dict[int, subprocess.Popen[str]] = {}

    def _must(self, answer: Any) -> Any:
        if int(answer[0]):
            raise RuntimeError(f"the driver said {answer[0].name}")
        return answer[1] if len(answer) == 2 else answer[1:]

    def start(self) -> list[int]:
        self._must(self._driver.cuInit(0))
        context = self._must(self._driver.cuDevicePrimaryCtxRetain(0))
        self._must(self._driver.cuCtxSetCurrent(context))
        return self.info()

    def info(self) -> list[int]:
        """Free and total bytes of its GPU."""
        return [int(size) for size in self._must(self._driver.cuMemGetInfo())]

    def gpus(self) -> int:
        """On how many GPUs it gets a context."""
        cuda = self._driver
        cuda.cuInit(0)
        count = cuda.cuDeviceGetCount()[1] or 0
        return sum(not int(cuda.cuDevicePrimaryCtxRetain(one)[0]) for one in range(count))

    def allocate(self, size: int) -> int:
        pointer = self._must(self._driver.cuMemAlloc(size))
        self._blocks[int(pointer)] = pointer, size
        return int(pointer)

    def write(self, address: int, text: str) -> None:
        data = text.encode()
        self._must(self._driver.cuMemcpyHtoD(self._blocks[address][0], data, len(data)))

    def checksum(self, address: int, size: int, sum_: int = 0) -> int:
        here = bytearray(size)
        to = ctypes.addressof((ctypes.c_char * size).from_buffer(here))
        self._must(self._driver.cuMemcpyDtoH(to, self._driver.CUdeviceptr(address), size))
        return zlib.crc32(here, sum_)

    def work(self, milliseconds: int) -> None:
        """Keeps the pretend driver's GPU busy."""
        assert not ctypes.CDLL("libcuda.so.1").cuda_stub_work(milliseconds)

    def build(self, size: int) -> None:
        """So many bytes whose contents are known."""
        for begin in range(0, size, CHUNK):
            part = min(CHUNK, size - begin)
            pointer, _ = self._blocks[self.allocate(part)]
            block = hashlib.sha256(str(begin).encode()).digest()
            pattern = (block * (2**20 // len(block)))[:part]
            self._must(self._driver.cuMemsetD8(pointer, begin // CHUNK % 251, part))
            self._must(self._driver.cuMemcpyHtoD(pointer, pattern, len(pattern)))

    def digest(self) -> dict[str, str]:
        """Of the first and the last MiB of each block: all of it would take minutes."""
        sum_ = 0
        for address, (_, size) in self._blocks.items():
            part = min(size, 2**20)
            for offset in (0, size - part):
                sum_ = self.checksum(address + offset, part, sum_)
        return {"memory": f"{sum_:08x}"}

    # -- a program of several processes

    def child(self, orphan: bool) -> int:
        """Start one more, whose parent ends if it shall be an orphan; its pid."""
        command = [sys.executable, "-P", __file__]
        if orphan:
            command = ["sh", "-c", 'exec 3<&0; "$0" "$@" <&3 3<&- &', *command]
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        pid = int(self._ask(child, "getpid"))
        self._children[pid] = child
        return pid

    def become(self, user: int) -> None:
        os.setuid(user)

    def getpid(self) -> int:
        return os.getpid()

    def tell(self, pid: int, name: str, *arguments: Any) -> Any:
        """What a child answers."""
        return self._ask(self._children[pid], name, *arguments)

    def _ask(self, child: subprocess.Popen[str], name: str, *arguments: Any) -> Any:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps([name, arguments]) + "\n")
        answer = json.loads(child.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]


def serve(target: Any) -> None:
    """Do what standard input says."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # frameworks print as they like
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"value": getattr(target, name)(*arguments)}
        except Exception as error:  # noqa: BLE001 - whatever a framework raises is the answer
            traceback.print_exc()
            answer = {"error": f"{name}: {type(error).__name__}: {error}"}
        try:
            answers.write(json.dumps(answer) + "\n")
        except BrokenPipeError:
            os._exit(0)  # who asked has ended


if __name__ == "__main__":
    serve(Bindings())
