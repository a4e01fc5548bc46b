"""What every test of the node's room can ask for."""

from support.nvml_fixtures import nvml_stub, nvml_world

__all__ = ["nvml_stub", "nvml_world"]
