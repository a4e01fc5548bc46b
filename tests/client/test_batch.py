"""A program is stopped for a person only as it said how, and with what it has saved.

Also: which class a request has that names none. With real processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.kernel import Kernel
from support.node import until

from jupyter_gpushare.client.errors import PREEMPTED, Preempted
from jupyter_gpushare.client.memory.stopping import Place, Stopping
from jupyter_gpushare.client.session.lease import OwnState
from jupyter_gpushare.client.session.origin import RUNNERS, runner_of
from jupyter_gpushare.client.words.classes import Origin, class_of
from jupyter_gpushare.protocol.messages import Method

# -- classes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (Origin(kernel=True), "interactive"),
        (Origin(kernel=True, nohup=True), "interactive"),  # the server was started so
        (Origin(kernel=True, runner="papermill"), "batch"),
        (Origin(foreground=True), "interactive"),
        (Origin(foreground=True, nohup=True), "batch"),
        (Origin(of_kernel=True), "interactive"),
        (Origin(of_kernel=True, nohup=True), "batch"),
        (Origin(of_kernel=True, runner="papermill"), "batch"),
        (Origin(), "batch"),
    ],
)
def test_the_class_of_an_origin(origin: Origin, expected: str) -> None:
    assert class_of(origin) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["/usr/bin/papermill", "in.ipynb", "out.ipynb"], "papermill"),
        (["/opt/bin/python3.11", "/opt/bin/papermill", "in.ipynb"], "papermill"),
        (["python", "-m", "papermill", "in.ipynb"], "papermill"),
        (["python", "/opt/bin/jupyter-nbconvert", "--execute"], "jupyter-nbconvert"),
        (["python", "-m", "nbconvert", "--execute"], "nbconvert"),
        (["vim", "papermill"], "papermill"),  # indistinguishable, and harmless: it starts nothing
        (["python", "train.py", "papermill"], ""),
        (["python", "-c", "papermill"], ""),
        (["jupyter-lab"], ""),
        ([""], ""),
        ([], ""),
    ],
)
def test_who_runs_notebooks_for_nobody(command: list[str], expected: str) -> None:
    assert runner_of(command) == expected
    assert expected in ("", *RUNNERS)


SAYS = (
    "import os; from jupyter_gpushare.client.session.origin import origin; "
    "from jupyter_gpushare.client.words.classes import class_of; "
    "open(os.environ['SAYS'], 'w').write(class_of(origin(os.environ)))"
)


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a process writes its class. It is no child of a kernel."""
    for name in ("JPY_PARENT_PID", "JPY_SESSION_NAME"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "class"
    monkeypatch.setenv("SAYS", str(path))
    return path


#: A shell script in a terminal, as of a server that heeds SIGHUP (0) or ignores it (1).
TERMINAL = """
import os, pty, signal, sys
signal.signal(signal.SIGHUP, signal.Handlers(int(sys.argv[1])))
sys.exit(os.waitstatus_to_exitcode(pty.spawn(["bash", "--norc", *sys.argv[2:]])))
"""


def in_a_terminal(script: str, *options: str, hang_up: signal.Handlers = signal.SIG_DFL) -> None:
    """Run a shell script, as typed in a terminal, to its end."""
    command = [sys.executable, "-c", TERMINAL, str(int(hang_up)), *(options or ("-m",)), "-c"]
    subprocess.run([*command, script], check=True, stdin=subprocess.DEVNULL)


PYTHON = f'{sys.executable} -c "{SAYS}"'


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (PYTHON, "interactive"),
        (f"{PYTHON} | cat", "interactive"),
        (f"{PYTHON} & wait", "batch"),
        (f"nohup {PYTHON}", "batch"),
        (f"nohup {PYTHON} > /dev/null 2>&1 & wait", "batch"),
        (f"setsid -w {PYTHON}", "batch"),
    ],
    ids=["foreground", "pipe", "background", "nohup", "nohup-background", "setsid"],
)
def test_programs_from_a_terminal(
    says: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)  # nohup.out
    in_a_terminal(script)
    assert says.read_text() == expected


@pytest.fixture(params=[signal.SIG_DFL, signal.SIG_IGN], ids=["plain", "nohup"])
def hang_up(request: pytest.FixtureRequest) -> Iterator[signal.Handlers]:
    """What a server does about SIGHUP, which its kernels inherit."""
    before = signal.signal(signal.SIGHUP, request.param)
    yield request.param
    signal.signal(signal.SIGHUP, before)


def test_a_notebook_and_what_it_starts(
    says: Path, tmp_path: Path, hang_up: signal.Handlers
) -> None:
    with Kernel(tmp_path, None, SAYS=str(says)) as kernel:
        kernel.ok(SAYS)
        assert says.read_text() == "interactive"
        kernel.ok(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SAYS!r}])")
        assert says.read_text() == "interactive"
        if hang_up is signal.SIG_DFL:
            command = f"['nohup', sys.executable, '-c', {SAYS!r}]"
            kernel.ok(f"subprocess.run({command}, stdin=subprocess.DEVNULL)")
            assert says.read_text() == "batch"


def test_a_notebook_that_papermill_runs(says: Path, tmp_path: Path) -> None:
    pytest.importorskip("papermill")
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(SAYS)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    path = tmp_path / "in.ipynb"
    nbformat.write(notebook, path)
    subprocess.run(
        [sys.executable, "-m", "papermill", str(path), str(tmp_path / "out.ipynb")],
        check=True,
        env={**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")},
        stderr=subprocess.DEVNULL,
        timeout=120,
    )
    assert says.read_text() == "batch"


# -- stopping ---------------------------------------------------------------------------------


class Told:
    """A program that can be stopped, without signals."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Stopping, "_listen", lambda _self: None)
        monkeypatch.setattr(os, "kill", lambda _pid, _signal: None)
        self.kept: list[str] = []
        self.stopping = self.another()
        self.saves = 0

    def another(self) -> Stopping:
        """One more program."""
        line: Any = SimpleNamespace(session=self, hang_up=lambda _lease: None)
        own: Any = SimpleNamespace(
            grant=SimpleNamespace(lease="L"), state=OwnState.HELD, ends_with_us="L"
        )
        progress: Any = SimpleNamespace(over=lambda: None)
        return Stopping(line, own, progress, os.environ, lambda _text: None)

    def tell_surely(self, method: Method, *, reason: str = "", **_told: Any) -> None:
        """As a session's."""
        if method is Method.KEPT:
            self.kept.append(reason)

    def save(self) -> None:
        self.saves += 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def test_it_stops_at_its_next_gate_and_not_before(told: Told) -> None:
    told.stopping.by(told.save)
    told.stopping.gate()
    told.stopping.wanted(60)
    assert told.saves == 0
    with pytest.raises(Preempted) as stopped:
        told.stopping.gate()
    assert stopped.value.code == PREEMPTED
    assert (told.saves, told.kept) == (1, [])
    assert not isinstance(stopped.value, Exception), "`except Exception` must not go on with it"


def test_gates_that_it_names_go_before_the_ends_of_steps(told: Told) -> None:
    told.stopping.by(told.save)
    told.stopping.step_ended()
    told.stopping.wanted(60)
    with pytest.raises(Preempted):
        told.stopping.step_ended()
    other = told.another()
    other.by(told.save)
    other.gate()
    other.wanted(60)
    for _ in range(5):
        other.step_ended()
    assert told.saves == 1
    with pytest.raises(Preempted):
        other.gate()


def test_who_did_not_say_how_is_not_stopped(told: Told) -> None:
    told.stopping.wanted(60)
    told.stopping.gate()
    told.stopping.by(told.save)
    told.stopping.by(None)
    told.stopping.wanted(60)
    told.stopping.gate()
    assert told.saves == 0
    assert len(told.kept) == 2


def test_a_program_whose_state_cannot_be_saved_goes_on(told: Told) -> None:
    def fails() -> None:
        raise OSError("the disk is full")

    told.stopping.by(fails)
    told.stopping.wanted(60)
    told.stopping.gate()
    until(lambda: told.kept, "it says so")
    (why,) = told.kept
    assert "the disk is full" in why
    told.stopping.by(told.save)
    told.stopping.wanted(60)
    with pytest.raises(Preempted):
        told.stopping.gate()


def test_who_waits_for_its_turn_stops_there(told: Told) -> None:
    """At a gate of the program's, or at a step's end where it names none."""
    told.stopping.by(told.save)
    assert not told.stopping.while_waiting(Place.NAMED, lambda: True)
    told.stopping.wanted(60)
    with pytest.raises(Preempted):
        told.stopping.while_waiting(Place.NAMED, lambda: True)
    other = told.another()
    other.by(told.save)
    for _ in range(2):
        other.step_ended()
    other.wanted(60)
    assert not other.while_waiting(Place.OTHER, lambda: True), "the end of its step comes first"
    with pytest.raises(Preempted):
        other.while_waiting(Place.STEP_END, lambda: True)
    assert told.saves == 2


def test_on_its_way_to_the_gate_that_it_names_it_passes_one_gate_without_its_turn(
    told: Told,
) -> None:
    told.stopping.by(told.save)
    told.stopping.gate()
    told.stopping.step_ended()
    told.stopping.wanted(60)
    assert not told.stopping.while_waiting(Place.STEP_END, lambda: False), "it has no room"
    assert told.stopping.while_waiting(Place.STEP_END, lambda: True)
    assert not told.stopping.while_waiting(Place.STEP_END, lambda: True), "one, not all"
    assert told.saves == 0
    with pytest.raises(Preempted):
        told.stopping.gate()


def test_in_the_queue_it_stops_too(told: Told) -> None:
    told.stopping.by(told.save)
    told.stopping.gate()
    told.stopping.in_queue()
    told.stopping.wanted(60)
    with pytest.raises(Preempted):
        told.stopping.in_queue()


def test_two_threads_save_once(told: Told) -> None:
    """Both pass a gate; the signal of another ask comes meanwhile."""
    begins, goes_on = threading.Event(), threading.Event()

    def save() -> None:
        told.save()
        begins.set()
        assert goes_on.wait(60)

    told.stopping.by(save)
    told.stopping.wanted(60)
    ended: list[object] = []

    def passes() -> None:
        try:
            told.stopping.gate()
        except Preempted as error:
            ended.append(error)

    thread = threading.Thread(target=passes)
    thread.start()
    assert begins.wait(60)
    told.stopping.wanted(60)
    told.stopping.gate()
    goes_on.set()
    thread.join(60)
    assert (told.saves, len(ended)) == (1, 1)


def test_a_program_that_comes_to_no_gate_says_so(told: Told) -> None:
    told.stopping.by(told.save)
    told.stopping.wanted(0.05)
    until(lambda: told.kept, "it says so")
    told.stopping.gate()
    assert told.saves == 0, "who asked counts on it no more"


PROGRAM = """
import os, signal, sys, threading
import jupyter_gpushare as gpushare
from jupyter_gpushare import Preempted

@gpushare.on_preempt
def save():
    os.write(1, b"saved in %s\\n" % threading.current_thread().name.encode())

def asks():
    os.kill(os.getpid(), signal.SIGTERM)

{body}
print("went on", flush=True)
"""
MAIN = "saved in MainThread\n"


@pytest.mark.parametrize(
    ("body", "out", "code"),
    [
        (
            "gpushare.checkpoint(); asks(); print('here', flush=True); gpushare.checkpoint()",
            "here\n" + MAIN,
            PREEMPTED,
        ),
        ("asks()", MAIN, PREEMPTED),
        ("for _ in gpushare.steps([1, 2]):\n    asks()", MAIN, PREEMPTED),
        ("try:\n    asks()\nexcept Exception:\n    pass", MAIN, PREEMPTED),
        ("gpushare.on_preempt(None)\nasks()", "", -signal.SIGTERM),
        (
            "if os.fork() == 0:\n    asks()\nelse:\n    print(os.wait()[1], flush=True)",
            f"{int(signal.SIGTERM)}\nwent on\n",
            0,
        ),
        (
            "gpushare.checkpoint()\nasks()\n"
            "thread = threading.Thread(target=gpushare.checkpoint, name='worker')\n"
            "thread.start(); thread.join()\nsignal.pause()",
            "saved in worker\n",
            PREEMPTED,
        ),
        # The signal comes while a module is half loaded that the words on stderr need.
        ("sys.modules['datetime'] = type(sys)('datetime')\nasks()", MAIN, PREEMPTED),
        # A sweep's model: no `except` of the code that the signal meets keeps it.
        (
            "from jupyter_gpushare.client.memory.stopping import nothing_to_save\n"
            "gpushare.on_preempt(nothing_to_save)\n"
            "print('kept')\n"
            "try:\n    asks()\nexcept BaseException:\n    pass",
            "kept\n",
            PREEMPTED,
        ),
        # What another thread has said and done ends the program too: SIGTERM is not heeded then.
        (
            "gpushare.on_preempt(None)\n"
            "def works():\n    gpushare.on_preempt(save)\n"
            "    acquire.broker().stopping.wanted(60)\n    gpushare.checkpoint()\n"
            "from jupyter_gpushare.client import acquire\n"
            "threading.Thread(target=works, name='worker').start()\nsignal.pause()",
            "saved in worker\n",
            -signal.SIGTERM,
        ),
        # A forked child says anew how it is stopped: what its parent was asked is not its own.
        (
            "gpushare.checkpoint(); asks()\n"
            "if os.fork() == 0:\n    gpushare.on_preempt(save); gpushare.checkpoint()\n"
            "    print('child', flush=True); asks(); gpushare.checkpoint(); os._exit(3)\n"
            "os.wait(); gpushare.checkpoint()",
            "child\n" + 2 * MAIN,
            PREEMPTED,
        ),
        # Calls are gates as steps' ends are: else the signal's own moment would be one.
        (
            "step = gpushare.gated(lambda: os.write(1, b'step\\n'))\n"
            "step(); step(); asks(); print('here', flush=True); step()",
            "step\nstep\nhere\n" + MAIN,
            PREEMPTED,
        ),
    ],
    ids=[
        *("gate", "no-gate", "steps", "except", "taken-back", "child", "thread"),
        *("half-loaded", "nothing-to-save", "another-thread", "anew", "gated"),
    ],
)
def test_sigterm(body: str, out: str, code: int) -> None:
    assert program(body) == (out, code)


def program(body: str, **more: str) -> tuple[str, int]:
    """What such a program prints, and its exit code."""
    environ = {name: v for name, v in os.environ.items() if not name.startswith("JUPYTER_GPU")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        capture_output=True,
        text=True,
        env={**environ, "JUPYTER_GPUSHARE_SOCKET": "/nonexistent/node.sock", **more},
        timeout=60,
        check=False,
    )
    print(done.stderr)
    return done.stdout, done.returncode


FAST = (
    "import time\nfrom jupyter_gpushare.client.memory import stopping\n"
    "stopping.ONE_SIGNAL, stopping.ANOTHER_ASK, stopping.GRACE = {one}, {another}, {grace}\n"
    "gpushare.checkpoint()\nasks()\n"
)


def fast(grace: float, *, one: float = 0.1, another: float = 60) -> str:
    """A program that is asked once, with times (seconds) of the test's choice."""
    return FAST.format(grace=grace, one=one, another=another)


@pytest.mark.parametrize(
    ("asked", "body", "out", "code"),
    [
        # One signal by two ways.
        (fast(60, one=60), "asks()\ngpushare.checkpoint()", MAIN, PREEMPTED),
        # Somebody insists.
        (fast(60), "time.sleep(0.2)\nprint('on', flush=True)\nasks()", "on\n", -signal.SIGTERM),
        (fast(0.3), "time.sleep(60)", "", -signal.SIGTERM),  # it comes to no gate
        # Saving takes longer than the grace.
        (
            fast(0.3),
            "@gpushare.on_preempt\ndef slow():\n    time.sleep(0.5)\n    save()\n"
            "gpushare.checkpoint()",
            MAIN,
            PREEMPTED,
        ),
    ],
    ids=["two-ways", "insists", "no-gate", "slow"],
)
def test_the_second_sigterm_and_the_grace(asked: str, body: str, out: str, code: int) -> None:
    assert program(asked + body) == (out, code)


def test_a_handler_that_was_there_before_hears_who_insists() -> None:
    ours = "gpushare.on_preempt(None)\n"
    ours += "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'theirs\\n'))\n"
    ours += "gpushare.on_preempt(save)\n"
    body = ours + fast(60) + "time.sleep(0.2); asks()"
    assert program(body) == ("theirs\nwent on\n", 0)


def test_run_may_ask_again_later_and_ends_nothing() -> None:
    """It asks, and never kills; who insists sends the second one soon."""
    body = fast(0.2, another=0.5) + "time.sleep(0.7); asks(); gpushare.checkpoint()"
    assert program(body, JUPYTER_GPUSHARE_RUN=str(os.getpid())) == (MAIN, PREEMPTED)
    insists = fast(60) + "time.sleep(0.2); asks(); time.sleep(60)"
    assert program(insists, JUPYTER_GPUSHARE_RUN=str(os.getpid())) == ("", -signal.SIGTERM)
