"""People's servers inside the jobs of Slurm that hold hosts for a pool.

Where Slurm keeps GPUs from all jobs that did not ask for them (``ConstrainDevices=yes``), only
processes of the job that holds them can use them. Such a job is root's, and has a door
(:mod:`jupyter_gpushare.starts.door`); the verb here goes through it from the Hub's host.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ..console.verb import Refused, UsageError, WithCommand, option
from ..pool.verbs import AtPool
from ..protocol.poolcalls import PoolMethod
from .holder import DOOR
from .slurm import KEPT


class InsideApp(AtPool, WithCommand):
    """Run a command as a person in the job that holds a host of the pool. PoolSpawner starts
    servers by it, where `jupyter gpushare pool slurm --servers` submitted the job. Only root can.
    The exit status is 69 where no job holds the host any more."""

    name = "pool slurm-run"
    arguments = "HOST PERSON COMMAND..."
    examples = """
    jupyter gpushare pool slurm-run --sockets=/run/gpushare n1 alice nvidia-smi -L
    """

    sockets = option("", "The folder of the sockets, as `pool slurm` has it.")

    def run(self, arguments: list[str]) -> int:
        if len(arguments) < 3 or not self.sockets:
            raise UsageError("say --sockets, a host, a person and a command")
        host, person, *command = arguments
        rows = self.ask(PoolMethod.HOSTS)["hosts"]
        held = next((row["held"] for row in rows if row["host"] == host), None)
        if held is None or not held["piece"].startswith("job "):
            print(f"No job holds {host} for the pool.", file=sys.stderr)
            return os.EX_UNAVAILABLE
        job = held["piece"].removeprefix("job ")
        self._enter(job, [f"{self.sockets}/{host}.door", person, *command])

    def _enter(self, job: str, words: list[str]) -> NoReturn:
        """By a step that has nothing of this process's environment, which may have secrets."""
        line = ["srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", "--quiet"]
        line += ["--export=NONE", sys.executable, "-m", DOOR, "enter", *words]
        environ = {name: os.environ[name] for name in KEPT if name in os.environ}
        try:
            os.execvpe(line[0], line, environ)
        except OSError as error:
            raise Refused(f"srun cannot be run: {error.strerror}.") from error
