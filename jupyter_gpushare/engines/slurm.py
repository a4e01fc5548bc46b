"""Slurm: jobs hold GPUs for a pool, each with a node manager for just these GPUs.

What there is, Slurm says at each look, by the jobs' name and user. A job is submitted with a script
that holds nothing secret; its token comes to it by a letter (:mod:`.letters`) once it runs. What a
job's process needs of the submitter's environment is named; nothing else goes along.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

from jupyter_core.paths import jupyter_data_dir

from ..console.verb import Refused, UsageError, WithCommand, flag, number, option, options
from ..protocol.privateplace import UnsafePlace, make_private
from ..protocol.sizes import MOST_GPUS
from ..protocol.times import parse_duration
from . import letters
from .engine import EngineAway
from .holder import HolderVerb
from .keeping import KeepingVerb
from .wanted import Held, Stage

#: Seconds for an answer of Slurm's programs.
_PATIENCE: Final = 60.0
#: What goes along into a job: none of these is secret.
KEPT: Final = (
    *("HOME", "USER", "LOGNAME", "PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "SLURM_CONF"),
    *("JUPYTER_CONFIG_DIR", "JUPYTER_CONFIG_PATH", "JUPYTER_DATA_DIR"),
)
_STAGES: Final = {
    **dict.fromkeys(("PENDING", "CONFIGURING"), Stage.ASKED),
    # A suspended job has its allocation, and goes on where it was.
    **dict.fromkeys(("RUNNING", "SUSPENDED"), Stage.THERE),
}
_AFTER: Final = re.compile(r"afterany:(\d+)")


def asked(*words: str, given: str = "") -> str:
    """What one of Slurm's programs says. Raises :class:`EngineAway`."""
    # Times as Unix seconds, whatever the zone and the site's habit.
    environ = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(
            words,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE,
            env=environ,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineAway(f"Slurm does not answer: {error}.") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit status {done.returncode}"
        raise EngineAway(f"{words[0]} refused: {said}")
    return done.stdout


#: What ``squeue`` is to say of a job.
_LISTED: Final = "%i|%T|%N|%e|%E"


def read_job(line: str) -> Held:
    """A job as ``squeue`` lists it in the form of :data:`_LISTED`."""
    job, state, node, ends, after = line.split("|", 4)
    stage, follows = _STAGES.get(state, Stage.GOING), _AFTER.search(after)
    until = float(ends) if stage is Stage.THERE and ends.isdecimal() else None
    return Held(f"job {job}", stage, node, until, f"job {follows.group(1)}" if follows else "")


class Slurm:
    """Jobs of this user that are called ``title``. ``submit`` are options of ``sbatch``."""

    def __init__(self, title: str, submit: list[str], script: str, folder: Path) -> None:
        self.name: Final = "Slurm" if title == TITLE else f"Slurm {title}"
        self._title = title
        self._submit = submit
        self._script = script
        self._folder = folder

    def hosts(self) -> list[Held]:
        """Its jobs that have not ended."""
        user = pwd.getpwuid(os.geteuid()).pw_name
        named = (f"--user={user}", f"--name={self._title}")
        told = asked("squeue", "--noheader", *named, f"--format={_LISTED}")
        return [read_job(line) for line in told.splitlines() if line.strip()]

    def hold(self, after: Held | None) -> None:
        """Submit a job; a successor begins when the other has ended, on the same host."""
        then = []
        if after is not None:
            job = after.piece.removeprefix("job ")
            then = [f"--dependency=afterany:{job}", f"--nodelist={after.place}"]
        asked("sbatch", "--parsable", *self._submit, *then, given=self._script)

    def admit(self, held: Held, name: str, token: str) -> None:
        """Leave the letter that the job waits for."""
        try:
            letters.put(self._folder, held.piece, {"name": name, "token": token})
        except (OSError, UnsafePlace) as error:
            raise EngineAway(f"The token cannot be left for {held.piece}: {error}.") from error

    def gone(self, held: Held) -> None:
        """Cancel the job. One that has ended meanwhile is gone all the same."""
        asked("scancel", "--quiet", held.piece.removeprefix("job "))


TITLE: Final = "gpushare"


class SlurmApp(KeepingVerb, WithCommand):
    """Have jobs of Slurm hold GPUs for the pool: more while people wait, fewer while
    GPUs idle. Each job runs a node manager for its own GPUs, which joins the pool, and takes itself
    out of service before the job ends. It goes on until you end it; run it beside the pool, as the
    pool's user, where sbatch is. Jobs stay when it ends, and are known again."""

    name = "pool slurm"
    arguments = "[-- OPTIONS OF THE NODE MANAGER]"
    examples = """
    jupyter gpushare pool slurm --partition gpu --gpus 4 --time 8h --min 1 --max 6
    """

    partition = option("", "The partition. Left out: Slurm's default.")
    gpus = option(1, "GPUs of a job, all on one host.", read=number(1, MOST_GPUS))
    time = option(28800.0, "For how long a job holds them.", parse_duration)
    notice = option(
        600.0,
        """How long before the end nothing new begins there and people are told; a quarter of --time
        at most.""",
        parse_duration,
    )
    title = option(TITLE, "The jobs' name. Two of these verbs need two.", name="job-name")
    more = options("An option of sbatch, such as --sbatch=--qos=class.", name="sbatch")
    folder = option(
        "",
        """Folder of yours where jobs get their tokens and write their logs; all hosts must see it.
        Left out: gpushare-slurm in Jupyter's data directory.""",
    )
    sockets = option(
        "",
        """Folder of yours for the sockets, HOST.sock, which others may enter but not write. Left
        out: only your own processes can use the GPUs.""",
    )
    servers = flag(
        """People's servers start inside the jobs, by `pool slurm-run`: needed where Slurm keeps
        GPUs from other jobs (ConstrainDevices=yes). Only root can."""
    )
    port = option(0, "Port of the node managers. 0: any free one.", read=number(0, 65535))

    def run(self, arguments: list[str]) -> int:
        if not re.fullmatch(r"[\w.-]{1,64}", self.title):
            raise UsageError("--job-name has letters, digits, dots, dashes and underscores only")
        if self.servers and (os.geteuid() != 0 or not self.sockets):
            raise UsageError("--servers needs --sockets, and root, who starts them as their people")
        folder = Path(self.folder or Path(jupyter_data_dir(), "gpushare-slurm")).absolute()
        try:
            make_private(str(folder))
        except (OSError, UnsafePlace) as error:
            raise Refused(f"Tokens would not be safe: {error}.") from error
        engine = Slurm(self.title, self._options(folder), self._script(folder, arguments), folder)
        return self.keep(engine, self.gpus)

    def _options(self, folder: Path) -> list[str]:
        kept = ",".join(name for name in KEPT if name in os.environ)
        return [
            f"--job-name={self.title}",
            *([f"--partition={self.partition}"] if self.partition else ()),
            *("--nodes=1", "--ntasks=1", f"--gres=gpu:{self.gpus}"),
            f"--time={max(1, round(self.time / 60))}",
            # One that is preempted is asked for anew, with another token.
            "--no-requeue",
            f"--output={folder}/%j.log",
            f"--chdir={folder}",
            f"--export={kept}",
            *self.more,
        ]

    def _script(self, folder: Path, node: list[str]) -> str:
        words = [sys.executable, "-m", "jupyter_gpushare.cli", *JobApp.name.split()]
        words += [f"--folder={folder}", f"--grace={_kill_wait()}", f"--port={self.port}"]
        words += [f"--notice={min(self.notice, self.time / 4)}"]
        words += [f"--sockets={Path(self.sockets).absolute()}"] if self.sockets else []
        words += ["--door"] if self.servers else []
        return f"#!/bin/sh\nexec {shlex.join([*words, '--', *node])}\n"


def _kill_wait() -> float:
    """Seconds between SIGTERM and SIGKILL. Raises :class:`EngineAway`."""
    told = re.search(r"^KillWait\s*=\s*(\d+)", asked("scontrol", "show", "config"), re.M)
    return 30.0 if told is None else float(told.group(1))


class JobApp(HolderVerb):
    """Hold this job's GPUs for a pool. `jupyter gpushare pool slurm` submits jobs
    that run this."""

    name = "pool slurm-job"
    what = "its Slurm job"

    def piece(self) -> str:
        job = os.environ.get("SLURM_JOB_ID", "")
        if not job:
            raise Refused("This is no job of Slurm. `jupyter gpushare pool slurm` submits them.")
        return f"job {job}"

    def ends(self) -> float | None:
        job, told = os.environ["SLURM_JOB_ID"], ""
        with contextlib.suppress(EngineAway):  # what it said last counts
            told = asked("squeue", "--noheader", f"--jobs={job}", "--format=%e").strip()
        return float(told) if told.isdecimal() else None
