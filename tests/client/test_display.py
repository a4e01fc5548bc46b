"""A wait is shown late, in one place and growing, and its display is never in the way."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from typing import Any

import pytest

from jupyter_gpushare.client.words import display
from jupyter_gpushare.client.words.display import NotebookDisplay, TerminalDisplay
from jupyter_gpushare.client.words.grant import Grant, GrantedGpu
from jupyter_gpushare.compose.waiting import notice_says
from jupyter_gpushare.protocol.notebook import is_waiting


def queued(position: int) -> dict[str, Any]:
    """A notice, as the node manager composes it."""
    ahead = {"interactive": position - 1, "batch": 0}
    notice: Any = {"position": position, "ahead": ahead, "reason": "no_resources", "message": ""}
    return {**notice, "time": 0.0, "says": notice_says(notice, 0.0)}


FIRST, SECOND = queued(2), queued(1)


class Seconds:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Publisher:
    """Keeps what would go to the front end."""

    def __init__(self) -> None:
        self.published: list[tuple[str, dict[str, Any], bool]] = []
        self.waits: list[bool] = []

    def publish(
        self, data: dict[str, Any], metadata: Any, *, transient: dict[str, str], update: bool
    ) -> None:
        self.published.append((transient["display_id"], data, update))
        self.waits.append(is_waiting({"metadata": metadata}))


def test_a_short_wait_shows_nothing() -> None:
    clock, stream, publisher = Seconds(), Terminal(), Publisher()
    both = (TerminalDisplay(stream, clock), NotebookDisplay(publisher, clock))
    for later in (0.0, 0.29):
        clock.now += later
        for shown in both:
            shown.update(FIRST)
    for shown in both:
        shown.done("GPUs granted.")
    assert stream.getvalue() == ""
    assert publisher.published == []


def test_a_terminal_has_one_line_that_is_rewritten() -> None:
    clock, stream = Seconds(), Terminal()
    shown = TerminalDisplay(stream, clock)
    clock.now += 1
    shown.update(FIRST)
    clock.now += 0.25
    shown.update(FIRST)  # nothing new, too early
    shown.update(SECOND)  # news are shown at once
    clock.now += 60
    shown.update(SECOND)
    shown.done("GPUs granted.")
    first, second, third, last = stream.getvalue().split("\r\x1b[K")[1:]
    assert "Waiting: number 2 in line; 1 interactive ahead; 1 s so far (Ctrl-C leaves)" in first
    assert "number 1 in line; nobody is ahead; 1 s so far" in second
    assert "1 min so far" in third
    assert last == "jupyter_gpushare: GPUs granted. Waited 1 min.\n"
    assert stream.getvalue().count("\n") == 1


def test_a_log_file_gets_a_line_when_something_changes_and_once_a_minute() -> None:
    clock, stream = Seconds(), io.StringIO()
    shown = TerminalDisplay(stream, clock)
    for _ in range(90):
        clock.now += 1
        shown.update(FIRST)
    shown.update(SECOND)
    shown.done()
    lines = stream.getvalue().split("\n")
    assert "\r" not in stream.getvalue()
    assert ["number 2" in line for line in lines] == [True, True, False, False, False]
    assert "number 1" in lines[2]
    assert lines[3] == "jupyter_gpushare: Stopped waiting after 2 min."


def test_a_notebook_has_one_display_that_changes() -> None:
    clock, publisher = Seconds(), Publisher()
    shown = NotebookDisplay(publisher, clock)
    clock.now += 1
    for notice in (FIRST, SECOND):
        shown.update(notice)
    clock.now += 1
    shown.update(SECOND)
    shown.done("GPUs granted.")
    assert len({display_id for display_id, _, _ in publisher.published}) == 1
    assert [update for _, _, update in publisher.published] == [False, True, True, True]
    assert publisher.waits == [True, True, True, False], "only the end may stay"
    for _, data, _ in publisher.published:
        assert set(data) == {"text/plain", "text/html"}
    assert publisher.published[-1][1]["text/plain"] == "GPUs granted. Waited 2 s."


class Broken:
    """A stream or publisher that is in a bad way."""

    def broken(self, *arguments: object, **named: object) -> Any:
        raise RuntimeError("broken")

    isatty = write = flush = publish = broken


class Closed(Terminal):
    """A terminal that went away."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [None, Broken(), Closed()])
def test_who_cannot_be_written_to_stops_nothing(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Seconds()
    for shown in (TerminalDisplay(stream, clock), NotebookDisplay(Broken(), clock)):
        clock.now += 1
        shown.update(FIRST)
        shown.done("x")
    monkeypatch.setattr(sys, "stderr", stream)
    display.say("nobody hears this")
    display.note("nor this")


def test_say_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    display.say("a\nb\x1b[2Jc")
    assert capsys.readouterr().err == "jupyter_gpushare: a b [2Jc\n"


def test_without_ipython_it_is_the_terminal_and_ipython_stays_away() -> None:
    code = (
        "import sys; from jupyter_gpushare.client.words import display; "
        "print(type(display.waiting_display()).__name__, 'IPython' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["TerminalDisplay", "False"]


def test_a_narrow_real_terminal_is_never_wrapped() -> None:
    clock = Seconds()
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 50, 0, 0))
    with os.fdopen(here, "rb", 0) as reads, os.fdopen(there, "w") as stream:
        shown = TerminalDisplay(stream, clock)
        clock.now += 1
        shown.update(FIRST)
        said = reads.read(4096)
    assert said == b"\r\x1b[KWaiting for GPUs: number 2 in line; 1 s so far"


def test_in_a_notebook_nothing_is_said_between_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    runs = [False]
    voice = display.Voice(said.append, lambda: not runs[0])
    voice("One.")
    voice.now("Two.")
    assert said == ["One.", "Two."], "elsewhere all is said at once"
    said.clear()
    monkeypatch.setattr(display, "notebook_publisher", Publisher)
    voice("Your lease was revoked.")
    voice.now("Your GPU is taken back in 30 s.")
    voice("Your lease was revoked.")
    assert said == []
    runs[0] = True
    voice.deliver()
    voice.now("The turn is over.")
    assert said == ["Your lease was revoked.", "The turn is over."]
    voice.deliver()
    assert len(said) == 2


def test_a_note_is_for_a_terminal_and_for_no_log_file(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        monkeypatch.setattr(sys, "stderr", stream)
        display.note("GPU 0 (24 GiB)")
    assert (terminal.getvalue(), log.getvalue()) == ("jupyter_gpushare: GPU 0 (24 GiB)\n", "")


def test_what_was_granted_in_words() -> None:
    def gpu(index: int, memory: int, *shared: str, capacity: int = 24) -> GrantedGpu:
        name = f"GPU-{index}"
        return GrantedGpu(name, index, "A card", memory * 2**30, capacity * 2**30, shared)

    for gpus, words in (
        ((gpu(0, 24),), "GPU 0 (24 GiB)"),
        ((gpu(3, 8),), "GPU 3 (8 GiB of 24 GiB)"),
        ((gpu(1, 24), gpu(0, 24)), "GPU 0 and GPU 1 (24 GiB each)"),
        ((gpu(0, 24), gpu(1, 80, capacity=80)), "GPU 0 (24 GiB) and GPU 1 (80 GiB)"),
        ((gpu(0, 24, "a.ipynb"),), "GPU 0 (24 GiB, shared with your a.ipynb)"),
        ((gpu(1, 8, *"abc"),), "GPU 1 (8 GiB of 24 GiB, shared with your a, b and c)"),
    ):
        assert Grant("lease", gpus).words == words
