"""What pip warns of while packages are installed is told with a word on what becomes of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
RETRIES = "WARNING: Retrying (Retry(total=4)) after connection broken\n" * 5


@pytest.mark.parametrize(
    ("code", "said", "complained"),
    [
        (0, "pip warned 5 times, of an index that did not answer, say, and went on.\n", ""),
        (1, "", RETRIES),
    ],
)
def test_warnings_of_pip_are_one_line_where_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: int,
    said: str,
    complained: str,
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import packages

    done = subprocess.CompletedProcess([], code, "", RETRIES)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert packages.run_pip(["numpy"]) is (code == 0)
    assert capsys.readouterr() == (said, complained)
    sys.modules.pop("packages")
