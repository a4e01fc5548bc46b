"""``make demo-parking`` tells a true story."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_day_with_one_gpu_ends_well():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "demo_parking.py"],
        env={**os.environ, "DEMO_HOURS": "4"},
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert done.stdout.count("   ok  ") >= 10
    assert "Every sum is right." in done.stdout
