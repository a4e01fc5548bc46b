"""Plays a demo of ``scripts/`` to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def plays(script: str, *arguments: str, within: float, **environ: str) -> str:
    """What it printed; it ended well, and nothing in it was wrong."""
    done = subprocess.run(
        [sys.executable, SCRIPTS / script, *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    return done.stdout
