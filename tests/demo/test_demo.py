"""What ``make demo`` tells a newcomer is a true story.

A file for each demo: they are played side by side.
"""

from __future__ import annotations

import runpy
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.stories import SCRIPTS, plays


@pytest.mark.story
def test_the_demo_ends_well() -> None:
    said = plays("demo.py", within=115)
    assert said.count("   ok  ") >= 9
    assert "Everything as promised." in said


def test_a_demo_says_the_last_line_of_a_program_that_died(tmp_path: Path) -> None:
    """And does not wait for what it would have done."""
    demo = runpy.run_path(str(SCRIPTS / "demo.py"))
    dies = "print('first', flush=True); raise SystemExit('pip install cryptography')"
    with ExitStack() as stack:
        line = [sys.executable, "-c", dies]
        demo["started"](stack, "the pool", line, log=tmp_path / "log")
        with pytest.raises(RuntimeError, match=r"the pool has ended .* pip install cryptography"):
            demo["wait_until"]("hosts join", lambda: False, 300.0)
    assert demo["RUNNING"] == []
