"""The GPUs of this node: through NVML, or simulated when, and only when, a person asks."""

from __future__ import annotations

from collections.abc import Callable

from jupyter_gpushare.node.inventory.base import Inventory, InventoryError

__all__ = ["Inventory", "InventoryError", "open_inventory"]


def open_inventory(
    spec: str | None, boot_id: str | None = None, now: Callable[[], float] | None = None
) -> Inventory:
    """The inventory for a ``--simulate`` spec, or NVML's when ``spec`` is ``None``.

    Cheap: no driver is touched before the first ``discover`` or ``read``.
    ``boot_id`` is stamped on the processes found (``None``: the kernel's own).
    ``now`` gives the simulated GPUs seconds that never go back.
    Raises :class:`InventoryError` for a spec that cannot be read, or when
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
    from jupyter_gpushare.node.host.processes import read_boot_id

    return NvmlInventory(read_boot_id() if boot_id is None else boot_id)
