"""Finds the model and the batch that a cell would run, without running it.

Only names and plain values are looked up; nothing of the cell is called. What one iteration of its
models, losses and optimizers is (`Step`) is for the process of a dry run, which runs it on tensors
without numbers.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final, NamedTuple

from ...predict.dryrun.step import Step

_MOST: Final = 10**12  # iterations


class Work(NamedTuple):
    """What a cell computes. ``training``: it calls ``backward``, and ``optimizer`` steps.

    ``batch`` is ``None`` where only the step makes it. ``models``: how the cell names those that
    it calls; ``model`` is the first one.
    """

    model: Any
    batch: Any
    iterations: int
    training: bool
    optimizer: Any
    models: tuple[str, ...] = ()
    step: Step | None = None


class Unknown(Exception):
    """It cannot be told what the cell computes; the text says what is needed."""


def work_of(source: str, names: Mapping[str, Any]) -> Work:
    """The work of a cell whose variables are ``names``. Raises :class:`Unknown`."""
    tree = ast.parse(source)
    step = _Slicer(names).step_of(tree)
    lacking, found = "", None
    models: dict[int, str] = {}
    for call, iterations in _calls(tree, names):
        model = _value(call.func, names)
        named = call.keywords if _is_of_torch(model) else []
        if not is_model(model) or not (call.args or named):
            continue
        models.setdefault(id(model), ast.unparse(call.func))
        batch: Any = None
        try:
            batch = _batch(call, names)
        except (LookupError, TypeError, ValueError):
            lacking = lacking or ast.unparse(call)
        if found is None or (found[1] is None and step is None):
            found = (model, batch, iterations)
    if found is None:
        raise Unknown(
            "the cell calls no model that exists already. Run the cells that make the model and "
            "one batch first, or use `%gpushare predict MODEL, BATCH`."
        )
    if found[1] is None and step is None:
        raise Unknown(
            f"the cell computes `{lacking}`, and its batch exists only while the cell runs. Make "
            "one batch in a cell of its own, and use `%gpushare predict MODEL, BATCH`."
        )
    trains = any(_is_call_of(node, "backward") for node in ast.walk(tree))
    return Work(*found, trains, _optimizer(tree, names), tuple(models.values()), step)


def _batch(call: ast.Call, names: Mapping[str, Any]) -> Any:
    """What a model is called with: by place, else by name. Raises :class:`LookupError`, among
    others, where it does not exist yet."""
    if call.args:
        given = tuple(_known(one, names) for one in call.args)
        return given[0] if len(given) == 1 else given
    named: dict[str, Any] = {}
    for one in call.keywords:
        value = _known(one.value, names)
        named |= value if one.arg is None else {one.arg: value}
    return named


def is_model(value: object) -> bool:
    """Whether this is a model of PyTorch or Keras, or a compiled function of JAX, by the names of
    its classes. (Which of a cell's other functions compute with JAX nobody can tell.)"""
    bases = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(value).__mro__}
    models = {"torch.Module", "keras.Model", "tensorflow.Model", "jaxlib.PjitFunction"}
    return bool(bases & models) and "torch._Loss" not in bases


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
        # Not `getattr`: a property would run code of the user's.
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


# -- one iteration -----------------------------------------------------------------------------


#: Functions of Python that only look at what they are given.
_PLAIN: Final = frozenset(
    {"abs", "dict", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min", "range"}
    | {"reversed", "round", "sum", "tuple", "zip"}
)
#: What reads or writes files.
_WRITES: Final = frozenset({"load", "save", "tofile"})
#: What a step does to models and optimizers beside calling them.
_DOES: Final = frozenset({"backward", "eval", "step", "train", "zero_grad"})


class _Slicer:
    """Takes out of a cell what its models, losses and optimizers do in one iteration.

    From there to the beginning all that they need comes along, and nothing else: no line that
    prints, logs or writes. A function of the user's own comes along where it is given what a model
    computed, as a loss is; what makes data is not called.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._computed: set[str] = set()  # names that the cell gives to what its models computed
        self._made: set[str] = set()  # names that the cell gives to any values

    def step_of(self, tree: ast.Module) -> Step | None:
        """``None``: it needs what exists only while the cell runs, or the cell calls no model."""
        body = list(self._once(tree.body))
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                self._made |= _stored(node)
            if self._computes(node):
                self._computed |= _stored(node)
        chosen = self._needed(body, set())
        if not any(map(self._calls_model, chosen)) or not all(map(self._may_run, chosen)):
            return None
        loaded = {name for node in chosen for name in _loaded(node)}
        stored = {name for node in chosen for name in _stored(node)}
        given = {name: self._names[name] for name in loaded if name in self._names}
        # A name that exists only while the cell runs, such as a batch from a loader.
        if loaded - stored - given.keys() - set(dir(builtins)):
            return None
        return Step(ast.unparse(ast.Module(body=chosen, type_ignores=[])), given)

    def _once(self, body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
        """The statements of one iteration, each loop and branch taken once."""
        for node in body:
            if isinstance(node, ast.For):
                yield from self._first(node)
                yield from self._once(node.body)
            elif isinstance(node, ast.While | ast.Try):
                yield from self._once(node.body)
            elif isinstance(node, ast.If):
                inside = list(self._once(node.body))
                has_any = any(map(self._is_work, inside))
                # Which branch runs nobody can tell here: the first one that computes is taken.
                yield from inside if has_any else self._once(node.orelse)
            elif isinstance(node, ast.With):
                inside = list(self._once(node.body))
                items = [item for item in node.items if self._is_torchs(item.context_expr)]
                if items and inside:
                    yield ast.With(items=items, body=inside, lineno=0)
                else:
                    yield from inside
            elif isinstance(node, ast.Expr) and not self._is_own_work(node.value):
                # Somebody looks at what a model gives, or writes it down.
                yield from (ast.Expr(value=call) for call in self._model_calls(node))
            else:
                yield node

    def _first(self, loop: ast.For) -> Iterator[ast.stmt]:
        """The first turn's value of a loop over a range."""
        over = loop.iter
        if isinstance(over, ast.Call) and ast.unparse(over.func) in ("range", "trange"):
            value = over.args[0] if len(over.args) > 1 else ast.Constant(0)
            yield ast.Assign(targets=[loop.target], value=value, lineno=0)

    def _needed(self, body: list[ast.stmt], wanted: set[str]) -> list[ast.stmt]:
        """What works, and what makes the names that it needs. ``wanted`` grows by these."""
        chosen: list[ast.stmt] = []
        # From the end: what a line needs is known before the line that makes it is looked at.
        for node in reversed(body):
            taken = node
            if isinstance(node, ast.With):
                inside = self._needed(node.body, wanted)
                if not inside:
                    continue
                taken = ast.With(items=node.items, body=inside, lineno=0)
            elif not (self._is_work(node) or _stored(node) & wanted):
                continue
            wanted |= _loaded(taken)
            chosen.append(taken)
        return chosen[::-1]

    def _model_calls(self, node: ast.AST) -> Iterator[ast.Call]:
        for call in _calls_in(node):
            called = _value(call.func, self._names)
            if is_model(called) and _is_of_torch(called):
                yield call

    def _calls_model(self, node: ast.AST) -> bool:
        return any(True for _ in self._model_calls(node))

    def _computes(self, node: ast.AST) -> bool:
        return self._calls_model(node) or bool(_loaded(node) & self._computed)

    def _is_work(self, node: ast.AST) -> bool:
        """Whether it calls a model, goes back, or makes a step of an optimizer."""
        return self._calls_model(node) or any(map(self._is_own_work, _calls_in(node)))

    def _is_own_work(self, node: ast.expr) -> bool:
        """The same of a call itself, whatever is inside of it."""
        if not isinstance(node, ast.Call):
            return False
        func = node.func
        if not isinstance(func, ast.Attribute) or func.attr not in _DOES:
            called = _value(func, self._names)
            return is_model(called) and _is_of_torch(called)
        if func.attr == "backward":
            return True
        # `step` and `eval` are other things' methods, too. What the cell makes itself cannot be
        # looked at yet.
        return _is_of_torch(_value(func.value, self._names)) or _root(func.value) in self._made

    def _may_run(self, node: ast.AST) -> bool:
        """Whether it calls nothing but models, torch, and functions of what a model computed."""
        if isinstance(node, ast.Import | ast.ImportFrom):
            return all(name.startswith("torch") for name in _imported(node))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            return True  # it is called elsewhere, or not
        return all(self._may_call(call) for call in _calls_in(node))

    def _may_call(self, call: ast.Call) -> bool:
        root = _root(call.func)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _WRITES:
            return False
        of_torch = self._is_torchs(call.func) or _is_of_torch(self._names.get(root, _Nothing))
        if of_torch or root in self._made or root in _PLAIN:
            return True
        given = any(self._computes(one) for one in (*call.args, *call.keywords))
        return given and isinstance(call.func, ast.Name) and root not in dir(builtins)

    def _is_torchs(self, node: ast.expr) -> bool:
        module = self._names.get(_root(node))
        return isinstance(module, ModuleType) and module.__name__.startswith("torch")


def _is_of_torch(value: object) -> bool:
    return any(kind.__module__.partition(".")[0] == "torch" for kind in type(value).__mro__)


def _root(node: ast.expr) -> str:
    """``a`` of ``a.b[c].d(e).f``; empty where it begins with something else."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _calls_in(node: ast.AST) -> Iterator[ast.Call]:
    return (one for one in ast.walk(node) if isinstance(one, ast.Call))


def _inner(node: ast.AST) -> set[str]:
    """Arguments of functions and what comprehensions go over, inside of a statement."""
    found = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    over = (one.target for one in ast.walk(node) if isinstance(one, ast.comprehension))
    inside = (one for target in over for one in ast.walk(target))
    return found | {one.id for one in inside if isinstance(one, ast.Name)}


def _loaded(node: ast.AST) -> set[str]:
    names = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    return {one.id for one in names if isinstance(one.ctx, ast.Load)} - _inner(node)


def _stored(node: ast.AST) -> set[str]:
    """The names that a statement gives to something, those inside of it too."""
    found = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            found.add(one.id)
        elif isinstance(one, ast.FunctionDef | ast.ClassDef):
            found.add(one.name)
        elif isinstance(one, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in one.names}
    return found - _inner(node)


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names]
