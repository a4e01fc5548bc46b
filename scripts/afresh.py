"""Play demos in environments that only their own targets made.

``python scripts/afresh.py`` copies the working tree, without what git ignores, and calls make
there. What a target forgets to install is not there by the grace of another one, as it is in a
``.venv`` that has what the tests need. Targets that begin with the same share one copy. Only the
JupyterLab side is taken from here as it was built. It exits with 1 if a target failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UI = "jupyter_gpushare/labextension"
#: Folders, and the targets that are made there; those that install more than the others come last.
COPIES = {
    "lab": ("tour", "demo", "demo-parking", "demo-qos", "demo-serve", "demo-slurm", "demo-turns"),
    "ray": ("demo-pool",),
}
#: Of this process's environment: what says where packages and settings are.
NOT_INHERITED = ("JUPYTER", "JPY_", "MAKE", "MFLAGS", "PYTHON", "RAY_", "VIRTUAL_ENV")


def copied(folder: Path) -> None:
    """The working tree, as somebody has it who has just cloned it."""
    shutil.rmtree(folder, ignore_errors=True)
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    told = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in sorted({*told.stdout.split("\0")} - {""}):
        source, there = ROOT / name, folder / name
        if source.is_symlink() or source.exists():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, there, follow_symlinks=False)
    shutil.copytree(ROOT / UI, folder / UI, symlinks=True)


def make(folder: Path, target: str) -> bool:
    """Whether a target did there what it should."""
    environ = {n: v for n, v in os.environ.items() if not n.startswith(NOT_INHERITED)}
    # With --old-file the JupyterLab side is taken as it is, and nothing of npm is needed.
    line = ["make", "--no-print-directory", f"--old-file={UI}/package.json", target]
    began = time.monotonic()
    print(f"\nmake {target}, in {folder}", flush=True)
    done = subprocess.run(line, cwd=folder, env=environ, check=False)
    well = "did well" if done.returncode == 0 else "FAILED"
    print(f"make {target} {well} in {time.monotonic() - began:.0f} s", flush=True)
    return done.returncode == 0


def main(wanted: list[str]) -> int:
    """Return the exit status."""
    known = {one for targets in COPIES.values() for one in targets}
    if unknown := sorted({*wanted} - known):
        print(f"There is no {', '.join(unknown)} here; there are {', '.join(sorted(known))}.")
        return 2
    failed = []
    for name, targets in COPIES.items():
        chosen = [one for one in targets if not wanted or one in wanted]
        if not chosen:
            continue
        folder = ROOT / "build" / "afresh" / name
        copied(folder)
        failed += [one for one in chosen if not make(folder, one)]
        shutil.rmtree(folder)  # an environment takes gigabytes
    if failed:
        print(f"\nIn an environment of their own these failed: {', '.join(failed)}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
