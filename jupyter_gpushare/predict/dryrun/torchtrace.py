"""torch: the model runs with fake tensors, which have shapes and no memory."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ..table import ATEN, OTHER
from .child import GUESSED, split, told
from .step import Step
from .tally import Tally
from .travel import Described, unpack

aten = torch.ops.aten
#: They make or look at tensors without moving bytes.
FREE = frozenset({"detach", "device", "empty", "empty_like", "empty_strided", "new_empty", "lift"})
#: Places of the largest filter that has a fast way back through each channel alone.
FAST = 9
#: The second iteration has all of the optimizer's state.
ITERATIONS = 2


class Recorder(TorchDispatchMode):
    """Adds each operation to the tally, while it is on.

    It stands between the memory tracker and the counter of FLOPs. The counter takes some operations
    apart that are one kernel on a device, so what it makes inside must not be seen as tensors.
    """

    def __init__(self, counter: FlopCounterMode) -> None:
        super().__init__()
        self.tally = Tally()
        self.is_on = False
        self._counter = counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = self._counter.get_total_flops()
        out = func(*args, **kwargs)
        name = getattr(getattr(func, "overloadpacket", func), "__name__", str(func))
        # The argument `train`, without which there is no workspace.
        if name == "mkldnn_rnn_layer" and args[15]:
            # Its fake's workspace is empty. The real one has 15.5 bytes for each gate of each step.
            rows, width = args[0].shape[0] * args[0].shape[1], args[2].shape[0]
            *others, workspace = out
            out = (*others, workspace.new_empty(rows * width * 31 // 2, dtype=torch.uint8))
        if self.is_on and name not in FREE and not getattr(func, "is_view", False):
            self._record(name, args, kwargs, out, self._counter.get_total_flops() - before)
        return out

    def _record(self, name: str, args: Any, kwargs: Any, out: Any, flops: int) -> None:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        moved = sum(one.numel() * one.element_size() for one in (*given, *made))
        kind, elements = self._kind(name, args, given)
        self.tally.add(kind, elements, flops, moved)
        if kind == "PointConv2D":
            self.tally.add("Conv2D", elements, 0, 0, times=0)
        if name == "addmm" or (name == "convolution" and args[2] is not None):
            # One operation here, two nodes in the table; its work is counted once.
            self.tally.add("BiasAdd", sum(one.numel() for one in made), 0, 0, times=0)
        if name == "convolution_backward" and args[-1][2]:
            self.tally.add("BiasAddGrad", args[0].numel(), 0, 0, times=0)

    @staticmethod
    def _kind(name: str, args: Any, given: list[Any]) -> tuple[str, int]:
        kind = ATEN.get(name, OTHER)
        if not given:
            return kind, 0
        data = given[0]
        if name in ("addmm", "baddbmm"):  # the bias is first
            data = given[1]
        # The place of the argument `transposed`; `groups` is two places further on.
        transposed = {"convolution": 6, "convolution_backward": 7}.get(name)
        if transposed is not None and args[transposed + 2] > 1:  # it has groups
            kind = kind.replace("Conv2D", "DepthwiseConv2D")
            if kind.endswith("Grad") and given[2][0, 0].numel() > FAST:
                kind = f"Wide{kind}"
        elif transposed is not None and args[transposed]:
            kind = kind.replace("Conv2D", "Conv2DTranspose")
        elif transposed is not None:
            kind = _convolution(kind, given[transposed - 5])
        if kind == "Concat":
            return kind, sum(one.numel() for one in given)
        if name == "sum" and len(args) == 3 and args[2]:
            axes = list(args[1])
            if axes == list(range(len(axes))) and len(axes) < data.dim():
                # Autograd's way back from a bias that was added to each row.
                return "BiasAddGrad", data.numel()
        return kind, data.numel()


def _convolution(kind: str, weight: Any) -> str:
    """What is told apart because its speed is another one: one axis, a filter of one place."""
    if weight.dim() == 3:
        return kind.replace("Conv2D", "Conv1D")
    return kind if weight[0, 0].numel() > 1 else kind.replace("Conv2D", "PointConv2D")


def trace(packed: bytes, training: bool) -> dict[str, Any]:
    """The features, without the number of iterations."""
    warnings.simplefilter("ignore")
    # The fused encoder layer of inference is one operation that no formula knows.
    torch.backends.mha.set_fastpath_enabled(False)
    # For good: this process answers one job, and ends.
    torch.autocast.__init__ = _autocast_on_cpu(torch.autocast.__init__)
    with FakeTensorMode(allow_non_fake_inputs=True), OnCpu():
        model, batch, loss, optimizer, cell = unpack(packed, stand_in)
        guess, inputs = Guess(), Inputs(model)
        if cell is not None:
            things = list(cell.names.values())
            step = _of_cell(cell)
        else:
            given, target = split(batch, loss if training else None)
            things = [model, loss, batch]
            own = _optimizer(model, optimizer)
            step = _step(model, given, target, loss or guess, own, training)
        memory = Memory()
        memory.track_external(*_modules(things), *_tensors(things))
        counter = FlopCounterMode(display=False, custom_mapping=FORMULAS)
        recorder = Recorder(counter)
        with counter, recorder, memory:
            for iteration in range(ITERATIONS):
                recorder.is_on = iteration == ITERATIONS - 1
                step()
        most = memory.get_tracker_snapshot("peak")
    peak = sum(of["Total"] for of in most.values())
    return told(recorder.tally, inputs.shapes, peak, guess.bytes)


class Memory(MemTracker):
    """Without its figures for each module, which it cannot give of one that is called twice."""

    def _pre_fw_hook(self, module: Any, inputs: Any) -> None: ...
    def _post_fw_hook(self, module: Any, inputs: Any, outputs: Any) -> None: ...
    def _pre_bw_hook(self, module: Any, args: Any) -> None: ...
    def _post_bw_hook(self, module: Any, args: Any) -> None: ...


class OnCpu(TorchFunctionMode):
    """There is no GPU: what is asked for on one, or moved to one, is on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        if func is torch.Tensor.to:
            args = tuple("cpu" if isinstance(one, str | torch.device) else one for one in args)
        return func(*args, **kwargs)


def _autocast_on_cpu(init: Any) -> Any:
    def on_cpu(self: Any, _device: Any, *args: Any, **kwargs: Any) -> None:
        init(self, "cpu", *args, **kwargs)

    return on_cpu


class Inputs:
    """The shapes of what a model is called with, the first time."""

    def __init__(self, model: Any) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self._hook = model.register_forward_pre_hook(self._seen, with_kwargs=True)

    def _seen(self, _model: Any, args: Any, kwargs: Any) -> None:
        self._hook.remove()
        self.shapes = [tuple(leaf.shape) for leaf in _tensors((args, kwargs))]


class Guess:
    """The loss that nobody named: what the model gives as scalars to learn from, else the cross
    entropy of all outputs, of which ``bytes`` is what it takes beside them."""

    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self, out: Any) -> Any:
        found = [one for one in _tensors(out) if one.is_floating_point()]
        own = [one for one in found if not one.dim() and one.requires_grad]
        if own:
            return sum(own)
        self.bytes = GUESSED * sum(one.numel() for one in found)
        return sum(-one.float().log_softmax(-1).mean() for one in found)


def _of_cell(cell: Step) -> Callable[[], None]:
    """One iteration of a cell, in a space of its own each time; what it gives to names is alive
    until the next one begins, as in a notebook."""
    code = compile(cell.source, "<the cell>", "exec")
    space = dict(cell.names)
    return lambda: exec(code, space)


def stand_in(described: Described) -> Any:
    """A fake tensor for a described one; under the fake mode."""
    if described.framework == "numpy":
        import numpy

        return numpy.zeros(described.shape, described.dtype)
    dtype = getattr(torch, described.dtype)
    if described.value is not None:
        made = torch.tensor(described.value, dtype=dtype).reshape(described.shape)
    elif described.strides:
        made = torch.empty_strided(described.shape, described.strides, dtype=dtype)
    else:
        made = torch.empty(described.shape, dtype=dtype)
    if described.is_parameter:
        return torch.nn.Parameter(made, requires_grad=described.requires_grad)
    return made.requires_grad_(described.requires_grad) if described.requires_grad else made


def _modules(things: list[Any]) -> list[Any]:
    """The modules among these that are in no other one."""
    found = [thing for thing in things if isinstance(thing, torch.nn.Module)]
    inner = {id(part) for one in found for part in one.modules() if part is not one}
    return list({id(one): one for one in found if id(one) not in inner}.values())


def _tensors(things: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(things) if isinstance(leaf, torch.Tensor)]


def _optimizer(model: Any, optimizer: Any) -> Any:
    """The caller's own, or one by its name."""
    if optimizer is not None and not isinstance(optimizer, str):
        return optimizer
    named: dict[str, Any] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    wanted = [one for one in model.parameters() if one.requires_grad]
    return named[(optimizer or "sgd").lower()](wanted, lr=1e-3) if wanted else None


def _step(
    model: Any, inputs: Any, target: Any, loss: Any, optimizer: Any, training: bool
) -> Callable[[], None]:
    model.train(training)

    def call() -> Any:
        if isinstance(inputs, dict):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)

    def infer() -> None:
        with torch.no_grad():
            call()

    def train() -> None:
        out = call()
        value = loss(out) if target is None else loss(out, target)
        del out
        value.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()

    return train if training else infer


# -- FLOPs of operations that torch's counter does not know ------------------------------------


def _convolution_backward(grad: Any, x: Any, weight: Any, *args: Any, **kwargs: Any) -> int:
    """torch's own formula counts a convolution in groups as often as it has groups."""
    transposed, mask = args[4], args[-1]
    places = x.numel() if transposed else grad.numel()
    return int(2 * places * weight[0].numel() * sum(mask[:2]))


def _recurrent(x: Any, w1: Any, w2: Any, *args: Any, **kwargs: Any) -> int:
    rows = x.numel() // x.shape[-1]
    return int(2 * rows * (w1.numel() + w2.numel()))


def _recurrent_backward(x: Any, w1: Any, w2: Any, *args: Any, **kwargs: Any) -> int:
    return 2 * _recurrent(x, w1, w2)


def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    *outer, rows, width = query.shape
    pairs = math.prod(outer) * rows * key.shape[-2]
    return int(2 * pairs * (width + value.shape[-1]))


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *a: Any, **k: Any) -> int:
    return 5 * _attention(query, key, value) // 2


def _raw(formula: Any) -> Any:
    formula._get_raw = True
    return formula


FORMULAS: dict[Any, Any] = {
    aten.convolution_backward: _raw(_convolution_backward),
    aten.mkldnn_rnn_layer: _raw(_recurrent),
    aten.mkldnn_rnn_layer_backward: _raw(_recurrent_backward),
    aten._scaled_dot_product_flash_attention_for_cpu: _raw(_attention),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _raw(_attention_backward),
}
