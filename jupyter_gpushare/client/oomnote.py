"""Adds to a framework's out-of-memory error: the lease, the neighbours, and what to do.

`words` writes the sentence from facts and nothing else. `annotate` finds the
error, gathers the facts and adds the sentence as a note (PEP 678), so the
error itself, its type and its traceback stay the framework's own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..figures import format_size
from ..protocol import said
from .errors import GpuShareError
from .words.display import running_shell
from .words.settings import AfterError
from .words.tracebacks import chain_of

if TYPE_CHECKING:
    from .requests.broker import Broker
    from .words.grant import GrantedGpu

_START: Final = "jupyter_gpushare: "
_MUCH: Final = 0.05  # of the allowed memory; less unused cache than this is not mentioned
_GPU: Final = re.compile(r"\bGPU (\d{1,3})\b")

#: framework -> where its error's class is found, once it is imported
_CLASSES: Final = (
    ("PyTorch", "torch", "OutOfMemoryError"),
    ("PyTorch", "torch.cuda", "OutOfMemoryError"),
    ("CuPy", "cupy.cuda.memory", "OutOfMemoryError"),
    ("TensorFlow", "tensorflow.python.framework.errors_impl", "ResourceExhaustedError"),
    ("JAX", "jax.errors", "JaxRuntimeError"),
    ("JAX", "jaxlib.xla_extension", "XlaRuntimeError"),
)

#: The beginnings of PyTorch's other out-of-memory errors, from calls outside its allocator.
_TORCHS_OTHERS: Final = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU of the lease (bytes). ``None``: unknown.

    ``used`` is the memory of this process's tensors, ``cache`` the framework's unused memory.
    ``there`` says who has memory of it; ``is_shared`` with this environment's other tasks.
    """

    index: int
    allowed: int
    capacity: int
    used: int | None = None
    cache: int | None = None
    there: str = ""
    is_shared: bool = False


# -- the sentence ------------------------------------------------------------------------------


def words(framework: str, gpus: Sequence[GpuFacts], *, comes_back: bool) -> str:
    """The note, for a person. Without ``gpus`` there is no lease.

    ``comes_back``: what only the error keeps comes back by itself.
    """
    if not gpus:
        return (
            f"{_START}this process has no GPU lease, so no memory is reserved for it. Save your "
            "work; `%gpushare status` says why, `%gpushare request` asks for a lease."
        )
    sentences = [_one(framework, gpu) for gpu in gpus]
    return _START + " ".join((*sentences, *_advice(framework, gpus, comes_back)))


def _one(framework: str, gpu: GpuFacts) -> str:
    limit = (
        f"the whole GPU {gpu.index} ({format_size(gpu.capacity)})"
        if gpu.allowed >= gpu.capacity
        else f"{format_size(gpu.allowed)} of GPU {gpu.index}'s {format_size(gpu.capacity)}"
    )
    text = f"This task's lease allows {limit}."
    if gpu.used is not None:
        text += f" {framework}'s data takes {format_size(gpu.used)} there"
        cache = gpu.cache
        text += f", and {format_size(cache)} are cache." if cache is not None else "."
    return f"{text} {gpu.there}".rstrip()


def _advice(framework: str, gpus: Sequence[GpuFacts], comes_back: bool) -> Iterator[str]:
    also = "" if comes_back else "; the last error also keeps its variables alive"
    yield (
        f"What to do: delete what you no longer need (`del`{also}), or compute in smaller pieces."
    )
    if comes_back:
        yield (
            "What only this error keeps comes back when the next cell begins; until then `%debug` "
            "shows it."
        )
    if framework == "PyTorch" and any(
        gpu.cache is not None and gpu.cache > _MUCH * gpu.allowed for gpu in gpus
    ):
        yield "`torch.cuda.empty_cache()` empties the cache, which helps if it is fragmented."
    if any(gpu.is_shared for gpu in gpus):
        yield "Your tasks there share what the lease allows: end those that you do not need."
    if any(gpu.allowed < gpu.capacity for gpu in gpus):
        yield (
            "For more memory, restart the kernel and begin with `%gpushare request --memory` "
            "and a larger size; `%gpushare quota` says how much you may have."
        )


# -- the error ---------------------------------------------------------------------------------


def framework_of(error: BaseException) -> str | None:
    """The framework of this out-of-memory error; ``None`` if it is another error."""
    for name, module, attribute in _CLASSES:
        kind = getattr(sys.modules.get(module), attribute, None)
        if isinstance(kind, type) and isinstance(error, kind):
            if name == "JAX" and "RESOURCE_EXHAUSTED" not in str(error):
                continue  # one class for all errors of XLA
            return name
    if isinstance(error, RuntimeError) and "torch" in sys.modules:
        text = str(error)
        if any(words in text for words in _TORCHS_OTHERS):
            return "PyTorch"
    return None


def find(error: BaseException | None) -> tuple[BaseException, str] | None:
    """The out-of-memory error among an error and its causes, and its framework.

    The causes are those of the whole chain, and the errors of a group.
    """
    for one in () if error is None else chain_of(error):
        if (framework := framework_of(one)) is not None:
            return one, framework
    return None


def annotate(error: BaseException | None, broker: Broker) -> None:
    """Add the note once, if it is due. Waits for the node manager, at most until its time-out.

    Raises nothing but `KeyboardInterrupt`.
    """
    with suppress(Exception):  # the framework's own error must be shown in any case
        found = find(error)
        if found is None or not broker.line.configured:
            return
        culprit, framework = found
        if any(note.startswith(_START) for note in getattr(culprit, "__notes__", ())):
            return
        after_error = broker.preferences.settings.after_error
        comes_back = running_shell() is not None and after_error is AfterError.NEXT_CELL
        gpus = gather(broker, framework, str(culprit))
        culprit.add_note(words(framework, gpus, comes_back=comes_back))


def gather(broker: Broker, framework: str, message: str) -> Sequence[GpuFacts]:
    """The facts, as far as they can be had; none without a lease."""
    grant = broker.grant
    if grant is None:
        return ()
    try:
        status: Mapping[str, Any] = broker.status()
    except GpuShareError:
        status = {}
    numbered = dict(enumerate(grant.gpus))
    named = _GPU.search(message)  # torch says which, by the number under which it sees it
    if named is not None and int(named[1]) in numbered:
        numbered = {int(named[1]): numbered[int(named[1])]}
    return [_facts(framework, number, gpu, grant.lease, status) for number, gpu in numbered.items()]


def _facts(
    framework: str, number: int, gpu: GrantedGpu, lease: str, status: Mapping[str, Any]
) -> GpuFacts:
    used, cache = _use(framework, number)
    held = [one for one in status.get("leases", ()) if one.get("phase") == "held"]
    own = [one for one in held if one.get("mine") and one.get("id") != lease]
    cards = [one for one in status.get("gpus", ()) if one.get("uuid") == gpu.uuid]
    now = (status.get("node") or {}).get("time", 0.0)
    there = [said.text_of(fact, now) for one in cards for fact in said.about(one, "residents")]
    parts = [part for one in cards for part in said.about(one, "part")]
    there += [f"{said.text_of(part, now)}." for part in parts if part.get("kind") == "free"]
    return GpuFacts(
        index=gpu.index,
        allowed=gpu.memory,
        capacity=gpu.capacity,
        used=used,
        cache=cache,
        there=" ".join(there),
        is_shared=any(its.get("uuid") == gpu.uuid for one in own for its in one.get("gpus", ())),
    )


def _use(framework: str, number: int) -> tuple[int | None, int | None]:
    """The bytes of the framework's data and of its cache on a GPU, if it can be asked."""
    module: Any = sys.modules.get({"PyTorch": "torch", "CuPy": "cupy"}.get(framework, ""))
    if module is None:
        return None, None
    if framework == "PyTorch":
        from .adapters.parkers.allocator import CudaAllocator

        figures = CudaAllocator(module).figures(number)
        if figures is None:
            return None, None
        return figures.allocated, figures.reserved - figures.allocated
    with module.cuda.Device(number):
        pool = module.get_default_memory_pool()
        return int(pool.used_bytes()), int(pool.free_bytes())
