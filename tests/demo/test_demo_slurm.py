"""What ``make demo-slurm`` tells of a job that ends, and of the next one, is a true story."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.slurm import missing
from support.stories import plays


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_job_ends_while_two_notebooks_work_and_another_takes_over(tmp_path: Path) -> None:
    picture = tmp_path / "slurm.svg"
    said = plays("demo_slurm.py", f"--svg={picture}", within=290)
    assert said.count("   ok  ") == 21
    assert "Everything as promised." in said
    words = {text.strip() for text in ElementTree.parse(picture).getroot().itertext()}
    assert {"the GPUs", "Slurm job 1", "Slurm job 2", "Bob", "Carol"} <= words
