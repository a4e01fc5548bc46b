"""Notice the first import of a GPU framework, in whatever Python process it happens.

The start-up files ``jupyter_gpushare.pth`` (up to Python 3.14) and
``jupyter_gpushare.start`` (from 3.15 on) call `install` whenever Python starts,
so this module imports ``sys`` only and puts one finder in front of the others.
It answers for the few names it watches, and only by asking the others: looking
for a framework (``find_spec("torch")``) is not using it. When the module it
found is *executed*, ``client/acquire.py`` hears of it before and after.
``JUPYTER_GPUSHARE=off`` turns all of it off.
"""

import sys

TYPE_CHECKING = False  # as in typing, which would cost every Python start milliseconds
if TYPE_CHECKING:
    from typing import Any

FRAMEWORKS = frozenset({"caffe", "cupy", "jax", "mxnet", "paddle", "tensorflow", "torch"})


def install() -> None:
    """Put the finder in front, once. Does nothing when switched off or not on Linux."""
    if sys.platform == "linux" and not _switched_off() and _finder() is None:
        extra = _environ().get("JUPYTER_GPUSHARE_FRAMEWORKS", "")
        sys.meta_path.insert(0, Finder(FRAMEWORKS.union(extra.replace(",", " ").split())))


def watch(module: str) -> None:
    """Watch one more top-level module; for other packages' own start-up files."""
    install()
    if (finder := _finder()) is not None:
        finder.names = finder.names.union((module,))


class Finder:
    """Lets the other finders find a framework, and stands before its execution."""

    def __init__(self, names: "frozenset[str]") -> None:
        self.names = names
        self.executed: set[tuple[int, str]] = set()  # by pid: a forked child is another process

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name in self.names:
            for finder in list(sys.meta_path):
                find = None if finder is self else getattr(finder, "find_spec", None)
                if find is not None and (spec := find(name, path, target)) is not None:
                    self.arm(spec.loader)
                    return spec
        return None

    def arm(self, loader: "Any") -> None:
        """Stand before this loader *instance*; leave it alone if it cannot be done cleanly."""
        own = getattr(loader, "__dict__", None)  # a class's is no dict, and slots have none
        run = getattr(loader, "exec_module", None)
        if type(own) is dict and run is not None and type(run) is not ArmedExec:
            own["exec_module"] = ArmedExec(self, loader, run)


class ArmedExec:
    """A loader's ``exec_module`` until the framework runs; then the loader is as it was.

    One loader may serve many modules (a ``zipimporter`` does), so the name decides.
    """

    __slots__ = ("finder", "loader", "run")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, finder: Finder, loader: "Any", run: "Any") -> None:
        self.finder = finder
        self.loader = loader
        self.run = run

    def __eq__(self, other: object) -> bool:
        return type(other) is ArmedExec  # loaders are equal when their __dict__ are

    def __call__(self, module: "Any") -> None:
        name = getattr(module, "__name__", "")
        if name in self.finder.names:
            self.disarm()
            self.execute(name, module)
        else:
            self.run(module)

    def disarm(self) -> None:
        own = vars(self.loader)
        if own.get("exec_module") is self:
            del own["exec_module"]
            if getattr(self.loader, "exec_module", None) != self.run:  # another's wrapper was there
                own["exec_module"] = self.run

    def execute(self, name: str, module: "Any") -> None:
        done, key = self.finder.executed, (_pid(), name)
        if key in done or _switched_off():  # a reload, or the inner one of two armed loaders
            self.run(module)
            return
        done.add(key)
        try:
            _before(name)
            self.run(module)
        except BaseException:
            done.discard(key)  # a failed import may be tried again
            raise
        _after(name, module)


def _before(name: str) -> None:
    try:
        from .client.acquire import before_framework

        before_framework(name)
    except Exception as error:  # our own bug must not break the user's import
        if type(error).__module__.startswith(f"{__package__}.client"):
            raise  # the user chose fallback="error": QuotaExceeded and its like
        _complain(name, error)


def _after(name: str, module: "Any") -> None:
    try:
        from .client.acquire import after_framework

        after_framework(name, module)
    except Exception as error:  # noqa: BLE001 - as above; the framework is imported
        _complain(name, error)


def _complain(name: str, error: Exception) -> None:
    why = f"{type(error).__name__}: {error}"
    try:  # noqa: SIM105 - contextlib would have to be imported
        sys.stderr.write(
            f"jupyter_gpushare: `import {name}` goes on without GPU sharing, because of an error "
            f"of its own ({why}). "
            "`jupyter gpushare doctor` may know more; JUPYTER_GPUSHARE=off switches it off.\n"
        )
    except (AttributeError, OSError, ValueError):
        pass  # no stderr, or it is closed


def _finder() -> "Finder | None":
    for finder in sys.meta_path:  # by name, not class: this module may have been loaded twice
        kind = type(finder)
        if kind.__name__ == "Finder" and kind.__module__ == __name__:
            return finder  # type: ignore[return-value]
    return None


def _environ() -> "Any":
    import os  # always there: the site module, which called us, needs it

    return os.environ


def _pid() -> int:
    import os

    return os.getpid()


def _switched_off() -> bool:
    return _environ().get("JUPYTER_GPUSHARE", "").lower() in ("off", "0", "false", "no")
