"""``jupyter gpushare replay`` compares policies on a trace, the same way for the same seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.livenode import CLI, in_process

from jupyter_gpushare.replay.trace import COLUMNS

HEADER = ",".join(COLUMNS) + "\n"
SMALL = ["--generate", "--gpus", "4", "--people", "5", "--days", "1", "--workers", "1"]


def replay(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """In this process, where it replays with one worker."""
    return in_process("replay", *map(str, arguments))


def replay_alone(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as a person does."""
    return subprocess.run(
        [*CLI, "replay", *map(str, arguments)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_all_policies_in_one_run_as_a_table_and_as_json(tmp_path: Path) -> None:
    done = replay_alone(*SMALL, "--plot", tmp_path / "picture.svg")
    assert done.returncode == 0, done.stderr
    first, headings, *lines = done.stdout.splitlines()
    assert "at once get 91 % of what one gets alone" in first
    assert "open sessions" in first
    assert headings.startswith("POLICY")
    names = [line.split()[0] for line in lines]
    assert names == ["session", "batch", "held", "park", "turns", "clairvoyant"]
    assert "<svg" in (tmp_path / "picture.svg").read_text()
    document = json.loads(replay(*SMALL, "--json").stdout)
    assert [one["policy"] for one in document["policies"]] == names
    assert document["open_sessions_per_gpu"] == pytest.approx(1.25)
    for one in document["policies"]:
        assert one["gpu_hours_busy"] <= one["gpu_hours_bound"] <= one["gpu_hours_capacity"]
        assert one["cells"] == document["policies"][0]["cells"]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    some = (*SMALL, "--json", "--policies", "park", "--seed")
    one, other = (replay(*some, seed).stdout for seed in "12")
    # Sets and the like have another order in another process.
    again = replay_alone(*some, "1", PYTHONHASHSEED="7").stdout
    assert one == again != other


def test_what_is_saved_is_replayed_as_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "made-up.csv"
    saved = replay(*SMALL, "--save", path)
    assert saved.returncode == 0, saved.stderr
    done = replay_alone("--trace", path, "--gpus", "4", "--policies", "park,session", "--json")
    document = json.loads(done.stdout)
    assert [one["policy"] for one in document["policies"]] == ["park", "session"]
    assert saved.stdout == f"{path}: {document['cells']} cells\n"


def test_the_beginning_of_a_trace_may_only_warm_up_and_its_end_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "unix.csv"
    now = 1_600_000_000
    lines = [f"s,alice,1,,,{now},{now + 400},{now + at},10" for at in (0, 100, 200, 300)]
    path.write_text(HEADER + "\n".join(lines) + "\n")
    trace = ["--trace", path, "--gpus", "1", "--policies", "park", "--json", "--workers", "1"]
    whole = json.loads(replay(*trace).stdout)
    assert (whole["cells"], whole["seconds"], whole["open_sessions_per_gpu"]) == (4, 400, 1)
    assert whole["policies"][0]["cells"] == 4
    part = json.loads(replay(*trace, "--warm-up", "50s", "--until", "250s").stdout)
    assert (part["cells"], part["counted_from"], part["counted_until"]) == (3, 50, 250)
    assert part["policies"][0]["cells"] == 2
    assert part["policies"][0]["gpu_hours_busy"] == pytest.approx(20 / 3600)


def test_a_wrong_trace_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "s,e,1,,,0,9,2,1\ns,e,1,,,0,9,1,1\n")
    done = replay("--trace", path, "--json")
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert error["reason"] == "bad_request"
    assert "line 3, column submit" in error["message"]
    done = replay("--trace", tmp_path / "nowhere.csv")
    assert done.returncode == 1
    assert "No such file" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--generate --trace x.csv", "either --trace FILE or --generate"),
        ("--generate --policies park,magic", "'magic' is none of session, batch"),
        ("--generate --mix 1:0.5,2", "--mix must be like"),
        ("--generate --mix 1:0", "must not all be 0"),
        ("--generate --idle-timeout 0", "more than 0"),
        ("--generate --reserve half", "--reserve=half cannot be used: say whole or quota"),
        ("--generate --plot picture.bmp", ".svg"),
        ("--trace x.csv --save y.csv", "--save goes with --generate"),
        ("--generate --days 1 --warm-up 2d", "nothing would count"),
    ],
)
def test_a_wrong_command_line(arguments: str, said: str) -> None:
    done = replay(*arguments.split())
    assert done.returncode == 2
    assert said in done.stderr


def test_without_matplotlib_only_the_picture_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # it cannot be imported
    done = replay(*SMALL, "--policies", "park", "--plot", tmp_path / "x.svg")
    assert done.returncode == 1
    assert "pip install 'matplotlib" in done.stderr


def test_with_deadlines_it_says_what_became_of_them() -> None:
    some = ("--generate", "--load=0.6", "--gpus=1", "--days=0.1", "--workers=1", "--deadlines=0.5")
    done = replay(*some, "--batch-sessions=0.2", "--policies=first,turns,promises")
    assert done.returncode == 0, done.stderr
    _first, headings, *lines = done.stdout.splitlines()
    assert "IN TIME %" in headings
    assert "BATCH GPU-H" in headings
    assert [line.split()[0] for line in lines] == ["first", "turns", "promises"]
    assert "IN TIME %" not in replay(*some[:-1], "--policies=turns").stdout
