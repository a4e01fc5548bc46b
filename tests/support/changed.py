"""What changed since the commit that is tested against, by asking git.

The long stories of the rooms around the core (`STORIES`) take as long as all other tests together.
`make test` runs those of a room where the room changed, and `make test-long` runs them all.

What is tested against is the commit that ``GPUSHARE_TEST_BASE`` names, as CI does; else where this
branch left the one it is to go to; else, where that is here already, the commit before. What is not
committed counts as changed. Where git does not answer (a source archive), all has changed.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

BASE = "GPUSHARE_TEST_BASE"
ROOT = Path(__file__).resolve().parents[2]
#: Folders of tests with long stories, and what of the repository, beside themselves, they tell of.
#: A story elsewhere names what it tells of: ``@pytest.mark.story("jupyter_gpushare/pool/")``.
STORIES = {
    "demo": ("scripts/", "examples/"),
    "elastic": ("jupyter_gpushare/elastic/",),
    "faults": ("tests/support/faults/",),
    "hardware": ("jupyter_gpushare/node/checkpoint/",),
    "jobs": ("jupyter_gpushare/jobs/",),
    "predict": ("jupyter_gpushare/predict/",),
    "replay": ("jupyter_gpushare/replay/", "benchmarks/"),
    "starts": ("jupyter_gpushare/starts/",),
}


def _git(root: Path, *words: str) -> list[str] | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.splitlines() if done.returncode == 0 else None


def changed(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> set[str] | None:
    """Paths that differ from the base, relative to the repository; ``None``: git does not know."""
    head = _git(root, "rev-parse", "HEAD")
    if head is None:
        return None
    base = environ.get(BASE)
    if not base:
        left = _git(root, "merge-base", "HEAD", "@{upstream}")
        left = left or _git(root, "merge-base", "HEAD", "origin/HEAD")
        base = left[0] if left and left != head else "HEAD~1"
    differing = _git(root, "diff", "--name-only", base, "--")
    new = _git(root, "ls-files", "--others", "--exclude-standard")
    return None if differing is None or new is None else {*differing, *new}


def is_told(room: str, of: tuple[str, ...], paths: set[str] | None) -> bool:
    """Whether a story in a folder of tests is to be told after a change of ``paths``.

    ``of``: the beginnings of the paths that the story names itself.
    """
    if paths is None:
        return True
    mine = of or (*STORIES[room], f"tests/{room}/")
    return any(path.startswith(mine) for path in paths)
