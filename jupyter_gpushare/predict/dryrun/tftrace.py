"""TensorFlow: the graph of one iteration of a Keras model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ..table import OTHER, TENSORFLOW
from .child import GUESSED, split, told
from .errors import DryRunFailed
from .tally import Step, Tally, peak
from .travel import Described, unpack

#: They move nothing.
FREE = frozenset({"Const", "Placeholder", "Identity", "NoOp", "ReadVariableOp", "Reshape", "Shape",
                  "ExpandDims", "Squeeze", "StridedSlice", "VarHandleOp"})  # fmt: skip
#: Where one of these runs, a program inside of it runs.
CALLS = ("PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile", "If",
         "StatelessIf")  # fmt: skip


def trace(packed: bytes, training: bool) -> dict[str, Any]:
    """The features, without the number of iterations."""
    model, batch, loss, optimizer, _step_of_torch = unpack(packed, stand_in)
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    inputs, target = split(batch, loss if training else None)
    if isinstance(inputs, tuple) and len(inputs) == 1:
        inputs = inputs[0]
    guess = Guess()
    step = _step(model, loss or guess, _optimizer(optimizer), training)
    given = [inputs] if target is None else [inputs, target]
    graph = tf.function(step).get_concrete_function(*tf.nest.map_structure(_spec, given)).graph
    walk = Walk()
    most = walk.follow(graph, times=1, kept={t.ref() for t in graph.outputs})
    variables = {v.ref(): v for v in graph.variables}
    held = sum(math.prod(v.shape) * v.dtype.size for v in variables.values())
    return told(
        walk.tally, [tuple(x.shape) for x in tf.nest.flatten(inputs)], most + held, guess.bytes
    )


class Guess:
    """The loss that nobody named: the cross entropy of all outputs."""

    def __init__(self) -> None:
        self.bytes = 0  # what it takes beside the outputs

    def __call__(self, out: Any) -> Any:
        found = [tf.cast(one, tf.float32) for one in tf.nest.flatten(out)]
        self.bytes = GUESSED * sum(map(_elements, found))
        return -tf.add_n([tf.reduce_mean(tf.nn.log_softmax(one)) for one in found])


def stand_in(described: Described) -> Any:
    """Zeros that take one element's memory: only their shape is looked at."""
    import numpy

    return numpy.broadcast_to(numpy.zeros((), described.dtype), described.shape)


def _spec(thing: Any) -> Any:
    return tf.TensorSpec(thing.shape, tf.as_dtype(thing.dtype))


def _optimizer(optimizer: Any) -> Any:
    if optimizer is None or isinstance(optimizer, str):
        return keras.optimizers.get(optimizer or "sgd")
    return optimizer


def _step(model: Any, loss: Any, optimizer: Any, training: bool) -> Callable[..., Any]:
    def infer(inputs: Any) -> Any:
        return model(inputs, training=False)

    def train(inputs: Any, target: Any = None) -> Any:
        with tf.GradientTape() as tape:
            out = model(inputs, training=True)
            value = loss(out) if target is None else loss(target, out)
        if not optimizer.built:
            with tf.init_scope():
                optimizer.build(model.trainable_variables)
        grads = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return value

    return train if training else infer


def _elements(tensor: Any) -> int:
    shape = tensor.shape
    if shape.rank is None or None in shape.as_list():
        return 0  # an axis that only the data tell
    return math.prod(shape.as_list())


def _bytes(tensor: Any) -> int:
    try:
        return _elements(tensor) * int(tensor.dtype.size or 0)
    except TypeError:  # a resource, a string
        return 0


class Walk:
    """Goes through a graph and those it calls."""

    def __init__(self) -> None:
        self.tally = Tally()

    def follow(self, graph: Any, times: int, kept: Any) -> int:
        """Adds all operations, ``times`` over; the most bytes alive at once."""
        steps = []
        given = [(t.ref(), _bytes(t)) for t in graph.inputs]
        known = {name for name, _ in given}
        for op in graph.get_operations():
            inside = 0
            if op.type in CALLS:
                inside = self._into(op, graph, times)
            elif op.type not in FREE:
                self._add(op, times)
            is_free = op.type in FREE
            steps.append(
                Step(
                    reads=tuple(t.ref() for t in op.inputs),
                    makes=tuple(
                        (t.ref(), 0 if is_free else _bytes(t))
                        for t in op.outputs
                        if t.ref() not in known
                    ),
                    inside=max(0, inside - sum(_bytes(t) for t in op.outputs)),
                )
            )
        return peak(given, steps, set(kept))

    def _into(self, op: Any, graph: Any, times: int) -> int:
        repeats = 1
        if "While" in op.type:
            repeats = _repeats(op)
        most = 0
        for name in ("f", "body", "then_branch", "else_branch"):
            if name in op.node_def.attr:
                inner = graph._get_function(op.node_def.attr[name].func.name)
                body = getattr(inner, "graph", None)
                if body is None:
                    raise DryRunFailed(
                        "unknown",
                        f"The graph calls {op.node_def.attr[name].func.name}, which is not there.",
                        "Predict a part of the model without it.",
                    )
                own = sum(_bytes(t) for t in body.inputs)
                most = max(most, self.follow(body, times * repeats, ()) - own)
        return most

    def _add(self, op: Any, times: int) -> None:
        kind = TENSORFLOW.get(op.type, OTHER)
        given, made = list(op.inputs), list(op.outputs)
        elements = _elements(given[0]) if given else 0
        if kind == "Concat":
            elements = sum(map(_elements, given))
        elif kind == "MaxPool" or (op.type.endswith("Grad") and op.type != "BiasAddGrad"):
            elements = max(map(_elements, given), default=0)
        self.tally.add(kind, elements, _flops(op), sum(map(_bytes, (*given, *made))), times)


def _repeats(op: Any) -> int:
    """How often a loop runs: Keras gives it a bound; 1 where there is none."""
    for tensor in op.inputs:
        if tensor.dtype.is_integer and tensor.shape.rank == 0:
            # Keras bounds the loop of a recurrent layer by the largest of one length.
            one = tensor.op.inputs[0] if tensor.op.type == "Max" else tensor
            value = tf.get_static_value(one)
            if value is not None and 1 < int(value.max()) < 2**31 - 1:
                return int(value.max())
    return 1


def _flops(op: Any) -> int:
    """Multiplications and additions of the operations that have many."""
    given, made = list(op.inputs), list(op.outputs)
    if op.type in ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        turned = "transpose_a" if op.type == "MatMul" else "adj_x"
        shape = given[0].shape.as_list()
        inner = shape[-2] if op.get_attr(turned) else shape[-1]
        return 2 * _elements(made[0]) * int(inner or 0)
    if op.type == "Einsum":
        # Each index is in two of the three tensors, so their product is the loops' squared.
        sizes = [_elements(t) for t in (*given, *made)]
        return 2 * math.isqrt(math.prod(sizes)) if len(given) == 2 else 0
    if op.type in ("Conv2D", "Conv3D"):
        return 2 * _elements(made[0]) * _kernel(given[1].shape.as_list())
    if op.type == "DepthwiseConv2dNative":
        return 2 * _elements(made[0]) * int(math.prod(given[1].shape.as_list()[:2]))
    if op.type == "Conv2DBackpropInput":
        return 2 * _elements(given[2]) * _kernel(given[1].shape.as_list())
    if op.type == "Conv2DBackpropFilter":
        return 2 * _elements(given[2]) * _kernel(made[0].shape.as_list())
    if op.type.startswith("DepthwiseConv2dNativeBackprop"):
        kernel = (made[0] if op.type.endswith("Filter") else given[1]).shape.as_list()
        return 2 * _elements(given[2]) * int(math.prod(kernel[:2]))
    return 0


def _kernel(shape: list[int]) -> int:
    """A kernel's elements for one output channel."""
    return math.prod(shape[:-1])
