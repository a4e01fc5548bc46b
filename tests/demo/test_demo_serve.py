"""What ``make demo-serve`` tells of a server that sleeps for its neighbours is a true story."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.stories import plays


@pytest.mark.story
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None or shutil.which("cc") is None,
    reason="the driver's double needs a C compiler and the cuda-bindings",
)
def test_a_server_and_two_notebooks_share_one_gpu(tmp_path: Path) -> None:
    picture = tmp_path / "serve.svg"
    said = plays("demo_serve.py", f"--svg={picture}", within=290)
    assert said.count("   ok  ") == 10
    assert "Everything as promised." in said
    words = {text.strip() for text in ElementTree.parse(picture).getroot().itertext()}
    assert {"the server", "Alice", "Bob", "the GPU"} <= words
