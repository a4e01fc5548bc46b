"""Where the peers play: their own Python, a stand-in for nvidia-smi, our node manager."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.node import RunningNode
from support.nvml import NvmlWorld

HERE = Path(__file__).resolve().parent
#: The releases that are compared, from PyPI.
PEERS = ("genv==1.4.3", "jupyterlab-genv==0.4.0")
GIB = 2**30
GPUS = 8


def install(folder: Path) -> str:
    """Make an environment with the peers in it, once; its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    done = subprocess.run(
        [*pip, *PEERS, "ipykernel"], check=False, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise RuntimeError(f"the peers cannot be installed:\n{done.stderr}")
    return str(python)


def versions(python: str) -> dict[str, str]:
    """Who is compared, with the versions that are installed."""
    code = (
        "import importlib.metadata as m, json;"
        "print(json.dumps({n: m.version(n) for n in ('genv', 'jupyterlab-genv')}))"
    )
    told = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(told.stdout)
    return found


def plain_environment() -> dict[str, str]:
    """This environment without what would tell either side about GPUs."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GENV_", "CUDA_", "JUPYTER", "JPY_", "PYTHONPATH"))
    }


@dataclass(frozen=True)
class GenvHost:
    """A host on which genv is used: its state, and the GPUs that nvidia-smi shows."""

    python: str
    state: Path
    world: Path
    uuids: tuple[str, ...]

    @property
    def environ(self) -> dict[str, str]:
        """For every process on it."""
        bin_folder = str(Path(self.python).parent)
        path = [str(HERE / "stand_in"), bin_folder, os.environ["PATH"]]
        return {
            **plain_environment(),
            "PATH": ":".join(path),
            "GENV_TMPDIR": str(self.state),
            "GPU_WORLD": str(self.world),
        }

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """``genv …`` to its end."""
        return subprocess.run(
            [str(Path(self.python).parent / "genv"), *arguments],
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )

    def uses(self, gpu: int, pid: int, mib: int) -> None:
        """From now on nvidia-smi shows this process."""
        with (self.world / "apps").open("a") as file:
            file.write(f"{self.uuids[gpu]}, {pid}, {mib}\n")

    def attached(self) -> dict[int, list[str]]:
        """Which environments genv's state file gives each GPU to; read as it is."""
        document = json.loads((self.state / "devices.json").read_text())
        return {
            device["index"]: [entry["eid"] for entry in device["attachments"]]
            for device in document["devices"]
        }


@contextlib.contextmanager
def genv_host(python: str, gpus: int = GPUS) -> Iterator[GenvHost]:
    """A fresh host. Its state folder is open to everybody, as genv makes it."""
    with open_folder() as folder:
        state, world = folder / "genv", folder / "world"
        state.mkdir()
        state.chmod(0o777)
        world.mkdir()
        world.chmod(0o755)
        uuids = tuple(f"GPU-{uuid.uuid4()}" for _ in range(gpus))
        (world / "memory").write_text("24576\n" * gpus)
        (world / "uuids").write_text("".join(f"{u}, {i}\n" for i, u in enumerate(uuids)))
        (world / "apps").write_text("")
        yield GenvHost(python, state, world, uuids)


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that other OS users may enter."""
    folder = Path(tempfile.mkdtemp(prefix="peers-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class OurHost:
    """A host with our node manager; person ``n`` shows the token ``person-n``."""

    node: RunningNode
    folder: Path

    def environ(self, person: int) -> dict[str, str]:
        """For a process of one person."""
        return {
            **plain_environment(),
            "PYTHONPATH": str(HERE.parents[1]),
            "JUPYTER_GPUSHARE_SOCKET": str(self.node.socket),
            "JUPYTER_GPUSHARE_TOKEN": f"person-{person}",
        }

    def verb(self, person: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``jupyter gpushare …`` to its end."""
        return subprocess.run(
            [sys.executable, "-m", "jupyter_gpushare.cli", *arguments],
            env=self.environ(person),
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )


@contextlib.contextmanager
def our_host(
    *,
    people: int = 1,
    gpus: int = GPUS,
    world: NvmlWorld | None = None,
    config: str = "",
    exclusive: bool = True,
) -> Iterator[OurHost]:
    """A node manager with simulated GPUs, or with those of ``world``."""
    with open_folder() as folder:
        tokens = folder / "tokens.json"
        tokens.touch(0o600)
        rows = [{"token": f"person-{n}", "environment": f"person-{n}"} for n in range(people)]
        tokens.write_text(json.dumps({"tokens": rows}))
        arguments = [f"--token-file={tokens}"]
        arguments += ["--Connections.calls_per_second=100000", "--Connections.burst=100000"]
        arguments += ["--Connections.recorded_per_second=1e9"]
        if exclusive:
            arguments.append("--Policy.max_tasks_per_gpu=1")
        environ = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
        node = RunningNode(
            folder,
            simulate=f"{gpus}x24GiB" if world is None else "",
            config=config,
            arguments=arguments,
            environ=environ if world is None else world.environ(environ),
            shared=True,
        )
        with node:
            yield OurHost(node, folder)


#: An OS user who is somebody else, where we may become one.
OTHER_USER = 65534


@dataclass(frozen=True)
class SomebodyElse:
    """A second user of the host, with a home and a Jupyter that work.

    ``user`` is an OS user of its own, or ``None`` where we cannot become one: then it is this user
    with another home, which is all that either tool looks at here.
    """

    user: int | None
    python: str
    home: Path

    def run(
        self, environ: Mapping[str, str], modules: str, *command: str
    ) -> subprocess.CompletedProcess[str]:
        """``python -m command…`` with ``modules`` to import from."""
        path = f"{self.home / 'bin'}:{environ['PATH']}"
        own = {"HOME": str(self.home), "JUPYTER_RUNTIME_DIR": str(self.home / "runtime")}
        return subprocess.run(
            [self.python, "-m", *command],
            env={**environ, **own, "PYTHONPATH": modules, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            user=self.user,
            cwd="/",
        )


@contextlib.contextmanager
def somebody_else() -> Iterator[SomebodyElse]:
    """The second user. A Python that this OS user may run is looked for among the usual places."""
    with open_folder() as home:
        user: int | None = None
        python = sys.executable
        if os.getuid() == 0:
            for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
                if _may_run(candidate):
                    user, python = OTHER_USER, candidate
                    break
        bin_folder = home / "bin"
        bin_folder.mkdir()
        (home / "runtime").mkdir()
        jupyter = bin_folder / "jupyter"
        jupyter.write_text(f'#!/bin/sh\nexec {python} -m jupyter "$@"\n')
        jupyter.chmod(0o755)
        yield SomebodyElse(user, python, home)


def _may_run(python: str) -> bool:
    code = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    try:
        return subprocess.run([python, "-c", code], user=OTHER_USER, check=False).returncode == 0
    except OSError:
        return False


def modules_of(python: str) -> str:
    """Where this Python imports packages from."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def people(host: OurHost, count: int) -> Sequence[dict[str, str]]:
    """An environment of processes for each of ``count`` people."""
    return [host.environ(number) for number in range(count)]
