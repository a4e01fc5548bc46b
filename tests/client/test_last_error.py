"""What only the last error keeps on the GPU comes back; what a notebook names is not touched.

Real exceptions, generators and tensors; tensors on the CPU stand for those on a GPU. A real kernel
tells the story from end to end.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.kernel import Kernel
from support.node import RunningNode

from jupyter_gpushare.client.adapters.holdings import JaxHoldings, TorchHoldings
from jupyter_gpushare.client.memory.holders import held_by_name
from jupyter_gpushare.client.memory.lasterror import (
    LastError,
    clear,
    forget,
    frames_of,
    looks_at_error,
    names_of,
    words,
)
from jupyter_gpushare.client.words.settings import AfterError

GIB = 2**30


class Thing:
    """Stands for a tensor."""


class Refs(dict[str, Any]):
    """Weak references by name."""

    def alive(self) -> set[str]:
        gc.collect()
        return {name for name, one in self.items() if one() is not None}


def thing(refs: Refs, name: str) -> Thing:
    made = Thing()
    refs[name] = weakref.ref(made)
    return made


def raised(run: Any) -> BaseException:
    try:
        run()
    except Exception as error:  # noqa: BLE001 - any of the test's
        return error
    raise AssertionError("it raised nothing")


# -- frames ------------------------------------------------------------------------------------


def failing(refs: Refs) -> None:
    batch = thing(refs, "batch")

    def inner() -> None:
        activation = thing(refs, "activation")
        raise ValueError(id(batch) + id(activation))

    try:
        inner()
    except ValueError as error:
        handled = thing(refs, "handled")
        raise RuntimeError("memory") from error
    del handled


@pytest.mark.parametrize("is_group", [False, True], ids=["alone", "in-a-group"])
@pytest.mark.parametrize("looks", [False, True], ids=["unseen", "looked-at"])
def test_the_variables_of_an_errors_functions_go(looks: bool, is_group: bool) -> None:
    refs = Refs()
    error: Any = raised(lambda: failing(refs))
    if is_group:
        error = ExceptionGroup("two", [KeyError(1), error])
    if looks:  # as IPython does when it shows an error
        assert [frame.f_locals for frame in frames_of(error)]
    assert refs.alive() == {"batch", "activation", "handled"}
    forget(error, shell())
    assert refs.alive() == set()


def test_python_and_ipython_forget_it_and_keep_another_one() -> None:
    refs = Refs()
    here = shell()
    here.InteractiveTB = SimpleNamespace(tb=None, pdb=None)
    other = ValueError("another one")
    for error in (raised(lambda: failing(refs)), other):
        sys.last_type, sys.last_value = type(error), error
        sys.last_traceback = here.InteractiveTB.tb = error.__traceback__
        frames = frames_of(error)  # somebody has them
        forget(raised(lambda: failing(refs)) if error is other else error, here)
        assert hasattr(sys, "last_value") is (error is other)
    assert here.InteractiveTB.tb is None
    del error, frames, sys.last_type, sys.last_value, sys.last_traceback
    assert refs.alive() == set()


class Pause:
    def __await__(self) -> Iterator[None]:
        yield


def generator(refs: Refs, caught: list[BaseException]) -> Iterator[Any]:
    kept = thing(refs, "suspended")
    try:
        raise ValueError("mine")
    except ValueError as error:
        caught.append(error)
    yield
    yield type(kept)


async def coroutine(refs: Refs, caught: list[BaseException]) -> Any:
    kept = thing(refs, "suspended")
    try:
        raise ValueError("mine")
    except ValueError as error:
        caught.append(error)
    await Pause()
    await Pause()
    return type(kept)


@pytest.mark.parametrize("kind", [generator, coroutine])
def test_what_is_suspended_goes_on_and_what_has_ended_is_cleared(kind: Any) -> None:
    refs, caught = Refs(), list[BaseException]()

    def ended() -> Iterator[int]:
        kept = thing(refs, "ended")
        yield id(kept)
        raise caught[0]

    one, two = kind(refs, caught), ended()
    one.send(None)
    next(two)
    runs = thing(refs, "runs")
    try:
        next(two)
    except ValueError as error:
        clear(frames_of(error))
    assert refs.alive() == {"suspended", "runs"}
    assert isinstance(runs, Thing)
    one.send(None)
    with pytest.raises(StopIteration):
        one.send(None)


# -- names -------------------------------------------------------------------------------------


def test_who_keeps_the_error_itself() -> None:
    error = raised(lambda: failing(Refs()))
    inner = error.__cause__
    holder = SimpleNamespace(_exception=error)
    names = {
        "a": 1,
        "sys": sys,
        "err": error,
        "inner": inner,
        "tb": error.__traceback__,
        "results": [1, error],
        "future": holder,
    }
    assert names_of(error, names) == ["err", "inner", "tb", "results", "future"]


class Everything(TorchHoldings):
    """Tensors on the CPU count as if they were on a GPU."""

    def is_on_gpu(self, device: Any) -> bool:
        return bool(device.type == "cpu")


@pytest.fixture
def holdings() -> Everything:
    import torch

    return Everything(torch)


def test_each_name_says_what_it_keeps(holdings: Everything) -> None:
    import torch

    def size(floats: int) -> Any:
        return torch.zeros(floats, requires_grad=True)

    model = torch.nn.Linear(1000, 1000, bias=False)  # 4,000,000 bytes
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
    data = size(2000)
    names = {
        "model": model,
        "optimizer": optimizer,
        "losses": [(size(2000) * data).sum()],
        "view": data[:1],
        "text": "nothing",
        "train": lambda: data,
    }
    held = dict(held_by_name(names.items(), [holdings]))
    assert held.pop("optimizer") == pytest.approx(8_000_000, abs=100), "its two moments alone"
    assert held.pop("model") == 8_000_000, "with the gradient"
    assert held.pop("losses") >= 8000 + 8000, "the graph of a loss keeps what it came from"
    assert held == {}, "what two keep is told once"


def test_the_namespace_and_the_shell_are_no_way_to_everything(holdings: Everything) -> None:
    import torch

    space: dict[str, Any] = {"x": torch.zeros(1000)}
    exec("def f(): return x", space)
    space["shell"] = SimpleNamespace(user_ns=space)
    assert held_by_name([("f", space["f"])], [holdings]) == {}
    assert held_by_name([("shell", space["shell"])], [holdings], [space]) == {}


def test_of_jaxs_arrays_those_on_a_gpu_are_counted_as_long_as_they_are_there() -> None:
    def array(platform: str, gone: bool = False) -> Any:
        devices = [SimpleNamespace(platform=platform)]
        return SimpleNamespace(nbytes=8, is_deleted=lambda: gone, devices=lambda: devices)

    there = array("gpu")
    assert JaxHoldings(None).sizes([array("cpu"), there, array("gpu", gone=True)]) == {id(there): 8}


def test_the_sentence() -> None:
    names = {"model": 6 * GIB, "Out[5]": 3 * GIB}
    assert words(12 * GIB, 10 * GIB, names, ()) == (
        "12 GiB of GPU memory came back that only the last error kept. Still in use: `model` "
        "6 GiB, `Out[5]` 3 GiB, 1 GiB that none of your largest variables has."
    )
    assert words(0, 10 * GIB, names, ["err"]).startswith("`err` keeps the last error")
    assert words(0, 0, {}, ()) == "The last error alone kept no GPU memory."


@pytest.mark.parametrize(
    ("cell", "looks"),
    [
        ("%debug", True),
        ("debug", True),
        ("# why?\n%tb Verbose", True),
        ("import pdb; pdb.pm()", True),
        ("model = smaller()", False),
        ("%debug\ntrain()", False),
    ],
)
def test_a_cell_that_looks_at_the_error(cell: str, looks: bool) -> None:
    assert looks_at_error(cell) is looks


class Asked:
    """The frameworks: what they use, one figure after the other."""

    def __init__(self, *used: int) -> None:
        self._used = iter(used)
        self.emptied = 0

    def holdings(self) -> Sequence[Any]:
        return [self]

    def used(self) -> int:
        return next(self._used)

    def is_data(self, kind: type) -> bool:
        return kind is Thing

    def sizes(self, data: Sequence[Any]) -> dict[int, int]:
        return {id(one): GIB for one in data}

    def empty_caches(self) -> None:
        self.emptied += 1


def shell(**names: Any) -> Any:
    return SimpleNamespace(user_ns=names, user_ns_hidden=set())


@pytest.mark.parametrize("when", list(AfterError))
def test_when_it_comes_back(when: AfterError) -> None:
    refs, told, asked = Refs(), list[str](), Asked(5 * GIB, GIB)
    last = LastError(asked, lambda: when, told.append)
    here = shell(model=Thing())
    error = raised(lambda: failing(refs))
    last.shown(error, here, is_tight=True)
    assert bool(refs.alive()) is (when is not AfterError.AT_ONCE)
    last.before_cell("%debug", here)
    assert bool(refs.alive()) is (when is not AfterError.AT_ONCE)
    last.before_cell("train()", here)
    last.before_cell("train()", here)
    if when is AfterError.KEEP:
        assert (refs.alive(), told, asked.emptied) != (set(), [], 0)
        assert (told, asked.emptied) == ([], 0)
        return
    assert refs.alive() == set()
    assert asked.emptied == 1
    (line,) = told
    assert line.startswith("4 GiB of GPU memory came back")
    assert line.endswith("Still in use: `model` 1 GiB.")


def test_an_error_that_has_a_name_keeps_what_it_has() -> None:
    refs, told = Refs(), list[str]()
    last = LastError(Asked(5 * GIB, 5 * GIB), lambda: AfterError.NEXT_CELL, told.append)
    here = shell(err=raised(lambda: failing(refs)))
    last.shown(here.user_ns["err"], here, is_tight=True)
    last.before_cell("train()", here)
    assert refs.alive() == {"batch", "activation", "handled"}
    assert told[0].startswith("`err` keeps the last error")


def test_an_interrupt_says_only_what_came_back() -> None:
    refs, told = Refs(), list[str]()
    last = LastError(Asked(5 * GIB, GIB, GIB, GIB), lambda: AfterError.NEXT_CELL, told.append)
    for _ in range(2):
        last.shown(raised(lambda: failing(refs)), shell(), is_tight=False)
        last.before_cell("train()", shell())
        assert refs.alive() == set()
    assert len(told) == 1, "nothing came back the second time, and nothing is said"


# -- in a notebook -----------------------------------------------------------------------------

SETUP = """
import torch, weakref
from jupyter_gpushare.client import acquire
from jupyter_gpushare.client.adapters.holdings import TorchHoldings
from jupyter_gpushare.client.adapters.parkers.walk import walk

class OnTheHost(TorchHoldings):
    # The tensors of this test are there, and count as if they were on a GPU.
    def is_on_gpu(self, device): return device.type == "cpu"
    def used(self):
        return sum(one.nbytes() for one in walk(torch, self.is_on_gpu).storages)

acquire.broker()._frameworks.holdings = lambda: [OnTheHost(torch)]
model = torch.zeros(2**20)  # 4 MiB
alive = {}

def step(error):
    activations = torch.zeros(2**22)  # 16 MiB
    alive["activations"] = weakref.ref(activations)
    def inner():
        batch = activations * 2
        alive["batch"] = weakref.ref(batch)
        raise error
    inner()

def who(): return sorted(name for name, one in alive.items() if one() is not None)
"""
OOM = "step(torch.cuda.OutOfMemoryError('CUDA out of memory.'))"


def test_a_notebook_goes_on_after_an_out_of_memory_error(tmp_path: Path) -> None:
    with (
        RunningNode(tmp_path, simulate="1x24GiB") as node,
        Kernel(tmp_path, node.socket) as kernel,
    ):
        kernel.ok(SETUP)
        assert "comes back when the next cell begins" in str(kernel.run(OOM).error())
        assert kernel.run("%gpushare status", silent=False).done
        debugged = kernel.run("%tb")  # as `%debug`, for which there is no keyboard here
        assert "OutOfMemoryError" in str(debugged.error())
        told = kernel.ok("print(who())")
        assert told.stream() == "[]\n"
        assert "32 MiB of GPU memory came back that only the last error kept." in told.plain()
        assert "Still in use: `model` 4 MiB." in told.plain()
        assert kernel.ok("print(who())").plain() == "", "it is said once"
        assert kernel.run("%tb").stream("stderr") == "No traceback available to show.\n"
