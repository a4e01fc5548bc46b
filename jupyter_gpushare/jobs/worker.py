"""``python -m jupyter_gpushare.jobs.worker FD``: one attempt at one model, on a lease of its own.

The job comes on standard input. The worker asks its host's node manager first, and only then
unpickles: so its GPUs are set before any framework loads. What it has to say goes to the file
descriptor FD, a JSON object a line. It ends when its standard input does, for then nobody
would hear of the result.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any, Final

from ..client.acquire import before_call, broker, on_preempt
from ..client.errors import GpuShareError, Preempted, QuotaExceeded
from ..client.memory.stopping import nothing_to_save
from ..client.words.settings import Ask
from ..protocol import names
from ..protocol.errors import Reason
from ..protocol.sizes import Memory, MemoryRange, parse_memory
from .core import End

if TYPE_CHECKING:
    from ..client.words.grant import Grant

#: Seconds in which a pool answers a host that has nothing (more) to lend to this user.
_LENT_WITHIN: Final = 5.0
#: Seconds in which others' tasks with a range of memory make room.
_ROOM_WITHIN: Final = 15.0
#: Seconds between two looks at the lease.
_LOOK: Final = 0.1


@dataclass(frozen=True, slots=True)
class Code:
    """A function of a file, with the file's text as it was when the sweep began."""

    path: str
    text: str
    function: str = "train"

    def load(self) -> Callable[..., Any]:
        """Run the file; its function."""
        sys.path.insert(0, os.path.dirname(self.path))
        space: dict[str, Any] = {"__name__": "__gpushare_sweep__", "__file__": self.path}
        exec(compile(self.text, self.path, "exec"), space)
        train: Callable[..., Any] = space[self.function]
        return train


class Channel:
    """Where the worker says what happens. Any thread may say something."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def say(self, **words: Any) -> None:
        """Write it whole, however long it is. Raises `TypeError` where JSON has no such thing."""
        left = json.dumps(words).encode() + b"\n"
        with self._lock:
            while left:
                left = left[os.write(self._descriptor, left) :]


_channel: Channel | None = None


def report(**values: Any) -> None:
    """Tell the sweep how this model does, for example ``report(loss=0.3)`` after each epoch.

    Outside of a sweep it does nothing. A model that saves its state (`on_preempt`) may stop here.
    """
    if _channel is not None:
        _channel.say(report=plain(values))
        before_call()


def plain(value: Any) -> Any:
    """The value as JSON has it: numbers of NumPy and torch become Python's. Raises `TypeError`."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [plain(held) for held in value]
    if callable(getattr(value, "item", None)):
        return plain(value.item())
    if isinstance(value, Number):
        return float(value)  # type: ignore[arg-type]
    raise TypeError(
        f"A {type(value).__name__} is no result of a model: return a number, a text, or a dict or "
        "list of these; save what is larger to a file."
    )


def main(descriptor: int) -> int:
    """Do the job; the exit code."""
    global _channel
    _channel = channel = Channel(descriptor)
    begun = begin(channel, "sweep")
    if begun is None:
        return 0
    head, train, candidate = begun
    # Without a function of its own a model has nothing to save: it begins anew.
    on_preempt(nothing_to_save)
    sys.path += [place for place in head["path"] if place not in sys.path]
    try:
        loaded = pickle.loads(train)
        function = loaded.load() if isinstance(loaded, Code) else loaded
        given = pickle.loads(candidate)
        result = function(**given) if isinstance(given, dict) else function(given)
        channel.say(end=End.DONE.value, result=plain(result))
    except Preempted:
        raise
    except BaseException:  # noqa: BLE001 - also its sys.exit: whatever ended it is its own
        channel.say(end=End.OWN_FAULT.value, error=_told(traceback.format_exc()))
    return 0


def begin(
    channel: Channel, kind: str, *, beside: bool = False
) -> tuple[dict[str, Any], bytes, bytes] | None:
    """Read the job from standard input: its head, function and candidate, and get a lease for it,
    or ``None`` where there is no room. From now on this process ends when standard input does."""
    source = sys.stdin.buffer
    head = json.loads(source.readline())
    train, candidate = source.read(head["train"]), source.read(head["candidate"])
    threading.Thread(target=_end_with_input, daemon=True).start()
    os.environ |= {names.JOB: head["name"], names.JOB_KIND: kind}
    if not _leased(channel, head["gpus"], head["memory"], beside):
        return None
    threading.Thread(
        target=_watch_lease, args=(channel,), name="gpushare-lease", daemon=True
    ).start()
    return head, train, candidate


def _leased(channel: Channel, gpus: int, memory: Memory | list[int] | None, beside: bool) -> bool:
    """Take cards that nobody has, now or not at all; whether it has them. The channel hears it.

    With ``beside`` and a range of memory it may be where others make room, and waits for that.
    """
    read = None if memory is None else parse_memory(memory)
    ask = Ask(gpus=gpus, memory=read, priority_class="batch")
    try:
        grant = _granted(ask, gpus, beside=beside and isinstance(read, MemoryRange))
    except GpuShareError as error:
        channel.say(end=End.NO_ROOM.value, error=str(error))
        return False
    if any(gpu.shared_with for gpu in grant.gpus):
        # The card was idle when it was listed. Now another task of this person has it, too.
        broker().release()
        channel.say(end=End.NO_ROOM.value, error="Another task of yours is on the card by now.")
        return False
    broker().preferences.set_ask(ask)
    numbers = [gpu.number for gpu in grant.gpus]
    channel.say(granted=[gpu.uuid for gpu in grant.gpus], numbers=numbers)
    return True


def _granted(ask: Ask, gpus: int, *, beside: bool) -> Grant:
    """What idles. Nobody asks the pool for a request that does not wait, so one waits for that."""
    try:
        return broker().request(ask, wait=False)
    except QuotaExceeded as error:
        if beside and error.reason is Reason.NO_RESOURCES:
            return broker().request(ask, wait_timeout=_ROOM_WITHIN)
        quota = broker().status()["quota"]
        after, pool = quota["used_gpus"] + gpus, quota.get("pool")
        if pool is None or not pool["lent"] < after <= quota["gpus"]:
            raise
    return broker().request(ask, wait_timeout=_LENT_WITHIN)


def _watch_lease(channel: Channel) -> None:
    """Say it when somebody ends this process's lease: then the job is to stop."""
    while (why := broker().own.lost) is None:
        time.sleep(_LOOK)
    channel.say(lost=why)


def _told(text: str) -> str:
    """The traceback from the model's own first line on."""
    head, _, rest = text.partition("\n")
    frames = rest.split("\n  File ")
    own = [frame for frame in frames[1:] if __file__ not in frame.split("\n", 1)[0]]
    return "\n  File ".join([head, *own]) if own else text


def _end_with_input() -> None:
    """Wait for the end of standard input; it ends this process, and what it started."""
    os.read(sys.stdin.fileno(), 1)
    os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    # The module that `report` is imported from is this one, under its own name.
    from jupyter_gpushare.jobs import worker

    sys.exit(worker.main(int(sys.argv[1])))
