"""What ``make demo-parking`` tells of a day with one GPU is a true story."""

from __future__ import annotations

import pytest
from support.stories import plays


@pytest.mark.story
def test_the_day_with_one_gpu_ends_well() -> None:
    said = plays("demo_parking.py", within=230, DEMO_HOURS="4")
    assert said.count("   ok  ") >= 10
    assert "Every sum is right." in said
