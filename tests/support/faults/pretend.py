"""A framework of our own on the pretend driver (``tests/cuda_stub``), for processes of the storm.

It has a few large blocks of device memory with noise at both ends, and knows their checksums.
The product parks it as it parks any framework: block by block where ``movable``, else by the
driver only. Nothing here repairs anything: a block that comes back otherwise is seen.
"""

from __future__ import annotations

import ctypes
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from jupyter_gpushare.client.adapters.parkers.base import ParkFailed, ResumeFailed
from jupyter_gpushare.client.words.grant import Grant

NAME = "pretend_framework"
NOISE = 16 * 1024  # bytes at each end of a block


class DriverSaid(Exception):
    """A CUDA call failed; ``code`` is the driver's."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} said {code}")
        self.code = code


class Cuda:
    """The calls that are needed, on the first GPU this process sees. Usable by any thread."""

    def __init__(self, keeps_lock: bool = False) -> None:
        """``keeps_lock``: a call keeps Python's own lock, so no other thread runs meanwhile."""
        load = ctypes.PyDLL if keeps_lock else ctypes.CDLL
        self._library = load("libcuda.so.1")
        self._context = ctypes.c_void_p()

    def start(self) -> None:
        self._must("cuInit", 0)
        self._must("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), 0)

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def write(self, address: int, data: bytes) -> None:
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def read(self, address: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data.raw

    def step(self) -> None:
        """A call that the driver lets through only while this process is not locked."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))

    def _call(self, function: str, *arguments: Any) -> None:
        self._must("cuCtxSetCurrent", self._context)  # each thread has its own
        self._must(function, *arguments)

    def _must(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise DriverSaid(function, code)


@dataclass(slots=True)
class Block:
    """Device memory. ``address`` is ``None`` while it lies in host memory, as ``kept``."""

    size: int
    checksum: int
    address: int | None
    kept: bytes = b""


class Pretend(ModuleType):
    """The framework's module: what a program imports."""

    def __init__(self, movable: bool, keeps_lock: bool = False) -> None:
        super().__init__(NAME)
        self.movable = movable
        self.started = False
        self.cuda = Cuda(keeps_lock)
        self.blocks: list[Block] = []

    def fill(self, sizes: list[int], rng: random.Random) -> None:
        """Start CUDA, and have blocks of these sizes. Raises :class:`DriverSaid`."""
        self.started = True
        self.cuda.start()
        for size in sizes:
            noise = rng.randbytes(2 * NOISE)
            block = Block(size, zlib.crc32(noise), self.cuda.allocate(size))
            self._write(block, noise)
            self.blocks.append(block)

    def is_whole(self) -> bool:
        """Whether all is on the GPU, as it was. Raises :class:`DriverSaid`."""
        return all(
            block.address is not None and zlib.crc32(self._read(block)) == block.checksum
            for block in self.blocks
        )

    def move_out(self, block: Block) -> None:
        block.kept = self._read(block)
        self.cuda.free(block.address)
        block.address = None

    def move_in(self, block: Block) -> None:
        block.address = self.cuda.allocate(block.size)
        self._write(block, block.kept)
        block.kept = b""

    def _read(self, block: Block) -> bytes:
        end = block.address + block.size - NOISE
        return self.cuda.read(block.address, NOISE) + self.cuda.read(end, NOISE)

    def _write(self, block: Block, noise: bytes) -> None:
        self.cuda.write(block.address, noise[:NOISE])
        self.cuda.write(block.address + block.size - NOISE, noise[NOISE:])


class PretendParker:
    """Moves the blocks, as ``client/adapters/parkers/base.py`` wants it."""

    def __init__(self, framework: Pretend) -> None:
        self._framework = framework

    @property
    def is_parked(self) -> bool:
        return any(block.address is None for block in self._framework.blocks)

    def trim(self) -> int:
        return 0

    def drop_cache(self) -> None:
        """It has none."""

    def bytes_to_park(self) -> int:
        return sum(block.size for block in self._framework.blocks)

    def park(self) -> int:
        moved = 0
        try:
            for block in self._framework.blocks:
                self._framework.move_out(block)
                moved += block.size
        except DriverSaid as error:
            self.resume()
            raise ParkFailed(str(error)) from error
        return moved

    def resume(self) -> None:
        try:
            for block in self._framework.blocks:
                if block.address is None:
                    self._framework.move_in(block)
        except DriverSaid as error:
            raise ResumeFailed(str(error)) from error


class PretendAdapter:
    """What the product knows of the framework."""

    name = "Pretend"
    catches_first_use = False

    def __init__(self) -> None:
        self._parker: PretendParker | None = None

    def before(self, grant: Grant | None) -> None:
        """Nothing to prepare."""

    def after(self, module: ModuleType, grant: Grant | None) -> None:
        """It keeps within its lease by itself."""

    def cuda_started(self, module: Pretend) -> bool:
        return module.started

    def parker(self, module: Pretend) -> PretendParker | None:
        if self._parker is None and module.movable and module.started:
            self._parker = PretendParker(module)
        return self._parker

    def first_use(
        self,
        module: ModuleType,
        acquire: Callable[[], Grant | None],
        expected: Callable[[], int],
    ) -> None:
        """The lease is taken before."""


ADAPTER = PretendAdapter
