"""The demos' torch that computes on the CPU and tells figures as on a GPU, for tests."""

from __future__ import annotations

import runpy
from pathlib import Path

STAND_IN: str = runpy.run_path(
    str(Path(__file__).resolve().parents[2] / "scripts" / "torch_stand_in.py")
)["STAND_IN"]
