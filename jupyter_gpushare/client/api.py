"""The same as the magics, for programs: ``with lease(gpus=2): ...``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..protocol.messages import Method
from ..protocol.sizes import Memory
from .acquire import broker
from .errors import GpuShareError
from .requests import blocks
from .requests.blocks import Needs
from .words.grant import Grant
from .words.promises import read_wish
from .words.settings import ONE_PART, PARTS, Ask
from .words.tracebacks import says_all

if TYPE_CHECKING:
    from .words.prediction import Prediction


def make_ask(
    gpus: int | str | None = None,
    memory: Memory | str | None = None,
    priority_class: str | None = None,
    persistent: int | str | None = None,
    temporary: int | str | None = None,
    turn_offset: int | str | None = None,
    reserve: str | None = None,
) -> Ask:
    """Checked needs; sizes in bytes or like ``"8GiB"``, ``memory`` also like
    ``"8GiB..40GiB"``. Raises :class:`ValueError`."""
    try:
        if (persistent is None) != (temporary is None):
            raise ValueError(ONE_PART)
        given = (gpus, memory, priority_class, persistent, temporary, turn_offset, reserve)
        named = zip(PARTS.values(), given, strict=True)
        return Ask(*(None if value is None else parse(value) for parse, value in named))
    except ValueError as error:
        says_all(error)
        raise


def request(
    gpus: int | str | None = None,
    memory: Memory | str | None = None,
    priority_class: str | None = None,
    *,
    persistent: int | str | None = None,
    temporary: int | str | None = None,
    turn_offset: int | str | None = None,
    reserve: str | None = None,
    wait: bool = True,
    wait_timeout: float | None = None,
) -> Grant:
    """Get a lease for this process, waiting in the queue if need be.

    ``memory`` is bytes on each GPU, or text like ``"8GiB"``; arguments left out come from the
    settings. ``wait_timeout`` is in seconds, 0: for ever. A lease that is held already is kept if
    it fits the request; otherwise it ends when the new one is granted. If there is no room for
    both, the old one is parked meanwhile. What this process asks by itself later (an import, a cell
    after a release), and a later request without arguments, use these arguments, too.

    Where tasks take turns on a GPU, ``persistent`` is what lives across this task's steps and
    ``temporary`` what a step needs beyond it. Without ``memory`` their sum is reserved.
    ``turn_offset`` is the head-room before the persistent part, if it is to be more than the
    node's.

    Raises ``QuotaExceeded``, ``NotGranted``, ``NodeUnavailable``, ``GpuShareError`` (CUDA runs on
    other GPUs already), :class:`ValueError`; Ctrl-C leaves the queue.
    """
    ask = make_ask(gpus, memory, priority_class, persistent, temporary, turn_offset, reserve)
    ask = broker().preferences.repeated(ask)
    grant = broker().request(ask, wait=wait, wait_timeout=wait_timeout)
    broker().preferences.set_ask(ask)
    return grant


def release() -> str | None:
    """Give this process's lease back. Returns its state afterwards; ``None`` if there was none.

    GPU memory that CUDA still keeps in this process goes to no other task before it is really free.
    Raises ``NodeUnavailable``.
    """
    return broker().release()


@contextmanager
def lease(
    gpus: int | str | None = None,
    memory: Memory | str | None = None,
    priority_class: str | None = None,
    *,
    persistent: int | str | None = None,
    temporary: int | str | None = None,
    turn_offset: int | str | None = None,
    reserve: str | None = None,
    wait: bool = True,
    wait_timeout: float | None = None,
    deadline: float | str | None = None,
    min_steps_per_second: float | None = None,
) -> Iterator[Grant]:
    """Hold a lease for a block of code. Arguments and errors as in :func:`request`.

    Arguments left out come from the settings, whatever was requested before.

    A lease that the process holds already and that is enough is used, and kept
    after the block. Blocks that run at the same time hold one together, and the
    last one gives it back.

    With a ``deadline`` (seconds, or ``"10m"``), from now on, or ``min_steps_per_second`` the block
    is promised to be ready by then, or to be so fast, also where others compute on the GPU. Where
    that cannot be kept it does not run: ``NotGranted`` says what would be possible.
    """
    ask = make_ask(gpus, memory, priority_class, persistent, temporary, turn_offset, reserve)
    wish = read_wish(deadline, min_steps_per_second)
    with hold(Needs(ask, wait, wait_timeout, wish)) as grant:
        yield grant


@contextmanager
def hold(needs: Needs) -> Iterator[Grant]:
    """Do the work of :func:`lease` with checked needs."""
    began = time.monotonic()
    grant = blocks.enter(broker(), needs)
    try:
        with broker().promises.kept(needs.wish, time.monotonic() - began):
            yield grant
    finally:
        blocks.leave(broker(), grant)


def estimate(
    model: Any,
    batch: Any,
    *,
    iterations: int = 1,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
    training: bool | None = None,
    timeout: float = 60.0,
) -> Prediction:
    """What ``model`` is expected to need for ``iterations`` over ``batch`` on each kind of GPU.

    Memory, time, utilisation, and whether it would start now or wait. Shown in a notebook it is a
    table. Another process looks at the structure of the model and at the shapes of the batch;
    nothing runs on a GPU, and no weights, data or code leave this host's own process.

    ``model`` is a torch module, a Keras model, or a function of JAX (or a pair of one and its
    parameters), and ``batch`` what it is called with. Training is meant where ``loss`` or
    ``optimizer`` is given (an optimizer of the model, or "sgd", "adam", "adamw"), else a forward
    pass; ``training`` says it outright. ``loss(output)`` gives the scalar to learn from, or
    ``loss(output, target)`` where ``batch`` is ``(inputs, target)``. Without one it is what the
    model gives as a scalar, else the cross entropy of all that it gives; then ``notes`` of the
    answer says how much memory that is.

    Later requests of this process that name no memory reserve what is expected, where the reserve
    is ``estimate``. Without a node manager the kinds of GPUs are those that this package knows.

    Raises ``GpuShareError`` where the model cannot be looked at, and says what to do.
    """
    from .requests.predicting import dry_run_of, predicted

    features = dry_run_of(
        model,
        batch,
        iterations=iterations,
        training=training,
        loss=loss,
        optimizer=optimizer,
        timeout=timeout,
    )
    return predicted(broker(), features)


def status() -> dict[str, Any]:
    """The status document (docs/protocol.md). Raises ``NodeUnavailable``."""
    return broker().status()


def quota() -> dict[str, Any]:
    """This environment's quota: GPUs, bytes on each, weight. Raises ``NodeUnavailable``."""
    return dict(status()["quota"])


def history(limit: int = 50) -> list[dict[str, Any]]:
    """This environment's newest events, newest first. Raises ``NodeUnavailable``."""
    result = broker().call(Method.HISTORY, limit=limit)
    return list(result["events"])


def servers() -> list[dict[str, Any]]:
    """The model servers that you may use: your own, and those shared with a group of yours.

    Each has its ``address``, its ``token``, what it says of its state, and a ``snippet`` of Python
    that asks it. Raises ``NodeUnavailable``.
    """
    return list(broker().call(Method.SERVERS)["servers"])


def server_token(address: str) -> str:
    """What opens the server at ``address``, as ``api_key`` of the package openai takes it.

    Raises ``NodeUnavailable``; ``GpuShareError`` where you may use no server of that address.
    """
    for one in servers():
        if one["address"].rstrip("/") == address.rstrip("/"):
            return str(one["token"] or "none")
    raise GpuShareError(f"You may use no server at {address}. `%gpushare servers` lists them.")


def usage(since: float | None = None) -> dict[str, Any]:
    """GPU-seconds held and busy in the last ``since`` seconds (default: a week).

    Raises ``NodeUnavailable``.
    """
    return dict(broker().call(Method.USAGE, since=since))
