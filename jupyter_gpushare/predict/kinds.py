"""Facts about kinds of GPUs, for estimates on kinds that nobody has measured."""

from __future__ import annotations

from .features import Hardware


def hardware_of(
    name: str, memory: int, capability: float | None = None, cores: int | None = None
) -> Hardware:
    """The facts of a GPU from its name, as NVML tells it; for an unknown name what NVML tells."""
    return Hardware(name, capability or 0.0, memory, cores or 0)
