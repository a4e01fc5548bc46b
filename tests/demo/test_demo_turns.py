"""``make demo-turns`` tells a true story."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(600)
def test_neither_turns_nor_a_stop_leave_a_trace_in_what_is_computed(tmp_path: Path):
    picture = tmp_path / "turns.svg"
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "demo_turns.py", "--quantum=2", f"--svg={picture}"],
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    # A replay of cells that had nearly a quantum may go another way, which is told.
    scene = 0 if "left out" in done.stdout else 4
    assert done.stdout.count("   ok  ") == 15 + scene - done.stdout.count("had nearly a quantum")
    if importlib.util.find_spec("cuda") and shutil.which("cc"):
        assert "her cell was moved in mid-run" in done.stdout
    assert "Everything as promised." in done.stdout
    words = {text for text in ElementTree.parse(picture).getroot().itertext()}
    assert {"Alice", "Bob", "Carol", "Dan", "the GPU"} <= {word.strip() for word in words}
