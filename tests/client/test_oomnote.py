"""A framework's out-of-memory error arrives with a note that says what is known and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from support.kernel import Kernel
from support.node import RunningNode
from support.node_fixtures import running_node

from jupyter_gpushare.client import oomnote
from jupyter_gpushare.client.errors import NodeUnavailable
from jupyter_gpushare.client.oomnote import GpuFacts, annotate, find, gather, words
from jupyter_gpushare.client.requests.broker import Broker
from jupyter_gpushare.client.words.grant import Grant, GrantedGpu
from jupyter_gpushare.client.words.settings import Settings

GIB = 2**30


@pytest.fixture(autouse=True)
def no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_GPUSHARE", "off")


@pytest.fixture
def error() -> RuntimeError:
    """One of PyTorch's."""
    import torch

    return torch.OutOfMemoryError("CUDA out of memory.")


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


# -- the sentence ------------------------------------------------------------------------------


THERE = "Memory: your train.ipynb has 8 GiB; 2 more. 4 GiB free."


def test_a_shared_gpu() -> None:
    gpu = GpuFacts(2, 8 * GIB, 80 * GIB, 7 * GIB, GIB, THERE, is_shared=True)
    assert words("PyTorch", (gpu,), comes_back=False) == (
        "jupyter_gpushare: This task's lease allows 8 GiB of GPU 2's 80 GiB. PyTorch's data takes "
        f"7 GiB there, and 1 GiB are cache. {THERE} What to do: delete what you no "
        "longer need (`del`; the last error also keeps its variables alive), or compute in "
        "smaller pieces. `torch.cuda.empty_cache()` empties the cache, which helps if it is "
        "fragmented. Your tasks there share what the lease allows: end those that you do not "
        "need. For more memory, restart the kernel and begin with `%gpushare request --memory` "
        "and a larger size; `%gpushare quota` says how much you may have."
    )


def test_a_gpu_of_ones_own() -> None:
    said = words("JAX", (GpuFacts(0, 24 * GIB, 24 * GIB),), comes_back=False)
    assert "allows the whole GPU 0 (24 GiB). What to do" in said
    assert "--memory" not in said
    assert "empty_cache" not in said


# -- which errors ------------------------------------------------------------------------------


def test_torchs_and_jaxs() -> None:
    import jax
    import torch

    error = torch.cuda.OutOfMemoryError("CUDA out of memory.")
    assert find(error) == (error, "PyTorch")
    for other in (
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ):
        assert find(other) == (other, "PyTorch")
    assert find(RuntimeError("CUDA error: invalid argument")) is None
    assert find(ValueError("CUDA error: out of memory")) is None
    assert find(MemoryError()) is None
    assert find(None) is None
    # JAX has one class for all.
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")
    assert find(error) == (error, "JAX")
    assert find(jax.errors.JaxRuntimeError("INTERNAL: something else")) is None


@pytest.mark.parametrize(
    ("framework", "module", "attribute"),
    [
        ("CuPy", "cupy.cuda.memory", "OutOfMemoryError"),
        ("TensorFlow", "tensorflow.python.framework.errors_impl", "ResourceExhaustedError"),
    ],
)
def test_others(
    monkeypatch: pytest.MonkeyPatch, framework: str, module: str, attribute: str
) -> None:
    """Where these frameworks keep their classes; neither is installed everywhere."""
    loaded = ModuleType(module)
    kind = type(attribute, (Exception,), {})
    setattr(loaded, attribute, kind)
    monkeypatch.setitem(sys.modules, module, loaded)
    error = kind("Out of memory allocating 1 bytes")
    assert find(error) == (error, framework)
    for name in ("torch", "torch.cuda"):  # where a class is gone, it is no trouble
        monkeypatch.setitem(sys.modules, name, cast(ModuleType, SimpleNamespace()))
    assert oomnote.framework_of(RuntimeError("x")) is None


def test_what_an_error_came_from_counts_and_what_is_in_a_group(error: RuntimeError) -> None:
    inner = ExceptionGroup("some", [ValueError(1), error])
    assert find(ExceptionGroup("many", [KeyError(1), inner])) == (error, "PyTorch")
    assert find(ExceptionGroup("none", [ValueError(1)])) is None
    wrapped = ValueError("the batch is too large")
    wrapped.__cause__ = error
    assert find(wrapped) == (error, "PyTorch")
    first, second = ValueError("one"), ValueError("two")
    first.__context__, second.__context__ = second, first
    assert find(first) is None


# -- the facts ---------------------------------------------------------------------------------

GRANT = Grant(
    "ours",
    (
        GrantedGpu("GPU-0", 4, "A card", 8 * GIB, 24 * GIB),
        GrantedGpu("GPU-1", 5, "A card", 8 * GIB, 24 * GIB),
    ),
)


def lease(name: str, mine: bool, *gpus: str, phase: str = "held") -> dict[str, Any]:
    return {
        "id": name,
        "name": name,
        "mine": mine,
        "phase": phase,
        "gpus": [{"uuid": gpu} for gpu in gpus],
    }


STATUS = {
    "gpus": [
        {"uuid": "GPU-0", "says": []},
        {
            "uuid": "GPU-1",
            "says": [
                "residents Memory: your train.ipynb has {bytes 8589934592}; 2 more.",
                {"about": "part", "text": "{bytes 1} yours", "kind": "mine"},
                {"about": "part", "text": "{bytes 4294967296} free", "kind": "free"},
            ],
        },
    ],
    "leases": [
        lease("ours", True, "GPU-0", "GPU-1"),
        lease("my other", True, "GPU-1"),
        lease("my parked one", True, "GPU-1", phase="parked"),
        lease("a stranger's", False, "GPU-1"),
        lease("another stranger's", False, "GPU-0"),
    ],
}


class Asked:
    """What `annotate` needs of a broker."""

    preferences = SimpleNamespace(settings=Settings())

    def __init__(self, grant: Grant | None = GRANT, answer: Any = STATUS) -> None:
        self.line = SimpleNamespace(configured=True)
        self.grant = grant
        self.answer = answer
        self.asked = 0

    def status(self) -> Any:
        self.asked += 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def asked(*arguments: Any) -> tuple[Asked, Broker]:
    one = Asked(*arguments)
    return one, cast(Broker, one)


def test_only_the_gpu_that_the_error_names() -> None:
    _, broker = asked()
    (gpu,) = gather(broker, "PyTorch", "GPU 1 has a total capacity of 23.6 GiB")
    assert gpu == GpuFacts(5, 8 * GIB, 24 * GIB, None, None, THERE, is_shared=True)
    assert len(gather(broker, "PyTorch", "Out of memory")) == 2
    assert len(gather(broker, "PyTorch", "GPU 7 has")) == 2


def test_what_torch_uses_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    pools = {"all": {"current": 7, "peak": 9, "allocated": 3}}
    stats = dict.fromkeys(("allocated_bytes", "allocation"), pools)
    stats["reserved_bytes"] = {"all": {"current": 20}}  # type: ignore[dict-item]
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: stats)
    _, broker = asked()
    (gpu,) = gather(broker, "PyTorch", "GPU 0")
    assert (gpu.used, gpu.cache) == (7, 13)


def test_it_is_noted_once_and_without_names_of_strangers(error: RuntimeError) -> None:
    error.add_note("the user's own")
    one, broker = asked()
    for _ in range(2):
        annotate(error, broker)
    (_own, note) = notes(error)
    assert "stranger" not in note
    assert THERE in note
    assert one.asked == 1


@pytest.mark.parametrize(
    ("answer", "is_noted"),
    [(NodeUnavailable("gone"), True), ({}, True), ({"leases": 3}, False), (KeyError("x"), False)],
)
def test_trouble_with_the_node_manager_hides_nothing(
    error: RuntimeError, answer: Any, is_noted: bool
) -> None:
    annotate(error, asked(GRANT, answer)[1])
    assert ["allows 8 GiB" in one for one in notes(error)] == ([True] if is_noted else [])


def test_without_a_lease_and_without_a_node_manager(error: RuntimeError) -> None:
    one, broker = asked(None)
    one.line.configured = False
    annotate(error, broker)
    assert not notes(error)
    one.line.configured = True
    annotate(error, broker)
    assert "has no GPU lease" in notes(error)[0]
    assert one.asked == 0


def test_other_errors_cost_nothing() -> None:
    one, broker = asked()
    other = ValueError("something")
    annotate(other, broker)
    assert (one.asked, notes(other)) == (0, [])


# -- where it is shown -------------------------------------------------------------------------


node = running_node("function", simulate="1x24GiB")


RAISE = "raise torch.OutOfMemoryError('CUDA out of memory. GPU 0 has a total capacity of 24 GiB.')"


def test_in_a_notebook(node: RunningNode, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with Kernel(home, node.socket) as kernel:
        kernel.ok("import torch")
        before = kernel.run("raise ValueError('mine')").error()
        assert "jupyter_gpushare" not in "\n".join(before["traceback"])
        shown = kernel.run(f"def compute():\n    {RAISE}\ncompute()").error()
        assert shown["ename"] == "OutOfMemoryError"
        traceback = "\n".join(shown["traceback"])
        assert traceback.count("jupyter_gpushare: This task's lease allows") == 1
        assert "the whole GPU 0 (24 GiB)" in traceback
        assert "Memory: your " in traceback
        assert "comes back when the next cell begins" in traceback
        assert "compute()" in traceback
        assert "oomnote" not in traceback
        caught = kernel.ok(
            f"try:\n    {RAISE}\nexcept RuntimeError as e:\n"
            "    print('notes', hasattr(e, '__notes__'))"
        )
        assert caught.stream() == "notes False\n"  # what the user handles is left alone
        ended = kernel.ok(
            f"import threading\ndef work():\n    {RAISE}\n"
            "one = threading.Thread(target=work); one.start(); one.join()"
        )
        assert ended.stream("stderr").count("jupyter_gpushare: This task's lease allows") == 1
        kernel.ok("%unload_ext jupyter_gpushare")
        after = kernel.run(RAISE).error()
        assert "jupyter_gpushare" not in "\n".join(after["traceback"])


def test_in_a_script(node: RunningNode, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import torch\n{RAISE}\n")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "CUDA_"))}
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**kept, "JUPYTER_GPUSHARE_SOCKET": os.fspath(node.socket)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    start = lines.index("Traceback (most recent call last):")
    assert lines[start + 1].startswith(f'  File "{script}", line 2')
    error = next(i for i, line in enumerate(lines) if line.startswith("torch.OutOfMemoryError: "))
    assert "jupyter_gpushare: This task's lease allows the whole GPU 0" in lines[error + 1]
    assert "client/" not in done.stderr
