"""Real frameworks have their GPUs when they are imported, and gates change nothing in them.

In processes of their own, through the hook and their adapters. JAX and TensorFlow are really loaded
once; other programs find them loaded, as support/warm.py tells.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from support.warm import COLD

from jupyter_gpushare.client.adapters import jax, registry, tensorflow

pytestmark = pytest.mark.timeout(600)
GIB = 2**30

# Does around the import what client/acquire.py does, with grants from nowhere: GIVEN says how much
# memory on each GPU at the import, and then, each with what the user has set, in its other cases.
PRELUDE = """
import contextlib, json, os, sys, types
import jupyter_gpushare.client
from jupyter_gpushare.client.adapters import registry
from jupyter_gpushare.client.words.grant import Grant, GrantedGpu

GIVEN, *CASES = json.loads(sys.argv[1])
acquire = types.ModuleType("jupyter_gpushare.client.acquire")
adapters = {}
heard = []

def granted(given):
    return given and Grant("lease-1", tuple(
        GrantedGpu(f"GPU-00000000-0000-0000-0000-00000000000{i}", i, "A card", memory, 24 * 2**30)
        for i, memory in enumerate(given)
    ))

def before_framework(name):
    heard.append(f"before {name}")
    grant = granted(GIVEN)
    os.environ["CUDA_VISIBLE_DEVICES"] = grant.visible_devices if grant else ""
    adapters[name] = registry.find(name)
    adapters[name].before(grant)

def after_framework(name, module):
    heard.append(f"after {name}")
    adapters[name].after(module, granted(GIVEN))

def in_each_case(module, look):
    "What it finds, with an adapter of its own, as after an import in each case."
    name, found = module.__name__, [look(GIVEN, {})]
    for given, theirs in CASES:
        adapters[name].before(None)
        adapters[name].after(module, None)
        os.environ.update(theirs)
        adapters[name] = type(adapters[name])()
        adapters[name].before(granted(given))
        adapters[name].after(module, granted(given))
        found.append(look(given, theirs))
        for variable in theirs:
            del os.environ[variable]
    return found

acquire.before_framework = before_framework
acquire.after_framework = after_framework
jupyter_gpushare.client.acquire = sys.modules[acquire.__name__] = acquire
"""


def run(code: str, *given: Any, **environment: str) -> dict[str, Any]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JUPYTER_GPUSHARE", "XLA_", "TF_", "CUDA_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, json.dumps(given)],
        env={**kept, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=560,  # a busy machine loads TensorFlow for minutes
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


JAX = """
import jax
import jax._src.xla_bridge as bridge
from jaxlib import xla_client

def options(*_):
    made = xla_client.generate_pjrt_gpu_plugin_options()
    return [made.get("preallocate"), made.get("memory_fraction")]

starts = adapters["jax"].cuda_started
found, started = in_each_case(jax, options), [starts(jax)]
jax.numpy.ones(3).sum()
started.append(starts(jax))
bridge._backends["cuda"] = object()
started.append(starts(jax))
print(json.dumps({"heard": heard, "found": found, "started": started}))
"""


def test_jax() -> None:
    """What JAX itself makes of the variables when it starts a GPU client."""
    found = run(
        JAX,
        *([8 * GIB], ([12 * GIB, 8 * GIB], {}), ([24 * GIB], {}), (None, {})),
        ([8 * GIB], {"XLA_CLIENT_MEM_FRACTION": "0.5"}),
        ([8 * GIB], {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4"}),
        ([24 * GIB], {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}),
        **{COLD: "1"},
    )
    assert found["heard"] == ["before jax", "after jax"]
    most = pytest.approx((8 * GIB - 768 * 2**20) / (24 * GIB), abs=1e-4)
    assert found["found"] == [
        *([False, most], [False, most], [False, None], [None, None]),
        *([False, 0.5], [False, 0.4], [True, None]),
    ]
    assert found["started"] == [False, False, True], "work on the CPU is no CUDA"


TENSORFLOW = """
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context
from tensorflow.python.eager.context import pywrap_tfe

shown = GIVEN
listed, configured = [], []
def devices():  # the border: what the CUDA driver would list
    listed.append(1)
    return [b"/physical_device:CPU:0"] + [
        b"/physical_device:GPU:%d" % i for i in range(len(shown or []))
    ]
pywrap_tfe.TF_ListPhysicalDevices = devices
really = pywrap_tfe.TFE_ContextOptionsSetConfig
def configure(options, text):
    configured.append(config_pb2.ConfigProto.FromString(text).gpu_options)
    really(options, text)
pywrap_tfe.TFE_ContextOptionsSetConfig = configure

def runs(given, theirs):
    global shown
    shown = given
    if configured:
        context._reset_context()
    for gpu in tf.config.list_physical_devices("GPU") if theirs else []:
        tf.config.experimental.set_memory_growth(gpu, True)
    total = float(tf.reduce_sum(tf.ones(3)))
    limits = [list(one.memory_limit_mb) for one in configured[-1].experimental.virtual_devices]
    return [total, limits, os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH"),
            context.Context.ensure_initialized.__module__]

starts = adapters["tensorflow"].cuda_started
listed_at_import, started = len(listed), [starts(tf)]
found = in_each_case(tf, runs)
started.append(starts(tf))
context._context.num_gpus = lambda: 1
started.append(starts(tf))
print(json.dumps({
    "heard": heard, "found": found, "started": started, "listed_at_import": listed_at_import,
}))
"""


def test_tensorflow() -> None:
    """The configuration that TensorFlow's runtime gets when it starts."""
    users_growth = ([8 * GIB], {"THE_USER_SETS_GROWTH": "1"})
    cases = (users_growth, ([24 * GIB], {}), (None, {}))
    found = run(TENSORFLOW, [8 * GIB, 24 * GIB], *cases, **{COLD: "1"})
    # where JAX is installed too, TensorFlow imports it
    assert found["heard"] in (
        ["before tensorflow", "after tensorflow"],
        ["before tensorflow", "before jax", "after jax", "after tensorflow"],
    )
    limit, its = [8 * 1024 - 768], "tensorflow.python.eager.context"
    assert found["found"] == [
        [3.0, [limit, []], "true", its],
        [3.0, [limit], "true", its],
        [3.0, [], "true", its],
        [3.0, [], None, its],
    ]
    assert found["listed_at_import"] == 0
    assert found["started"] == [False, False, True], "work on the CPU is no CUDA"


GATES = """
from jupyter_gpushare import checkpoint, steps
paused = []
def at_gate():
    paused.append(1)
    adapters[FRAMEWORK].synchronize(sys.modules[FRAMEWORK])  # as a gate does that is closed
acquire.checkpoint = at_gate
acquire.loop = lambda total: contextlib.nullcontext(at_gate)
"""

# One model for all trainings: what takes long is to compile it.
KERAS_MODEL = """
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8),
                          keras.layers.Dropout(0.5), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
model.optimizer.build(model.trainable_variables)
variables = [*model.variables, *model.optimizer.variables]
begin = [keras.ops.convert_to_numpy(one).copy() for one in variables]
x = keras.ops.convert_to_numpy(keras.random.normal((64, 4), seed=1))
model.fit(x, x[:, :1], batch_size=8, verbose=0)  # the first one draws numbers of its own

def begin_anew():
    keras.utils.set_random_seed(7)
    for one, value in zip(variables, begin, strict=True):
        one.assign(value)
"""


KERAS_ITSELF = (
    "FRAMEWORK = BACKEND\n"
    + GATES
    + """
from jupyter_gpushare.client.adapters.batches import BatchGate
os.environ["KERAS_BACKEND"] = BACKEND
gates, here, before = [], [], list(sys.meta_path)
# What Keras does without, and would load for seconds.
others = {"matplotlib", "orbax", "pandas", "sklearn", "tensorflow"} - {BACKEND}
sys.modules.update(dict.fromkeys(others))

def gate():
    gates.append(1)
    if BACKEND != "torch":
        at_gate()

from jupyter_gpushare.client.session.progress import Progress
told = []
counts = Progress(None, None, {})
counts._tell = lambda *what: told.append(what)
BatchGate(gate, lambda: bool(here), counts).watch()
import keras
"""
    + KERAS_MODEL
    + """
def train(*callbacks):
    begin_anew()
    curve = model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=list(callbacks))
    return (curve.history["loss"], [one.tolist() for one in model.get_weights()],
            model.evaluate(x, x[:, :1], batch_size=8, verbose=0),
            model.predict(x, batch_size=8, verbose=0).tolist())

undisturbed = train()
none = len(gates)
here.append(1)
same = train() == undisturbed
seen, first = [], told[0][:2]
one = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(len(gates)))
del gates[:]
train(one)
os.environ["TF_CONFIG"] = "{}"
count = len(gates)
train()
print(json.dumps({
    "same": same, "none": none, "paused": count, "first": seen[0], "of several": len(gates) - count,
    "progress": [*first, counts.done],
    "finders": [finder for finder in sys.meta_path if "gpushare" in type(finder).__module__
                and finder not in before] == [],
}))
"""
)


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_keras_own_loops_have_gates_that_change_nothing(backend: str) -> None:
    """One before the first batch, one after each: 16 of training, 8 and 8 of the other two."""
    program = KERAS_ITSELF.replace("import keras", f"import {backend}\nimport keras", 1)
    assert run(f"BACKEND = {backend!r}\n{program}", [GIB]) == {
        "same": True,
        "none": 0,
        "paused": 3 + 16 + 8 + 8,
        "first": 1,
        "of several": 0,
        "progress": [2, 16, 2 * 16],
        "finders": True,
    }


GATED = (
    "FRAMEWORK = 'jax'\n"
    + GATES
    + """
import functools, operator, pickle, threading, weakref
import jax, jax.numpy as jnp
from jupyter_gpushare import gated
from jupyter_gpushare.client.requests.broker import Broker

broker = Broker({})
broker.turns = types.SimpleNamespace(
    waited=0.0, needs_gate=True, checkpoint=lambda _place: at_gate())
acquire.before_call = broker.before_call

def step(weights, key, rate):
    key, noise = jax.random.split(key)
    data = jax.random.normal(noise, (32, 8))
    loss, slope = jax.value_and_grad(lambda w: ((data @ w - 1.0) ** 2).mean())(weights)
    return weights - rate * slope, key, loss

def train(step):
    weights, key, curve = jnp.zeros(8), jax.random.key(7), []
    for _ in range(20):
        weights, key, loss = step(weights, key, rate=0.1)
        curve.append(loss)
    return [float(one) for one in curve], weights.tolist()

def gates(work):
    before = len(paused)
    result = work()
    return len(paused) - before, jax.tree.map(float, result)

plain = functools.partial(jax.jit, static_argnames="rate", donate_argnums=0)(step)
marked = gated(plain)
same = train(marked) == train(plain)

square = jax.jit(lambda x: x * x)
inside = {
    "jit": lambda f: jax.jit(lambda x: f(x) + 1)(3.0),
    "static": lambda f: jax.jit(lambda g, x: g(x), static_argnums=0)(f, 3.0),
    "grad": lambda f: jax.grad(f)(3.0),
    "vmap": lambda f: jax.vmap(f)(jnp.arange(3.0)).sum(),
    "scan": lambda f: jax.lax.scan(lambda c, x: (f(c) + x, c), 1.0, jnp.arange(3.0))[0],
    "shape": lambda f: jax.eval_shape(f, 3.0).size,
}
traced = {n: gates(lambda: w(gated(square))) == (0, w(square)) for n, w in inside.items()}

class Model:
    @gated
    @functools.partial(jax.jit, static_argnums=0)
    def step(self, x):
        return x + 1

thread = threading.Thread(target=gated(square), args=(3.0,))
in_thread = gates(lambda: (thread.start(), thread.join()) and 0)[0]
is_itself = (marked.__name__, marked.__wrapped__ is plain, weakref.ref(marked)() is marked,
             marked.lower(jnp.zeros(8), jax.random.key(7), rate=0.1).compile() is not None,
             pickle.loads(pickle.dumps(gated(operator.neg)))(3.0) == -3.0)
method = gates(lambda: Model().step(1.0))
from jax._src import distributed
distributed.global_state.num_processes = 2
of_several = gates(lambda: gated(square)(3.0))
print(json.dumps({"same": same, "in_thread": in_thread, "is_itself": is_itself,
                  "paused": paused[:20], "traced": traced, "method": method,
                  "of_several": of_several}))
"""
)


def test_a_marked_step_of_jax_has_gates_and_is_the_same_step() -> None:
    found = run(GATED, [GIB])
    assert (found["same"], found["paused"]) == (True, [1] * 20)
    assert found["is_itself"] == ["step", True, True, True, True]
    assert set(found["traced"].values()) == {True}, found["traced"]
    assert found["method"] == [1, 2.0]
    assert (found["in_thread"], found["of_several"]) == (0, [0, 9.0])


def test_who_cannot_tell_whether_cuda_started_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cupy", "paddle", "mxnet", "caffe"):
        adapter = registry.find(name)
        assert adapter is not None
        assert adapter.cuda_started(ModuleType(name)) is None
    for module in ("jax._src.xla_bridge", "tensorflow.python.eager.context"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert jax.JaxAdapter().cuda_started(ModuleType("jax")) is None
    assert tensorflow.TensorFlowAdapter().cuda_started(ModuleType("tensorflow")) is None
