"""A real node manager with simulated GPUs, and the real command line talking to it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from jupyter_gpushare.cli.app import main

from .node import RunningNode, until as until

CLI = [sys.executable, "-m", "jupyter_gpushare.cli"]


def in_process(
    *words: str, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a verb to its end as `CLI` does, in this process, which costs a twentieth of a start.

    For verbs that ask, answer and end. What does something to its process needs one of its own:
    ``run``, ``node``. An error that a person would see as a traceback is raised here.
    """
    out, err = io.StringIO(), io.StringIO()
    code: Any = None
    # A terminal's width would be that of whoever runs the tests.
    given = {"COLUMNS": "80", **(os.environ if environ is None else environ)}
    with (
        mock.patch.dict(os.environ, given, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code
    return subprocess.CompletedProcess(words, code or 0, out.getvalue(), err.getvalue())


class LiveNode(RunningNode):
    """``jupyter gpushare node --simulate …``, and the environment in which verbs find it."""

    def __init__(self, folder: Path, simulate: str = "2x24GiB", *options: str) -> None:
        own = {k: v for k, v in os.environ.items() if not k.startswith("JUPYTER_GPUSHARE")}
        super().__init__(folder, simulate=simulate, arguments=options, environ=own)
        self.environ |= {
            "JUPYTER_GPUSHARE_SOCKET": str(self.socket),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        }

    def command(self) -> list[str]:
        return [*CLI, "node", *super().command()[len(CLI) :]]

    def cli(
        self, *arguments: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a verb to its end."""
        return subprocess.run(
            [*CLI, *arguments],
            env={**self.environ, **(environ or {})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def here(
        self, *arguments: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """As `cli`, in this process: for what looks at, or changes, what the node manager has."""
        return in_process(*arguments, environ={**self.environ, **(environ or {})})

    def json(self, *arguments: str) -> dict[str, Any]:
        """What a verb prints with ``--json``."""
        done = self.here(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert isinstance(result, dict)
        return result

    def spawn(
        self, *arguments: str, environ: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a verb; the caller ends and reaps it."""
        return subprocess.Popen(
            [*CLI, *arguments],
            env={**self.environ, **(environ or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def hold(self, *options: str, **how: Any) -> subprocess.Popen[str]:
        """A command under ``run`` that has its GPUs, until its input ends."""
        return started(self.begin(*options, **how))

    def begin(self, *options: str, **how: Any) -> subprocess.Popen[str]:
        """As `hold`, which may wait for its GPUs."""
        command = ("sh", "-c", "echo up; read line")
        return self.spawn("run", *options, "--", *command, stdin=subprocess.PIPE, **how)


def started(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """The process, which says that it is up."""
    if process.stdout.readline() != "up\n":
        process.kill()
        raise AssertionError(process.communicate()[1])
    return process


def let_go(*processes: subprocess.Popen[str]) -> None:
    """End the input of each, and wait until it has ended."""
    for process in processes:
        process.communicate("\n", timeout=60)
