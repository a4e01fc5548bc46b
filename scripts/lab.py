"""Open JupyterLab with gpushare: on this machine's GPUs or, without any, on simulated ones."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pynvml

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = "gpushare-tour.ipynb"
SIMULATED = "2x24GiB"


def real_gpus() -> tuple[list[str], str]:
    """The names of this machine's GPUs; when there are none, the reason why."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], str(error)
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [pynvml.nvmlDeviceGetName(handle) for handle in handles], "the driver lists no GPU"
    except pynvml.NVMLError as error:
        return [], str(error)
    finally:
        pynvml.nvmlShutdown()


def main(arguments: list[str]) -> None:
    environment = dict(os.environ)
    chosen = environment.get("JUPYTER_GPUSHARE_SIMULATE")
    names, why_none = real_gpus() if not chosen else ([], "")
    if chosen:
        print(f"gpushare: simulated GPUs ({chosen}), as JUPYTER_GPUSHARE_SIMULATE says.")
    elif names:
        print(f"gpushare: this machine's {len(names)} GPU(s): {', '.join(names)}.")
    else:
        environment["JUPYTER_GPUSHARE_SIMULATE"] = SIMULATED
        print(
            f"gpushare: no GPU here ({why_none}), so two simulated ones of 24 GiB each: they are "
            "granted, queued for and given back like real ones, and torch computes on the CPU."
        )
    folder = ROOT / ".lab"  # a copy to play with; the repository's stays clean
    folder.mkdir(exist_ok=True)
    if not (folder / NOTEBOOK).exists():
        shutil.copy(ROOT / "examples" / NOTEBOOK, folder)
    root = ["--allow-root"] if os.geteuid() == 0 else []
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url=/lab/tree/{NOTEBOOK}",
        *root,
        *arguments,
    ]
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    main(sys.argv[1:])
