"""What ``make demo-qos`` tells of a promise that is kept is a true story."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.stories import plays


@pytest.mark.story
@pytest.mark.timeout(300)
def test_a_promise_is_kept_by_a_larger_share(tmp_path: Path) -> None:
    picture = tmp_path / "qos.svg"
    said = plays("demo_qos.py", f"--svg={picture}", within=290)
    assert said.count("   ok  ") == 9
    assert "Everything as promised." in said
    words = {text.strip() for text in ElementTree.parse(picture).getroot().itertext()}
    assert {"with the loop", "without", "deadline", "steps done"} <= words
