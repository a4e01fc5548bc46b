"""A notebook that is saved while a cell waits for a GPU says nothing of the wait."""

from __future__ import annotations

import json
from typing import Any

import nbformat
import pytest

from jupyter_gpushare.protocol.notebook import WAITING
from jupyter_gpushare.server.saved import without_waits


def notebook() -> Any:
    """With a cell that has printed something and waits."""
    printed = nbformat.v4.new_output("stream", text="up")
    waits = nbformat.v4.new_output("display_data", {"text/plain": "Waiting"}, metadata=WAITING)
    cells = [nbformat.v4.new_code_cell(outputs=[printed, waits]), nbformat.v4.new_raw_cell("x")]
    return nbformat.v4.new_notebook(cells=cells)


@pytest.fixture
def jp_server_config() -> dict[str, Any]:
    extensions = {"jpserver_extensions": {"jupyter_gpushare": True}}
    return {"ServerApp": extensions, "GpuShareExtension": {"embed": "never"}}


async def test_what_a_server_saves_has_no_waits(jp_fetch: Any) -> None:
    place, body = ("api", "contents", "a.ipynb"), {"type": "notebook", "format": "json"}
    saved = await jp_fetch(*place, method="PUT", body=json.dumps({**body, "content": notebook()}))
    assert saved.code == 201
    content = json.loads((await jp_fetch(*place)).body)["content"]
    (kept,) = content["cells"][0]["outputs"]
    assert kept["text"] == "up"


def test_what_is_no_notebook_is_left_alone() -> None:
    for model in ({"type": "file", "content": "x"}, {"type": "notebook", "content": None}, {}):
        before = dict(model)
        without_waits(model, path="x")
        assert model == before
