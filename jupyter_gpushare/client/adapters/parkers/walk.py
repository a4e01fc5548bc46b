"""Finds every storage that torch has on given devices.

Python's own objects come from the garbage collector. Tensors that only C++ holds are reached from
them: gradients, and what autograd's graphs have saved for the backward pass. Some may still be
missing, but the allocator counts their bytes. So do not trust this walk alone; `survey.obstacles`
compares the two.

Reading must have no side effects. So saved tensors are read as they are packed, because unpacking
runs the user's hooks (recomputation, copies), and a tensor subclass's own methods are not called.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress, tee
from typing import Any, Final


@dataclass(slots=True)
class Findings:
    """The findings of a walk. ``storages`` has each storage once."""

    storages: list[Any] = field(default_factory=list)
    graphs: int = 0
    unreadable: set[str] = field(default_factory=set)


def walk(
    torch: Any, is_ours: Callable[[Any], bool], start: Iterable[Any] | None = None
) -> Findings:
    """Everything of ``torch`` in this process, or what the ``start`` tensors keep.

    Storages are those where ``is_ours(device)``.
    """
    return _Walk(torch, is_ours).run(start)


def live_objects(*bases: type) -> tuple[list[Any], ...]:
    """All live objects of each of these classes or of subclasses, by their real type."""
    which = {
        of: next((i for i, base in enumerate(bases) if base in _bases(of)), None)
        for of in _types_in_use()
    }
    found: tuple[list[Any], ...] = tuple([] for _ in bases)
    for thing in _of_types(of for of, index in which.items() if index is not None):
        if (index := which.get(type(thing))) is not None:
            found[index].append(thing)
    return found


def _types_in_use() -> Collection[type]:
    """The types of all objects; see `_of_types`."""
    with _no_collection():
        types = list(map(type, chain.from_iterable(map(gc.get_objects, (None,)))))
    return {id(of): of for of in types}.values()


def _of_types(types: Iterable[type]) -> list[Any]:
    """The objects whose type is exactly one of these.

    Nobody else may run while all objects are held: they include tuples that another thread is
    filling, and Python raises SystemError there when somebody else has a reference. So what is put
    together here runs, and lets go of everything, inside one call of a C function, in which no line
    of Python's runs.
    """
    wanted = frozenset(map(id, types))
    # The one list of all objects, three times.
    things, same, last = tee(map(gc.get_objects, (None,)), 3)
    ids = map(partial(map, id), map(partial(map, type), same))
    chosen = map(compress, things, map(partial(map, wanted.__contains__), ids))
    # It has what holds it, too, and would live on.
    emptied: Iterator[Any] = filter(None, map(list.clear, last))
    with _no_collection():
        return list(chain(chain.from_iterable(chosen), emptied))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Finalizers are Python's, too."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _bases(of: type) -> tuple[type, ...]:
    """Never by ``isinstance``: the ``__class__`` of a proxy runs its code."""
    bases: tuple[type, ...] = type.__dict__["__mro__"].__get__(of)
    return bases


class _Walk:
    def __init__(self, torch: Any, is_ours: Callable[[Any], bool]) -> None:
        self._torch = torch
        self._is_ours = is_ours
        self._found = Findings()
        self._storages: set[int] = set()
        self._seen: dict[int, Any] = {}  # by id; kept, so that no id is used twice
        self._waiting: list[Any] = []
        self._looks: dict[type, Callable[[Any], None]] = {
            torch.cuda.CUDAGraph: self._graph,
            torch.UntypedStorage: self._storage,
            torch.TypedStorage: lambda typed: self._storage(typed._untyped_storage),
            torch.Tensor: self._tensor,
        }
        self._look_of: dict[type, Callable[[Any], None] | None] = {}

    def run(self, start: Iterable[Any] | None) -> Findings:
        # A tensor subclass must not see us: its __torch_function__ may do anything.
        with self._torch._C.DisableTorchFunctionSubclass(), self._torch.no_grad():
            if start is None:
                start = _of_types(of for of in _types_in_use() if self._look(of) is not None)
            for thing in start:
                self._visit(thing)
            while self._waiting:
                thing = self._waiting.pop()
                if (look := self._look(type(thing))) is not None:
                    look(thing)
        return self._found

    def _look(self, of: type) -> Callable[[Any], None] | None:
        """What looks into objects of this class; ``None``: there is nothing of torch's in them."""
        if of not in self._look_of:
            bases = _bases(of)
            look = next((self._looks[base] for base in bases if base in self._looks), None)
            if look is None and any("next_functions" in base.__dict__ for base in bases):
                look = self._node
            self._look_of[of] = look
        return self._look_of[of]

    def _visit(self, thing: Any) -> None:
        if id(thing) not in self._seen:
            self._seen[id(thing)] = thing
            self._waiting.append(thing)

    def _graph(self, _graph: Any) -> None:
        self._found.graphs += 1

    def _tensor(self, tensor: Any) -> None:
        base = self._torch._C.TensorBase
        for part in parts(self._torch, tensor):
            self._visit(part)
        for part in _of_graph(base, tensor):
            self._visit(part)
        layout = base.layout.__get__(tensor)
        if layout is not self._torch.strided:
            return  # its parts have the storages
        try:
            storage = base.untyped_storage(tensor)
        except (RuntimeError, NotImplementedError):
            if self._is_ours(base.device.__get__(tensor)):
                self._found.unreadable.add(type(tensor).__name__)
            return
        self._storage(storage)

    def _storage(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._storages:
            return
        self._storages.add(key)
        # A wrapper or a fake tensor names a device on which it has no memory.
        if self._is_ours(storage.device) and storage.nbytes() > 0 and _address(storage) != 0:
            self._found.storages.append(storage)

    def _is_tensor(self, thing: Any) -> bool:
        return self._torch.Tensor in _bases(type(thing))

    def _node(self, node: Any) -> None:
        for following, _ in node.next_functions:
            if following is not None:
                self._visit(following)
        leaf = getattr(node, "variable", None)  # of an AccumulateGrad
        if self._is_tensor(leaf):
            self._visit(leaf)
        for saved in _saved(node):
            packed = getattr(saved, "data", None)
            if self._is_tensor(packed):
                self._visit(packed)


def _address(storage: Any) -> int:
    """The address of its memory; 0: it has none."""
    try:
        return int(storage.data_ptr())
    except RuntimeError:
        return 0  # of a tensor subclass around other tensors (quantised, jagged, distributed ones)


def _of_graph(base: Any, tensor: Any) -> Iterator[Any]:
    """The tensor's gradient and its node in a graph, where it has any."""
    try:
        # Reading `grad` of any other tensor warns.
        if base.is_leaf.__get__(tensor) or base.retains_grad.__get__(tensor):
            grad = base.grad.__get__(tensor)
            if grad is not None:
                yield grad
        node = base.grad_fn.__get__(tensor) if base.requires_grad.__get__(tensor) else None
    except RuntimeError:
        return  # a view that was changed in a forbidden way: it cannot be in any graph
    if node is not None:
        yield node


def _saved(node: Any) -> Iterator[Any]:
    """The tensors that the node has saved, as they are packed."""
    for name in dir(type(node)):
        if not name.startswith("_raw_saved_"):
            continue
        try:
            saved = getattr(node, name)
        except RuntimeError:
            continue  # freed by its backward pass
        if isinstance(saved, tuple | list):
            yield from saved
        elif saved is not None:
            yield saved


_ROWS: Final = ("crow_indices", "col_indices", "values")
_COLUMNS: Final = ("ccol_indices", "row_indices", "values")
_PARTS: Final = {
    "torch.sparse_coo": ("_indices", "_values"),
    **dict.fromkeys(("torch.sparse_csr", "torch.sparse_bsr"), _ROWS),
    **dict.fromkeys(("torch.sparse_csc", "torch.sparse_bsc"), _COLUMNS),
}


def parts(torch: Any, tensor: Any) -> Iterator[Any]:
    """The tensors inside a sparse tensor; empty for other tensors."""
    base = torch._C.TensorBase
    for name in _PARTS.get(str(base.layout.__get__(tensor)), ()):
        yield getattr(base, name)(tensor)
