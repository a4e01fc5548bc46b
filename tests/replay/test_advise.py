"""``jupyter gpushare advise`` tells whether turns or parking serve a node's people better."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest
from support.livenode import LiveNode, in_process
from support.node import RunningNode, token_file

from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.replay.advise import TOLD
from jupyter_gpushare.replay.behaviour import Options
from jupyter_gpushare.replay.trace import COLUMNS, read_trace

NAMED = ("--gpus", "2", "--gpu-memory", "80GiB")


def advise(
    *arguments: str | Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return in_process("advise", *map(str, arguments), environ=env)


def test_the_node_managers_own_settings_are_compared(tmp_path: Path) -> None:
    """A class whose quota is a part of a GPU shares GPUs without turns, too."""
    config = (
        "c.Quotas.default = {'gpus': 1, 'memory': '4GiB'}\n"
        "c.Policy.idle_timeout = 600\nc.Policy.max_tasks_per_gpu = 3\n"
        "c.Policy.reserve = 'quota'\nc.Policy.share_mode = 'time'\n"
    )
    with RunningNode(tmp_path, simulate="2x24GiB", config=config) as node:
        environ = {"JUPYTER_GPUSHARE_SOCKET": str(node.socket)}
        done = advise("--days", "0.5", env={**os.environ, **environ})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 GPUs of 24 GiB, 0.5 days of made-up sessions")
    for sentence in (
        "everybody's quota is 1 GPUs, 4 GiB on each",
        "a task that was idle for 10 min may be parked",
        "at most 3 tasks on a GPU without turns",
        "asks for, or else as reserve = quota says",
        "tasks that compute on a GPU at once get 91 % of what one gets alone",
    ):
        assert sentence in done.stdout
    assert re.search("set share_mode to space|leave share_mode as it is, time", done.stdout)


def test_nothing_is_assumed_in_silence() -> None:
    assert set(TOLD) == {field.name for field in fields(Options)}
    said = [say(Options()) for say in TOLD.values() if say is not None]
    assert all(said)
    assert len(set(said)) == len(said)


def test_without_a_node_manager_the_gpus_are_named(tmp_path: Path) -> None:
    nowhere = {**LiveNode(tmp_path).environ, "JUPYTER_GPUSHARE_SOCKET": ""}
    done = advise(env=nowhere)
    assert done.returncode == 2
    assert "Or name --gpus and --gpu-memory." in done.stderr
    found = advise(*NAMED, "--days", "1", "--json", env=nowhere)
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert [one["label"] for one in document["compared"]] == ["space", "time", "time, with moves"]
    assert [one["out_of_memory"] for one in document["compared"]] == [0, 0, 0]


LINE = "{name},{name},1,,{resident},0,{end},{submit},{seconds}"


@pytest.mark.parametrize(
    ("resident", "better"),
    [
        # A cell of hours and short ones fit together: by turns nobody waits for long.
        (10 * 2**30, "time"),
        # They do not: by turns, too, people wait until the memory is free.
        (70 * 2**30, "space"),
    ],
)
def test_a_trace_of_the_nodes_own_decides(tmp_path: Path, resident: int, better: str) -> None:
    lines = [LINE.format(name="long", resident=resident, end=90000, submit=0, seconds=80000)]
    lines += [
        LINE.format(name="short", resident=resident, end=90000, submit=at, seconds=30)
        for at in range(1000, 80000, 1000)
    ]
    path = tmp_path / "cells.csv"
    path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n", "utf-8")
    named = ("--gpus", "1", "--gpu-memory", "80GiB", "--trace", path)
    document = json.loads(advise(*named, "--json").stdout)
    assert document["share_mode"] == better
    words = "set share_mode to time" if better == "time" else "leave share_mode as it is"
    said = advise(*named).stdout
    assert words in said
    moves = {one["label"]: one["value"] for one in document["compared"]}
    is_best = moves.pop("time, with moves") > max(moves.values())
    assert document["move_seconds"] == (0.2 if is_best else 0.0)
    assert ("and move_seconds to" if is_best else "leave move_seconds as it is") in said


def test_a_trace_that_is_wrong_is_said_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    path.write_text("nonsense\n", "utf-8")
    done = advise(*NAMED, "--trace", path)
    assert done.returncode != 0
    assert str(path) in done.stderr


def test_what_people_did_here_is_a_trace(tmp_path: Path) -> None:
    """From the ledger of a node manager that runs, by an administrator, without names."""
    known = token_file(tmp_path, "alice-with-a-name", "root")
    path = tmp_path / "cells.csv"
    with RunningNode(tmp_path, simulate="1x24GiB", arguments=[known]) as node:
        with node.client("alice-with-a-name") as alice:
            lease = alice.request(gpus=1)["lease"]
            alice.call(Method.ACTIVITY, lease=lease, state="idle")
            alice.call(Method.RELEASE, lease=lease)
        environ = {**os.environ, "JUPYTER_GPUSHARE_SOCKET": str(node.socket)}
        root = {**environ, "JUPYTER_GPUSHARE_TOKEN": "root"}
        hers = {**environ, "JUPYTER_GPUSHARE_TOKEN": "alice-with-a-name"}
        refused = in_process("usage", "--trace", str(path), environ=hers)
        assert refused.returncode != 0
        assert not path.exists()
        done = in_process("usage", "--trace", str(path), environ=root)
        assert done.returncode == 0, done.stderr
        assert "1 sessions with 1 cells" in done.stdout
        assert "alice" not in path.read_text("utf-8")
        with path.open("rb") as file:
            (session,) = read_trace(file)
        assert (session.gpus, len(session.submits)) == (1, 1)
        told = advise("--trace", path, env=root)
        assert told.returncode == 0, told.stderr
