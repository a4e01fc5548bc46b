"""``make demo-qos`` tells a true story."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
def test_a_promise_is_kept_by_a_larger_share(tmp_path: Path) -> None:
    picture = tmp_path / "qos.svg"
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "demo_qos.py", f"--svg={picture}"],
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert done.stdout.count("   ok  ") == 9
    assert "Everything as promised." in done.stdout
    words = {text.strip() for text in ElementTree.parse(picture).getroot().itertext()}
    assert {"with the loop", "without", "deadline", "steps done"} <= words
