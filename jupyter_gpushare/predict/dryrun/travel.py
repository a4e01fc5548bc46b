"""How a model goes to another process: its structure and code, without its numbers.

Tensors and large arrays are replaced by their shape and type. Classes and functions of a notebook
go by value, which is cloudpickle's work; those of installed packages by name.
"""

from __future__ import annotations

import inspect
import io
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .errors import DryRunFailed

#: Arrays with more elements go as their shape only.
FEW = 16


@dataclass(frozen=True, slots=True)
class Described:
    """A tensor or an array without its numbers. ``number``: the same one is told as the same."""

    number: int
    framework: str  # "torch", "jax", "numpy"
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] = ()
    requires_grad: bool = False
    is_parameter: bool = False
    value: Any = None  # of a tensor with one element: loops may depend on it


def _torch(torch: Any, thing: Any) -> dict[str, Any] | None:
    if not isinstance(thing, torch.Tensor):
        return None
    is_one = thing.numel() == 1 and thing.device.type == "cpu" and not thing.requires_grad
    try:
        strides = tuple(thing.stride())
    except (RuntimeError, NotImplementedError):  # torch's own: a sparse or lazy one has no strides
        strides = ()
    try:
        shape = tuple(thing.shape)
    except (RuntimeError, NotImplementedError) as error:  # torch's own, of a lazy parameter
        raise DryRunFailed(
            "cannot-travel",
            "A layer of the model does not know its shapes yet.",
            "Run the model once on one small batch on the CPU, then predict.",
        ) from error
    return {
        "shape": shape,
        "dtype": str(thing.dtype).removeprefix("torch."),
        "strides": strides,
        "requires_grad": thing.requires_grad,
        "is_parameter": isinstance(thing, torch.nn.Parameter),
        "value": thing.item() if is_one else None,
    }


def _jax(jax: Any, thing: Any) -> dict[str, Any] | None:
    if not isinstance(thing, jax.Array) or isinstance(thing, jax.core.Tracer):
        return None
    return {"shape": tuple(thing.shape), "dtype": str(thing.dtype)}


def _numpy(numpy: Any, thing: Any) -> dict[str, Any] | None:
    if type(thing) is not numpy.ndarray or thing.size <= FEW or thing.dtype.hasobject:
        return None
    return {"shape": tuple(thing.shape), "dtype": thing.dtype.str}


def pack(thing: Any) -> bytes:
    """``thing`` without its numbers. Raises `DryRunFailed`."""
    try:
        import cloudpickle
    except ImportError as error:
        raise DryRunFailed(
            "missing",
            "A dry run needs cloudpickle to hand the model to another process.",
            "pip install cloudpickle",
        ) from error

    # Each is described once; it is kept with its number, for another one must not get its id.
    numbers: dict[int, tuple[int, Any]] = {}

    class Packer(cloudpickle.Pickler):
        def persistent_id(self, thing: Any) -> Described | None:
            """``None`` if this is no tensor, and goes as it is."""
            for module, describe in (("torch", _torch), ("jax", _jax), ("numpy", _numpy)):
                if (loaded := sys.modules.get(module)) is not None:
                    found = describe(loaded, thing)
                    if found is not None:
                        number, _ = numbers.setdefault(id(thing), (len(numbers), thing))
                        return Described(number, module, **found)
            return None

        def reducer_override(self, thing: Any) -> Any:
            keras = sys.modules.get("keras")
            if keras is not None and isinstance(thing, getattr(keras, "Model", ())):
                return _keras(keras, thing)
            return super().reducer_override(thing)

    stream = io.BytesIO()
    try:
        Packer(stream).dump(thing)
    except DryRunFailed:
        raise
    # A user's own __reduce__ may raise anything.
    except Exception as error:
        raise DryRunFailed(
            "cannot-travel",
            f"The model cannot be handed to another process: {error}",
            "Pass the model without open files, locks, loggers or data loaders in it.",
        ) from error
    return stream.getvalue()


def _keras(keras: Any, model: Any) -> tuple[Any, ...]:
    """A Keras model goes as its configuration, for it has no weights without its backend."""
    if keras.backend.backend() != "tensorflow":
        raise DryRunFailed(
            "unknown",
            f"A dry run of Keras on {keras.backend.backend()} is not known.",
            "Set KERAS_BACKEND=tensorflow, or predict with the measured steps.",
        )
    try:
        config = model.get_config()
    except NotImplementedError as error:  # what Keras raises for a subclass without one
        raise DryRunFailed(
            "cannot-travel",
            f"{type(model).__name__} has no configuration to hand over: {error}",
            "Give the model a get_config() and a from_config(), as Keras' guide says.",
        ) from error
    return _keras_again, (type(model), config)


def _keras_again(kind: Any, config: Any) -> Any:
    """Raises `DryRunFailed`."""
    try:
        return kind.from_config(config)
    except TypeError:  # Keras' own, for a class that takes less than the configuration of a layer
        takes = inspect.signature(kind).parameters
    try:
        return kind(**{name: value for name, value in config.items() if name in takes})
    except Exception as error:  # a user's own __init__ may raise anything
        raise DryRunFailed(
            "cannot-travel",
            f"Keras cannot make {kind.__name__} anew from its configuration: {error}",
            "Give the model a get_config() and a from_config(), as Keras' guide says.",
        ) from error


def unpack(packed: bytes, make: Callable[[Described], Any]) -> Any:
    """The thing again; ``make`` gives a stand-in for each tensor. Raises what unpickling raises."""
    made: dict[int, Any] = {}

    class Unpacker(pickle.Unpickler):
        def persistent_load(self, described: Described) -> Any:
            if described.number not in made:
                made[described.number] = make(described)
            return made[described.number]

    return Unpacker(io.BytesIO(packed)).load()
