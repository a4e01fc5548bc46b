"""Says what to do where a program takes the names of its GPUs for numbers.

``CUDA_VISIBLE_DEVICES`` has UUIDs, which CUDA and the frameworks read. Some launchers and scripts
call ``int()`` on its entries.
"""

from __future__ import annotations

import re
from typing import Final

from ...protocol import names
from .tracebacks import chain_of

_TAKEN: Final = re.compile(r"invalid literal for int\(\) with base \d+: '(GPU|MIG)-")
NOTE: Final = (
    "jupyter_gpushare: CUDA_VISIBLE_DEVICES names this task's GPUs by their UUIDs, and this code "
    f"takes them for numbers. {names.VISIBLE_DEVICES}=indices, set before it starts, names them by "
    "number (of `jupyter gpushare run`: --visible-devices=indices)."
)


def annotate(error: BaseException) -> None:
    """Add the note to such an error, or to the one among its causes, once."""
    for one in chain_of(error):
        if isinstance(one, ValueError) and _TAKEN.match(str(one)):
            if NOTE not in getattr(one, "__notes__", ()):
                one.add_note(NOTE)
            return
