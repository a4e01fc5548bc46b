"""Each framework has the GPUs and memory of its lease, and what the user set stays as it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from jupyter_gpushare._boot import FRAMEWORKS
from jupyter_gpushare.client.adapters import registry
from jupyter_gpushare.client.adapters.cupy import CuPyAdapter
from jupyter_gpushare.client.adapters.environment import FrameworkVariables
from jupyter_gpushare.client.adapters.importtime import ImportTimeAdapter
from jupyter_gpushare.client.adapters.parkers.base import ParkRefused, meter_of, parker_of
from jupyter_gpushare.client.adapters.parkers.others import others_on_gpu
from jupyter_gpushare.client.words.grant import Grant, GrantedGpu

GIB = 2**30


def gpu(memory: int, capacity: int = 24 * GIB, index: int = 0) -> GrantedGpu:
    return GrantedGpu(f"GPU-{index}", index, "A card", memory, capacity)


def grant(*gpus: GrantedGpu) -> Grant:
    return Grant("lease-1", gpus)


def test_each_adapter_of_ours_is_of_a_framework_that_is_watched_for() -> None:
    assert frozenset(registry.BUILT_IN) == FRAMEWORKS


@pytest.mark.parametrize("module", registry.BUILT_IN)
def test_built_in(module: str) -> None:
    adapter = registry.find(module)
    assert adapter is not None
    assert adapter.name
    assert adapter.catches_first_use is (module == "torch")
    for case in (None, grant(gpu(24 * GIB)), None):
        adapter.before(case)
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_another_packages_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real installed distribution: metadata on ``sys.path`` with the entry point."""
    (tmp_path / "their_adapter.py").write_text("class Adapter:\n    name = 'Theirs'\n")
    metadata = tmp_path / "their_adapter-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-adapter\nVersion: 1.0\n")
    ours = "theirs = their_adapter:Adapter\ntorch = their_adapter:Adapter\n"
    (metadata / "entry_points.txt").write_text(f"[jupyter_gpushare.adapters]\n{ours}")
    monkeypatch.syspath_prepend(tmp_path)
    found = [registry.find(module) for module in ("theirs", "torch", "json")]
    assert [one and one.name for one in found] == ["Theirs", "PyTorch", None]


def test_the_smallest_counts() -> None:
    several = grant(gpu(24 * GIB), gpu(8 * GIB), gpu(8 * GIB, capacity=80 * GIB))
    assert several.allocator_limit == 8 * GIB - 768 * 2**20
    assert several.allocator_fraction == pytest.approx((8 - 0.75) / 80)


CASES = [
    ("cupy", "CUPY_GPU_MEMORY_LIMIT", str(8 * GIB - 768 * 2**20)),
    ("paddle", "FLAGS_gpu_memory_limit_mb", str(8 * 1024 - 768)),
    ("paddle", "FLAGS_fraction_of_gpu_memory_to_use", "0.3021"),
]


@pytest.mark.parametrize(("module", "variable", "value"), CASES)
def test_variables_are_set_and_taken_back_and_the_users_own_stay(
    monkeypatch: pytest.MonkeyPatch, module: str, variable: str, value: str
) -> None:
    for _, name, _ in CASES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    adapter = registry.find(module)
    assert adapter is not None
    adapter.before(grant(gpu(8 * GIB)))
    adapter.after(ModuleType(module), grant(gpu(8 * GIB)))
    assert os.environ[variable] == value
    adapter.before(grant(gpu(24 * GIB)))
    assert variable not in os.environ
    monkeypatch.setenv(variable, "17")
    for granted in (grant(gpu(8 * GIB)), None):
        adapter.before(granted)
        assert os.environ[variable] == "17"


def test_a_user_may_change_what_we_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_VARIABLE", "")
    monkeypatch.delenv("A_VARIABLE")
    variables = FrameworkVariables()
    variables.set("A_VARIABLE", "ours")
    assert not variables.is_users("A_VARIABLE")
    os.environ["A_VARIABLE"] = "theirs"
    variables.set("A_VARIABLE", "ours again")
    assert os.environ["A_VARIABLE"] == "theirs"
    assert variables.is_users("A_VARIABLE")


class Pool:
    """A CuPy pool's limit and blocks; CuPy itself cannot be imported without a GPU's driver."""

    def __init__(self) -> None:
        self.limit = int(os.environ.get("CUPY_GPU_MEMORY_LIMIT", "0"))
        self.used = self.free = 0
        self.calls: list[str] = []

    def get_limit(self) -> int:
        return self.limit

    def set_limit(self, *, size: int) -> None:
        self.limit = size
        self.calls.append("limit")

    def used_bytes(self) -> int:
        return self.used

    def total_bytes(self) -> int:
        return self.used + self.free

    def free_all_blocks(self) -> None:
        self.free = 0
        self.calls.append("free")


class CuPy(ModuleType):
    """Pools per device, made at the first use."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.pools: dict[int, Pool] = {}
        self.pinned = Pool()
        self.device = 0
        self.cuda = self.runtime = self
        self.synchronized = 0
        self.get_default_pinned_memory_pool = lambda: self.pinned

    def Device(self, index: int) -> AbstractContextManager[None]:
        @contextmanager
        def use() -> Iterator[None]:
            before, self.device = self.device, index
            yield
            self.device = before

        return use()

    def deviceSynchronize(self) -> None:
        self.synchronized += 1

    def get_default_memory_pool(self) -> Pool:
        return self.pools.setdefault(self.device, Pool())


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> CuPy:
    """With no limit of the user's."""
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "")
    monkeypatch.delenv("CUPY_GPU_MEMORY_LIMIT")
    return CuPy()


def test_cupys_limit_is_raised_and_lowered_live(cupy: CuPy) -> None:
    said: list[str] = []
    adapter = CuPyAdapter(said.append, lambda: True)

    def told(*memory: int) -> None:
        adapter.after(cupy, grant(*(gpu(one * GIB, index=i) for i, one in enumerate(memory))))

    adapter.before(grant(gpu(8 * GIB), gpu(8 * GIB, index=1)))
    told(8, 8)
    assert cupy.pools == {}  # nothing is started for a limit
    pool = cupy.get_default_memory_pool()
    assert pool.limit == 8 * GIB - 768 * 2**20
    told(8, 12)
    assert pool.limit == 8 * GIB - 768 * 2**20
    assert cupy.pools[1].limit == 12 * GIB - 768 * 2**20
    told(24, 24)
    assert (pool.limit, cupy.pools[1].limit) == (0, 0)
    pool.used, pool.free, pool.calls[:] = 2 * GIB, 9 * GIB, []
    told(8, 24)
    assert pool.calls == ["free", "limit"]
    assert said == []
    pool.used = 7 * GIB
    adapter.after(cupy, None)
    told(4, 24)
    assert pool.limit == 4 * GIB - 768 * 2**20
    assert "its arrays take 7 GiB. They stay" in said[0]
    pool.set_limit(size=17)
    told(12, 24)
    assert pool.limit == 17, "the user's own limit stays"


def test_cuda_is_not_started_for_cupys_limit(cupy: CuPy) -> None:
    adapter = CuPyAdapter(print, lambda: False)
    for memory in (8 * GIB, 12 * GIB):
        adapter.after(cupy, grant(gpu(memory)))
    assert cupy.pools == {}
    assert cupy.get_default_memory_pool().limit == 12 * GIB - 768 * 2**20


def test_cupys_parker_empties_pools_and_refuses_the_rest(cupy: CuPy) -> None:
    adapter = CuPyAdapter(print, lambda: True)
    parker = parker_of(adapter, cupy)
    assert parker is parker_of(adapter, cupy)
    assert parker is not None
    pool = cupy.get_default_memory_pool()
    pool.used, pool.free = 2, 40
    assert parker.trim() == 40
    assert cupy.pinned.calls == ["free"]
    pool.free = 30
    parker.drop_cache()
    assert pool.free == 0
    assert cupy.synchronized == 1, "at a gate the next task finds the GPU idle"
    with pytest.raises(ParkRefused, match="CuPy array cannot be moved"):
        parker.park()
    parker.resume()
    assert (parker.is_parked, parker.bytes_to_park()) == (False, 0)


def test_adapters_that_know_nothing_of_parking_keep_working() -> None:
    class Theirs(ImportTimeAdapter):
        name = "Theirs"

    assert parker_of(Theirs(), ModuleType("theirs")) is None
    assert meter_of(Theirs()) is None
    for module in sorted({*registry.BUILT_IN} - {"torch", "cupy"}):
        assert parker_of(registry.find(module), ModuleType(module)) is None


def test_others_on_the_gpu_are_all_that_do_not_say_otherwise() -> None:
    loaded = {name: ModuleType(name) for name in ("torch", "cupy", "mxnet", "pycuda.driver")}
    assert others_on_gpu(modules={"torch": loaded["torch"]}) == ()
    assert others_on_gpu(modules=loaded) == ("CuPy", "MXNet", "PyCUDA")
