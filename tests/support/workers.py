"""Several processes that run the tests, forked from the one that has collected them.

``--workers=N``. What collects the tests imports all of them and half of the package index, which
takes 15 seconds of a processor; pytest-xdist does it anew in each worker. A file's tests stay in
one process, since they share what is made once for them. The files are begun in their order, each
by a worker that is free.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import random
import signal
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import chain, groupby, pairwise
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

import pytest


class Workers:
    """The plugin, in the process that tells and in each worker.

    ``begin`` is what a worker has for itself while it runs.
    """

    def __init__(self, count: int, begin: Callable[[], AbstractContextManager[object]]) -> None:
        self.count = count
        self.begin = begin
        self._wire: Connection | None = None  # a worker's, to the process that tells
        self._told = 0  # tests that have ended

    # In the process that tells -------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Fork, and tell what the workers say until all have ended."""
        config = session.config
        if config.option.collectonly or session.testsfailed:
            return None  # pytest itself says so
        files = [[*of] for _path, of in groupby(session.items, key=lambda item: item.path)]
        # Whoever reads two bytes has that file. It is empty when all files are somebody's.
        turns, write = os.pipe()
        os.write(write, b"".join(at.to_bytes(2, "big") for at in range(len(files))))
        os.close(write)
        config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # workers have parts
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        reporter.showfspath = False  # results of several files come mixed
        sys.stdout.flush()
        sys.stderr.flush()
        running: dict[Connection, tuple[int, str]] = {}
        try:
            for number in range(min(self.count, len(files))):
                here, there = Pipe(duplex=False)
                if not (pid := os.fork()):
                    for other in (here, *running):
                        other.close()
                    self._work(f"w{number}", session, files, turns, there)
                there.close()
                running[here] = pid, f"w{number}"
            self._tell(session, turns, running)
        finally:
            for pid, _name in running.values():
                os.kill(pid, signal.SIGINT)
                os.waitpid(pid, 0)
            os.close(turns)
        if self._told < len(session.items) and not session.testsfailed:
            session.shouldfail = session.shouldfail or "Some tests were not run."
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _tell(
        self, session: pytest.Session, turns: int, running: dict[Connection, tuple[int, str]]
    ) -> None:
        tests: dict[Connection, tuple[str, Any]] = {}  # which ones run
        # What a worker forked and left behind may keep its wire open.
        ends = {os.pidfd_open(pid): wire for wire, (pid, _name) in running.items()}
        while running:
            for ready in wait([*running, *ends]):
                wire = ends.get(ready, ready)  # type: ignore[call-overload]
                if wire not in running:
                    continue
                try:
                    if ready is wire or wire.poll():
                        self._hear(session.config, tests, wire)
                        continue
                except EOFError:
                    pass
                self._ended(session.config, *running.pop(wire), tests.pop(wire, None))
                end = next(fd for fd, other in ends.items() if other is wire)
                os.close(end)
                del ends[end]
                wire.close()
            if session.shouldfail or session.shouldstop:
                while os.read(turns, 65536):  # no other file is begun
                    pass

    def _hear(
        self, config: pytest.Config, tests: dict[Connection, tuple[str, Any]], wire: Connection
    ) -> None:
        kind, told = wire.recv()
        if kind == "began":
            tests[wire] = told
        elif kind == "ended":
            self._told += 1
            test, location = tests.pop(wire)
            config.hook.pytest_runtest_logfinish(nodeid=test, location=location)
        elif kind == "report":
            report = config.hook.pytest_report_from_serializable(config=config, data=told)
            config.hook.pytest_runtest_logreport(report=report)
        else:
            print(told, file=sys.stderr, flush=True)

    def _ended(
        self, config: pytest.Config, pid: int, name: str, ran: tuple[str, Any] | None
    ) -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status or ran:
            test, location = ran or (f"worker {name}", ("", None, name))
            why = f"The process of the tests ended with {status}; it is not replaced."
            broken: Any = {"keywords": {}, "outcome": "failed", "when": "call"}
            report = pytest.TestReport(test, location, longrepr=why, **broken)
            config.hook.pytest_runtest_logreport(report=report)

    # In a worker ---------------------------------------------------------------------------

    def _work(
        self,
        name: str,
        session: pytest.Session,
        files: list[list[pytest.Item]],
        turns: int,
        wire: Connection,
    ) -> NoReturn:
        """Run the files that nobody else has, and end."""
        status = 1
        try:
            for left in (*weakref.finalize._registry,):  # type: ignore[attr-defined]
                left.atexit = False  # the folders of the process that tells are its own
            random.seed()
            config = session.config
            config.pluginmanager.get_plugin("terminalreporter")._tw._file = io.StringIO()
            config.pluginmanager.get_plugin("costs").place = None
            capture = config.pluginmanager.get_plugin("capturemanager")
            capture.stop_global_capturing()  # into files that all workers share
            capture.start_global_capturing()
            capture.suspend_global_capture()
            folders = config._tmp_path_factory  # type: ignore[attr-defined]
            folders._basetemp = folders.getbasetemp() / name
            folders._basetemp.mkdir(mode=0o700)
            self._wire, self._name, self._config = wire, name, config
            with self.begin():
                try:
                    for item, following in pairwise(chain(_taken(files, turns), [None])):
                        assert item is not None
                        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                        if session.shouldfail or session.shouldstop:
                            break
                finally:
                    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends one, too
                    session._setupstate.teardown_exact(None)  # what an interrupt left, say
            status = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the process that tells says it
            with contextlib.suppress(OSError):
                wire.send(("broken", traceback.format_exc()))
        finally:
            warnings.simplefilter("ignore")  # folders that live as long as the process
            atexit._run_exitfuncs()
            os._exit(status)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """Say which test begins."""
        if self._wire is not None:
            self._wire.send(("began", (nodeid, location)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logfinish(self) -> None:
        """Say that it has ended."""
        if self._wire is not None:
            self._wire.send(("ended", None))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Say how it went."""
        if self._wire is not None:
            report.worker_id = self._name  # for tests/support/costs.py
            config = self._config
            told = config.hook.pytest_report_to_serializable(config=config, report=report)
            self._wire.send(("report", told))


def _taken(files: list[list[pytest.Item]], turns: int) -> Iterator[pytest.Item]:
    """The tests of one file after the other that nobody else has."""
    while taken := os.read(turns, 2):
        yield from files[int.from_bytes(taken, "big")]
