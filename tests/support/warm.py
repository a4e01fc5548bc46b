"""Starts Python programs in milliseconds: a process that has loaded their modules forks for them.

Most of the time of most tests was Python loading the same modules, for a node manager, a command
line, a kernel. So each worker of pytest keeps a few *warm* processes, one for each kind of program.
`install` replaces the function by which `subprocess.Popen` starts a process. Where the command is a
program of a kind in `KINDS`, the warm process forks, and its child becomes that program: it gets
the descriptors, folder, environment, arguments and session that a new process would have, and runs
the module as ``python -m`` does. All else is as it was: the child is a real process and a child of
pytest (the fork says CLONE_PARENT), may be killed, and ``/proc/PID/cmdline`` and ``environ`` say
what they would say.

What a new process reads only once, at its start, cannot be given to a fork. So a warm process is
made for one value of each variable that the loader, the C library or Python itself reads
(`READ_ONCE`), and a start that wants what a fork cannot have is a cold one, as it was before.
With ``GPUSHARE_TESTS_COLD=1`` all are, or those that get it. tests/packaging/test_warm.py compares
the two.

Frameworks are warm too: PyTorch is loaded in the warm process and then hidden, and the program's
own ``import torch``, by which the product takes GPUs, finds it there and need not load it again,
nor what the first optimizer loads. So are JAX and TensorFlow.
"""

from __future__ import annotations

import array
import ctypes
import dataclasses
import io
import json
import os
import signal
import socket
import sys
import threading
from typing import Any


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a warm process has loaded, and what its programs get."""

    #: Seen by the program, as if it had loaded them.
    loaded: tuple[str, ...] = ()
    #: Loaded, and hidden until the program imports them; each with those before it, which it needs.
    hidden: tuple[str, ...] = ()
    #: Loaded anew by each program, with all below, because they look at the environment meanwhile.
    anew: tuple[str, ...] = ()
    #: Whether it takes so long to load that even the first program is worth a warm process.
    at_once: bool = False


KINDS = {
    "node": Kind(("jupyter_gpushare.node.app", "jupyter_gpushare.cli.app")),
    "kernel": Kind(
        *(("ipykernel.kernelapp", "IPython.core.completer"), ("torch", "torch._dynamo")),
        anew=("ipykernel.kernelapp",),
    ),
    "server": Kind(
        (
            *("jupyter_server.serverapp", "jupyter_server.gateway.managers", "jupyterlab.labapp"),
            *("jupyter_gpushare.server.extension", "jupyter_lsp.serverextension"),
        ),
        anew=("jupyterlab",),
    ),
    "hub": Kind(
        ("jupyterhub.app", "jupyterhub.singleuser", "alembic.config", "jupyter_gpushare.hub")
    ),
    "pages": Kind(("jupyter_gpushare.hub.app",)),
    "torch": Kind(hidden=("torch", "torch._dynamo")),
    "jax": Kind(hidden=("jax",), at_once=True),
    # Keras, which TensorFlow loads, chooses what it computes with while it is loaded.
    "tensorflow": Kind(hidden=("jax", "tensorflow"), anew=("keras",), at_once=True),
}
#: The kind of ``python -m MODULE``.
MODULES = {
    "jupyter_gpushare.node": "node",
    "jupyter_gpushare.cli": "node",
    "jupyter_gpushare.hub": "pages",
    "jupyter_server": "server",
    "jupyterlab": "server",
    "notebook": "server",
    "jupyterhub": "hub",
    "ipykernel_launcher": "kernel",
}
#: The kind of ``python -c CODE`` or ``python FILE`` by what stands in the code.
IN_CODE = {
    "import torch": "torch",
    "import tensorflow": "tensorflow",
    "import keras": "tensorflow",
    "import jax": "jax",
    "from jupyter_gpushare.node.app import main; main()": "node",
    "\njupyter_gpushare.node.app.main()\n": "node",
}
#: Options of Python that a fork can be given.
STRICT = ["-W", "error"]
#: Variables that count when a process starts, and never again.
READ_ONCE = (
    *("LD_", "LANG", "LC_", "TZ", "MALLOC_", "GLIBC_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_"),
    *("USER", "JUPYTERHUB_", "TF_", "TF2_", "JAX_", "KERAS_"),
)
#: Of these a fork can be given its own.
GIVEN = ("PYTHONPATH", "PYTHONUNBUFFERED")
COLD = "GPUSHARE_TESTS_COLD"
#: Warm processes of one worker; the one that was not used for longest makes room.
MOST = 5

_CLONE_PARENT, _CHILD_CLEARTID, _CHILD_SETTID = 0x8000, 0x200000, 0x1000000
_SYS_CLONE = 56  # on x86_64
_PR_SET_MM = 35
_MM_MAP, _MM_MAP_SIZE = 14, 15
#: Where glibc keeps a thread's number, from the thread's own pointer; looked at before it is used.
_TID = 720


# In pytest -----------------------------------------------------------------------------------


class Warm:
    """The warm processes of one worker."""

    def __init__(self, cold: Any) -> None:
        self.cold = cold
        #: Which warm processes were made, for tests.
        self.made: list[tuple[str, ...]] = []
        self._forkers: dict[tuple[str, ...], _Forker] = {}
        #: What was started cold: once is not worth a warm process, and some kinds cannot be warm.
        self._asked: set[tuple[str, ...]] = set()
        self.hopeless: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()  # tests start programs in threads, too

    def fork_exec(self, *given: Any) -> int:
        """As ``_posixsubprocess.fork_exec``: start a process and return its pid."""
        if (job := _job(given)) is not None:
            key = _key(job)
            with self._lock:
                forker = self._forker(key)
                try:
                    if forker is not None and (pid := forker.fork(job)):
                        return pid
                except (OSError, EOFError):  # it has ended; where it never forked, it cannot
                    self._forkers.pop(key).close()
                    if forker is not None and not forker.has_forked:
                        self.hopeless.add(key)
        return int(self.cold(*given))

    def _forker(self, key: tuple[str, ...]) -> _Forker | None:
        if (found := self._forkers.pop(key, None)) is not None:
            self._forkers[key] = found  # the last one is the one that was used last
            return found
        is_asked = key in self._asked or KINDS[key[0]].at_once
        if not is_asked or key in self.hopeless:
            self._asked.add(key)
            return None
        while len(self._forkers) >= MOST:
            self._forkers.pop(next(iter(self._forkers))).close()
        self._forkers[key] = _Forker(self.cold, key[0], key[1:])
        self.made.append(key)
        return self._forkers[key]

    def close(self) -> None:
        """End the warm processes; what they forked goes on."""
        while self._forkers:
            self._forkers.popitem()[1].close()


class _Forker:
    """One warm process, seen from pytest."""

    def __init__(self, cold: Any, kind: str, once: tuple[str, ...]) -> None:
        self.wire, theirs = socket.socketpair()
        self.has_forked = False
        environ = {k: v for k, v in os.environ.items() if not k.startswith((*READ_ONCE, "PYTEST"))}
        environ |= dict(pair.split("=", 1) for pair in once if not pair.startswith("/"))
        environ["OPENBLAS_NUM_THREADS"] = "1"  # a fork has one thread, and numpy starts others
        command = [sys.executable, __file__, kind, str(theirs.fileno())]
        encoded = [os.fsencode(f"{name}={value}") for name, value in environ.items()]
        read, write = os.pipe()
        with theirs:
            # As Popen calls it, with descriptors as they are here.
            self.pid = cold(
                *([os.fsencode(word) for word in command], [os.fsencode(sys.executable)], True),
                *(tuple(sorted((theirs.fileno(), write))), None, encoded),
                *(-1, -1, -1, -1, -1, -1, read, write, True, True, -1, None, None, None, -1, None),
                False,
            )
        os.close(read)
        os.close(write)

    def fork(self, job: dict[str, Any]) -> int:
        """Have it fork; the child's pid, or 0 where it could not become what the job says.

        Raises ``OSError`` and ``EOFError`` when it has ended.
        """
        text = json.dumps(job).encode()
        self.wire.sendall(len(text).to_bytes(4, "big"))
        fds = array.array("i", [here for here, _ in job["fds"]]).tobytes()
        sent = self.wire.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        self.wire.sendall(text[sent:])
        pid = int.from_bytes(_exactly(self.wire, 4), "big", signed=True)
        self.has_forked = True
        if pid < 0:
            os.waitpid(-pid, 0)
        return max(pid, 0)

    def close(self) -> None:
        self.wire.close()
        os.waitpid(self.pid, 0)


def _job(given: tuple[Any, ...]) -> dict[str, Any] | None:
    """What to tell a warm process; ``None`` where the start must be a cold one."""
    (args, _, close_fds, keep, cwd, environ, p2c, _, _, c2p, _, err, _, told) = given[:14]
    restore, session, group, gid, groups, uid, umask, before = given[14:22]
    plain = (close_fds, restore, group, gid, groups, uid, umask, before)
    if plain != (True, True, -1, None, None, None, -1, None):
        return None
    words = [os.fsdecode(word) for word in args]
    strict = words[1:3] == STRICT
    folder = os.getcwd() if cwd is None else os.path.abspath(os.fsdecode(cwd))
    kind = _kind(words[3:] if strict else words[1:], folder)
    if words[0] != sys.executable or kind is None:
        return None
    ours = (f"{name}={value}" for name, value in os.environ.items())
    pairs = [*ours] if environ is None else [os.fsdecode(pair) for pair in environ]
    if any(pair.startswith(f"{COLD}=") for pair in pairs):
        return None
    fds = [(p2c if p2c >= 0 else 0, 0), (c2p if c2p >= 0 else 1, 1), (err if err >= 0 else 2, 2)]
    fds += [(fd, fd) for fd in keep if fd != told]
    return {
        **{"kind": kind, "args": words, "environ": pairs, "fds": fds},
        **{"session": bool(session), "cwd": folder, "strict": strict},
    }


def _kind(words: list[str], folder: str) -> str | None:
    """The kind of a program by what follows ``python``."""
    if not words:
        return None
    if words[0] == "-m":
        return MODULES.get(words[1])
    code = words[1] if words[0] == "-c" else ""
    if words[0].endswith(".py"):
        try:
            with open(os.path.join(folder, words[0]), encoding="utf-8") as file:
                code = file.read()
        except (OSError, ValueError):
            return None
    return next((kind for part, kind in IN_CODE.items() if part in code), None)


def _key(job: dict[str, Any]) -> tuple[str, ...]:
    """The warm process that can be this program.

    That is its kind, what a process reads only once, and what it inherits of its parent.
    """
    once = (p for p in job["environ"] if p.startswith(READ_ONCE) and not p.startswith(GIVEN))
    return (job["kind"], *sorted(once), *_inherited())


def _inherited() -> list[str]:
    """Limits, mask, signals and places that a child has of its parent, as paths and what they say.

    A test may change those of pytest; a warm process was started before or afterwards.
    """
    names = ("Umask:", "SigBlk:", "SigIgn:", "CapBnd:", "Cpus_allowed:")
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        told = [f"/status {line}" for line in file if line.startswith(names)]
    for name in ("limits", "cgroup", "oom_score_adj"):
        with open(f"/proc/self/{name}", encoding="ascii", errors="replace") as file:
            told.append(f"/{name} {file.read()}")
    return [*told, *(f"/ns {os.readlink(f'/proc/self/ns/{name}')}" for name in ("mnt", "net"))]


def can() -> bool:
    """Whether programs can be started warm here."""
    import platform

    return (
        not os.environ.get(COLD)
        and platform.machine() == "x86_64"
        and (3, 11) <= sys.version_info[:2] <= (3, 13)
        and _knows_tid()
        and not ctypes.CDLL(None).prctl(
            _PR_SET_MM, _MM_MAP_SIZE, ctypes.byref(ctypes.c_uint()), 0, 0
        )
    )


def install() -> Warm | None:
    """Warm starts for all `subprocess.Popen` of this process; ``None`` where they cannot be."""
    import subprocess

    if not can():
        return None
    warm = Warm(subprocess._fork_exec)  # type: ignore[attr-defined]
    subprocess._fork_exec = warm.fork_exec  # type: ignore[attr-defined]
    return warm


def _exactly(wire: socket.socket, many: int) -> bytes:
    data = b""
    while len(data) < many:
        if not (some := wire.recv(many - len(data))):
            raise EOFError("the other side has ended")
        data += some
    return data


def _tid_at() -> int:
    libc = ctypes.CDLL(None)
    libc.pthread_self.restype = ctypes.c_void_p
    return int(libc.pthread_self()) + _TID


def _knows_tid() -> bool:
    """Whether this C library keeps the thread's number where we think."""
    import platform
    import threading

    if platform.libc_ver()[0] != "glibc":
        return False
    return ctypes.c_int.from_address(_tid_at()).value == threading.get_native_id()


# In the warm process ---------------------------------------------------------------------------


class Hidden:
    """Frameworks that are loaded, and not seen until the program imports them.

    A finder and a loader. It answers for a hidden module where the ordinary finder would load the
    very same file, so a stand-in of the same name on PYTHONPATH is found instead.
    """

    def __init__(self, names: tuple[str, ...], anew: tuple[str, ...]) -> None:
        import importlib

        known = set(sys.modules)
        #: By framework, the modules that were there when it was loaded.
        self.loaded: dict[str, set[str]] = {}
        for name in names:
            try:
                importlib.import_module(name)
            except ImportError:
                continue
            self.loaded[name.partition(".")[0]] = set(sys.modules) - known
        self.modules = {n: m for n, m in sys.modules.items() if n not in known}
        for name in self.modules:
            del sys.modules[name]
        for name in [n for n in self.modules if n.partition(".")[0] in anew]:
            del self.modules[name]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As finders do."""
        from importlib.machinery import ModuleSpec, PathFinder

        module = self.modules.get(name)
        if "." in name or module is None:
            return None
        real = PathFinder.find_spec(name, path, target)
        if real is None or real.origin != getattr(module.__spec__, "origin", None):
            return None
        spec = ModuleSpec(name, _Shown(self, module.__spec__), origin=real.origin)
        spec.submodule_search_locations = real.submodule_search_locations
        spec.has_location = True
        return spec

    def show(self, name: str) -> None:
        """Let a module be seen, with all below it; a framework with all that it needs."""
        for other, module in list(self.modules.items()):
            if other == name or other.startswith(f"{name}.") or other in self.loaded.get(name, ()):
                sys.modules.setdefault(other, module)
                self.modules.pop(other, None)


class _Shown:
    """A loader of one hidden module."""

    def __init__(self, hidden: Hidden, spec: Any) -> None:
        self.hidden = hidden
        self.spec = spec

    def create_module(self, spec: Any) -> Any:
        """The module as it was loaded."""
        return self.hidden.modules[spec.name]

    def exec_module(self, module: Any) -> None:
        """Show it; it has run already."""
        self.hidden.show(self.spec.name)
        module.__spec__ = self.spec
        module.__loader__ = self.spec.loader


def _serve(kind: str, wire: socket.socket) -> tuple[dict[str, Any], Hidden]:
    """Load what the kind needs, and fork for each job; returns in a child, with its job."""
    import contextlib
    import gc
    import importlib

    for name in KINDS[kind].loaded:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    hidden = Hidden(KINDS[kind].hidden, KINDS[kind].anew)
    for name in KINDS[kind].anew:
        for other in [*sys.modules]:
            if other == name or other.startswith(f"{name}."):
                del sys.modules[other]
        package, _, own = name.rpartition(".")
        if package in sys.modules:
            vars(sys.modules[package]).pop(own, None)
    if len(os.listdir("/proc/self/task")) > 1:
        os._exit(1)  # a fork would lack the others; pytest starts programs of this kind cold
    gc.collect()
    gc.freeze()
    while True:
        try:
            size = int.from_bytes(_exactly(wire, 4), "big")
        except (EOFError, OSError):
            os._exit(0)
        text, fds = b"", array.array("i")
        while len(text) < size:
            some, extra, _, _ = wire.recvmsg(size - len(text), socket.CMSG_SPACE(4 * 250))
            if not some:  # pytest was killed while it asked
                os._exit(0)
            text += some
            for _, _, data in extra:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        job = json.loads(text)
        pid = _fork_beside()
        if pid == 0:
            _wear([*fds], job, wire.fileno())
            if KINDS[kind].hidden:
                _end_early()
            return job, hidden
        for fd in fds:
            os.close(fd)
        if pid < 0:
            wire.sendall(bytes(4))


def _fork_beside() -> int:
    """As ``os.fork``, but the child's parent is ours: pytest can wait for it."""
    libc = ctypes.PyDLL(None)  # keeps the interpreter's lock, as a fork must
    tid = ctypes.c_void_p(_tid_at())
    ctypes.pythonapi.PyOS_BeforeFork()
    flags = _CLONE_PARENT | _CHILD_SETTID | _CHILD_CLEARTID | signal.SIGCHLD
    pid = int(libc.syscall(_SYS_CLONE, flags, None, None, tid, None))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid


def _wear(fds: list[int], job: dict[str, Any], answer: int) -> None:
    """Become what a new process would be: descriptors, session, folder, environment.

    Then say so: whoever started a process may at once ask, say, for its process group.
    """
    import fcntl

    answer, *far = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 512) for fd in (answer, *fds)]
    os.closerange(0, 512)
    try:
        for fd, (_, wanted) in zip(far, job["fds"], strict=True):
            os.dup2(fd, wanted, inheritable=True)
            os.close(fd)
        if job["session"]:
            os.setsid()
        os.chdir(job["cwd"])
        os.environ.clear()
        for pair in job["environ"]:
            name, _, value = pair.partition("=")
            if name:
                os.environ[name] = value
        _say_what_it_is(job)
    except OSError:  # a folder that is not there, say: a cold start tells it
        os.write(answer, (-os.getpid()).to_bytes(4, "big", signed=True))
        os._exit(1)
    os.write(answer, os.getpid().to_bytes(4, "big"))
    os.close(answer)


def _end_early() -> None:
    """When Python has ended all, end, with the status that the program ends with.

    What C++ still undoes, operator by operator of PyTorch, took most of the time of most programs.
    """
    libc = ctypes.CDLL(None)
    for last in (libc._exit, libc.fcloseall):  # the last one is called first
        libc.on_exit(last, None)


def _say_what_it_is(job: dict[str, Any]) -> None:
    """Have the kernel tell others the arguments and the environment that this process has."""
    parts = [[os.fsencode(text) + b"\0" for text in job[name]] for name in ("args", "environ")]
    arguments, environ = (b"".join(part) for part in parts)
    kept = ctypes.create_string_buffer(arguments + environ)
    _kept.append(kept)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    with open("/proc/self/stat", "rb") as file:
        stat = [int(word) for word in file.read().rpartition(b")")[2].split()[1:]]
    start = ctypes.addressof(kept)
    middle, end = start + len(arguments), start + len(arguments) + len(environ)
    # struct prctl_mm_map: all as it is, but for where arguments and environment begin and end.
    fields = [stat[22], stat[23], stat[41], stat[42], stat[43], libc.sbrk(0), stat[24]]
    told = (ctypes.c_uint64 * 13)(*fields, start, middle, middle, end, 0, 0xFFFFFFFF << 32)
    if libc.prctl(_PR_SET_MM, _MM_MAP, told, ctypes.c_ulong(ctypes.sizeof(told)), 0):
        raise OSError(ctypes.get_errno(), "the kernel does not take arguments and environment")


_kept: list[Any] = []  # what the kernel reads as arguments and environment must stay where it is


def _run(job: dict[str, Any], hidden: Hidden, base: list[str]) -> None:
    """Run the module as a new process would."""
    import importlib.machinery
    import runpy
    import tempfile
    import types
    import warnings

    from jupyter_gpushare import _boot

    environ = os.environ
    unbuffered = bool(environ.get("PYTHONUNBUFFERED"))
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        old = getattr(sys, name)  # of the warm process, which reads and writes as we do
        deep = open(fd, f"{mode}b", closefd=False)  # noqa: SIM115 - as long as the process
        stream = io.TextIOWrapper(
            *(deep, old.encoding, old.errors, "\n" if mode == "w" else None),
            line_buffering=name == "stderr" or deep.raw.isatty(),
            write_through=unbuffered and mode == "w",
        )
        stream.mode = mode  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    tempfile.tempdir = None
    args = job["args"]
    sys.orig_argv[:] = args
    if job["strict"]:
        args = [args[0], *args[3:]]
        sys.warnoptions.append("error")
        warnings.simplefilter("error")
    how = args[1]
    first = {"-m": os.getcwd(), "-c": ""}.get(how) or os.path.dirname(os.path.abspath(how))
    extra = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:] = ["" if how == "-c" else first, *extra, *base]
    sys.path_importer_cache.clear()
    sys.argv[:] = args[1:] if how.endswith(".py") else [how, *args[3:]]
    # What the start-up file of the package did was for the warm process's own environment.
    sys.meta_path[:] = [one for one in sys.meta_path if type(one).__name__ != "Finder"]
    ordinary = sys.meta_path.index(importlib.machinery.PathFinder)
    sys.meta_path.insert(ordinary, hidden)
    _boot.install()
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if how == "-m":
        runpy._run_module_as_main(args[2])  # type: ignore[attr-defined]
    elif how == "-c":
        exec(compile(args[2], "<string>", "exec"), main.__dict__)
    else:
        main.__file__ = how
        with open(how, "rb") as file:
            code = compile(file.read(), how, "exec")
        exec(code, main.__dict__)


if __name__ == "__main__":
    # The program's path is that of this process without this file's folder.
    _base = sys.path[1:]
    sys.path[:] = _base
    _wire = socket.socket(fileno=int(sys.argv[2]))
    _job_, _hidden = _serve(sys.argv[1], _wire)
    _wire.detach()
    try:
        _run(_job_, _hidden, _base)
    except Exception as _error:  # noqa: BLE001 - whatever the program ends with
        # As Python tells it, but for the lines of this file.
        _trace = _error.__traceback__
        while _trace is not None and _trace.tb_frame.f_code.co_filename == __file__:
            _trace = _trace.tb_next
        sys.excepthook(type(_error), _error.with_traceback(_trace), _trace)
        sys.exit(1)
