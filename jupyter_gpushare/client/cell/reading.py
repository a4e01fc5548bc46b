"""Finds the model and the batch that a cell would run, without running it.

Only names and plain values are looked up; nothing of the cell is called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

_MOST: Final = 10**12  # iterations


class Work(NamedTuple):
    """What a cell computes. ``training``: it calls ``backward``, and ``optimizer`` steps."""

    model: Any
    batch: Any
    iterations: int
    training: bool
    optimizer: Any


class Unknown(Exception):
    """It cannot be told what the cell computes; the text says what is needed."""


def work_of(source: str, names: Mapping[str, Any]) -> Work:
    """The work of a cell whose variables are ``names``. Raises :class:`Unknown`."""
    tree = ast.parse(source)
    lacking = ""
    for call, iterations in _calls(tree, names):
        model = _value(call.func, names)
        if not is_model(model) or not call.args:
            continue
        try:
            batch = tuple(_known(one, names) for one in call.args)
        except LookupError:
            lacking = ast.unparse(call)
            continue
        return Work(
            model,
            batch[0] if len(batch) == 1 else batch,
            iterations,
            any(_is_call_of(node, "backward") for node in ast.walk(tree)),
            _optimizer(tree, names),
        )
    if lacking:
        raise Unknown(
            f"the cell computes `{lacking}`, and its batch exists only while the cell runs. Make "
            "one batch in a cell of its own, and use `%gpushare predict MODEL, BATCH`."
        )
    raise Unknown(
        "the cell calls no model that exists already. Run the cells that make the model and one "
        "batch first, or use `%gpushare predict MODEL, BATCH`."
    )


def is_model(value: object) -> bool:
    """Whether this is a model of PyTorch or Keras, or a compiled function of JAX, by the names of
    its classes. (Which of a cell's other functions compute with JAX nobody can tell.)"""
    bases = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(value).__mro__}
    models = {"torch.Module", "keras.Model", "tensorflow.Model", "jaxlib.PjitFunction"}
    return bool(bases & models)


def _calls(tree: ast.AST, names: Mapping[str, Any], times: int = 1) -> Iterator[tuple[Any, int]]:
    """The calls, and how often the loops around each repeat it, as far as that can be told."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield node, times
        yield from _calls(node, names, min(_MOST, times * _turns(node, names)))


#: What is wrapped around what a loop goes over, and does not change how often.
_WRAPPERS: Final = frozenset({"tqdm", "steps", "enumerate", "iter", "list"})


def _turns(node: ast.AST, names: Mapping[str, Any]) -> int:
    try:
        return max(1, _length(node.iter, names)) if isinstance(node, ast.For) else 1
    except (LookupError, TypeError, ValueError, OverflowError):
        return 1


def _length(loop: ast.expr, names: Mapping[str, Any]) -> int:
    """How often a loop over this turns. Raises :class:`LookupError`, among others."""
    if not isinstance(loop, ast.Call) or not loop.args:
        return len(_known(loop, names))
    func = loop.func.attr if isinstance(loop.func, ast.Attribute) else ast.unparse(loop.func)
    if func in ("range", "trange"):
        return len(range(*(_known(one, names) for one in loop.args)))
    if func in _WRAPPERS:
        return _length(loop.args[0], names)
    raise LookupError(func)


def _known(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """A value that exists before the cell runs. Raises :class:`LookupError`."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        found = _value(node, names)
        if found is _Nothing:
            raise LookupError(ast.unparse(node)) from None
        return found


class _Nothing:
    """No value."""


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a name, or an attribute that is plain data, stands for."""
    if isinstance(node, ast.Name):
        return names.get(node.id, _Nothing)
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, names)
        return getattr(owner, "__dict__", {}).get(node.attr, _Nothing)
    return _Nothing


def _is_call_of(node: ast.AST, method: str) -> bool:
    func = node.func if isinstance(node, ast.Call) else None
    return isinstance(func, ast.Attribute) and func.attr == method


def _optimizer(tree: ast.AST, names: Mapping[str, Any]) -> Any:
    """The optimizer whose ``step`` the cell calls, if it exists."""
    for node in ast.walk(tree):
        if _is_call_of(node, "step"):
            owner = _value(node.func.value, names)  # type: ignore[attr-defined]  # it is one
            if hasattr(owner, "param_groups"):
                return owner
    return None
