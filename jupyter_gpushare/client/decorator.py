"""``@gpu(memory="8GiB")``: a lease for as long as a function runs."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar, overload

from .acquire import broker
from .api import hold, make_ask
from .requests import blocks
from .requests.blocks import Needs
from .words.grant import Grant
from .words.promises import read_wish

Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def gpu(function: Function, /) -> Function: ...
@overload
def gpu(
    *,
    gpus: int | str | None = None,
    memory: int | str | None = None,
    priority_class: str | None = None,
    persistent: int | str | None = None,
    temporary: int | str | None = None,
    turn_offset: int | str | None = None,
    reserve: str | None = None,
    wait: bool = True,
    wait_timeout: float | None = None,
    deadline: float | str | None = None,
    min_steps_per_second: float | None = None,
) -> Callable[[Function], Function]: ...
def gpu(
    function: Any = None,
    /,
    *,
    gpus: int | str | None = None,
    memory: int | str | None = None,
    priority_class: str | None = None,
    persistent: int | str | None = None,
    temporary: int | str | None = None,
    turn_offset: int | str | None = None,
    reserve: str | None = None,
    wait: bool = True,
    wait_timeout: float | None = None,
    deadline: float | str | None = None,
    min_steps_per_second: float | None = None,
) -> Any:
    """Hold a lease while a function runs. Arguments and errors as of ``lease``.

    Also for ``async`` functions, whose event loop goes on while they wait, and for
    generators, which hold it from their first item to their end.
    """
    ask = make_ask(gpus, memory, priority_class, persistent, temporary, turn_offset, reserve)
    needs = Needs(ask, wait, wait_timeout, read_wish(deadline, min_steps_per_second))
    decorate = functools.partial(_decorate, needs)
    return decorate if function is None else decorate(function)


def _decorate(needs: Needs, function: Any) -> Any:
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_decorate(needs, function.__func__))
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"@gpu holds a GPU for calls of a function, and {function!r} is none.")
    return functools.wraps(function)(_own(needs, function))


def _own(needs: Needs, function: Any) -> Callable[..., Any]:
    """A function of the same kind that holds a lease while ``function`` runs."""

    def call(*arguments: Any, **named: Any) -> Any:
        with hold(needs):
            return function(*arguments, **named)

    def generator(*arguments: Any, **named: Any) -> Any:
        with hold(needs):
            return (yield from function(*arguments, **named))

    async def coroutine(*arguments: Any, **named: Any) -> Any:
        async with _hold(needs):
            return await function(*arguments, **named)

    async def async_generator(*arguments: Any, **named: Any) -> Any:
        async with _hold(needs), aclosing(function(*arguments, **named)) as inner:
            # By hand, as there is no `yield from` here: what the caller sends or throws must reach
            # it.
            step = anext(inner)
            while True:
                try:
                    item = await step
                except StopAsyncIteration:
                    return
                try:
                    step = inner.asend((yield item))
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - it is the function's to handle
                    step = inner.athrow(error)

    if inspect.isasyncgenfunction(function):
        return async_generator
    if inspect.iscoroutinefunction(function):
        return coroutine
    return generator if inspect.isgeneratorfunction(function) else call


@asynccontextmanager
async def _hold(needs: Needs) -> AsyncIterator[Grant]:
    """The same as `hold`; a thread waits, so that the event loop goes on."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # another library's loop
        with hold(needs) as grant:
            yield grant
        return
    stopped, began = threading.Event(), time.monotonic()
    ours = broker()
    entering = asyncio.ensure_future(asyncio.to_thread(blocks.enter, ours, needs, stopped.is_set))
    try:
        # Shielded: the thread that asks cannot be stopped, and what it gets must be given back.
        grant = await asyncio.shield(entering)
    except asyncio.CancelledError:
        stopped.set()

        def too_late(done: asyncio.Future[Grant]) -> None:
            if not done.cancelled() and done.exception() is None:
                blocks.leave(ours, done.result())

        entering.add_done_callback(too_late)
        raise
    try:
        with ours.promises.kept(needs.wish, time.monotonic() - began):
            yield grant
    finally:
        blocks.leave(ours, grant)
