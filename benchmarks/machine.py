"""What was measured, when and on what: beside every figure."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def machine() -> dict[str, Any]:
    """Processor, cores, kernel, Python, date, commit and the load at this moment."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "date": today(),
        "commit": commit(),
        "load average": round(os.getloadavg()[1], 1),
    }


def today() -> str:
    """As a page says it."""
    return time.strftime("%Y-%m-%d", time.gmtime())


def commit() -> str:
    """The commit that is checked out; ``+`` after it: with changes outside of docs/."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", ":!docs")
    return (git("rev-parse", "--short=8", "HEAD") or "unknown") + ("+" if changed else "")


def said(where: dict[str, Any]) -> str:
    """The same as a line of a page."""
    return ", ".join(f"{name}: {value}" for name, value in where.items())


if __name__ == "__main__":
    print(said(machine()))
