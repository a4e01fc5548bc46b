"""Each line of README's tour does what README says, as it stands there."""

from __future__ import annotations

import pytest
from support.stories import plays


@pytest.mark.story("README.md", "jupyter_gpushare/cli/", "jupyter_gpushare/client/cell/")
@pytest.mark.timeout(600)
def test_each_line_of_the_tour_works() -> None:
    said = plays("tour.py", within=590)
    assert said.count("   ok  ") >= 22
    assert "The tour does what README says." in said
