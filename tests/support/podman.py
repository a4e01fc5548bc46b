"""podman as docker, for tests: its images, its containers, and its service with docker's own API.

Storage and settings are the test's own folder's; a Debian made by debootstrap stands in for the
images' base, which no registry gives here. Both stay in the folder, for the next time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .jupyter import end, wait_for

ROOT = Path(__file__).parents[2]
BASE = "localhost/base-of-the-images"
#: `docker`, as the pages write it. No namespace and no bridge of a host without such is needed.
DOCKER = """#!/bin/sh
case "$1" in build)
  shift
  set -- --no-cache --pull=never --format=docker --isolation=chroot --network=host "$@"
  set -- build --build-arg=BASE={base} "$@"
esac
exec podman --root={folder}/store --runroot={folder}/run "$@"
"""
SETTINGS = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""


def missing() -> str:
    """Why podman cannot run here, or an empty text."""
    if os.geteuid() != 0:
        return "only root has containers whose user ids are the host's"
    tools = [tool for tool in ("podman", "runc", "debootstrap") if shutil.which(tool) is None]
    return f"apt install {' '.join(tools)}" if tools else ""


def stale() -> str:
    """Why the wheels in ``dist`` are not those of this tree, or an empty text."""
    wheels = [*(ROOT / "dist").glob("*.whl")]
    if not wheels:
        return "there are no wheels in dist: `make test-podman` builds them"
    made = min(wheel.stat().st_mtime for wheel in wheels)
    newer = [
        path for path in (ROOT / "jupyter_gpushare").rglob("*.py") if path.stat().st_mtime > made
    ]
    return f"{newer[0].name} is newer than the wheels in dist: `make test-podman`" if newer else ""


class Podman:
    """Call it as one calls docker; it returns the output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "docker.sock"
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        docker = folder / "bin" / "docker"
        docker.write_text(DOCKER.format(base=BASE, folder=folder))
        docker.chmod(0o755)
        (folder / "containers.conf").write_text(SETTINGS)
        self.environ = {
            **os.environ,
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }

    def __call__(self, *words: str) -> str:
        return self.script('exec docker "$@"', *words).strip()

    def script(self, text: str, *words: str) -> str:
        """Run a shell's script that says docker, in the folder of the repository."""
        command = ["sh", "-euc", text, "sh", *words]
        done = subprocess.run(
            command, env=self.environ, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (
            f"{text} {words}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
        return done.stdout

    def inspect(self, container: str) -> dict[str, Any]:
        """What docker tells of a container."""
        (told,) = json.loads(self("inspect", "--type=container", container))
        return dict(told)

    def pid(self, container: str) -> int:
        """The host's number of the container's first process; 0 while it does not run."""
        return int(self.inspect(container)["State"]["Pid"])

    def is_healthy(self, container: str) -> bool:
        """Whether the image's own HEALTHCHECK passes now."""
        command = ["docker", "healthcheck", "run", container]
        return not subprocess.run(
            command, env=self.environ, capture_output=True, check=False
        ).returncode

    def make_base(self) -> None:
        """A Debian with Python and pip, unless it is there."""
        if BASE in self("images", "--format={{.Repository}}"):
            return
        root = self.folder / "debian"
        if not (root / "usr/bin/pip3").exists():
            packages = "--include=ca-certificates,python3,python3-pip"
            self.script(
                'exec debootstrap --variant=minbase "$@" >&2', packages, "trixie", str(root)
            )
        for mark in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            mark.unlink()
        (root / "usr/bin/python").unlink(missing_ok=True)
        (root / "usr/bin/python").symlink_to("python3")
        # For a host behind a proxy with a certificate of its own.
        known = Path("etc/ssl/certs/ca-certificates.crt")
        shutil.copyfile("/" / known, root / known)
        self.script('tar -C "$1" -c . | docker import - "$2"', str(root), BASE)

    @contextmanager
    def service(self) -> Iterator[None]:
        """Docker's API at ``socket``. In the end no container and no nameless image is left."""
        self.socket.unlink(missing_ok=True)
        command = ["docker", "system", "service", "--time=0", f"unix://{self.socket}"]
        with (self.folder / "service.log").open("wb") as log:
            running = subprocess.Popen(command, env=self.environ, stdout=log, stderr=log)
        try:
            wait_for(self.socket.exists, 60, "podman's service")
            yield
        finally:
            self("rm", "--all", "--force", "--time=5")
            self("image", "prune", "--force")
            end(running)
