"""What ``make demo-turns`` tells of turns that leave no trace is a true story."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.stories import plays


@pytest.mark.story
@pytest.mark.timeout(600)
def test_neither_turns_nor_a_stop_leave_a_trace_in_what_is_computed(tmp_path: Path) -> None:
    picture = tmp_path / "turns.svg"
    said = plays("demo_turns.py", "--quantum=2", f"--svg={picture}", within=590)
    # A replay of cells that had nearly a quantum may go another way, which is told.
    scene = 0 if "left out" in said else 4
    assert said.count("   ok  ") == 15 + scene - said.count("had nearly a quantum")
    if importlib.util.find_spec("cuda") and shutil.which("cc"):
        assert "her cell was moved in mid-run" in said
    assert "Everything as promised." in said
    words = {text.strip() for text in ElementTree.parse(picture).getroot().itertext()}
    assert {"Alice", "Bob", "Carol", "Dan", "the GPU"} <= words
