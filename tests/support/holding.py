"""A pool on a cluster's login host, whose hosts are jobs of the real Slurm."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Self

from .slurm import CONTROLLER, ROOT, Slurm

#: Whose pool it is, and who uses its GPUs.
OWNER, PERSON = "alice", "bob"
GPUSHARE = (sys.executable, "-m", "jupyter_gpushare.cli")
#: Nobody waits long for anything.
HASTY = ("--interval=0.3", "--patience=0.5", "--idle=600")

#: A person with a notebook on a host: a real kernel runs each line that comes.
_NOTEBOOK = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from support.kernel import Kernel
with Kernel(Path.home(), {socket!r}) as kernel:
    for line in sys.stdin:
        shown = kernel.run(line)
        said = shown.stream() + shown.stream("stderr") + str(shown.of("error") or "")
        print(said.replace("\\n", " "), flush=True)
"""

#: Somebody who has what others keep for themselves: a job's token, or a copy of a host's key.
_THIEF = """
import asyncio, sys, time
from jupyter_gpushare.daemon.membership import ask
from jupyter_gpushare.pool import joining
from jupyter_gpushare.protocol import framing, messages, secured

async def token(text, name):
    said = {"name": name, "port": 10205, "csr": ask().csr, "version": "1"}
    return (await joining.ask(joining.Token.read(text), said, time.time()))["name"]

async def key(folder, host, port):
    context = secured.client_context(open(f"{folder}/ca.pem").read(), f"{folder}/host.pem")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(framing.encode(messages.call(1, messages.Method.STATUS, {})))
    told = await asyncio.wait_for(reader.readline(), 20)
    if not told:
        raise OSError("nothing was answered")
    return told

for line in sys.stdin:
    how, *words = line.split()
    try:
        print("got", asyncio.run({"token": token, "key": key}[how](*words)), flush=True)
    except (joining.NotJoined, OSError) as error:
        print("no:", error, flush=True)
"""


class Holding:
    """The pool, and ``pool slurm`` beside it, which is started by :meth:`keep`."""

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm
        self.home = slurm.home(OWNER)
        self.letters = self.home / "letters"
        self.sockets = slurm.folder / "sockets"
        self._log = slurm.folder / "log/pool.out"
        self._pool: subprocess.Popen[Any] | None = None
        self._keeps: subprocess.Popen[Any] | None = None
        self._people: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        self.sockets.mkdir(mode=0o755, exist_ok=True)
        os.chown(self.sockets, *[self.slurm.people[OWNER]] * 2)
        self.serve()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._people:
            _kill(process)
        self.end()
        self.slurm.ask("root", "scancel", f"--user={OWNER}")
        self.slurm.until(lambda: not self.jobs(), "no job is left")
        self.away()
        shutil.rmtree(self.home / "pool")

    # -- the pool, and what keeps its hosts --------------------------------------------------------

    def serve(self) -> None:
        """Start the pool."""
        address = self.slurm.hosts[CONTROLLER].address
        self._pool = self._start("serve", "--folder=pool", f"--address={address}")
        self.slurm.until((self.home / "pool.sock").exists, "the pool serves")

    def away(self) -> None:
        """Kill the pool, if it is there."""
        _kill(self._pool)
        (self.home / "pool.sock").unlink(missing_ok=True)

    def keep(self, *options: str, gpus: int = 2, time: str = "1h") -> None:
        """Start ``pool slurm``."""
        size = (f"--gpus={gpus}", f"--time={time}")
        self.keep_by(f"--sockets={self.sockets}", *HASTY, *size, *options)

    def keep_by(self, *options: str) -> None:
        """The same with only these options, and what the node managers need here."""
        node = ("--", "--simulate=2x24GiB", "--NodeManagerApp.measure_interval=0.2")
        self._keeps = self._start("slurm", f"--folder={self.letters}", *options, *node)

    def end(self) -> None:
        """End it; jobs stay."""
        _kill(self._keeps, signal.SIGTERM)

    def _start(self, verb: str, *words: str) -> subprocess.Popen[Any]:
        line = [*GPUSHARE, "pool", verb, "--socket=pool.sock", *words]
        with self._log.open("ab") as said:
            command = self.slurm.command(OWNER, *line)
            return subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)

    def said(self) -> str:
        """What the pool and ``pool slurm`` said."""
        return self._log.read_text()

    def verb(self, *words: str) -> dict[str, Any]:
        """The document of a verb of the pool's."""
        line = (*GPUSHARE, "pool", *words, "--socket=pool.sock", "--json")
        told: dict[str, Any] = json.loads(self.slurm.ask(OWNER, *line))
        return told

    def hosts(self) -> dict[str, Mapping[str, Any]]:
        """The pool's hosts that it reaches."""
        return {row["host"]: row for row in self.verb("hosts")["hosts"] if row["connected"]}

    def comes(self, name: str, *, but: str = "") -> str:
        """Wait for a host that another job holds than ``but``; the job's id."""

        def held() -> str:
            row = self.hosts().get(name)
            piece = str(row["held"]["piece"]) if row else ""
            return "" if piece == but or row is None or row["report"]["draining"] else piece

        found = self.slurm.until(held, f"{name} is there: {self.said()}")
        return found.removeprefix("job ")

    def jobs(self) -> list[str]:
        """The ids of the owner's jobs that have not ended."""
        told = self.slurm.ask("root", "squeue", "--noheader", f"--user={OWNER}", "--format=%i")
        return told.split()

    def log(self, job: str) -> str:
        """What a job has printed."""
        return (self.letters / f"{job}.log").read_text()

    # -- people ------------------------------------------------------------------------------------

    def notebook(self, host: str, who: str = PERSON) -> Notebook:
        """A notebook of a person's on a host."""
        script = _NOTEBOOK.format(tests=str(ROOT / "tests"), socket=f"{self.sockets}/{host}.sock")
        return self._lines(script, host, who)

    def thief(self, host: str, who: str = PERSON) -> Notebook:
        """Somebody on a host who uses what a line has: ``token TEXT NAME``, ``key FOLDER HOST
        PORT``; shown is what it "got", or why "no:"."""
        return self._lines(_THIEF, host, who)

    def _lines(self, script: str, host: str, who: str) -> Notebook:
        command = self.slurm.command(who, sys.executable, "-c", script, host=host)
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._people.append(process)
        return Notebook(process)


class Notebook:
    """Cells of one line, or what else is answered by a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def send(self, cell: str) -> None:
        """Run a cell."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{cell}\n")
        self._process.stdin.flush()

    def shows(self) -> str:
        """What the cell has shown, when it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def run(self, cell: str) -> str:
        """The same, at once."""
        self.send(cell)
        return self.shows()


def _kill(process: subprocess.Popen[Any] | None, number: int = signal.SIGKILL) -> None:
    if process is not None:
        if process.poll() is None:
            process.send_signal(number)
        process.communicate(timeout=60)
