"""A real Slurm cluster on one machine: Debian's munged, slurmctld, and a slurmd for each host.

Each is a process on a host of :mod:`support.hosts`, so node managers, sockets and names are apart
as they are on a cluster. What lies on a cluster's shared disk lies in a folder: Slurm's
configuration, the homes, ``/srv``, and stand-ins for the GPUs' device files. People are in an
``/etc/passwd`` of the hosts' own; the machine does not know them.

    with Slurm(hosts=("n1", "n2"), gpus=2) as slurm:
        job = slurm.submit("alice", "python train.py", "--gpus=1")
        slurm.ends(job)
        print(slurm.out(job))

Standard library only: ``scripts/`` use it, too.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from .hosts import Hosts, NoHosts, impossible

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]

CONTROLLER = "login"  # slurmctld and munged run there, and people submit their jobs there
PEOPLE = ("alice", "bob")
_FIRST_USER = 61_301
WITHIN = 60.0  # seconds; only a test that fails waits so long
_TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "setpriv")
#: With this Python's own programs, so that jobs find ``jupyter gpushare``.
_PATH = f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: A job that is in none of these states has ended.
_GOES_ON = {"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED"}

_CONF = """\
ClusterName=tests
SlurmctldHost={controller}({address})
SlurmUser=root
SlurmdUser=root
SlurmctldPort=6817
# A job that was preempted may start again after cred_expire.
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/log/slurmctld.pid
SlurmdPidFile={folder}/log/%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
# No cgroup is made here, and no device is kept from anybody.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
KillWait=5
RequeueExit=75
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""

#: Slurm's own books, in a database that only this cluster has.
_ACCOUNTING = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageHost": CONTROLLER,
    "AccountingStorageTRES": "gres/gpu",
    "AccountingStoragePass": "{folder}/munge/socket",
}
_DATABASE = "/run/mysqld/mysqld.sock"  # where slurmdbd looks
_DBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost={controller}
SlurmUser=root
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/log/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
"""

#: A job can open its own GPUs only: Slurm's own walls, by control groups of version 1.
_CONSTRAINED = {"TaskPlugin": "task/cgroup", "ProctrackType": "proctrack/cgroup"}
_GROUPS = Path("/sys/fs/cgroup")
_HIERARCHIES = ("devices", "freezer")
#: Minor numbers of /dev/full and /dev/zero, which other programs hardly open; /dev/null they do.
_HARMLESS = (7, 5)

#: A folder that only its owner may enter is replaced by one that has only what people need of it.
_OPEN = """
folder=$1 closed=$2; shift 2
n=0; for path; do n=$((n + 1)); mkdir -p $folder/$n; mount --bind "$path" $folder/$n; done
mount -t tmpfs -o mode=755 none "$closed"
n=0; for path; do n=$((n + 1)); mkdir -p "$path"; mount --bind $folder/$n "$path"; done
"""


def _behind_closed_doors() -> dict[str, list[str]]:
    """The folders that others may not enter, such as ``/root``, and what of Python, its packages
    and this repository lies in each."""
    found: dict[str, list[str]] = {}
    for path in sorted({Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), ROOT}):
        closed = [one for one in path.parents if not one.stat().st_mode & stat.S_IXOTH]
        if closed:
            found.setdefault(str(closed[-1]), []).append(str(path))
    return found


def missing(*, constrain: bool = False, accounting: bool = False) -> str:
    """Why no Slurm can run here, or none such; empty where one can."""
    if lacking := [tool for tool in _TOOLS if shutil.which(tool, path=_PATH) is None]:
        return f"{' and '.join(lacking)} cannot be found (Debian: slurm-wlm, munge, util-linux)"
    tools = ("slurmdbd", "mariadbd", "mariadb-install-db") if accounting else ()
    if lacking := [tool for tool in tools if shutil.which(tool, path=_PATH) is None]:
        return f"{' and '.join(lacking)} cannot be found (Debian: slurmdbd, mariadb-server-core)"
    if constrain and not all((_GROUPS / name / "tasks").exists() for name in _HIERARCHIES):
        return "there are no control groups of version 1 for devices and freezer"
    return impossible()


class Slurm:
    """The cluster; a context manager that returns when all its hosts take jobs.

    Each of ``hosts`` has so many ``gpus``. ``settings`` are lines of ``slurm.conf``, and replace
    those of the same name. With ``constrain`` (``ConstrainDevices=yes``) a job can open its own
    GPUs only, and a host has two at most. With ``accounting`` there is a slurmdbd.
    Raises :class:`~support.hosts.NoHosts` where none can be.
    """

    def __init__(
        self,
        hosts: Sequence[str] = ("n1", "n2"),
        *,
        gpus: int = 2,
        cpus: int = 16,
        people: Sequence[str] = PEOPLE,
        settings: Mapping[str, str] = {},
        constrain: bool = False,
        accounting: bool = False,
    ) -> None:
        self.names, self.gpus, self._cpus = tuple(hosts), gpus, cpus
        self.people = {name: _FIRST_USER + number for number, name in enumerate(people)}
        self.hosts = Hosts((CONTROLLER, *self.names), real=True)
        self.folder = Path()
        self._constrain = constrain
        self._accounting = accounting
        more = (_CONSTRAINED if constrain else {}) | (_ACCOUNTING if accounting else {})
        self._settings = more | dict(settings)
        #: The daemons by their names: ``munged``, ``slurmctld``, and a ``slurmd`` by its host's.
        self.daemons: dict[str, subprocess.Popen[Any]] = {}

    # -- the cluster ---------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if why := missing(constrain=self._constrain, accounting=self._accounting):
            raise NoHosts(why)
        # Everybody's jobs look there, which pytest's folders do not let them.
        self.folder = Path(tempfile.mkdtemp(prefix="gpushare-slurm-"))
        self.folder.chmod(0o755)
        try:
            self.hosts.__enter__()
            self._write()
            for name in (CONTROLLER, *self.names):
                self._settle(name)
            self.start("munged")
            socket = self.folder / "munge/socket"
            self.until(socket.exists, "munged listens")
            if self._accounting:
                self._start_accounting()
            for name in ("slurmctld", *self.names):
                self.start(name)
            self.until(self._is_ready, "all hosts are idle")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all jobs and daemons, and remove the folder."""
        self.hosts.close()
        for group in self._groups():
            for folder, _folders, _files in os.walk(group, topdown=False):
                os.rmdir(folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, daemon: str) -> None:
        """Start one of :attr:`daemons`, which does not run."""
        munge = self.folder / "munge"
        commands = {
            "munged": ["munged", "--foreground", "--force", f"--key-file={munge}/key"]
            + [f"--{name}-file={munge}/{name}" for name in ("pid", "log", "seed")]
            + [f"--socket={munge}/socket"],
            "slurmctld": ["slurmctld", "-D"],
            "slurmdbd": ["slurmdbd", "-D"],
            "mariadbd": [
                *("mariadbd", "--no-defaults", "--skip-networking", "--user=root"),
                *(f"--datadir={self.folder}/db", f"--socket={_DATABASE}"),
            ],
        }
        command = commands.get(daemon, ["slurmd", "-D", "-N", daemon])
        host = self.hosts[CONTROLLER if daemon in commands else daemon]
        with (self.folder / f"log/{daemon}.out").open("ab") as said:
            self.daemons[daemon] = host.start(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=self.environ(),
                cwd=self.folder,
                start_new_session=True,
            )

    def _start_accounting(self) -> None:
        made = f"--datadir={self.folder}/db"
        tables = ["mariadb-install-db", "--no-defaults", "--user=root", "--skip-test-db", made]
        self.ask("root", *tables, "--auth-root-authentication-method=socket")
        self.ask("root", "mkdir", os.path.dirname(_DATABASE))
        self.start("mariadbd")
        self.until(self.hosts[CONTROLLER].outside(_DATABASE).exists, "the database listens")
        told = {"folder": self.folder, "controller": CONTROLLER}
        conf = self.folder / "slurmdbd.conf"
        conf.write_text(_DBD_CONF.format(**told))
        conf.chmod(0o600)
        self.start("slurmdbd")
        self.until(lambda: self._try("root", "sacctmgr", "--noheader", "list", "user"), "the books")

    def kill(self, daemon: str) -> None:
        """Kill one of :attr:`daemons` as hard as can be. Jobs go on: they are not its children."""
        self.daemons[daemon].send_signal(signal.SIGKILL)
        self.daemons[daemon].wait(WITHIN)

    def environ(self) -> dict[str, str]:
        """What Slurm's own commands need."""
        conf = str(self.folder / "slurm.conf")
        own = {"PATH": _PATH, "LANG": "C.UTF-8", "SLURM_CONF": conf}
        passed = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
        return own | {name: os.environ[name] for name in passed if name in os.environ}

    def story(self) -> str:
        """What the daemons said, for whoever must understand a failure."""
        logs = sorted((self.folder / "log").glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}" for log in logs)

    def until(self, look: Callable[[], T], what: str, within: float = WITHIN) -> T:
        """The first true thing that ``look`` gives; fails after so many seconds."""
        deadline = time.monotonic() + within
        while not (found := look()):
            assert time.monotonic() < deadline, f"not within {within:g} s: {what}\n{self.story()}"
            time.sleep(0.05)
        return found

    def _is_ready(self) -> bool:
        told = self._try("root", "sinfo", "--noheader", "--format=%T", "--Node", "--partition=gpu")
        return told.split() == ["idle"] * len(self.names)

    def _write(self) -> None:
        for name in ("munge", "state", "spool", "log", "home", "dev", "srv"):
            (self.folder / name).mkdir(mode=0o755)
        (self.folder / "munge/key").write_bytes(os.urandom(128))
        (self.folder / "munge/key").chmod(0o400)
        devices = self.folder / "dev"
        for index in range(self.gpus):
            minor = _HARMLESS[index] if index < len(_HARMLESS) else 3
            os.mknod(devices / f"nvidia{index}", stat.S_IFCHR, os.makedev(1, minor))
            (devices / f"nvidia{index}").chmod(0o666)
        each = f"CPUs={self._cpus} RealMemory=8000 Gres=gpu:{self.gpus} State=UNKNOWN"
        nodes = [
            f"NodeName={name} NodeHostname={name} NodeAddr={self.hosts[name].address} {each}"
            for name in self.names
        ]
        address = self.hosts[CONTROLLER].address
        fields = {"controller": CONTROLLER, "address": address, "folder": self.folder}
        lines = _CONF.format(nodes="\n".join(nodes), **fields).splitlines()
        lines = [line for line in lines if line.partition("=")[0] not in self._settings]
        lines += [f"{name}={value}".format(**fields) for name, value in self._settings.items()]
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        named = f"NodeName={','.join(self.names)} Name=gpu"
        gres = f"{named} File={devices}/nvidia[0-{self.gpus - 1}]\n"
        (self.folder / "gres.conf").write_text(gres)
        walls = "ConstrainDevices=no\n"
        if self._constrain:
            walls = f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={_GROUPS}\nConstrainDevices=yes\n"
        (self.folder / "cgroup.conf").write_text(walls)
        for name, number in self.people.items():
            home = self.home(name)
            home.mkdir(mode=0o700)
            os.chown(home, number, number)

    def _settle(self, host: str) -> None:
        """Let a host know the people, by files that cover its own."""
        lines = {"passwd": "{0}:x:{1}:{1}::{2}:/bin/bash\n", "group": "{0}:x:{1}:\n"}
        for file, line in lines.items():
            own = self.folder / f"{host}.{file}"
            people = [line.format(name, uid, self.home(name)) for name, uid in self.people.items()]
            own.write_text(Path(f"/etc/{file}").read_text() + "".join(people))
            self.hosts[host].ask(["mount", "--bind", str(own), f"/etc/{file}"])
        self.hosts[host].ask(["mount", "--bind", str(self.folder / "srv"), "/srv"])
        for closed, within in _behind_closed_doors().items():
            self.hosts[host].ask(
                ["sh", "-ec", _OPEN, "sh", str(self.folder / "open"), closed, *within]
            )
        for group in self._groups(host) if host in self.names else ():
            group.mkdir(exist_ok=True)
            self.hosts[host].ask(["mount", "--bind", str(group), str(group.parent)])

    def _groups(self, *hosts: str) -> list[Path]:
        """What the hosts take for the top of each hierarchy: two beds must not share their own."""
        name = f"{self.folder.name}-"
        return [
            _GROUPS / hierarchy / (name + host)
            for hierarchy in (_HIERARCHIES if self._constrain else ())
            for host in hosts or self.names
        ]

    # -- its people ----------------------------------------------------------------------------

    def home(self, who: str) -> Path:
        """Somebody's home, which all hosts share."""
        return Path("/root") if who == "root" else self.folder / "home" / who

    def command(self, who: str, *words: str, host: str = CONTROLLER) -> list[str]:
        """A command line that runs ``words`` as somebody, in their home, on a host."""
        uid, home = self.people.get(who, 0), str(self.home(who))
        own = {**self.environ(), "HOME": home, "USER": who, "LOGNAME": who}
        line = ["env", "-i", f"--chdir={home}", *(f"{k}={v}" for k, v in own.items())]
        as_user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
        return self.hosts[host].command([*line, *(as_user if uid else ()), *words], cwd="/")

    def ask(self, who: str, *words: str, host: str = CONTROLLER, **options: Any) -> str:
        """What a command of somebody's prints. Raises ``CalledProcessError``."""
        options = {"check": True, "capture_output": True, "text": True, "timeout": WITHIN} | options
        try:
            done = subprocess.run(self.command(who, *words, host=host), **options)
        except subprocess.CalledProcessError as error:
            error.add_note(f"{error.stdout}\n{error.stderr}")
            raise
        return str(done.stdout)

    def _try(self, *words: str) -> str:
        return self.ask(*words, check=False)

    def submit(self, who: str, script: str, *options: str) -> str:
        """Hand a job in; its id. ``script`` is its shell script, without the first line."""
        words = ["sbatch", "--parsable", "--output=job-%j.out", "--open-mode=append", *options]
        return self.ask(who, *words, input=f"#!/bin/bash\n{script}\n").strip()

    # -- its jobs ------------------------------------------------------------------------------

    def job(self, job: str) -> dict[str, str]:
        """What ``scontrol show job`` tells; empty where Slurm does not answer."""
        told = self._try("root", "scontrol", "show", "job", "--oneliner", job)
        # Of an array it shows all tasks, of which the last one has the array's own id.
        line = next((one for one in told.splitlines() if one.startswith(f"JobId={job} ")), "")
        return dict(word.split("=", 1) for word in shlex.split(line) if "=" in word)

    def state(self, job: str) -> str:
        """Slurm's word, such as ``RUNNING``."""
        return self.job(job).get("JobState", "")

    def has(self, job: str, state: str, within: float = WITHIN) -> None:
        """Wait until a job is in a state."""
        self.until(lambda: self.state(job) == state, f"job {job} is {state}", within)

    def ends(self, job: str, state: str = "COMPLETED", within: float = WITHIN) -> None:
        """Wait until a job has ended; it must have ended so."""
        self.until(lambda: self._has_ended(job), f"job {job} ends", within)
        assert self.state(job) == state, f"{self.job(job)}\n{self.out(job)}\n{self.story()}"

    def _has_ended(self, job: str) -> bool:
        return self.state(job) not in {"", *_GOES_ON}

    def out(self, job: str) -> str:
        """What a job has printed so far; an array's tasks have ids of their own."""
        told = self.job(job).get("StdOut", "")
        return Path(told).read_text(errors="replace") if os.path.exists(told) else ""

    def says(self, job: str, words: str, within: float = WITHIN) -> None:
        """Wait until a job has printed that."""
        wanted = functools.partial(self._has_said, job, words)
        self.until(wanted, f"job {job} says {words!r}", within)

    def _has_said(self, job: str, words: str) -> bool:
        ended = self._has_ended(job)
        if words in self.out(job):
            return True
        assert not ended, f"{words!r} was not said:\n{self.out(job)}\n{self.job(job)}"
        return False
