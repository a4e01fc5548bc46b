"""The name of the code that runs: a hash by which the node manager knows earlier runs again.

Only the hash leaves this process. A script is named by its path and its bytes; a notebook by its
path and the sources of its code cells as they are saved, or, where these cannot be read, of the
cell that runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from .task import notebook_path, running_kernel

#: Larger files (bytes) are not read.
_LARGEST: Final = 16 * 2**20


def code_of(environ: Mapping[str, str]) -> str | None:
    """The name of the code that asks now; ``None``: it has none, such as what a prompt reads."""
    app = running_kernel()
    if app is None:
        script = str(getattr(sys.modules.get("__main__"), "__file__", None) or "")
        content = _read(script) if script else None
        return (
            None
            if content is None
            else _hash([os.path.abspath(script).encode(errors="replace"), content])
        )
    path = notebook_path(app, environ) or ""
    cells = _saved_cells(path) or _running_cell(app)
    return _hash([path.encode(errors="replace"), *cells]) if cells else None


def _saved_cells(path: str) -> list[bytes]:
    """The sources of the code cells of a saved notebook; empty where they cannot be read.

    A path that is relative to its server's root says the file's name. A kernel runs in its folder.
    """
    import json

    for place in (path, os.path.basename(path)) if path.endswith(".ipynb") else ():
        content = _read(place)
        if content is None:
            continue
        with suppress(ValueError, RecursionError, AttributeError, TypeError):
            cells = [cell for cell in json.loads(content)["cells"] if cell["cell_type"] == "code"]
            return ["".join(cell["source"]).encode(errors="replace") for cell in cells]
    return []


def _running_cell(app: Any) -> list[bytes]:
    history = getattr(getattr(app, "shell", None), "history_manager", None)
    cells = getattr(history, "input_hist_raw", None)
    return [str(cells[-1]).encode(errors="replace")] if cells and cells[-1] else []


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            content = file.read(_LARGEST + 1)
    except (OSError, ValueError):
        return None
    return content if len(content) <= _LARGEST else None


def _hash(parts: Iterable[bytes]) -> str:
    import hashlib

    made = hashlib.sha256()
    for part in parts:
        # Without the lengths two cells would be the same as one that has the text of both.
        made.update(len(part).to_bytes(8, "big"))
        made.update(part)
    return made.hexdigest()
