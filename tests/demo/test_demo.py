"""``make demo`` tells a true story. A file for each of them: they are played side by side."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_ends_well():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "demo.py"],
        capture_output=True,
        text=True,
        timeout=115,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert done.stdout.count("   ok  ") >= 9
    assert "Everything as promised." in done.stdout
