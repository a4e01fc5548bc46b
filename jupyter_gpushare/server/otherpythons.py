"""Kernels that run another Python than this one: the import hook must be installed there, too.

`jupyter gpushare doctor` looks at all kernelspecs; the server looks when it starts a kernel.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from jupyter_gpushare._version import __version__

#: What pip installs into the environment of a kernel: the packages are not on PyPI.
CLIENT_WHEEL: Final = f"jupyter_gpushare_client-{__version__}-py3-none-any.whl"
#: Seconds that another Python may take to answer.
PATIENCE: Final = 30.0

_HOOK = (
    "import sys;print(any(type(f).__module__ == 'jupyter_gpushare._boot' for f in sys.meta_path))"
)


def other_python(argv: Sequence[str]) -> str | None:
    """The path of the Python that a kernelspec's ``argv`` starts; ``None`` if it is this one.

    A kernel of another language, or one whose program is not there, gives ``None``, too.
    """
    command = argv[0] if argv else ""
    if command in ("python", "python3", f"python3.{sys.version_info.minor}"):
        return None  # Jupyter starts the Python that it runs in itself
    python = shutil.which(command)
    if python is None or not os.path.basename(python).startswith("python"):
        return None
    # Not the resolved path: a virtual environment's python is a link to another one.
    place = os.path.abspath(python)
    return None if place == os.path.abspath(sys.executable) else place


def has_hook(python: str, patience: float = PATIENCE) -> bool | None:
    """Whether a fresh ``python`` has the import hook; ``None`` when it cannot be asked.

    ``patience``: seconds that it may take to answer.
    """
    try:
        done = subprocess.run(
            [python, "-c", _HOOK], capture_output=True, text=True, timeout=patience, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() == "True" if done.returncode == 0 else None


def lacking(kernel: str, python: str) -> tuple[str, str]:
    """The sentence on a kernel whose Python has no hook, and the line that mends it."""
    return (
        f"kernel {kernel} runs {python}, where the import hook is not active: its code sees no "
        "GPUs of ours.",
        f"{python} -m pip install {CLIENT_WHEEL}",
    )
