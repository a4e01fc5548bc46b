"""One process's disk and wall clock in our hands: ``shim.c``, compiled once, told by a file."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from support.nvml import compile_library

SOURCE = Path(__file__).with_name("shim.c")
_LAYOUT = struct.Struct("=qii")


class Disk(Enum):
    """How the disk of the ledger does. ``TORN``: a write is done by half, and its process dies."""

    WELL = 0
    FULL = 1
    READ_ONLY = 2
    IO_ERROR = 3
    TORN = 4


def build_shim(directory: Path) -> Path:
    """Compile the library into ``directory``; its path."""
    library = directory / "faults_shim.so"
    compile_library(SOURCE, library)
    return library


class Shim:
    """Holds the file by which a process under ``environ()`` is told. ``disk`` is a directory."""

    def __init__(self, library: Path, control: Path, disk: Path) -> None:
        self.library = library
        self.control = control
        self.disk_directory = disk
        control.write_bytes(b"\0" * _LAYOUT.size)
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._wall, self._disk, self._writes = 0, Disk.WELL, 0

    def environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment for a process whose disk and clock shall be ours."""
        environ = dict(base)
        loaded = [str(self.library), environ.get("LD_PRELOAD", "")]
        environ["LD_PRELOAD"] = " ".join(name for name in loaded if name)
        environ["GPUSHARE_SHIM"] = str(self.control)
        environ["GPUSHARE_SHIM_DISK"] = os.fspath(self.disk_directory)
        return environ

    def set_wall(self, offset: float) -> None:
        """Wall time is ``offset`` seconds off from now on."""
        self._wall = int(offset * 1e9)
        self._tell()

    def set_disk(self, disk: Disk, writes: int = 1) -> None:
        """``writes``: the how-manieth write is torn."""
        self._disk, self._writes = disk, writes
        self._tell()

    @property
    def disk(self) -> Disk:
        return self._disk

    def close(self) -> None:
        self._map.close()

    def _tell(self) -> None:
        self._map[:] = _LAYOUT.pack(self._wall, self._disk.value, self._writes)
