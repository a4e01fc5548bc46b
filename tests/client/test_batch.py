"""A program is stopped for a person only as it said how, and with what it has saved.

Also where it waits, for its turn or in the queue; and which class a request has that names none.
With real processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.node import until
from support.scripted_node import LEASE, SECRET, Script, Visitor, plays
from support.scripted_process import Process, process

from jupyter_gpushare.client.errors import PREEMPTED, Preempted
from jupyter_gpushare.client.memory.stopping import Place, Stopping
from jupyter_gpushare.client.session.lease import OwnState
from jupyter_gpushare.client.session.origin import RUNNERS, runner_of
from jupyter_gpushare.client.words.classes import Origin, class_of
from jupyter_gpushare.client.words.settings import Ask
from jupyter_gpushare.protocol.messages import Method, Notice

# -- classes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (Origin(kernel=True), "interactive"),
        (Origin(kernel=True, nohup=True), "interactive"),  # the server was started so
        (Origin(kernel=True, runner="papermill"), "batch"),
        (Origin(of_kernel=True, runner="papermill"), "batch"),
        (Origin(), "batch"),
    ],
)
def test_the_class_of_an_origin(origin: Origin, expected: str) -> None:
    """Those of programs are told below, from real ones."""
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
    """Where a process writes its class, as `$PYTHON` does. It is no child of a kernel."""
    for name in ("JPY_PARENT_PID", "JPY_SESSION_NAME"):
        monkeypatch.delenv(name, raising=False)
    path, script = tmp_path / "class", tmp_path / "says.py"
    script.write_text(SAYS)
    monkeypatch.setenv("SAYS", str(path))
    monkeypatch.setenv("PYTHON", f"{sys.executable} {script}")
    return path


#: A shell script as typed in a terminal, also where the tests themselves were started by `nohup`.
TERMINAL = (
    "import os, pty, signal, sys\n"
    "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    "sys.exit(os.waitstatus_to_exitcode(pty.spawn(['bash', '--norc', '-m', '-c', sys.argv[1]])))"
)
#: A kernel leads a session of its own, and tells its children so.
IN_KERNEL = "JPY_PARENT_PID=1 setsid -w bash -c"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("$PYTHON", "interactive"),
        ("$PYTHON | cat", "interactive"),
        ("$PYTHON & wait", "batch"),
        ("nohup $PYTHON", "batch"),
        ("nohup $PYTHON > /dev/null 2>&1 & wait", "batch"),
        ("setsid -w $PYTHON", "batch"),
        (f"{IN_KERNEL} '$PYTHON; true'", "interactive"),
        (f"{IN_KERNEL} 'nohup $PYTHON; true'", "batch"),
        # A batch system hands a notebook's environment on to the job that is submitted there.
        (f"SLURM_JOB_ID=8 JUPYTER_GPUSHARE_SET_IN='|' {IN_KERNEL} '$PYTHON; true'", "batch"),
        # A server that was started so passes it on.
        (f"trap '' HUP; {IN_KERNEL} '$PYTHON; true'", "interactive"),
    ],
)
def test_programs_from_a_terminal_and_from_a_kernel(
    says: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)  # nohup.out
    command = [sys.executable, "-c", TERMINAL, script]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=60)
    assert says.read_text() == expected


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
        self.saves = 0
        line: Any = SimpleNamespace(session=self, hang_up=lambda _lease: None)
        own: Any = SimpleNamespace(
            grant=SimpleNamespace(lease="L"), state=OwnState.HELD, ends_with_us="L"
        )
        progress: Any = SimpleNamespace(over=lambda: None)
        self.stopping = Stopping(line, own, progress, os.environ, lambda _text: None)

    def tell_surely(self, method: Method, *, reason: str = "", **_told: Any) -> None:
        """As a session's."""
        if method is Method.KEPT:
            self.kept.append(reason)

    def save(self) -> None:
        self.saves += 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


#: What happens to a program, and where it stops (!); what a wait answers meanwhile (- or +).
STORIES = {
    "at its next gate, and not before": "says gate asked gate!",
    "at a step's end, where it names no gate": "says step asked step!",
    "at the gate that it names, and at no step's end": "says gate asked step step step gate!",
    "who did not say how is not stopped": "asked gate says unsays asked gate",
    "in the queue": "says gate queue asked queue!",
    "where it waits for its turn": "says waits_at_gate- asked waits_at_gate!",
    "not where it waits inside a step": "says step step asked waits- waits_at_end!",
    "on its way to its gate it passes one without its turn": (
        "says gate step step asked waits_without_room- waits_at_end+ waits_at_end- gate!"
    ),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_where_it_stops(told: Told, story: str) -> None:
    it = told.stopping
    happens: dict[str, Callable[[], object]] = {
        "says": lambda: it.by(told.save),
        "unsays": lambda: it.by(None),
        "asked": lambda: it.wanted(60),
        "gate": it.gate,
        "step": it.step_ended,
        "queue": it.in_queue,
        "waits": lambda: it.while_waiting(Place.OTHER, lambda: True),
        "waits_at_gate": lambda: it.while_waiting(Place.NAMED, lambda: True),
        "waits_at_end": lambda: it.while_waiting(Place.STEP_END, lambda: True),
        "waits_without_room": lambda: it.while_waiting(Place.STEP_END, lambda: False),
    }
    for word in story.split():
        assert told.saves == 0, word
        if word.endswith("!"):
            with pytest.raises(Preempted) as stopped:
                happens[word[:-1]]()
            assert stopped.value.code == PREEMPTED
            assert told.saves == 1
        else:
            answer = happens[word.rstrip("+-")]()
            assert answer == {"-": False, "+": True}.get(word[-1]), word
    if "!" not in story:
        until(lambda: len(told.kept) == 2, "who is not stopped says so")


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


# -- stopping while it waits: the node manager plays by a script ---------------------------------

ASK = {"lease": LEASE, "gpus": [], "message": ""}
TURN = {**ASK, "give": "turn", "why": "quantum", "gate": True}
STOP = {**ASK, "give": "stop", "why": "contended", "gate": False}


@contextmanager
def program(script: Script, **environ: str) -> Iterator[tuple[Process, list[int]]]:
    """One that said how its state is saved; and its saves."""
    saves: list[int] = []
    with process(script, environ) as made:
        made.broker.stops_by(lambda: saves.append(1))
        try:
            yield made, saves
        finally:
            made.broker.stops_by(None)


def test_it_stops_where_it_waits_for_its_turn() -> None:
    def script(visitor: Visitor) -> None:
        visitor.welcome()
        request = visitor.expect(Method.REQUEST)
        assert request.params.stops is True
        visitor.grant(request)
        visitor.answer(visitor.expect(Method.STATUS), {})
        visitor.notify(Notice.RECALL, TURN)
        visitor.answer(visitor.expect(Method.TURN_ASK), {"state": "held"})
        visitor.notify(Notice.RECALL, {**STOP, "seconds": 60.0})
        visitor.live()

    with program(script) as (alice, saves):
        alice.broker.request(Ask())
        alice.broker.call(Method.STATUS)
        until(lambda: alice.broker.turns.is_closed, "it is asked for its turn")
        with pytest.raises(Preempted):
            alice.broker.turns.checkpoint(Place.NAMED)
        assert saves == [1]
        alice.node.wait_for(Method.TURN_DONE)  # nobody waits until it has gone


def test_sigterm_in_the_queue_saves_and_leaves_it() -> None:
    def script(visitor: Visitor) -> None:
        visitor.welcome()
        request = visitor.expect(Method.REQUEST)
        visitor.queue(request)
        os.kill(os.getpid(), signal.SIGTERM)
        released = visitor.expect(Method.RELEASE)
        assert released.params.request_id == request.params.request_id
        visitor.live()

    with program(script) as (alice, saves):
        alice.broker.stopping.gate()
        with pytest.raises(Preempted):
            alice.broker.request(Ask())
        assert saves == [1]
        alice.node.wait_for(Method.RELEASE)


joins = plays(Visitor.welcome, lambda visitor: visitor.grant(visitor.expect(Method.ATTACH)))


@pytest.mark.parametrize(("run", "says"), [("our parent", True), ("1", False), ("", False)])
def test_what_run_has_started_says_for_its_lease_that_it_can_be_stopped(
    run: str, says: bool
) -> None:
    """It is stopped by a signal; `run` gets the ask."""
    run = str(os.getppid()) if says else run
    joined = {"LEASE": LEASE, "SECRET": SECRET, "RUN": run}
    environ = {f"JUPYTER_GPUSHARE_{name}": value for name, value in joined.items()}
    with program(plays(joins, Visitor.live), **environ) as (alice, _saves):
        assert alice.broker.getting.ensure("import torch") is not None
        if says:
            (told,) = alice.node.wait_for(Method.STOPPABLE)
            assert (told.params.lease, told.params.can) == (LEASE, True)
        else:
            alice.broker.call(Method.STATUS)  # nothing was said before it
            assert not alice.node.calls(Method.STOPPABLE), "its parent does not pass it on"


# -- stopping by a signal ---------------------------------------------------------------------


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


FAST = (
    "import time\nfrom jupyter_gpushare.client.memory import stopping\n"
    "stopping.ONE_SIGNAL, stopping.ANOTHER_ASK, stopping.GRACE = {one}, {another}, {grace}\n"
    "gpushare.checkpoint()\nasks()\n"
)


def fast(grace: float, *, one: float = 0.1, another: float = 60) -> str:
    """A program that is asked once, with times (seconds) of the test's choice.

    What a program sleeps then is one of these times that is to pass, and no event tells its end:
    0.2 s make a second signal another one, 0.7 s another ask, 60 s a program that comes to no gate.
    """
    return FAST.format(grace=grace, one=one, another=another)


#: As a program that `jupyter gpushare run` has started.
RUN = "os.environ['JUPYTER_GPUSHARE_RUN'] = str(os.getppid())\n"


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
        # One signal by two ways; then somebody insists.
        (fast(60, one=60) + "asks()\ngpushare.checkpoint()", MAIN, PREEMPTED),
        (fast(60) + "time.sleep(0.2)\nprint('on', flush=True)\nasks()", "on\n", -signal.SIGTERM),
        (fast(0.3) + "time.sleep(60)", "", -signal.SIGTERM),  # it comes to no gate
        # Saving takes longer than the grace.
        (
            fast(0.3) + "@gpushare.on_preempt\ndef slow():\n    time.sleep(0.5)\n    save()\n"
            "gpushare.checkpoint()",
            MAIN,
            PREEMPTED,
        ),
        # A handler that was there before hears who insists.
        (
            "gpushare.on_preempt(None)\n"
            "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'theirs\\n'))\n"
            "gpushare.on_preempt(save)\n" + fast(60) + "time.sleep(0.2); asks()",
            "theirs\nwent on\n",
            0,
        ),
        # `run` may ask again later, and ends nothing; who insists sends the second one soon.
        (
            RUN + fast(0.2, another=0.5) + "time.sleep(0.7); asks(); gpushare.checkpoint()",
            MAIN,
            PREEMPTED,
        ),
        (RUN + fast(60) + "time.sleep(0.2); asks(); time.sleep(60)", "", -signal.SIGTERM),
    ],
    ids=[
        *("gate", "no-gate", "steps", "except", "taken-back", "child", "thread", "half-loaded"),
        *("nothing-to-save", "another-thread", "anew", "gated", "two-ways", "insists", "late"),
        *("slow", "handler", "run", "run-insists"),
    ],
)
def test_sigterm(body: str, out: str, code: int) -> None:
    environ = {name: v for name, v in os.environ.items() if not name.startswith("JUPYTER_GPU")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        capture_output=True,
        text=True,
        env={**environ, "JUPYTER_GPUSHARE_SOCKET": "/nonexistent/node.sock"},
        timeout=60,
        check=False,
    )
    print(done.stderr)
    assert (done.stdout, done.returncode) == (out, code)
