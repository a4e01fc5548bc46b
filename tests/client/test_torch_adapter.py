"""PyTorch has its lease before CUDA starts, keeps to its limit, and never sees our errors.

Real torch; only C functions that need a GPU are stood in for.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpushare.client.adapters.torch import _STARTERS, TorchAdapter
from jupyter_gpushare.client.words.grant import Grant, GrantedGpu

GIB = 2**30
CAPACITY = 24 * GIB
UUIDS = ("GPU-00000000-0000-0000-0000-000000000000", "GPU-00000000-0000-0000-0000-000000000001")


def grant(*memory: int) -> Grant:
    return Grant(
        "lease-1",
        tuple(
            GrantedGpu(UUIDS[index], index, "A card", each, CAPACITY)
            for index, each in enumerate(memory)
        ),
    )


@pytest.fixture(scope="module")
def torch() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_GPUSHARE", "off")  # no lease for the test process itself
        import torch

        yield torch


class Cuda:
    """The driver's side: what was called, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    @property
    def limits(self) -> dict[int, float]:
        return {call[1]: call[2] for call in self.calls if call[0] == "limit"}


@pytest.fixture
def cuda(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    driver = Cuda()

    def init() -> None:
        driver.calls.append(("init", os.environ.get("CUDA_VISIBLE_DEVICES")))

    def limit(fraction: float, device: int) -> None:
        driver.calls.append(("limit", device, fraction))

    def visible() -> int:
        return len(list(filter(None, os.environ["CUDA_VISIBLE_DEVICES"].split(","))))

    properties = SimpleNamespace(total_memory=CAPACITY, major=9, minor=0, name="A card")
    put = monkeypatch.setattr
    put(torch._C, "_cuda_getDeviceCount", visible, raising=False)
    put(torch._C, "_cuda_init", init, raising=False)
    put(torch._C, "_cuda_setMemoryFraction", limit, raising=False)
    put(torch._C, "_cuda_setDevice", lambda it: driver.calls.append(("device", it)), raising=False)
    # Each adapter's step meter goes with its test.
    optimizers = sys.modules[torch.optim.Optimizer.__module__]
    put(optimizers, "_global_optimizer_post_hooks", OrderedDict())
    put(torch.cuda, "_get_device_properties", lambda device: properties, raising=False)
    put(torch.cuda, "_device_count_nvml", visible)
    put(torch.cuda, "_cudart", object())
    put(torch.cuda, "_initialized", False)
    put(torch.cuda, "_cached_device_count", None)
    put(torch.cuda, "_queued_calls", [])
    # What other tests of this process seeded waits for CUDA's start too.
    put(torch.cuda, "_lazy_seed_tracker", type(torch.cuda._lazy_seed_tracker)())
    for path, name in (*_STARTERS, ("cuda", "is_available"), ("cuda", "device_count")):
        owner = torch
        for part in path.split("."):
            owner = getattr(owner, part)
        if name in vars(owner):
            put(owner, name, vars(owner)[name])  # so that it is put back in any case
    for module in (torch.cuda.memory, torch.cuda.random):
        put(module, "_lazy_init", module._lazy_init)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(UUIDS))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "")
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK")
    yield driver
    if "pin_memory" in vars(torch.Tensor):  # inherited, so monkeypatch could not put it back
        del torch.Tensor.pin_memory


ROOM = 768 * 2**20  # bytes of each limit that are left for CUDA itself


@pytest.mark.parametrize(
    ("memory", "limits"),
    [
        ((8 * GIB, CAPACITY), {0: 8 * GIB - ROOM}),  # the other GPU is whole
        ((GIB,), {0: GIB / 2}),  # a small lease keeps half
        ((CAPACITY,), {}),
        (None, {}),
    ],
)
def test_the_limit_comes_with_cudas_start(
    torch: Any, cuda: Cuda, memory: tuple[int, ...] | None, limits: dict[int, float]
) -> None:
    TorchAdapter().after(torch, None if memory is None else grant(*memory))
    assert cuda.calls == []
    torch.cuda.init()
    assert cuda.calls[0][0] == "init"
    assert cuda.limits == pytest.approx({at: limit / CAPACITY for at, limit in limits.items()})


def test_the_limit_comes_even_when_a_submodule_starts_cuda(torch: Any, cuda: Cuda) -> None:
    TorchAdapter().after(torch, grant(8 * GIB))
    torch.cuda.memory._lazy_init()
    assert cuda.limits.keys() == {0}


def test_a_changed_grant_counts_at_once(torch: Any, cuda: Cuda) -> None:
    adapter = TorchAdapter()
    adapter.after(torch, grant(8 * GIB))
    adapter.after(torch, grant(12 * GIB))
    torch.cuda.init()
    assert cuda.limits[0] == pytest.approx((12 * GIB - ROOM) / CAPACITY)
    adapter.after(torch, grant(CAPACITY))
    assert cuda.limits[0] == 1.0


class Stats:
    """What the allocator says, what was said, and what became of cache and limit, in order."""

    def __init__(self, torch: Any, cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allocated, self.cache = 0, 0
        self.cuda, self.torch = cuda, torch
        self.said: list[str] = []
        self.adapter = TorchAdapter(self.said.append)
        monkeypatch.setattr(torch._C, "_cuda_memoryStats", self.stats, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_emptyCache", self.empty, raising=False)

    def stats(self, device: int) -> dict[str, Any]:
        def of(value: int) -> dict[str, Any]:
            return {"all": {"current": value, "peak": value, "allocated": value}}

        reserved = of(self.allocated + self.cache)
        return {
            "allocated_bytes": of(self.allocated),
            "allocation": of(1),
            "reserved_bytes": reserved,
        }

    def empty(self) -> None:
        self.cache = 0
        self.cuda.calls.append(("empty",))

    def changes(self, *limits: int) -> list[str]:
        """What is called when the lease's limit becomes each of these, one after the other."""
        self.cuda.calls.clear()
        for limit in limits:
            self.adapter.after(self.torch, grant(limit))
        return [call[0] for call in self.cuda.calls]


@pytest.fixture
def stats(torch: Any, cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> Stats:
    return Stats(torch, cuda, monkeypatch)


def test_a_lowered_limit_empties_the_cache_first(torch: Any, cuda: Cuda, stats: Stats) -> None:
    """Torch counts its cache against the limit and does not evict it when it is lowered."""
    stats.changes(12 * GIB)
    torch.cuda.init()
    stats.allocated, stats.cache = 2 * GIB, 9 * GIB
    assert stats.changes(8 * GIB) == ["empty", "limit"]
    assert cuda.limits[0] == pytest.approx((8 * GIB - ROOM) / CAPACITY)
    # There is room: the cache is the user's.
    assert stats.changes(6 * GIB, 20 * GIB) == ["limit", "limit"]
    stats.allocated, stats.cache = 4 * GIB, 6 * GIB - ROOM
    assert stats.changes(10 * GIB) == ["limit"], "with its cache it has just what it may"
    assert stats.said == []


def test_a_limit_below_what_is_there_is_said(torch: Any, cuda: Cuda, stats: Stats) -> None:
    stats.changes(CAPACITY)
    torch.cuda.init()
    stats.allocated = 10 * GIB
    stats.changes(8 * GIB)
    assert cuda.limits[0] == pytest.approx((8 * GIB - ROOM) / CAPACITY)
    (sentence,) = stats.said
    assert "allows 8 GiB on GPU 0" in sentence
    assert "its tensors take 10 GiB. They stay" in sentence
    stats.changes(8 * GIB)
    assert len(stats.said) == 1


def test_a_rank_starts_only_its_own_gpu(
    torch: Any, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    TorchAdapter().after(torch, grant(8 * GIB, 8 * GIB))
    torch.cuda.init()
    assert cuda.limits.keys() == {1}


def test_a_failing_limit_is_only_said(
    torch: Any, cuda: Cuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(fraction: float, device: int) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(torch._C, "_cuda_setMemoryFraction", broken)
    TorchAdapter().after(torch, grant(8 * GIB))
    torch.cuda.init()
    assert torch.cuda.is_initialized()
    assert "not limited" in caplog.text


class Client:
    """Takes the lease as ``client/acquire.py`` does."""

    def __init__(self, *answers: Grant | BaseException | None, expected: int = 1) -> None:
        self.answers = list(answers)
        self.allowed: int | Exception = expected
        self.asked = 0

    def acquire(self) -> Grant | None:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        os.environ["CUDA_VISIBLE_DEVICES"] = answer.visible_devices if answer else ""
        return answer

    def expected(self) -> int:
        if isinstance(self.allowed, Exception):
            raise self.allowed
        return self.allowed

    def watch(self, torch: Any) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        TorchAdapter().first_use(torch, self.acquire, self.expected)


def test_first_use_takes_the_lease_before_cuda_starts(torch: Any, cuda: Cuda) -> None:
    client = Client(grant(8 * GIB))
    client.watch(torch)
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert (client.asked, cuda.calls) == (0, [])
    assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
    torch.cuda.init()
    assert client.asked == 1
    assert cuda.calls[0] == ("init", UUIDS[0])
    assert cuda.limits.keys() == {0}
    torch.cuda.init()
    assert client.asked == 1


STARTS: dict[str, Callable[[Any], object]] = {
    "init": lambda torch: torch.cuda.init(),
    "set_device": lambda torch: torch.cuda.set_device(0),
    "memory": lambda torch: torch.cuda.memory._lazy_init(),
    "random": lambda torch: torch.cuda.random._lazy_init(),
    "stream": lambda torch: torch.cuda.Stream(),
    "event": lambda torch: torch.cuda.Event(),
    "pin_memory": lambda torch: torch.ones(1).pin_memory(),
    "properties": lambda torch: torch.cuda.get_device_properties(0),
    "accelerator": lambda torch: torch.accelerator.current_device_index(),
    "tensor": lambda torch: torch.empty(1, device="cuda"),
    "module": lambda torch: torch.nn.Linear(1, 1).cuda(),
}


@pytest.mark.parametrize("how", STARTS)
def test_every_way_to_start_cuda_asks(torch: Any, cuda: Cuda, how: str) -> None:
    client = Client(None)
    client.watch(torch)
    with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
        STARTS[how](torch)
    assert client.asked == 1
    assert cuda.calls == []


def test_first_use_steps_aside(torch: Any, cuda: Cuda) -> None:
    names = ("_lazy_init", "set_device", "is_available", "device_count")
    before = {name: getattr(torch.cuda, name) for name in names}
    news = torch.cuda.Stream.__new__, torch.cuda.Event.__new__, torch.Tensor.pin_memory
    in_memory = torch.cuda.memory._lazy_init
    Client(grant(8 * GIB)).watch(torch)
    assert all(getattr(torch.cuda, name) is not before[name] for name in names)
    torch.cuda.set_device(0)
    assert {name: getattr(torch.cuda, name) for name in names} == before
    assert (torch.cuda.Stream.__new__, torch.cuda.Event.__new__, torch.Tensor.pin_memory) == news
    assert torch.cuda.memory._lazy_init is in_memory
    assert "pin_memory" not in vars(torch.Tensor)
    assert ("device", 0) in cuda.calls


def test_it_watches_again_after_a_release_and_never_twice(torch: Any, cuda: Cuda) -> None:
    lazy_init = torch.cuda._lazy_init
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    adapter, client = TorchAdapter(), Client(None, grant(8 * GIB), grant(8 * GIB))
    adapter.first_use(torch, client.acquire, client.expected)
    watching = torch.cuda._lazy_init
    with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
        torch.cuda.init()
    assert not torch.cuda.is_available()
    adapter.first_use(torch, client.acquire, client.expected)
    assert torch.cuda._lazy_init is watching
    assert torch.cuda.is_available(), "what was refused may be had now"
    torch.cuda.set_device(0)
    assert torch.cuda._lazy_init is lazy_init
    adapter.first_use(torch, client.acquire, client.expected)  # CUDA has not started yet
    assert torch.cuda._lazy_init is not lazy_init
    torch.cuda.init()
    assert client.asked == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt(), LookupError("over quota")])
def test_what_acquire_raises_reaches_the_user(torch: Any, cuda: Cuda, error: BaseException) -> None:
    client = Client(error, grant(8 * GIB))
    client.watch(torch)
    with pytest.raises(type(error)):
        torch.empty(1, device="cuda")
    torch.cuda.init()
    assert client.asked == 2


def test_a_quota_of_nothing_looks_like_no_gpu_and_asking_never_raises(
    torch: Any, cuda: Cuda, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(expected=0)
    client.watch(torch)
    assert torch.cuda.is_available() is False
    assert torch.cuda.device_count() == 0
    client.allowed = ConnectionError("gone")
    assert torch.cuda.is_available() is False
    assert "gone" in caplog.text


def test_threads_take_one_lease(torch: Any, cuda: Cuda) -> None:
    client = Client(grant(8 * GIB))
    client.watch(torch)
    start = threading.Barrier(4)

    def use() -> None:
        start.wait(60)
        torch.cuda.init()

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert client.asked == 1
    assert [call[0] for call in cuda.calls] == ["init", "limit"]


def test_steps_are_measured_and_memory_parked_once_there_is_a_lease(torch: Any, cuda: Cuda) -> None:
    adapter = TorchAdapter()
    adapter.after(torch, None)
    assert adapter.meter is None
    assert adapter.parker(torch) is None
    adapter.after(torch, grant(8 * GIB))
    meter = adapter.meter
    assert meter is not None
    try:
        assert adapter.parker(torch) is None  # nothing is on a GPU before CUDA has started
        torch.cuda.init()
        parker = adapter.parker(torch)
        assert parker is not None
        assert not parker.is_parked
        adapter.after(torch, grant(8 * GIB))
        assert adapter.parker(torch) is parker
        assert adapter.meter is meter
        hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks  # type: ignore
        assert [hook.__self__ for hook in hooks.values()].count(meter) == 1
    finally:
        meter.uninstall()


def test_a_torch_without_cuda_takes_no_lease_and_is_not_measured(torch: Any) -> None:
    if hasattr(torch._C, "_cuda_getDeviceCount"):
        pytest.skip("this torch has CUDA")
    before = torch.cuda._lazy_init
    adapter = TorchAdapter()
    adapter.first_use(torch, lambda: None, lambda: 1)
    assert torch.cuda._lazy_init is before
    adapter.after(torch, grant(8 * GIB))
    assert adapter.meter is None
