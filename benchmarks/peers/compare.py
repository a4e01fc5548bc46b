"""``python benchmarks/peers/compare.py``: side by side with what people would pick instead.

The peers are installed from PyPI into an environment of their own. Nothing here needs a GPU: genv
gets a stand-in for nvidia-smi, polling scripts a stand-in for NVML's library, and our node manager
simulated GPUs or the same library. Same machine, same run. ``--quick`` does less of it, to see that
it works; ``--json FILE`` keeps the figures, from which page.py makes docs/comparison.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "tests")]

import cases  # noqa: E402
import speed  # noqa: E402
from crew import say  # noqa: E402
from machine import machine  # noqa: E402
from stage import install, versions  # noqa: E402
from support.nvml import build_stub  # noqa: E402

from jupyter_gpushare import __version__  # noqa: E402


def experiments(peers: str, library: Path, quick: bool) -> dict[str, Callable[[], Any]]:
    """All of them, in order, by the name under which their figures are kept."""
    crowd = 12 if quick else 50
    return {
        "latency": lambda: speed.latency(peers, 20 if quick else 200),
        "calls": lambda: speed.calls(peers, 1.0 if quick else 5.0),
        "churn": lambda: speed.churn(peers, 8, 5 if quick else 20),
        "rush": lambda: speed.rush(peers, library, crowd, 1.0, 1.0),
        "crash": lambda: speed.crash(peers, 1 if quick else 3),
        "untouched": lambda: speed.untouched(peers, 2.0 if quick else 10.0),
        "torn": lambda: speed.torn(peers, 3 if quick else 30, 20261121),
        "sessions": lambda: speed.sessions(12, 3, 4, 0.2, 0.6),
        "another_users_status": lambda: cases.another_users_status(peers),
        "sdk_process": lambda: cases.sdk_process(peers, library),
        "kernel_memory": lambda: cases.kernel_memory(peers, library),
    }


def main() -> None:
    """Install, measure, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", help="keep the figures in this file")
    parser.add_argument("--venv", help="keep the peers' environment here for the next run")
    parser.add_argument("--only", metavar="NAME", help="this experiment only")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="peers-"))
    # Another OS user imports the peers from there.
    folder.chmod(0o755)
    try:
        say("installing the peers …")
        peers = install(Path(arguments.venv) if arguments.venv else folder / "venv")
        library = build_stub(folder / "nvml")
        todo = experiments(peers, library, arguments.quick)
        if arguments.only:
            if arguments.only not in todo:
                parser.error(f"--only must be one of {', '.join(todo)}")
            todo = {arguments.only: todo[arguments.only]}
        figures = {name: work() for name, work in todo.items()}
        data = {
            "machine": machine(),
            "versions": {"jupyter_gpushare": __version__, **versions(peers)},
            "not_run": {
                "canhazgpu": "is not on PyPI: it needs Go 1.23 or a release's binary, and Redis"
                if shutil.which("canhazgpu") is None
                else "is here, but this script does not drive it"
            },
            **figures,
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(data, indent=1))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(data, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
