"""The GPUs of this node: through NVML, or simulated when, and only when, a person asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from jupyter_gpushare.node.inventory.base import Inventory, InventoryError

#: What NVIDIA's packages start for the whole host (:class:`~.system.Program`).
SYSTEM_PROGRAMS: Final = ("root:/usr/bin/nv-hostengine", "root:/usr/bin/nvidia-cuda-mps-server")


def open_inventory(
    spec: str | None,
    boot_id: str | None = None,
    now: Callable[[], float] = time.monotonic,
    programs: Iterable[str] = (),
) -> Inventory:
    """The inventory for a ``--simulate`` spec, or NVML's when ``spec`` is ``None``.

    Cheap: no driver is touched before the first ``discover`` or ``read``.
    ``boot_id`` is stamped on the processes found. By default it is the kernel's own.
    ``now`` gives the simulated GPUs seconds that never go back. ``programs`` (``USER:/PATH``) use
    the GPUs for the host itself.
    Raises :class:`InventoryError` for a spec or a program that cannot be read, or when
    the Python package for NVML is missing.
    """
    # Imported here: whoever simulates needs no pynvml.
    if spec is not None:
        from jupyter_gpushare.node.inventory.simulated import SimulatedInventory

        return SimulatedInventory(spec, now)
    try:
        from jupyter_gpushare.node.inventory.nvml import NvmlInventory
    except ImportError as error:
        raise InventoryError(
            "The Python package for NVML is missing: pip install nvidia-ml-py"
            " (or start with --simulate 2x24GiB for simulated GPUs)."
        ) from error
    from jupyter_gpushare.node.inventory.system import Program, SystemProcesses
    from jupyter_gpushare.protocol.processes import read_boot_id

    try:
        system = SystemProcesses(map(Program.parse, programs))
    except ValueError as error:
        raise InventoryError(f"Mend c.NodeManagerApp.system_programs: {error}") from error
    return NvmlInventory(read_boot_id() if boot_id is None else boot_id, system)
