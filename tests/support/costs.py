"""What each test costs, and what kind of processes it starts.

With ``--costs=FILE`` a line of JSON for each test: when it began and ended (seconds since 1970),
its worker, the processor seconds of the worker and of the children that ended in it, and its layer,
which is the most expensive thing that it started. The ten slowest files are printed at the end of
each run.

``python tests/support/costs.py FILE …`` then writes down anew which tests are slow (`SLOW`), for
``make test-fast``: in a whole run, or in one of what was left. (Of those that share a Hub, the
first one pays for it.)
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

#: The slow tests, without parameters, a line each; a file alone is slow as a whole.
SLOW = Path(__file__).with_name("slow.txt")
#: A test is slow when it took more seconds of a processor, or in all, with any parameters.
OF_A_PROCESSOR, IN_ALL = 0.5, 1.0

#: Layers by a word of the command, the most expensive first; the last word matches all commands.
LAYERS = (
    ("Hub", ("jupyterhub", "configurable-http-proxy")),
    ("Jupyter server", ("jupyter_server", "jupyterlab", "nbclassic", "notebook")),
    ("kernel", ("ipykernel_launcher", "ipykernel")),
    ("node manager", ("jupyter_gpushare.node", "jupyter_gpushare.pool")),
    ("other process", ("",)),
)
IN_PROCESS = "in process"


def slow(costs: Sequence[Path]) -> Iterator[str]:
    """The slow ones among measured tests; the file alone where they are half of all in it."""
    found: dict[str, dict[str, bool]] = collections.defaultdict(dict)
    for file in costs:
        for line in file.read_text("utf-8").splitlines():
            one = json.loads(line)
            used = one.get("own", 0.0) + one.get("children", 0.0)
            is_slow = used > OF_A_PROCESSOR or one["end"] - one["start"] > IN_ALL
            test = one["test"].split("[")[0]
            tests = found[test.split("::")[0]]
            tests[test] = is_slow or tests.get(test, False)
    for path, tests in found.items():
        if sum(tests.values()) >= len(tests) / 2:
            yield path
        else:
            yield from (test for test, is_slow in tests.items() if is_slow)


class Starts:
    """Counts the processes that this process starts, by their layer."""

    def __init__(self) -> None:
        self.counted: collections.Counter[str] = collections.Counter()
        # No audit hook: it would run Python where a walk over all objects must not be disturbed.
        self._start = subprocess._fork_exec  # type: ignore[attr-defined]
        subprocess._fork_exec = self.fork_exec  # type: ignore[attr-defined]

    def fork_exec(self, words: Sequence[bytes], *rest: Any) -> int:
        """Count a start, and start it."""
        line = " ".join(os.fsdecode(word) for word in words)
        layers = (layer for layer, among in LAYERS if any(word in line for word in among))
        self.counted[next(layers)] += 1
        return int(self._start(words, *rest))


class Costs:
    """The plugin. In a worker it measures; in the process that tells, it sums and writes."""

    def __init__(self, place: Path | None) -> None:
        self.place = place
        self.starts = Starts()
        self.files: collections.Counter[str] = collections.Counter()
        self._tests: dict[str, dict[str, Any]] = {}
        if place is not None:
            place.write_text("", "utf-8")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Measure one test with its fixtures."""
        self._before = os.times(), collections.Counter(self.starts.counted)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Hand what was measured to whoever tells it; the last report of a test has it all."""
        report = yield
        if report.when == "teardown":
            times, counted = self._before
            now = os.times()
            report.costs = {
                "own": round(now.user + now.system - times.user - times.system, 3),
                "children": round(sum(now[2:4]) - sum(times[2:4]), 3),
                "starts": dict(self.starts.counted - counted),
            }
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Sum what a test took; written when its teardown is done."""
        self.files[report.nodeid.split("::")[0]] += report.duration
        one = self._tests.setdefault(
            report.nodeid, {"test": report.nodeid, "start": report.start, "failed": False}
        )
        one["failed"] |= report.failed
        if report.when == "teardown" and self.place is not None:
            costs = getattr(report, "costs", {})
            layers = [layer for layer, _ in LAYERS if costs.get("starts", {}).get(layer)]
            one |= {
                **{"end": report.stop, "worker": getattr(report, "worker_id", "main"), **costs},
                "layer": layers[0] if layers else IN_PROCESS,
            }
            with self.place.open("a", encoding="utf-8") as file:
                file.write(json.dumps(one) + "\n")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The ten slowest files."""
        if len(self.files) > 10:
            terminalreporter.section("ten slowest files")
            for file, seconds in self.files.most_common(10):
                terminalreporter.line(f"{seconds:7.1f} s  {file}")


if __name__ == "__main__":
    found = slow([Path(file) for file in sys.argv[1:]])
    SLOW.write_text("\n".join(sorted(found)) + "\n", "utf-8")
