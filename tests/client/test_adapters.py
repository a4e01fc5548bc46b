"""What adapters have in common, and those that only set variables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from jupyter_gpushare import _boot
from jupyter_gpushare.client.adapters import registry
from jupyter_gpushare.client.adapters.environment import FrameworkVariables
from jupyter_gpushare.client.grant import Grant, GrantedGpu

GIB = 2**30


def gpu(memory: int, capacity: int = 24 * GIB, index: int = 0) -> GrantedGpu:
    return GrantedGpu(f"GPU-{index}", index, "A card", memory, capacity)


def grant(*gpus: GrantedGpu) -> Grant:
    return Grant("lease-1", gpus)


def test_the_finder_and_the_registry_agree() -> None:
    assert frozenset(registry.BUILT_IN) == _boot.FRAMEWORKS


@pytest.mark.parametrize("module", registry.BUILT_IN)
def test_built_in(module: str) -> None:
    adapter = registry.find(module)
    assert adapter is not None
    assert module in adapter.modules
    assert adapter.name
    assert adapter.catches_first_use is (module == "torch")
    for case in (None, grant(gpu(24 * GIB)), None):
        adapter.before(case)
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_unknown() -> None:
    assert registry.find("json") is None


def test_another_packages_adapter(tmp_path: Path) -> None:
    """A real installed distribution: metadata on ``sys.path`` with the entry point."""
    (tmp_path / "their_adapter.py").write_text("class Adapter:\n    name = 'Theirs'\n")
    metadata = tmp_path / "their_adapter-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-adapter\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[jupyter_gpushare.adapters]\n"
        "theirs = their_adapter:Adapter\n"
        "torch = their_adapter:Adapter\n"
    )
    code = """
from jupyter_gpushare.client.adapters import registry
print(*registry.third_party_modules(), *(registry.find(m).name for m in ("theirs", "torch")))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "theirs Theirs PyTorch", done.stderr


class TestGrant:
    def test_names_gpus_by_uuid(self) -> None:
        assert grant(gpu(GIB, index=1), gpu(GIB, index=0)).visible_devices == "GPU-1,GPU-0"

    def test_limits(self) -> None:
        assert gpu(24 * GIB).allocator_limit is None
        assert gpu(8 * GIB).allocator_limit == 8 * GIB - 768 * 2**20
        assert gpu(GIB).allocator_limit == GIB // 2

    def test_the_smallest_counts(self) -> None:
        several = grant(gpu(24 * GIB), gpu(8 * GIB), gpu(8 * GIB, capacity=80 * GIB))
        assert several.allocator_limit == 8 * GIB - 768 * 2**20
        assert several.allocator_fraction == pytest.approx((8 - 0.75) / 80)

    def test_whole_gpus_have_none(self) -> None:
        whole = grant(gpu(24 * GIB), gpu(80 * GIB, capacity=80 * GIB))
        assert (whole.allocator_limit, whole.allocator_fraction) == (None, None)
        assert (grant().allocator_limit, grant().allocator_fraction) == (None, None)


CASES = [
    ("cupy", "CUPY_GPU_MEMORY_LIMIT", str(8 * GIB - 768 * 2**20)),
    ("paddle", "FLAGS_gpu_memory_limit_mb", str(8 * 1024 - 768)),
    ("paddle", "FLAGS_fraction_of_gpu_memory_to_use", "0.3021"),
]


@pytest.mark.parametrize(("module", "variable", "value"), CASES)
class TestVariables:
    @pytest.fixture(autouse=True)
    def clean(self, monkeypatch: pytest.MonkeyPatch, variable: str) -> Callable[[str], None]:
        for _, name, _ in CASES:
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        return lambda value: monkeypatch.setenv(variable, value)

    def test_set_before_the_import(self, module: str, variable: str, value: str) -> None:
        adapter = registry.find(module)
        assert adapter is not None
        adapter.before(grant(gpu(8 * GIB)))
        adapter.after(ModuleType(module), grant(gpu(8 * GIB)))
        assert os.environ[variable] == value

    def test_taken_back(self, module: str, variable: str, value: str) -> None:
        adapter = registry.find(module)
        assert adapter is not None
        adapter.before(grant(gpu(8 * GIB)))
        adapter.before(grant(gpu(24 * GIB)))
        assert variable not in os.environ

    def test_the_users_own_stays(
        self, module: str, variable: str, value: str, clean: Callable[[str], None]
    ) -> None:
        clean("17")
        adapter = registry.find(module)
        assert adapter is not None
        adapter.before(grant(gpu(8 * GIB)))
        adapter.before(None)
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
