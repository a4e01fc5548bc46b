"""``jupyter gpushare systemd`` writes units that systemd takes, for a Python that it can see."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.livenode import in_process

from jupyter_gpushare.cli import systemd
from jupyter_gpushare.console.verb import Refused

SERVICE = "systemd/system/jupyter-gpushare.service"
SOCKET = "systemd/system/jupyter-gpushare.socket"
USERS = "sysusers.d/jupyter-gpushare.conf"
WALLS = [f"systemd/system/jupyter-gpushare-walls.{kind}" for kind in ("service", "socket")]
PLACES = {SERVICE, SOCKET, USERS, *WALLS}

PYTHON = "--python=/opt/other/bin/python"


def verb(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return in_process("systemd", *map(str, arguments))


class Unit(configparser.RawConfigParser):
    """As much of a unit's format as ours use."""

    def __init__(self, text: str) -> None:
        super().__init__(strict=False, delimiters=("=",), interpolation=None)
        self.read_string(text)

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def made(python: str = "/opt/jupyter/bin/python") -> dict[str, str]:
    return systemd.units(systemd.shipped(), python)


def test_it_prints_them() -> None:
    done = verb(PYTHON)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ExecStart=/opt/other/bin/python -I -m jupyter_gpushare.node --shared" in done.stdout
    for place in PLACES:
        assert f"# ---- /etc/{place}\n" in done.stdout
    assert set(json.loads(verb(PYTHON, "--json").stdout)) == PLACES
    own = verb("--json")  # of the Python that runs, which a service may not see
    assert f"ExecStart={sys.executable} " in own.stdout or "is hidden from it" in own.stderr


def test_it_writes_them_and_keeps_what_was_another(tmp_path: Path) -> None:
    done = verb(PYTHON, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "systemctl enable --now jupyter-gpushare.socket jupyter-gpushare.service" in done.stdout
    for place in (SERVICE, SOCKET, USERS):
        assert f"{tmp_path / place} written" in done.stdout
        assert (tmp_path / place).stat().st_mode & 0o777 == 0o644
    (tmp_path / SERVICE).write_text("mine\n")
    done = verb(PYTHON, tmp_path)
    assert "the old one is jupyter-gpushare.service.bak" in done.stdout
    assert f"{tmp_path / SOCKET} is up to date" in done.stdout
    assert (tmp_path / f"{SERVICE}.bak").read_text() == "mine\n"


def test_it_says_what_it_cannot_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = verb(PYTHON, tmp_path / "file")
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert verb("/a", "/b").returncode == 2


def test_a_python_that_the_service_cannot_see_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hidden in ("/home/a/venv/bin/python", "/root/x/python", "/tmp/p", "/home"):
        with pytest.raises(Refused, match="hidden from it"):
            systemd.check_visible([hidden])
    systemd.check_visible(["/opt/jupyter/bin/python", "/homes/x", "/rooted", "/usr/tmp-x"])
    (tmp_path / "python").symlink_to("/root/conda/bin/python")
    monkeypatch.setattr(systemd, "HIDDEN", ("/root",))  # the link itself may be in one of these
    with pytest.raises(Refused, match="hidden from it"):
        systemd.check_visible([str(tmp_path / "python")])


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("/opt/j/bin/python3.12", "/opt/j/bin/python3.12"),
        ("/opt/100%/python", "/opt/100%%/python"),
        ("/opt/my venv/python", '"/opt/my venv/python"'),
        ('/opt/a"b\\c/python', '"/opt/a\\"b\\\\c/python"'),
    ],
)
def test_paths_are_written_as_systemd_reads_them(path: str, written: str) -> None:
    assert f"ExecStart={written} -I -m jupyter_gpushare.node " in made(path)[SERVICE]


@pytest.mark.parametrize("path", ["python", "/opt/a\nUser=root/python", "/opt/\x1b/python"])
def test_paths_that_would_be_something_else_are_refused(path: str) -> None:
    with pytest.raises(Refused, match="plain absolute path"):
        made(path)


def test_the_units_are_the_two_halves_of_one_service() -> None:
    from jupyter_gpushare.protocol.address import SYSTEM_SOCKET

    units = made()
    service, sock = Unit(units[SERVICE]), Unit(units[SOCKET])
    assert sock["Socket"]["ListenStream"] == SYSTEM_SOCKET
    assert service["Service"]["Type"] == "notify"
    assert "--socket" not in service["Service"]["ExecStart"]
    assert units[USERS].count(f"u {service['Service']['User']} ") == 1
    # It would be removed with the service, and the socket in it.
    assert "RuntimeDirectory" not in service["Service"]
    # All of these would hide whom it has to see.
    for name in ("ProtectProc", "ProcSubset", "PrivateUsers", "PrivatePIDs", "PrivateDevices"):
        assert name not in service["Service"]
    assert service["Service"]["CapabilityBoundingSet"] == ""


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed here"
)


@needs_systemd
@pytest.mark.parametrize("python", [sys.executable, "/tmp/my venv/100%/python"])
def test_systemd_takes_the_units(tmp_path: Path, python: str) -> None:
    if not os.path.exists(python):
        program = tmp_path / "my venv/100%/python"
        program.parent.mkdir(parents=True)
        program.symlink_to("/bin/true")
        python = str(program)
    for place, text in made(python).items():
        path = tmp_path / Path(place).name
        path.write_text(text)
    units = [tmp_path / Path(place).name for place in (SERVICE, SOCKET)]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True
    )
    ours = [line for line in done.stderr.splitlines() if "gpushare" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


@needs_systemd
def test_the_service_is_shut_in_well(tmp_path: Path) -> None:
    (tmp_path / "jupyter-gpushare.service").write_text(made()[SERVICE])
    most = "--threshold=20"  # tenths of the ten points of exposure
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", most, "jupyter-gpushare.service"],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        capture_output=True,
        text=True,
    )
    if "--offline" in done.stderr:
        pytest.skip("this systemd is too old to judge a file")
    assert done.returncode == 0, done.stdout + done.stderr
