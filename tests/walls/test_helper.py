"""A wall lets a control group open the GPUs that it was given, and is narrower for nothing else."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.node import Puppet, until
from support.walls import WalledHost, needs_walls, walled_host

from jupyter_gpushare.walls import helper

ANN, BOB = 60001, 60002
FIRST, SECOND = "GPU-first", "GPU-second"

pytestmark = needs_walls


@pytest.fixture
def host() -> Iterator[WalledHost]:
    with walled_host((FIRST, SECOND)) as host:
        yield host


def test_a_group_can_open_what_it_was_given_and_all_that_is_no_gpu(host: WalledHost) -> None:
    host.group(ANN)
    until(lambda: host.gpus_of(ANN) == [], "it is closed, before anybody said whose it is")
    assert host.set(ANN, FIRST) == {"failed": {}, "gone": [], "level": "devices"}
    host.set(BOB, SECOND)
    assert (host.gpus_of(ANN), host.gpus_of(BOB)) == ([0], [1])
    assert host.opens(ANN, str(host.root / "dev/nvidia1")) == "Operation not permitted"
    assert not host.opens(ANN, "/dev/null")
    assert host.ask(do="hello")["walls"][host.group(ANN)] == [[str(ANN)], {FIRST: [0, 2**40]}]
    host.set(ANN)
    assert host.gpus_of(ANN) == []


#: In a group of one's own below, as after a second login, and in what the name says.
INTO_OWN = 'mkdir -p "$OWN" && echo $$ > "$OWN/cgroup.procs" && exec "$@"'


@pytest.mark.parametrize(
    "way",
    [
        ("nohup",),
        ("setsid",),
        ("timeout", "9"),
        ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork"),
        ("sh", "-c", INTO_OWN, "sh"),
        ("unshare", "--user", "--map-root-user", "--cgroup", "sh", "-c", INTO_OWN, "sh"),
    ],
    ids=["nohup", "setsid", "fork", "container", "own group", "own group in a container"],
)
def test_no_way_of_starting_a_program_leads_around_a_wall(
    host: WalledHost, way: tuple[str, ...]
) -> None:
    host.set(ANN, SECOND)
    group = host.top / host.group(ANN)
    for file in (group, group / "cgroup.procs", group / "cgroup.threads"):
        os.chown(file, ANN, ANN)  # as systemd does where a person may make groups
    assert host.opens(ANN, str(host.root / "dev/nvidia0"), by=way) == "Operation not permitted"
    assert not host.opens(ANN, str(host.root / "dev/nvidia1"), by=way)


def test_nobody_moves_into_anothers_group(host: WalledHost) -> None:
    host.set(ANN)
    host.set(BOB, FIRST)
    into = f'echo $$ > "{host.top / host.group(BOB)}/cgroup.procs" && exec "$@"'
    file = str(host.root / "dev/nvidia0")
    assert host.opens(ANN, file, by=("sh", "-c", into, "sh")) == "Permission denied"


def test_walls_stay_when_the_helper_is_killed_and_only_off_takes_them_down(
    host: WalledHost,
) -> None:
    host.set(ANN, FIRST)
    host.kill()
    assert host.gpus_of(ANN) == [0]
    host.start()
    assert host.ask(do="hello")["walls"] == {host.group(ANN): [[str(ANN)], {FIRST: [0, 2**40]}]}
    assert host.gpus_of(ANN) == [0]
    assert host.ask(do="off")["on"] is False
    assert host.gpus_of(ANN) == [0, 1]
    assert "walls on" in host.set(ANN, FIRST)["error"]
    host.kill()
    host.start()
    assert host.gpus_of(ANN) == [0, 1], "off is remembered"
    host.ask(do="on")
    assert host.gpus_of(ANN) == []


def test_others_programs_hold_beside_ours_which_comes_back(host: WalledHost) -> None:
    """A container's runtime attaches its own, and may take away what it finds."""
    host.set(ANN, FIRST)
    path = host.top / host.group(ANN)
    with helper._opened(path) as group:
        theirs = helper._load(helper.program([(1, 7, False)]))
        flags = (group, theirs, helper._AT_DEVICES, helper._ALLOW_MULTI, 0)
        helper._bpf(helper._PROG_ATTACH, struct.pack("<IIIII", *flags))
        os.close(theirs)
    assert host.gpus_of(ANN) == [], "all programs must allow"
    helper._attach(path, None)
    until(lambda: host.ask(do="hello") and host.gpus_of(ANN) == [0], "it stands again, alone")


@pytest.mark.parametrize(
    ("walls", "why"),
    [
        ({"{slice}": [[], {}]}, "no group that the helper may wall"),
        ({"{slice}/../{slice}/user-60001.slice": [[], {}]}, "no group that the helper may wall"),
        ({"{slice}/user-60001.slice": [[], {"GPU-other": [0, 1]}]}, "does not list GPU-other"),
    ],
)
def test_a_request_for_what_is_no_group_or_no_gpu_is_refused(
    host: WalledHost, walls: dict[str, object], why: str
) -> None:
    host.group(ANN)
    told = host.ask(
        do="set", walls={g.replace("{slice}", host.slice): wall for g, wall in walls.items()}
    )
    assert why in "".join(told["failed"].values())


def test_a_link_or_a_file_is_no_group(tmp_path: Path) -> None:
    """The group that a link leads to may be anybody's."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text(f"none {tmp_path} cgroup2 rw")
    (tmp_path / "user-1").mkdir()
    (tmp_path / "user-2").symlink_to("user-1")
    (tmp_path / "user-3").touch()
    walls = helper.Walls(helper.Host(tmp_path), ["user-?"], tmp_path / "record.json")
    told = walls.set({f"user-{number}": helper.Wall() for number in (2, 3)})
    assert told["failed"].keys() == {"user-2", "user-3"}
    assert all("no group that the helper" in why for why in told["failed"].values())


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "{}",
        '{"do": "set"}',
        '{"do": "set", "walls": [1]}',
        '{"do": "set", "walls": {"a": [[], {"b": [2, 1]}]}}',
        "\x00",
    ],
)
def test_nonsense_is_answered(host: WalledHost, line: str) -> None:
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(str(host.socket))
        wire.sendall(line.encode() + b"\n")
        assert b"error" in wire.recv(4096)


def test_a_gpu_that_came_later_is_closed_and_the_drivers_own_files_are_open(
    host: WalledHost,
) -> None:
    """They have the driver's numbers, and no driver is there."""
    host.set(ANN, FIRST, SECOND)
    for name, minor in (("nvidia7", 7), ("nvidiactl", 255), ("nvidia-modeset", 254)):
        os.mknod(host.root / "dev" / name, 0o020666, os.makedev(helper.NVIDIA, minor))
        (host.root / "dev" / name).chmod(0o666)
    assert host.opens(ANN, str(host.root / "dev/nvidia7")) == "Operation not permitted"
    for name in ("nvidiactl", "nvidia-modeset"):
        assert host.opens(ANN, str(host.root / "dev" / name)) == "No such device or address"


def test_a_folder_of_groups_may_come_later(host: WalledHost) -> None:
    """That of the first container comes with the container's group, which is closed at once."""
    pattern = f"{host.slice}/later.slice/user-*.slice"
    parents = helper.Walls(helper.Host(host.root), [pattern], host.record).parents()
    assert set(parents) == {host.top, host.top / host.slice}


def test_a_group_that_is_gone_is_told_as_gone(host: WalledHost) -> None:
    name = f"{host.slice}/user-{BOB}.slice"
    told = host.ask(do="set", walls={name: [["bob"], {}]})
    assert (told["failed"], told["gone"]) == ({}, [name])


def test_nobody_else_may_ask(host: WalledHost) -> None:
    host.socket.chmod(0o666)
    with Puppet(ANN) as stranger, stranger.connect(host.socket) as wire:
        assert wire.recv(4096) == b""
    assert host.ask(do="hello")["on"]
