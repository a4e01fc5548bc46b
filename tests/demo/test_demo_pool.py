"""What ``make demo-pool`` tells of notebooks, a sweep and a training is a true story."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.stories import plays

pytest.importorskip("ray")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_notebooks_a_sweep_and_a_training_share_a_pool(tmp_path: Path) -> None:
    picture = tmp_path / "pool.svg"
    said = plays("demo_pool.py", f"--svg={picture}", within=890)
    assert said.count("   ok  ") == 13
    assert "Everything as promised." in said
    words = {text.strip() for text in ElementTree.parse(picture).getroot().itertext()}
    people = {"Alice's notebook", "Dave's notebook", "Bob's sweep", "Carol's training"}
    assert people | {"host a, card 0", "host c, card 2"} <= words
