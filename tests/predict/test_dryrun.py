"""A dry run of a user's model tells what it needs, touches no GPU, and ends in its time.

Real models, from programs of users.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpushare.predict.dryrun import DryRunFailed
from jupyter_gpushare.predict.dryrun.run import framework_of, functional

pytestmark = [pytest.mark.story]
PROGRAMS = Path(__file__).with_name("programs.py")


@cache
def run(framework: str) -> dict[str, Any]:
    """What the dry runs of its program tell."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS), framework],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "JUPYTER_GPUSHARE": "off"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


#: Additions and multiplications of three convolutions of 3 x 3 over 20 x 20 places.
FLOPS = 2 * 400 * 9 * (6 * 7 + 7 * 12 + 12 * 2)


@pytest.mark.parametrize("framework", ["torch", "jax", "keras"])
def test_of_three_convolutions_the_one_with_most_input_elements_is_told(framework: str) -> None:
    found = run(framework)["cnn"]
    assert found["largest"]["Conv2D"] == 4800
    assert found["nodes"]["Conv2D"][:3] == [4800, 3, FLOPS]
    assert found["largest"]["ReLU"] == 4800
    assert "MaxPool" not in found["largest"]
    assert (found["batch"], found["iterations"], found["inputs"]) == (1, 7, 2400)
    assert found["training"] is False


@pytest.mark.parametrize("framework", ["torch", "jax", "keras"])
def test_training_has_the_ways_back_and_the_optimizers_state(framework: str) -> None:
    told = run(framework)
    found = told["training"]
    assert found["training"] is True
    assert found["largest"]["BiasAddGrad"] > 0
    # Weights, gradients and two moments, and more while one is replaced.
    weights = {"torch": 784 * 300 + 310 + 3000, "jax": 64 * 32 + 32, "keras": 9992}
    assert found["peak"] > 4 * 4 * weights[framework]


def test_a_torch_dry_runs_peak_is_what_the_allocator_gives_out() -> None:
    assert run("torch")["training"]["peak"] == pytest.approx(run("torch")["real peak"], rel=0.02)


def test_a_loss_that_nobody_named_is_guessed_and_not_too_small() -> None:
    guessed, named = run("torch")["no loss"], run("torch")["a loss"]
    assert guessed["peak"] >= named["peak"]
    assert guessed["peak"] == pytest.approx(named["peak"], rel=0.05)


def test_a_cell_with_two_models_has_the_memory_of_both() -> None:
    assert run("torch")["gan"]["peak"] == pytest.approx(run("torch")["real gan"], rel=0.03)
    assert (run("torch")["gan"]["batch"], run("torch")["gan"]["iterations"]) == (256, 100)


def test_no_gpu_is_touched_and_our_hook_keeps_out() -> None:
    says = run("torch")["curious"]["says"]
    assert run("torch")["curious"]["reason"] == "failed"
    assert "['', 'off'] FakeTensor" in says
    assert run("torch")["cuda"] is False


def test_no_weights_travel() -> None:
    assert run("torch")["packed"] < 4_000  # of 64 MB
    # A weight that two layers share is one.
    assert run("torch")["tied"]["peak"] < 1.5 * 4 * 100_000


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_way_that_depends_on_the_data_is_said(framework: str) -> None:
    found = run(framework)["choosy"]
    assert found["reason"] == "data-dependent"
    assert "depends on its data's values" in found["says"]
    assert "run a few real steps" in found["says"]


def test_convolutions_of_another_speed_are_told_apart_and_groups_counted_once() -> None:
    nodes = run("torch")["convolutions"]["nodes"]
    # The first one's input has no gradient; the second one's has, as its weights have.
    assert nodes["WideDepthwiseConv2DGrad"][1:3] == [2, (1 + 2) * 2 * 800 * 25]
    assert nodes["DepthwiseConv2DGrad"][1:3] == [1, 2 * 2 * 800 * 9]
    assert nodes["DepthwiseConv2D"][1:3] == [3, 2 * 800 * (25 + 25 + 9)]
    assert nodes["PointConv2D"][1:3] == [1, 2 * 800 * 4]
    assert nodes["Conv2D"] == [800, 0, 0, 0]  # the source's vector has it there
    assert nodes["Conv1D"][1:3] == [1, 2 * 4 * 98 * 4 * 3]
    assert {"PointConv2DGrad", "Conv1DGrad", "GroupNorm", "GroupNormGrad"} <= nodes.keys()
    assert "Conv2DGrad" not in nodes


def test_a_dry_run_ends_after_its_time() -> None:
    assert run("torch")["sleepy"]["reason"] == "timeout"
    assert "more than 1 s" in run("torch")["sleepy"]["says"]


def test_what_is_no_model_is_said() -> None:
    assert run("torch")["number"]["reason"] == "unknown"


def test_a_loop_of_jax_counts_each_round() -> None:
    assert run("jax")["loop"]["nodes"]["MatMul"][1:3] == [40, 20 * 2 * 8 * (4 + 16) * 16]
    assert run("jax")["line"]["flops"] == 2 * 8 * 64 * 32
    assert run("jax")["line"]["largest"] == {"BiasAdd": 256, "MatMul": 512}


def test_a_recurrent_layer_of_keras_counts_each_step() -> None:
    one = 2 * 4 * (8 + 16) * 4 * 16  # of the way there; the way back has twice as many
    # Keras looks at one step before the loop, for its shapes.
    assert run("keras")["rnn"]["nodes"]["MatMul"][2] == pytest.approx(3 * 20 * one, rel=0.03)


def test_a_sum_over_indices_of_tensorflow_counts_as_the_product_that_it_is() -> None:
    assert run("keras")["sums"]["nodes"]["MatMul"][1:3] == [1, 2 * 4 * 20 * 8 * 16]


def test_a_cell_that_calls_a_compiled_function_of_jax_is_understood() -> None:
    assert run("jax")["cell"]["iterations"] == 30
    assert (run("jax")["cell"]["batch"], run("jax")["cell"]["inputs"]) == (8, 512), (
        "without the weights"
    )
    assert run("jax")["cell"]["flops"] == 2 * 2 * 8 * 64 * 32  # there, and back to the weights


def test_a_key_of_random_numbers_is_no_batch() -> None:
    assert (run("jax")["noisy"]["batch"], run("jax")["noisy"]["inputs"]) == (8, 512)


def test_a_model_of_keras_needs_no_configuration_of_its_own() -> None:
    assert run("keras")["own"]["nodes"]["MatMul"][2] == 2 * 4 * 8 * 3
    assert run("keras")["named"]["training"] is True


def test_an_error_in_keras_is_told_by_its_own_line() -> None:
    assert "in user code" not in run("keras")["wrong"]["says"]
    assert "has no attribute 'nothing'" in run("keras")["wrong"]["says"]


def test_a_layer_of_keras_is_no_function_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    class Layer:
        def __call__(self) -> None: ...

    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(Layer=Layer))
    assert framework_of(print) == "jax"
    with pytest.raises(DryRunFailed, match="No torch module, Keras model or function of JAX"):
        framework_of(Layer())


def test_a_module_of_flax_is_a_function_and_its_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Linen:
        def apply(self, variables: Any, x: Any) -> Any:
            return variables, x

    class Nnx:
        state = "weights"

    nnx = SimpleNamespace(
        Module=Nnx,
        split=lambda model: ("structure", model.state),
        merge=lambda structure, state: lambda x: (structure, state, x),
    )
    monkeypatch.setitem(sys.modules, "flax.linen", SimpleNamespace(Module=Linen))
    monkeypatch.setitem(sys.modules, "flax.nnx", nnx)
    function, parameters = functional((Linen(), "variables"))
    assert function(parameters, 7) == ("variables", 7)
    function, parameters = functional(Nnx())
    assert function(parameters, 7) == ("structure", "weights", 7)
    with pytest.raises(DryRunFailed, match=r"Pass \(model, variables\)"):
        functional(Linen())
