"""Small real disks to fill or to make read-only."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def tiny_disk(path: Path, size: int) -> Iterator[Path]:
    """Mount an empty disk of ``size`` bytes; skips the test where mounting is refused."""
    path.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"this account may not mount a disk: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def remount(path: Path, options: str) -> None:
    """Change a mounted disk: ``"ro"``, ``"rw"``, ``"size=1m"``."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True)


def fill(disk: Path) -> Path:
    """Take every free byte of ``disk``; delete the returned file to free them."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for block in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"\0" * block):
                    pass
    return filler
