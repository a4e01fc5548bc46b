"""GPUs for demos on a machine that has none: doubles of the driver and of NVML, of our tests' own.

The real cuda-bindings run over them (``tests/cuda_stub``, ``tests/nvml_stub``), and their memory
has contents, which a checkpoint keeps. They need a C compiler and the cuda-bindings.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parents[1] / "tests"


def lacking() -> str:
    """What they need and is not here; empty: nothing."""
    for needed in ("cuda", "pytest"):
        if importlib.util.find_spec(needed) is None:
            return f"{needed} is not installed"
    if shutil.which("cc") is None:
        return "there is no C compiler"
    return "" if (TESTS / "cuda_stub").is_dir() else "the tests are not here"


def pretend(
    stack: ExitStack, folder: Path, gpus: int, memory: int, rate: int = 0
) -> dict[str, str]:
    """The variables by which a program sees so many GPUs, and has a runtime folder of its own.

    ``rate``: bytes a second at which a checkpoint copies; 0: at once. Checkpoint helpers end with
    the stack.
    """
    sys.path.insert(0, str(TESTS))
    from support.cuda import CudaWorld, build_stubs, end_helper

    for name in ("stubs", "run"):
        (folder / name).mkdir(mode=0o700)
    world = CudaWorld(build_stubs(folder / "stubs"), folder / "gpus.state")
    world.set_version(13000)
    world.set_rate(rate)
    for _ in range(gpus):
        world.add_gpu(memory=memory)

    def end_helpers() -> None:
        for place in (folder / "run" / "jupyter-gpushare").glob("*.sock"):
            end_helper(place)

    stack.callback(end_helpers)
    seen = world.environ({}).items()
    sees = {name: value for name, value in seen if name.startswith(("LD_", "NVML_"))}
    return {**sees, "XDG_RUNTIME_DIR": str(folder / "run")}
