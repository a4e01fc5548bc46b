"""JAX: the program (jaxpr) of a function, from shapes only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

from ..table import JAX, JAX_CALLS, OTHER
from .child import GUESSED, split, told
from .tally import Step, Tally, peak
from .travel import Described, unpack

#: They move nothing, or XLA makes them part of what reads them.
FREE = frozenset({"reshape", "broadcast_in_dim", "squeeze", "expand_dims", "stop_gradient",
                  "copy", "iota", "convert_element_type", "transpose"})  # fmt: skip


def trace(packed: bytes, training: bool) -> dict[str, Any]:
    """The features, without the number of iterations."""
    model, batch, loss, optimizer, _step_of_torch = unpack(packed, stand_in)
    function, parameters = model if isinstance(model, tuple) else (model, None)
    inputs, target = split(batch, loss if training else None)
    arguments = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    guess = Guess()
    step, given = _step(function, parameters, arguments, target, loss, guess, optimizer, training)
    program, made = jax.make_jaxpr(step, return_shape=True)(*given)
    walk = Walk()
    most = walk.follow(program.jaxpr, times=1)
    data = arguments if parameters is not None else data_of(arguments, made)
    leaves = [x for x in jax.tree.leaves(data) if hasattr(x, "shape")]
    return told(walk.tally, [tuple(leaf.shape) for leaf in leaves], most, guess.bytes)


def data_of(arguments: Sequence[Any], made: Any) -> Sequence[Any]:
    """What of a function's arguments is data, where nobody said which are the parameters.

    A step gives its state back, in the same shape. Else parameters come first, as JAX has it, and
    are many; keys of random numbers are no data.
    """
    parts = made if isinstance(made, (tuple, list)) else (made,)
    states = [_form(made), *map(_form, parts)]
    data = [one for one in arguments if jax.tree.leaves(one) and not _is_key(one)]
    rest = [one for one in data if _form(one) not in states]
    if len(rest) == len(data) > 1 and not hasattr(data[0], "shape"):
        rest = data[1:]
    return rest or data


def _form(tree: Any) -> tuple[Any, ...]:
    """A tree without its numbers."""
    leaves, form = jax.tree.flatten(tree)
    return form, *((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def _is_key(thing: Any) -> bool:
    dtype, shape = getattr(thing, "dtype", None), getattr(thing, "shape", None)
    is_new = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    return is_new or (dtype == jnp.uint32 and shape == (2,))


class Guess:
    """The loss that nobody named: the cross entropy of all outputs."""

    def __init__(self) -> None:
        self.bytes = 0  # what it takes beside the outputs

    def __call__(self, out: Any) -> Any:
        leaves = [leaf for leaf in jax.tree.leaves(out) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        self.bytes = GUESSED * sum(math.prod(leaf.shape) for leaf in leaves)
        return -sum(jax.nn.log_softmax(leaf.astype(jnp.float32)).mean() for leaf in leaves)


def stand_in(described: Described) -> Any:
    """Zeros that take one element's memory; a trace looks at shapes only."""
    if described.dtype.startswith("key<"):
        keys = jax.random.split(jax.random.key(0), max(1, math.prod(described.shape)))
        return keys.reshape(described.shape)
    return numpy.broadcast_to(numpy.zeros((), jnp.dtype(described.dtype)), described.shape)


def _step(
    function: Callable[..., Any],
    parameters: Any,
    arguments: Any,
    target: Any,
    loss: Any,
    guess: Guess,
    optimizer: Any,
    training: bool,
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """One iteration as a function, and what it is given."""
    is_own_step = parameters is None and loss is None and optimizer is None
    if not training or is_own_step:
        head = () if parameters is None else (parameters,)
        return function, (*head, *arguments)
    state = [] if parameters is None else parameters

    def value(held: Any, *rest: Any) -> Any:
        inputs, wanted = rest[: len(arguments)], rest[len(arguments) :]
        out = function(*inputs) if parameters is None else function(held, *inputs)
        return (loss or guess)(out, *wanted)

    rest = (*arguments, *(() if target is None else (target,)))
    if optimizer is not None and not isinstance(optimizer, str):  # one of optax

        def optax_step(held: Any, memory: Any, *rest: Any) -> Any:
            grads = jax.grad(value)(held, *rest)
            changes, memory = optimizer.update(grads, memory, held)
            return jax.tree.map(jnp.add, held, changes), memory

        return optax_step, (state, jax.eval_shape(optimizer.init, state), *rest)
    name = (optimizer or "sgd").lower()
    if name == "sgd":

        def sgd_step(held: Any, *rest: Any) -> Any:
            grads = jax.grad(value)(held, *rest)
            return jax.tree.map(lambda p, g: p - 1e-3 * g, held, grads)

        return sgd_step, (state, *rest)

    def adam_step(held: Any, first: Any, second: Any, *rest: Any) -> Any:
        grads = jax.grad(value)(held, *rest)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
        changed = jax.tree.map(
            lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), held, first, second
        )
        return changed, first, second

    return adam_step, (state, state, state, *rest)


def _bytes(thing: Any) -> int:
    shape = getattr(thing.aval, "shape", ())
    dtype = getattr(thing.aval, "dtype", None)
    return math.prod(shape) * int(getattr(dtype, "itemsize", 4))


def _elements(thing: Any) -> int:
    return math.prod(getattr(thing.aval, "shape", ()))


class Walk:
    """Goes through a program and those inside of it."""

    def __init__(self) -> None:
        self.tally = Tally()

    def follow(self, inner: Jaxpr, times: int, counted: bool = True) -> int:
        """Adds all operations, ``times`` over; the most bytes alive at once. A program that is one
        node in the table is followed for its memory only (``counted``)."""
        steps = []
        for eqn in inner.eqns:
            inside = 0
            kind = self._call(eqn)
            programs = list(_programs(eqn))
            if programs:
                repeats = int(eqn.params.get("length", 1)) if eqn.primitive.name == "scan" else 1
                before = self.tally
                for program in programs:
                    own = sum(_bytes(v) for v in (*program.invars, *program.constvars))
                    if kind is not None:
                        self.tally = Tally()
                    most = self.follow(program, times * repeats, counted and kind is None)
                    if kind is not None:
                        # Its parts were counted apart, for their FLOPs alone: to the table it is
                        # one node.
                        parts, self.tally = self.tally.nodes(), before
                        if counted:
                            flops = sum(n.flops for n in parts) // times
                            moved = sum(_bytes(v) for v in (*_inputs(eqn), *eqn.outvars))
                            first = max((_elements(v) for v in _inputs(eqn)), default=0)
                            self.tally.add(kind, first, flops, moved, times)
                    inside = max(inside, most - own)
            else:
                self._add(eqn, times)
            # A broadcast or a change of shape is fused into what reads it, and takes no memory.
            is_free = eqn.primitive.name in FREE
            steps.append(
                Step(
                    reads=tuple(v for v in eqn.invars if isinstance(v, Var)),
                    makes=tuple((v, 0 if is_free else _bytes(v)) for v in eqn.outvars),
                    inside=max(0, inside - sum(_bytes(v) for v in eqn.outvars)),
                )
            )
        given = [(v, _bytes(v)) for v in (*inner.invars, *inner.constvars)]
        kept = {v for v in inner.outvars if isinstance(v, Var)}
        return peak(given, steps, kept)

    @staticmethod
    def _call(eqn: Any) -> str | None:
        """The kind of a function of JAX that is one node, if this calls one."""
        names = [str(eqn.params.get("name", ""))]
        for program in _programs(eqn):
            told = getattr(program.debug_info, "func_src_info", None) or ""
            names.append(told.partition(" ")[0])
        return next((JAX_CALLS[name] for name in names if name in JAX_CALLS), None)

    def _add(self, eqn: Any, times: int) -> None:
        name = eqn.primitive.name
        if name in FREE:
            return
        given, made = _inputs(eqn), eqn.outvars
        kind = JAX.get(name, OTHER)
        flops = 0
        elements = _elements(given[0]) if given else 0
        if name == "dot_general":
            ((contract, _), _) = eqn.params["dimension_numbers"]
            flops = 2 * _elements(made[0]) * math.prod(given[0].aval.shape[d] for d in contract)
        elif name == "conv_general_dilated":
            numbers = eqn.params["dimension_numbers"]
            kernel = given[1].aval.shape
            flops = 2 * _elements(made[0]) * math.prod(kernel) // kernel[numbers.rhs_spec[0]]
            if eqn.params["feature_group_count"] > 1 or eqn.params["batch_group_count"] > 1:
                kind = "DepthwiseConv2D"
            if any(d != 1 for d in eqn.params["lhs_dilation"]):
                kind = "Conv2DGrad"  # the way back through a convolution with strides
        elif kind == "Concat":
            elements = sum(_elements(v) for v in given)
        elif name == "max" and not any(isinstance(v, Literal) for v in eqn.invars):
            kind = OTHER  # and no ReLU
        elif name == "add" and _is_bias(eqn, given):
            kind = "BiasAdd"
        elif name == "reduce_sum" and self._is_bias_grad(eqn):
            kind = "BiasAddGrad"
        self.tally.add(kind, elements, flops, sum(_bytes(v) for v in (*given, *made)), times)

    @staticmethod
    def _is_bias_grad(eqn: Any) -> bool:
        """A sum over all axes but one: the way back from what was added to each row."""
        shape = eqn.invars[0].aval.shape
        return len(shape) >= 2 and len(eqn.params["axes"]) == len(shape) - 1


def _inputs(eqn: Any) -> list[Any]:
    return [v for v in eqn.invars if not isinstance(v, Literal)]


def _is_bias(eqn: Any, given: list[Any]) -> bool:
    """A vector, seen over all rows: one axis of its shape is more than 1."""
    if len(given) != 2:
        return False
    a, b = (v.aval.shape for v in given)
    return len(a) == len(b) >= 2 and a != b and sum(length > 1 for length in b) <= 1


def _programs(eqn: Any) -> Iterator[Jaxpr]:
    """The programs inside of an operation: of `jit`, `scan`, `while`, `cond`, `custom_jvp` …"""
    for name, value in eqn.params.items():
        if name in ("jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "cond_jaxpr"):
            continue
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(one, (ClosedJaxpr, Jaxpr)):
                yield one.jaxpr if isinstance(one, ClosedJaxpr) else one
