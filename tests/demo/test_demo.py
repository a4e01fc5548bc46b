"""What ``make demo`` tells a newcomer is a true story.

A file for each demo: they are played side by side.
"""

from __future__ import annotations

import pytest
from support.stories import plays


@pytest.mark.story
def test_the_demo_ends_well() -> None:
    said = plays("demo.py", within=115)
    assert said.count("   ok  ") >= 9
    assert "Everything as promised." in said
