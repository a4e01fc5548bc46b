"""When the import of a framework asks for a GPU, and how long it may wait, by who imports. Pure.

An import is a wish where code of a cell or a program's main script runs, whether or not somebody
watches. Others import a framework without a wish for a GPU. They ask when they really use the
device, and only their wait has a bound. Afterwards they go on as a refused process does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from .settings import Acquire

#: Seconds that those wait at most who ask at the first use of a device.
BOUND: Final = 60.0


class Caller(Enum):
    """The code that imports a framework, or that uses it first. The values begin a sentence."""

    CELL = "A cell"
    PROGRAM = "A program"
    COMPLETION = "Completion or inspection"
    FRONT_END = "Code outside of cells"
    EVENT_LOOP = "A server's event loop"
    SERVER = "A server"
    LOOKER = "A command of `python -c`, a build, `--help`, or what only looks"


class When(Enum):
    """The moment of the request. ``NEVER``: this process asks for nothing by itself."""

    IMPORT = "import"
    FIRST_USE = "first use"
    NEVER = "never"


PATIENCE: Final = {
    Caller.CELL: None,
    Caller.PROGRAM: None,
    # The kernel, or the server, answers nobody meanwhile.
    Caller.COMPLETION: 0.0,
    Caller.EVENT_LOOP: 0.0,
    Caller.FRONT_END: BOUND,
    Caller.SERVER: BOUND,
    Caller.LOOKER: BOUND,
}
"""Seconds for which a caller waits in the queue at the first use; ``None``: its import is a wish,
and waits without a bound. That is the whole rule; docs/allocation.md has it in words.
"""


def is_wish(caller: Caller) -> bool:
    """Whether the import itself is a wish for a GPU."""
    return PATIENCE[caller] is None


def when(caller: Caller, acquire: Acquire, *, shows_use: bool, is_simulated: bool = False) -> When:
    """The moment at which the ``caller``'s process asks.

    ``shows_use``: the framework shows its first use of the device. On ``is_simulated`` GPUs
    nothing can be used.
    """
    if is_wish(caller):
        late = shows_use and acquire is Acquire.FIRST_USE
        return When.FIRST_USE if late else When.IMPORT
    return When.FIRST_USE if shows_use and not is_simulated else When.NEVER


class Doing(Enum):
    """The innermost thing on a thread's stack that says why its code runs."""

    CELL = "cell"
    LOOKS = "completes or inspects"
    OTHER = "other"


class Facts(NamedTuple):
    """Plain facts about a process and one of its threads.

    ``kernel``: it is a Jupyter kernel. ``starts``: an IPython application is being set up on this
    thread. ``silent``: a front end sent the code for itself. ``serves``: others call
    this process; ``in_loop``: this thread runs an event loop. ``words``: the command line after
    Python's own options.
    """

    kernel: bool = False
    doing: Doing = Doing.OTHER
    starts: bool = False
    silent: bool = False
    serves: bool = False
    in_loop: bool = False
    words: Sequence[str] = ()


def caller_of(facts: Facts) -> Caller:
    """Who runs code in a thread of a process."""
    if facts.doing is Doing.LOOKS:
        return Caller.COMPLETION
    if facts.kernel:
        return Caller.FRONT_END if facts.starts or facts.silent else Caller.CELL
    if facts.doing is Doing.CELL:
        return Caller.CELL
    if facts.serves:
        return Caller.EVENT_LOOP if facts.in_loop else Caller.SERVER
    return Caller.LOOKER if _only_looks(facts.words) else Caller.PROGRAM


#: The beginnings of ``-c`` by which libraries start the workers of a program.
_WORKERS: Final = ("from multiprocessing.", "import sys;exec(eval(sys.stdin.readline()))")
#: Programs and modules that build a package or its documentation.
_BUILDS: Final = frozenset({
    *("setup.py", "_in_process.py", "in_process.py", "pip", "build", "pyproject-build"),
    *("sphinx", "sphinx.__main__", "sphinx-build"),
})  # fmt: skip
#: The part of an editor that finds tests of the standard library's kind.
_DISCOVERY: Final = "unittestadapter/discovery.py"
_COLLECTS: Final = frozenset({"--collect-only", "--collectonly", "--co"})
_HELPS: Final = frozenset({"--help", "--version"})
#: Programs and modules that look at modules, and those whose word ``env`` prints what is installed.
_LOOKERS: Final = frozenset({"collect_env", "pdoc", "pydoc", "pylint", "stubgen"})
_REPORTERS: Final = frozenset({"accelerate", "diffusers-cli", "transformers", "transformers-cli"})


def _only_looks(words: Sequence[str]) -> bool:
    """Whether what Python was told to run imports a framework without a wish for a GPU."""
    first, *rest = words or ("-",)  # nothing: a person types it
    if first == "-c":
        return not (rest and rest[0].startswith(_WORKERS))
    name = os.path.basename(first)
    if first == "-m" and rest:
        name, *rest = rest
    if "--" in rest:
        rest = rest[: rest.index("--")]
    return (
        not _HELPS.isdisjoint(rest)
        or rest[-1:] == ["-h"]  # elsewhere ``-h`` may have a value
        or name in _BUILDS
        or ("pytest" in name and not _COLLECTS.isdisjoint(rest))
        or first.endswith(_DISCOVERY)
        or name.removesuffix(".py").rpartition(".")[2] in _LOOKERS
        or (name in _REPORTERS and rest[:1] == ["env"])
    )


def command_words(arguments: Sequence[str]) -> Sequence[str]:
    """What Python was told to run: ``arguments``, as it was started, without its own options.

    The first word is ``-c``, ``-m``, or a script; none: Python reads its standard input.
    """
    at = 1
    while at < len(arguments):
        word = arguments[at]
        if word == "-" or not word.startswith("-"):
            return arguments[at:]
        at += 1
        if word.startswith("--"):
            at += word == "--check-hash-based-pycs"
            continue
        for letter, rest in ((word[i], word[i + 1 :]) for i in range(1, len(word))):
            if letter in "cm":
                return [f"-{letter}", *([rest] if rest else []), *arguments[at:]]
            if letter in "WX":
                at += not rest
                break
    return ()
