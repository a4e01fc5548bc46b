"""``jupyter gpushare systemd``: the files that make the node manager a service of this host."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..console.verb import Refused, UsageError, Verb, option
from .checks import WHEEL

#: The place of each shipped file, below ``/etc`` (or ``/usr/lib`` in a package).
PLACES: Mapping[str, str] = {
    "jupyter-gpushare.service": "systemd/system/jupyter-gpushare.service",
    "jupyter-gpushare.socket": "systemd/system/jupyter-gpushare.socket",
    "jupyter-gpushare-walls.service": "systemd/system/jupyter-gpushare-walls.service",
    "jupyter-gpushare-walls.socket": "systemd/system/jupyter-gpushare-walls.socket",
    "jupyter-gpushare.sysusers.conf": "sysusers.d/jupyter-gpushare.conf",
}

#: The interpreter in the shipped service.
PYTHON = "/opt/jupyter/bin/python"

#: Folders that the service cannot see: ProtectHome= and PrivateTmp=.
HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")

NEXT = """
To create its user and start it, now and at each boot:
  systemd-sysusers && systemctl daemon-reload
  systemctl enable --now jupyter-gpushare.socket jupyter-gpushare.service
To have the kernel enforce leases, too: docs/how-to/walls.md
"""


class SystemdApp(Verb):
    """The node manager for everybody as a systemd service: print its files, or
    write them below DIRECTORY (/etc, as root). The service runs this very Python, or the one that
    --python names."""

    name = "systemd"
    arguments = "[DIRECTORY]"
    examples = """
    jupyter gpushare systemd           # look at them
    sudo jupyter gpushare systemd /etc # write them
    """

    python = option(
        "", "The Python that runs the service, with jupyter_gpushare. Not set: this one."
    )

    def run(self, arguments: list[str]) -> int:
        if len(arguments) > 1:
            raise UsageError("systemd takes one directory")
        python = self.python or sys.executable
        check_visible((python,) if self.python else (python, sys.prefix, sys.base_prefix))
        files = units(shipped(), python)
        done = [install(Path(arguments[0], place), files[place]) for place in files if arguments]
        shown = (f"# ---- /etc/{place}\n{text}" for place, text in files.items())
        return self.say(files, "\n".join([*done, NEXT.rstrip()] if done else shown))


def units(templates: Mapping[str, str], python: str) -> dict[str, str]:
    """The files by their place below ``/etc``, with ``python`` as the service's interpreter."""
    line = f"ExecStart={PYTHON} "
    return {
        place: templates[name].replace(line, f"ExecStart={quoted(python)} ")
        for name, place in PLACES.items()
    }


def quoted(path: str) -> str:
    """A program's path as systemd reads it in ``ExecStart=``. Raises `Refused`."""
    if not path.startswith("/") or not path.isprintable():
        raise Refused(f"systemd cannot start {path!r}: it has to be a plain absolute path.")
    path = path.replace("%", "%%")
    if re.fullmatch(r"[\w/.+%-]+", path):
        return path
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def check_visible(paths: Sequence[str]) -> None:
    """Raises `Refused` when the service could not see this Python."""
    for path in (*paths, *map(os.path.realpath, paths)):
        for hidden in HIDDEN:
            if os.path.commonpath((hidden, path)) == hidden:
                raise Refused(
                    f"the service could not run the Python in {path}: {hidden} is hidden from it, "
                    "and whoever can write there could change what it does. Install "
                    "jupyter_gpushare where only root can write (python3 -m venv /opt/jupyter; "
                    f"/opt/jupyter/bin/pip install {WHEEL}), and run it from there."
                )


def shipped() -> dict[str, str]:
    """The text of each shipped file by its name. Raises `Refused` when one is missing."""
    found = {}
    for name in PLACES:
        file = _find(name)
        if file is None:
            raise Refused(
                f"{name} is not where pip put it (share/jupyter_gpushare/systemd). Install "
                f"jupyter_gpushare again: pip install --force-reinstall {WHEEL}"
            )
        found[name] = file.read_text(encoding="utf-8")
    return found


def _find(name: str) -> Path | None:
    # In the sources, or an editable installation of them, theirs are the newest.
    beside = Path(__file__).parents[2] / "etc" / "systemd" / name
    if beside.is_file():
        return beside
    installed = importlib.metadata.distributions(name="jupyter_gpushare")
    wanted = ("share", "jupyter_gpushare", "systemd", name)
    entries = (entry for one in installed for entry in one.files or ())
    return next((Path(str(e.locate())) for e in entries if e.parts[-4:] == wanted), None)


def install(path: Path, text: str) -> str:
    """Write one file and say so; what was there and was another is kept beside it as ``.bak``.

    Raises `Refused`.
    """
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else None
        if before == text:
            return f"{path} is up to date"
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if before is not None:
            path.replace(path.with_name(f"{path.name}.bak"))
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path} cannot be written: {error}. Are you root?") from error
    return f"{path} written" + ("" if before is None else f", the old one is {path.name}.bak")
