"""Programs of users, each in a process of its own: what dry runs tell is printed as JSON.

`python programs.py torch|jax|keras`. The models' classes are in ``__main__``, as a notebook's are.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any
from unittest import mock

from jupyter_gpushare.client.cell.reading import work_of
from jupyter_gpushare.predict.dryrun import DryRunFailed, dry_run
from jupyter_gpushare.predict.dryrun.child import answer_to
from jupyter_gpushare.predict.dryrun.travel import pack

told: dict[str, Any] = {}
GAN = """for _ in range(100):
    fake = G(torch.randn(256, 64, device="cuda"))
    wrong = bce(D(real), torch.ones(256, 1)) + bce(D(fake.detach()), torch.zeros(256, 1))
    d.zero_grad(); wrong.backward(); d.step()
    fooled = bce(D(fake), torch.ones(256, 1))
    g.zero_grad(); fooled.backward(); g.step()
    log.append(fooled.item())
"""


def tell(name: str, *arguments: Any, **options: Any) -> None:
    """A dry run's features, or why there are none."""
    try:
        found = dry_run(*arguments, **options)
    except DryRunFailed as error:
        told[name] = {"reason": error.reason, "says": str(error)}
    else:
        largest = {kind: count for kind, count in found.largest.items() if count}
        told[name] = {**found.document(), "flops": found.flops, "largest": largest}


def here(name: str, *arguments: Any, **options: Any) -> None:
    """The same without a process of its own, for to start one takes seconds."""

    def answered(_words: Any, input: bytes, **_options: Any) -> Any:
        line = json.dumps(answer_to(pickle.loads(input)))
        return subprocess.CompletedProcess([], 0, line.encode(), b"")

    with mock.patch("jupyter_gpushare.predict.dryrun.run.subprocess.run", answered):
        tell(name, *arguments, **options)


def of_torch() -> None:
    import torch
    from torch import nn

    class Cnn(nn.Module):
        """Three convolutions, of 2,400, 2,800 and 4,800 input elements."""

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(6, 7, 3, padding=1)
            self.second = nn.Conv2d(7, 12, 3, padding=1)
            self.third = nn.Conv2d(12, 2, 3, padding=1)

        def forward(self, x: Any) -> Any:
            return self.third(torch.relu(self.second(torch.relu(self.first(x)))))

    class Curious(nn.Module):
        def forward(self, x: Any) -> Any:
            names = ("CUDA_VISIBLE_DEVICES", "JUPYTER_GPUSHARE")
            raise RuntimeError(f"{[os.environ[name] for name in names]} {type(x).__name__}")

    class Choosy(nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    class Sleepy(nn.Module):
        def forward(self, x: Any) -> Any:
            time.sleep(60)  # longer than the dry run may take

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(1000, 100), nn.Linear(100, 1000, bias=False)
            self.head.weight = self.words.weight

        def forward(self, x: Any) -> Any:
            return self.head(self.words(x))

    image = torch.zeros(1, 6, 20, 20)
    cnn = Cnn()
    tell("cnn", cnn, image, iterations=7)
    tell("curious", Curious(), image)
    here("choosy", Choosy(), image)
    tell("sleepy", Sleepy(), image, timeout=1.0)
    here("tied", Tied(), torch.zeros(2, 3, dtype=torch.long))
    tell("number", 3, image)

    def through_channels(side: int) -> Any:
        return nn.Conv2d(8, 8, side, padding=side // 2, groups=8, bias=False)

    mixed = nn.Sequential(
        through_channels(5), through_channels(5), through_channels(3), nn.Conv2d(8, 4, 1),
        nn.GroupNorm(1, 4), nn.Flatten(2), nn.Conv1d(4, 4, 3),
    )  # fmt: skip
    here("convolutions", mixed, torch.zeros(1, 8, 10, 10), training=True)

    big = nn.Linear(4000, 4000)
    told["packed"] = len(pack((big, torch.zeros(64, 4000))))
    loss = nn.CrossEntropyLoss()

    def batch() -> Any:
        return torch.zeros(64, 784), torch.zeros(64, dtype=torch.long)

    def mlp() -> Any:
        return nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))

    model = mlp()
    adam = torch.optim.Adam(model.parameters())
    here("training", model, batch(), loss=loss, optimizer=adam)
    # The same in earnest.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
    from predictor_runs import peak, peak_of
    from predictor_zoo import Case

    told["real peak"] = peak(Case("", "", mlp, batch, loss, "adam"))
    told["cuda"] = torch.cuda.is_initialized()

    words = nn.Sequential(nn.Embedding(1000, 16), nn.Linear(16, 1000))
    text = torch.zeros(8, 32, dtype=torch.long)

    def entropy(out: Any, target: Any) -> Any:
        return nn.functional.cross_entropy(out.flatten(0, 1), target.flatten())

    here("no loss", words, text, optimizer="adamw")
    here("a loss", words, (text, text), loss=entropy, optimizer="adamw")

    def gan() -> dict[str, Any]:
        makes = nn.Sequential(nn.Linear(64, 1000), nn.ReLU(), nn.Linear(1000, 784))
        judges = nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 1))
        return {
            **{"torch": torch, "G": makes, "D": judges, "bce": nn.BCEWithLogitsLoss()},
            **{"g": torch.optim.Adam(makes.parameters()), "real": torch.zeros(256, 784)},
            "d": torch.optim.Adam(judges.parameters()),
        }

    work = work_of(GAN, gan())
    here("gan", work.model, work.batch, step=work.step, training=True, iterations=work.iterations)

    def really() -> Any:
        # As the cell is, on the CPU.
        space, lines = gan(), textwrap.dedent(GAN.partition("\n")[2]).replace(', device="cuda"', "")
        code = compile(lines.partition("log")[0], "", "exec")
        return lambda: exec(code, space)

    told["real gan"] = peak_of(really)


def of_jax() -> None:
    import jax
    import jax.numpy as jnp

    def cnn(kernels: Any, x: Any) -> Any:
        for kernel in kernels:
            x = jax.nn.relu(
                jax.lax.conv_general_dilated(
                    x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
            )
        return x

    def loop(weights: Any, x: Any) -> Any:
        def step(held: Any, now: Any) -> Any:
            held = jnp.tanh(now @ weights[0] + held @ weights[1])
            return held, held

        return jax.lax.scan(step, jnp.zeros((8, 16)), x)[1]

    def line(weights: Any, x: Any) -> Any:
        return x @ weights[0] + weights[1]

    kernels = [jnp.zeros((3, 3, a, b)) for a, b in ((6, 7), (7, 12), (12, 2))]
    tell("cnn", (cnn, kernels), jnp.zeros((1, 20, 20, 6)), iterations=7)
    weights = (jnp.zeros((4, 16)), jnp.zeros((16, 16)))
    here("loop", (jax.jit(loop), weights), jnp.zeros((20, 8, 4)))
    here("choosy", lambda x: x if x.sum() > 0 else -x, jnp.zeros(3))
    straight = (line, (jnp.zeros((64, 32)), jnp.zeros(32)))
    here("line", straight, jnp.zeros((8, 64)))

    @jax.jit
    def trains(weights: Any, x: Any) -> Any:
        loss, grads = jax.value_and_grad(lambda own: line(own, x).sum())(weights)
        return jax.tree.map(lambda a, b: a - b, weights, grads), loss

    cell = "for _ in range(30): weights, loss = trains(weights, batch)"
    work = work_of(cell, {"trains": trains, "weights": straight[1], "batch": jnp.zeros((8, 64))})
    here("cell", work.model, work.batch, iterations=work.iterations)
    here("training", straight, jnp.zeros((8, 64)), optimizer="adam")
    noisy = jax.jit(lambda own, x, key: line(own, x) + jax.random.normal(key, (8, 32)))
    here("noisy", noisy, (straight[1], jnp.zeros((8, 64)), jax.random.key(0)))


def of_keras() -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras
    import numpy
    import tensorflow

    layers = keras.layers
    cnn = keras.Sequential(
        [
            keras.Input((20, 20, 6)),
            layers.Conv2D(7, 3, padding="same", activation="relu"),
            layers.Conv2D(12, 3, padding="same", activation="relu"),
            layers.Conv2D(2, 3, padding="same"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    image = numpy.zeros((1, 20, 20, 6), "float32")
    tell("cnn", cnn, image, iterations=7)
    rnn = keras.Sequential([keras.Input((20, 8)), layers.LSTM(16)])
    here("rnn", rnn, numpy.zeros((4, 20, 8), "float32"), training=True)

    @keras.saving.register_keras_serializable()
    class Sums(layers.Layer):
        def build(self, _shape: Any) -> None:
            self.kernel = self.add_weight(shape=(8, 16))

        def call(self, x: Any) -> Any:
            return tensorflow.einsum("abc,cd->abd", x, self.kernel)

    sums = keras.Sequential([keras.Input((20, 8)), Sums()])
    here("sums", sums, numpy.zeros((4, 20, 8), "float32"))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    labelled = (image, numpy.zeros(1, "int64"))
    here("training", cnn, labelled, loss=loss, optimizer="adam")

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.dense(x)

    here("own", Own(), numpy.zeros((4, 8), "float32"), loss="mse", training=False)
    here("wrong", cnn, labelled, loss=lambda out, target: out.nothing, optimizer="adam")
    here("named", cnn, labelled, loss="sparse_categorical_crossentropy", optimizer="adam")


if __name__ == "__main__":
    {"torch": of_torch, "jax": of_jax, "keras": of_keras}[sys.argv[1]]()
    print(json.dumps(told))
