"""Build the images of etc/deploy/docker and use them, without docker and without a registry.

``make images``: as root, on Debian or Ubuntu with buildah and debootstrap. A Debian of debootstrap
stands in for the base image; buildah builds both Dockerfiles on it. Then the node manager runs in
its root, two people's JupyterLabs run in roots, PID and mount namespaces of their own, and a
notebook of each gets a GPU over the socket's directory, which they see read-only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import httpx  # noqa: E402
from support.hub import free_ports  # noqa: E402
from support.jupyter import TOKEN, Kernel, Server, wait_for  # noqa: E402

DOCKERFILES = ROOT / "etc" / "deploy" / "docker"
#: The name of the Dockerfiles' base; what has it here is made by debootstrap.
BASE = "docker.io/library/python:3.13-slim-trixie"
SHARED = Path("run/jupyter-gpushare")
STATE = Path("var/lib/jupyter-gpushare")
#: Seconds for what imports many modules for the first time, on a machine with other work.
LONG = 180.0
#: $0 is the root. A server's processes are its own, and it cannot write where the socket is.
MOUNTS = 'mount --bind "$SHARED" "$0/run/jupyter-gpushare" && mount --bind /dev "$0/dev"'
OWN = ' && mount -o remount,ro,bind "$0/run/jupyter-gpushare" && mount -t proc proc "$0/proc"'
HOSTS = ' && mount --rbind /proc "$0/proc"'


def run(*command: str | Path, **more: Any) -> str:
    """Its output; ends with its error."""
    words = [str(word) for word in command]
    return subprocess.run(
        words, stdout=subprocess.PIPE, text=True, check=True, **more
    ).stdout.strip()


class Store:
    """buildah's images and containers, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._buildah = ("buildah", "--root", folder / "store", "--runroot", folder / "run")
        self._buildah += ("--storage-driver", "vfs")

    def __call__(self, *arguments: str | Path) -> str:
        return run(*self._buildah, *arguments)

    def make_base(self, folder: Path) -> None:
        """A Debian with Python, under the name of the base, if it is not there."""
        if "python:3.13-slim-trixie" in self("images", "--format", "{{.Name}}:{{.Tag}}"):
            return
        if not (folder / "usr/bin/python3.13").exists():
            packages = "--include=ca-certificates,python3,python3-pip"
            run(
                "debootstrap",
                "--variant=minbase",
                packages,
                "trixie",
                folder,
                stdin=subprocess.DEVNULL,
            )
        for mark in folder.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            mark.unlink()
        (folder / "usr/bin/python").unlink(missing_ok=True)
        (folder / "usr/bin/python").symlink_to("python3")
        # For a host behind a proxy with a certificate of its own.
        certificates = Path("etc/ssl/certs/ca-certificates.crt")
        shutil.copyfile("/" / certificates, folder / certificates)
        made = self("from", "scratch")
        run("cp", "-a", f"{folder}/.", self("mount", made))
        self("commit", "--quiet", "--rm", made, BASE)

    def build(self, name: str, version: str) -> None:
        """Build an image as its Dockerfile says."""
        command = ("bud", "--format", "docker", "--isolation", "chroot", "--network", "host")
        command += ("--pull-never", "--build-arg", f"VERSION={version}", "-t", name)
        print(self(*command, "-f", DOCKERFILES / f"{name}.Dockerfile", ROOT)[-300:])


class Container:
    """A root made of an image, and what runs in it."""

    def __init__(self, store: Store, image: str, shared: Path, mounts: str, *own: str) -> None:
        self.root = Path(store("mount", store("from", "--pull-never", f"localhost/{image}")))
        told = json.loads(store("inspect", "--type", "image", f"localhost/{image}"))
        self.says: dict[str, Any] = told["Docker"]["config"]
        for place in (SHARED, STATE):
            (self.root / place).mkdir(parents=True, exist_ok=True)
        self._shared = shared
        self._enter = ["unshare", "--mount", *own, "--fork", "--kill-child"]
        self._enter += ["sh", "-c", f'{mounts} && exec "$@"', str(self.root)]

    def command(self, words: Sequence[str], **more: str) -> list[str]:
        """``words`` in this root, as the image's user without capabilities."""
        user = {"root": "0"}.get(self.says["User"], self.says["User"] or "0")
        home = self.says.get("WorkingDir") or "/tmp"
        environ = [*self.says["Env"], f"HOME={home}", *(f"{n}={v}" for n, v in more.items())]
        rights = [f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
        rights += ["--inh-caps=-all", "--bounding-set=-all"]
        inside = [
            "env",
            "-i",
            *environ,
            "setpriv",
            *rights,
            "sh",
            "-c",
            'cd "$HOME" && exec "$@"',
            "sh",
        ]
        return [*self._enter, "chroot", str(self.root), *inside, *words]

    def start(self, words: Sequence[str], log: Path, **more: str) -> subprocess.Popen[bytes]:
        """Start it, with its output in ``log``."""
        environ = {**os.environ, "SHARED": str(self._shared)}
        with log.open("wb") as out:
            return subprocess.Popen(
                self.command(words, **more),
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env=environ,
            )

    def call(self, words: Sequence[str], **more: str) -> str:
        """Run it to its end; its output."""
        return run(*self.command(words, **more), env={**os.environ, "SHARED": str(self._shared)})


def use(store: Store, folder: Path) -> None:
    """The node manager and two people's servers, each in a root of its own."""
    shared = folder / "shared"
    shared.mkdir(exist_ok=True)
    with ExitStack() as stack:
        node = Container(store, "node", shared, MOUNTS + HOSTS)
        stack.callback(store, "rm", "--all")
        tokens = node.root / STATE / "tokens.json"
        people = [{"token": f"token-of-{name}", "environment": name} for name in ("alice", "bob")]
        tokens.touch(0o600)
        tokens.write_text(json.dumps({"tokens": people}))
        log = folder / "node.log"
        entry = [
            *node.says["Entrypoint"],
            "--simulate=2x24GiB",
            f"--token-file=/{STATE}/tokens.json",
        ]
        running = node.start(entry, log)
        stack.callback(end, running)
        wait_for(lambda: "ready" in log.read_text(), LONG, f"the node manager of {log}")
        health = node.says["Healthcheck"]["Test"]
        node.call(health[1:])
        print(f"The node manager runs; its HEALTHCHECK passes: {health[1:]}")
        found = {name: in_a_server(store, folder, shared, name, stack) for name in ("alice", "bob")}
        assert len(set(found.values())) == 2, found
        print(f"Each person's notebook has a GPU of its own: {found}")
        begun = time.monotonic()
        end(running)
        print(f"The node manager ended on SIGTERM within {time.monotonic() - begun:.1f} s.")


def in_a_server(store: Store, folder: Path, shared: Path, name: str, stack: ExitStack) -> str:
    """The GPU that a notebook on a person's own server gets."""
    server = Container(store, "singleuser", shared, MOUNTS + OWN, "--pid", "--ipc")
    log, (port,) = folder / f"{name}.log", free_ports(1)
    lab = ["jupyter", "lab", "--no-browser", f"--port={port}", f"--IdentityProvider.token={TOKEN}"]
    process = server.start(
        [*server.says["Entrypoint"], *lab], log, JUPYTER_GPUSHARE_TOKEN=f"token-of-{name}"
    )
    stack.callback(end, process)
    speaks = Server(process, f"http://127.0.0.1:{port}/", log)
    wait_for(lambda: answers(speaks), LONG, f"the server of {log}")
    status = speaks.wait_connected(LONG)
    assert status["environment"] == name, status
    kernel: Kernel = speaks.start_kernel()
    said = kernel.run(
        "import os\nfrom jupyter_gpushare.client import request\n"
        "told = [open(f'/proc/{name}/environ', 'rb').read() for name in os.listdir('/proc')"
        " if name.isdigit()]\n"
        "whose = {one.split(b'token-of-')[1].split(b'\\0')[0].decode() for one in told"
        " if b'token-of-' in one}\n"
        "print(request().visible_devices, os.getuid(), ','.join(sorted(whose)))\n"
        "try:\n    open('/run/jupyter-gpushare/mine', 'w')\n"
        "except OSError as error:\n    print(error.errno)",
        LONG,
    )
    gpu, uid, whose, refused = said.split()
    assert (uid, refused) == ("1000", "30"), f"{said}: user 1000, and a read-only file system"
    assert whose == name, f"{said}: it sees processes of others"
    return gpu


def answers(server: Server) -> bool:
    """Whether it can be spoken to."""
    try:
        return server.api.get("api").status_code == 200
    except httpx.TransportError:
        return False


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to what runs in the container, as docker stop does."""
    if process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in map(int, children or [process.pid]):
            os.kill(child, signal.SIGTERM)
        process.wait(60)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "images")
    parser.add_argument(
        "--base", type=Path, help="a Debian root with python3 and pip that is there"
    )
    options = parser.parse_args()
    needed = [tool for tool in ("buildah", "debootstrap", "unshare") if shutil.which(tool) is None]
    if needed or os.geteuid() != 0:
        print(
            f"This needs root, and: apt install {' '.join(needed) or 'nothing else'}",
            file=sys.stderr,
        )
        return 2
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    (wheel,) = (ROOT / "dist").glob("jupyter_gpushare-*.whl")
    store = Store(folder)
    store.make_base(options.base or folder / "debian")
    for name in ("node", "singleuser"):
        store.build(name, wheel.name.split("-")[1])
        print(f"{name} is built.", flush=True)
    use(store, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
