"""The words that have Python run a text as a program's main script.

The import of a framework there is a wish for a GPU; under ``python -c`` it is none.
"""

from __future__ import annotations

import hashlib
import tempfile
from functools import cache
from pathlib import Path


def program(code: str) -> str:
    """A file with this code, which lives as long as the test process."""
    file = Path(_folder().name) / f"{hashlib.sha256(code.encode()).hexdigest()[:12]}.py"
    file.write_text(code)
    return str(file)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="gpushare-program-")
