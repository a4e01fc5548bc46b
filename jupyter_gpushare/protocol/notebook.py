"""A kernel's question to its Jupyter server about its notebook, and the answer: a line each way.

The server listens on a Unix socket that only its own user can open, and tells the kernel where
(`names.NOTEBOOK_SOCKET`). The kernel asks only when it needs a GPU, because the answer is not known
at its start: JupyterLab names the notebook afterwards, and people may rename it or edit its
metadata.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from .errors import RemoteProtocolError
from .framing import decode, encode

LONGEST_QUESTION: Final = 512
LONGEST_ANSWER: Final = 16384
_LONGEST_PATH: Final = 4096
#: The metadata of an output that is true only while its cell waits.
WAITING: Final = {"gpushare": {"waits": True}}


class Notebook(NamedTuple):
    """``path`` for people, where the file is; ``wishes`` its ``gpushare`` metadata, unjudged."""

    path: str | None = None
    wishes: Any = None


def is_waiting(output: Any) -> bool:
    """Whether a notebook's output says that its cell waits."""
    metadata = output.get("metadata") if isinstance(output, dict) else None
    return isinstance(metadata, dict) and metadata.get("gpushare") == WAITING["gpushare"]


def question(kernel_id: str) -> bytes:
    """Which notebook is ``kernel_id``'s?"""
    return encode({"kernel_id": kernel_id})


def read_question(line: bytes) -> str:
    """The kernel's id. Raises :class:`RemoteProtocolError`."""
    kernel_id = decode(line).get("kernel_id")
    if not isinstance(kernel_id, str):
        raise RemoteProtocolError("No kernel is named.")
    return kernel_id


def answer(notebook: Notebook) -> bytes:
    """The server's answer; metadata that are far too long become a text that is invalid."""
    line = json.dumps({"path": (notebook.path or "")[:_LONGEST_PATH], "gpushare": notebook.wishes})
    if len(line) >= LONGEST_ANSWER:
        return answer(Notebook(None, "(too long)"))
    return line.encode() + b"\n"


def read_answer(line: bytes) -> Notebook:
    """Parse the answer. Raises :class:`RemoteProtocolError`."""
    told = decode(line)
    path = told.get("path")
    return Notebook(path if path and isinstance(path, str) else None, told.get("gpushare"))
