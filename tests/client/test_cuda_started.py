"""A framework that says that it has not started CUDA is right, so its GPU may be taken.

Each in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

SCRIPT = """
import {module} as framework
from jupyter_gpushare.client.adapters import registry
adapter = registry.find({name!r})
print(adapter.cuda_started(framework))
{work}
print(adapter.cuda_started(framework))
{pretend}
print(adapter.cuda_started(framework))
"""

TORCH = "framework.cuda.is_initialized = lambda: True"
JAX = "import jax._src.xla_bridge as bridge; bridge._backends['cuda'] = object()"
TENSORFLOW = "from tensorflow.python.eager import context as c\nc._context.num_gpus = lambda: 1"


@pytest.mark.parametrize(
    ("module", "work", "pretend"),
    [
        ("torch", "framework.ones(3) + 1", TORCH),
        ("jax", "framework.numpy.ones(3) + 1", JAX),
        ("tensorflow", "framework.constant(1) + 1", TENSORFLOW),
    ],
)
def test_work_on_the_cpu_is_no_cuda(module: str, work: str, pretend: str) -> None:
    # Not imported here: it would stay, and tensorflow's log handler closes pytest's own output
    # where a later test configures logging.
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    code = SCRIPT.format(module=module, name=module, work=work, pretend=pretend)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == ["False", "False", "True"], done.stderr


def test_who_cannot_tell_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import ModuleType

    from jupyter_gpushare.client.adapters import jax, registry, tensorflow

    for name in ("cupy", "paddle", "mxnet", "caffe"):
        adapter = registry.find(name)
        assert adapter is not None
        assert adapter.cuda_started(ModuleType(name)) is None
    for module in ("jax._src.xla_bridge", "tensorflow.python.eager.context"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert jax.JaxAdapter().cuda_started(ModuleType("jax")) is None
    assert tensorflow.TensorFlowAdapter().cuda_started(ModuleType("tensorflow")) is None
