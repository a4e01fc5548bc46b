"""A saved notebook says of no cell that it waits for a GPU: whoever reads it cannot see the end."""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.protocol.notebook import is_waiting


def without_waits(model: dict[str, Any], **_more: Any) -> None:
    """Take such outputs out of what is saved (a pre-save hook); the open notebook keeps them."""
    content = model.get("content")
    if model.get("type") != "notebook" or not isinstance(content, dict):
        return
    for cell in content.get("cells", ()):
        if any(map(is_waiting, cell.get("outputs", ()))):
            cell["outputs"] = [one for one in cell["outputs"] if not is_waiting(one)]
