"""Workers run each test once, a file's in one process, and tell of them as pytest alone does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
SOME = """
import os, pytest
@pytest.mark.parametrize("number", range(3))
def test_some(number, tmp_path):
    pass
def test_is_skipped():
    pytest.skip("not here")
def test_fails():
    print("what it said")
    assert [1] == [2]
"""
DIES = """
import os, signal
def test_dies():
    if not os.fork():  # it has what the worker had, and outlives it
        os.read(int(os.environ["ENDS"]), 1)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_two_workers_run_all_and_one_that_dies_is_told(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text(SOME)
    (tmp_path / "test_z.py").write_text(DIES)
    costs = tmp_path / "costs"
    line = [sys.executable, "-m", "pytest", "--workers=2", f"--rootdir={tmp_path}", "-c/dev/null"]
    line += ["-p", "conftest", "-p", "no:schemathesis", f"--costs={costs}", str(tmp_path)]
    environ = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    read, write = os.pipe()
    with open(write, "wb"), (tmp_path / "said").open("w") as said:
        done = subprocess.run(
            [*line, f"--basetemp={tmp_path}/base"],
            stdout=said,
            stderr=subprocess.STDOUT,
            timeout=100,
            env={**environ, "PYTHONPATH": str(TESTS), "ENDS": str(read)},
            pass_fds=[read],
        )
    os.close(read)
    told = (tmp_path / "said").read_text()
    assert done.returncode == 1, told
    assert "5 failed, 12 passed, 4 skipped in" in told, told
    assert told.count("\nwhat it said\n") == 4
    assert "The process of the tests ended with -9" in told
    ran = [json.loads(one) for one in costs.read_text().splitlines()]
    assert len({one["test"] for one in ran}) == len(ran) == 20
    by_file = {(one["test"].split("::")[0], one["worker"]) for one in ran}
    assert len(by_file) == 4, "a file's tests are in one process"
