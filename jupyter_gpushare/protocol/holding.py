"""What a GPU of a document is called, and how large it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]


def gpu_number(gpu: Document) -> str:
    """``0``, as nvidia-smi counts; of a MIG instance ``0:1``, its board's and its own."""
    instance = gpu.get("instance")
    return str(gpu["index"]) if instance is None else f"{gpu['index']}:{instance}"


def whole_memory(gpu: Document) -> int:
    """Bytes of a whole GPU: all that the host's own processes leave."""
    memory, system = gpu.get("memory"), gpu.get("system")
    whole = memory if isinstance(memory, int) else 0
    return whole - (system if isinstance(system, int) else 0)
