"""The finder fires on a framework's execution, once, and is otherwise not there."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.resources
import importlib.util
import inspect
import pickle
import pkgutil
import runpy
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import jupyter_gpushare.client
from jupyter_gpushare import _boot

ERRORS = "jupyter_gpushare.client.errors"


class Recorder(ModuleType):
    """Stands where ``client/acquire.py`` is, and writes down what it is told."""

    def __init__(self) -> None:
        super().__init__("jupyter_gpushare.client.acquire")
        self.heard: list[str] = []
        self.before: BaseException | None = None
        self.after: BaseException | None = None

    def before_framework(self, name: str) -> None:
        self.heard.append(f"before {name}")
        if self.before is not None:
            raise self.before

    def after_framework(self, name: str, module: ModuleType) -> None:
        assert module.__name__ == name
        self.heard.append(f"after {name}")
        if self.after is not None:
            raise self.after


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    stand_in = Recorder()
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    monkeypatch.setattr(jupyter_gpushare.client, "acquire", stand_in, raising=False)
    monkeypatch.delenv("JUPYTER_GPUSHARE", raising=False)
    return stand_in


@pytest.fixture
def frames(tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on ``sys.path`` with two watched packages, ``frame`` and ``frame2``."""
    for name in ("frame", "frame2"):
        package = tmp_path / name
        package.mkdir()
        (package / "__init__.py").write_text("import __main__\nvalue = 1\n\ndef work():\n    ...\n")
        (package / "nn.py").write_text("layer = 2\n")
        (package / "tool.py").write_text("result = __name__\n")
        (package / "data.txt").write_text("weights")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    finder = _boot.Finder(frozenset({"frame", "frame2"}))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in finder.names]:
        del sys.modules[name]


def armed(loader: Any) -> bool:
    return "exec_module" in vars(loader)


AROUND = ["before frame", "after frame"]


def refusal(name: str) -> Exception:
    """One of the client's own, which users are to see."""
    return type(name, (Exception,), {"__module__": ERRORS})("you may hold 1 GPU")


@pytest.mark.parametrize("first", ["frame", "frame.nn"])
def test_fires_once_around_the_execution(frames: Path, recorder: Recorder, first: str) -> None:
    importlib.import_module(first)
    frame = sys.modules["frame"]
    assert frame.value == 1
    assert recorder.heard == AROUND
    assert importlib.reload(frame) is frame
    assert recorder.heard == AROUND, "a reload is not a first time"
    assert not armed(frame.__loader__)


def test_looking_is_not_using(frames: Path, recorder: Recorder) -> None:
    spec = importlib.util.find_spec("frame")
    assert spec is not None
    assert isinstance(spec.loader, importlib.machinery.SourceFileLoader)
    assert spec == importlib.util.find_spec("frame")
    assert hash(spec.loader) == hash(importlib.util.find_spec("frame").loader)  # type: ignore[union-attr]
    assert pickle.loads(pickle.dumps(spec.loader)).path == spec.loader.path
    assert importlib.util.find_spec("no_such_frame") is None
    assert recorder.heard == []


def test_a_failed_import_can_be_tried_again(frames: Path, recorder: Recorder) -> None:
    source = frames / "frame" / "__init__.py"
    good = source.read_text()
    source.write_text("raise OSError('libcudart.so is missing')")
    with pytest.raises(OSError, match="libcudart"):
        import frame
    assert "frame" not in sys.modules
    assert recorder.heard == ["before frame"]
    source.write_text(good)
    importlib.invalidate_caches()
    import frame

    assert recorder.heard == ["before frame", "before frame", "after frame"]
    assert not armed(frame.__loader__)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), refusal("QuotaExceeded")])
def test_what_ends_the_wait_reaches_the_user(
    frames: Path, recorder: Recorder, error: BaseException
) -> None:
    recorder.before = error
    with pytest.raises(type(error)) as caught:
        import frame
    assert caught.value is error
    assert "frame" not in sys.modules
    recorder.before = None
    import frame

    assert frame.value == 1


@pytest.mark.parametrize(
    ("when", "error"),
    [
        ("before", TypeError("oh no")),
        ("after", TypeError("oh no")),
        ("after", refusal("LeaseLost")),  # after the import nothing may undo it
        ("never", ModuleNotFoundError("import of jupyter_gpushare.client.acquire halted")),
    ],
)
def test_our_own_bug_does_not(
    frames: Path,
    recorder: Recorder,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    error: Exception,
) -> None:
    if when == "never":
        monkeypatch.delattr(jupyter_gpushare.client, "acquire")
        monkeypatch.setitem(sys.modules, recorder.__name__, None)
    else:
        setattr(recorder, when, error)
    import frame

    assert frame.value == 1
    said = capsys.readouterr().err
    assert said.count("\n") == (2 if when == "never" else 1)
    assert "import frame" in said
    assert f"{type(error).__name__}: {error}" in said
    assert "JUPYTER_GPUSHARE=off" in said
    monkeypatch.setattr(sys, "stderr", None)
    import frame2

    assert frame2.value == 1


def test_switched_off_later(
    frames: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_GPUSHARE", "off")
    import frame

    assert frame.value == 1
    assert recorder.heard == []


def test_tools_that_read_modules(frames: Path, recorder: Recorder) -> None:
    assert runpy.run_module("frame.tool")["result"] == "frame.tool"
    import frame

    assert importlib.resources.files("frame").joinpath("data.txt").read_text() == "weights"
    assert pkgutil.get_data("frame", "data.txt") == b"weights"
    assert "def work" in inspect.getsource(frame.work)
    assert {found.name for found in pkgutil.iter_modules(frame.__path__)} == {"nn", "tool"}
    assert "frame" in {found.name for found in pkgutil.iter_modules()}
    importlib.invalidate_caches()
    assert pickle.loads(pickle.dumps(frame.work)) is frame.work
    assert recorder.heard == AROUND


def test_a_lazy_loader_fires_at_first_use(frames: Path, recorder: Recorder) -> None:
    spec = importlib.util.find_spec("frame")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["frame"] = module
    assert spec.loader is not None
    spec.loader.exec_module(module)
    assert recorder.heard == []
    assert module.value == 1
    assert recorder.heard == AROUND


def test_one_zip_with_everything(
    frames: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = frames / "all.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("frame.py", "import beside\nimport frame2\nvalue = 'zipped'\n")
        packed.writestr("frame2.py", "value = 'zipped'\n")
        packed.writestr("beside.py", "value = 3\n")
    monkeypatch.syspath_prepend(archive)
    importlib.util.find_spec("frame")
    import beside
    import frame

    assert frame.value == "zipped"
    assert recorder.heard == ["before frame", "before frame2", "after frame2", "after frame"]
    assert not armed(frame.__loader__)
    del sys.modules[beside.__name__]


def test_a_folder_of_that_name(frames: Path, recorder: Recorder) -> None:
    (frames / "frame" / "__init__.py").unlink()
    import frame  # a namespace package: no loader that executes anything

    assert list(frame.__path__) == [str(frames / "frame")]
    assert recorder.heard == []


class SlotsLoader:
    __slots__ = ()

    def create_module(self, spec: object) -> None: ...

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["value"] = 1


class ClassLoader:
    @staticmethod
    def create_module(spec: object) -> None: ...

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        module.__dict__["value"] = 1


class OneFinder:
    """Finds ``frame`` with a given loader."""

    def __init__(self, loader: object) -> None:
        self.loader = loader

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        if name != "frame":
            return None
        return importlib.machinery.ModuleSpec(name, self.loader)  # type: ignore[arg-type]


@pytest.mark.parametrize("loader", [SlotsLoader(), ClassLoader])
def test_loaders_that_cannot_be_armed_still_load(
    frames: Path, recorder: Recorder, loader: object
) -> None:
    sys.meta_path.insert(1, OneFinder(loader))
    import frame

    assert frame.value == 1
    assert recorder.heard == []


def test_a_loader_without_exec_module_is_left_alone(frames: Path) -> None:
    loader = type("Old", (), {})()
    sys.meta_path.insert(1, OneFinder(loader))
    spec = importlib.util.find_spec("frame")
    assert spec is not None
    assert vars(loader) == {}


def test_another_wrapper_on_the_same_loader_comes_back(frames: Path, recorder: Recorder) -> None:
    loader = type("Loader", (), {"create_module": lambda self, spec: None})()
    ran: list[str] = []
    loader.exec_module = theirs = lambda module: ran.append(module.__name__)
    sys.meta_path.insert(1, OneFinder(loader))
    import frame  # noqa: F401

    assert ran == ["frame"]
    assert recorder.heard == AROUND
    assert loader.exec_module is theirs


def test_a_finder_that_asks_the_others_too(frames: Path, recorder: Recorder) -> None:
    """How post-import hook libraries work: their finder finds, then wraps the loader."""

    class Chained:
        def __init__(self, loader: Any) -> None:
            self.loader = loader

        def create_module(self, spec: Any) -> Any:
            return self.loader.create_module(spec)

        def exec_module(self, module: ModuleType) -> None:
            self.loader.exec_module(module)

    class Asking:
        busy = False

        def find_spec(self, name: str, path: object, target: object = None) -> Any:
            if name != "frame" or self.busy:
                return None
            self.busy = True
            spec = importlib.util.find_spec(name)
            self.busy = False
            assert spec is not None
            spec.loader = Chained(spec.loader)  # type: ignore[assignment]
            return spec

    sys.meta_path.insert(1, Asking())  # type: ignore[arg-type]
    import frame

    assert frame.value == 1
    assert recorder.heard == AROUND


def test_threads_at_once(frames: Path, recorder: Recorder) -> None:
    start = threading.Barrier(8)

    def load(name: str) -> int:
        start.wait(60)
        return int(importlib.import_module(name).value)

    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(load, ["frame", "frame2"] * 4)] == [1] * 8
    assert sorted(recorder.heard) == [
        f"{when} {name}" for when in ("after", "before") for name in ("frame", "frame2")
    ]


@pytest.fixture
def clean_meta_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUPYTER_GPUSHARE", raising=False)
    monkeypatch.delenv("JUPYTER_GPUSHARE_FRAMEWORKS", raising=False)
    others = [finder for finder in sys.meta_path if type(finder).__name__ != "Finder"]
    monkeypatch.setattr(sys, "meta_path", others)


@pytest.mark.usefixtures("clean_meta_path")
class TestInstall:
    def test_once_even_when_the_module_is_loaded_twice(self) -> None:
        before = len(sys.meta_path)
        _boot.install()
        _boot.install()
        assert sys.meta_path[0].names == _boot.FRAMEWORKS  # type: ignore[attr-defined]
        spec = importlib.util.find_spec("jupyter_gpushare._boot")
        assert spec is not None
        assert spec.loader is not None
        second = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(second)
        second.install()
        assert len(sys.meta_path) == before + 1

    @pytest.mark.parametrize("value", ["off", "OFF", "0", "no", "false", "darwin"])
    def test_switched_off_or_elsewhere(self, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        before = list(sys.meta_path)
        if value == "darwin":
            monkeypatch.setattr(sys, "platform", value)
        else:
            monkeypatch.setenv("JUPYTER_GPUSHARE", value)
        _boot.install()
        _boot.watch("other")
        assert sys.meta_path == before

    def test_more_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JUPYTER_GPUSHARE_FRAMEWORKS", "tinygrad, mlx,")
        _boot.install()
        _boot.watch("other")
        finder = sys.meta_path[0]
        assert finder.names == _boot.FRAMEWORKS | {"tinygrad", "mlx", "other"}  # type: ignore[attr-defined]
