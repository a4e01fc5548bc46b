"""A real sshd on a host of a test, and the ``ssh`` that enters by it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .hosts import Host
from .jupyter import wait_for

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def why_no_ssh() -> str:
    """Why there is none, or an empty text."""
    missing = [tool for tool in ("ssh", "ssh-keygen") if shutil.which(tool) is None]
    missing += [] if SSHD else ["sshd"]
    return f"{', '.join(missing)}: not installed (openssh-server)" if missing else ""


def serve_ssh(host: Host, folder: Path) -> list[str]:
    """Serve it there; what is put before a command so that it runs on the host."""
    assert SSHD is not None
    place = folder / f"ssh-{host.name}"
    place.mkdir(mode=0o700)
    for name in ("host", "mine"):
        line = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / name)]
        subprocess.run(line, check=True)
    (place / "known").write_text(f"{host.address} {(place / 'host.pub').read_text()}")
    config = place / "sshd_config"
    config.write_text(
        f"ListenAddress {host.address}:22\n"
        f"HostKey {place}/host\n"
        f"AuthorizedKeysFile {place}/mine.pub\n"
        f"PidFile {host.run}/sshd.pid\n"
        "StrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nUsePAM no\n"
    )
    with (place / "log").open("wb") as log:
        server = host.start([SSHD, "-D", "-e", "-f", str(config)], stdout=log, stderr=log)
    options = {
        "BatchMode": "yes",
        "IdentityFile": str(place / "mine"),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": str(place / "known"),
        "ConnectTimeout": "10",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    prefix = ["ssh", "-F", "none", *words, f"root@{host.address}", "--"]

    def answers() -> bool:
        assert server.poll() is None, (place / "log").read_text()
        return subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode == 0

    wait_for(answers, 20, f"sshd on host {host.name}")
    return prefix
