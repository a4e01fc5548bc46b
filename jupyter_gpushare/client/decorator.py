"""``@gpu(memory="8GiB")``: a lease for as long as a function runs."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, overload

from .acquire import broker
from .api import hold, make_ask
from .blocks import Needs
from .grant import Grant

Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def gpu(function: Function, /) -> Function: ...
@overload
def gpu(
    *,
    gpus: int | str | None = None,
    memory: int | str | None = None,
    priority_class: str | None = None,
    wait: bool = True,
    wait_timeout: float | None = None,
) -> Callable[[Function], Function]: ...
def gpu(
    function: Any = None,
    /,
    *,
    gpus: int | str | None = None,
    memory: int | str | None = None,
    priority_class: str | None = None,
    wait: bool = True,
    wait_timeout: float | None = None,
) -> Any:
    """Hold a lease while a function runs. Arguments and errors as of ``lease``.

    Also for ``async`` functions, whose event loop goes on while they wait, and for
    generators, which hold it from their first item to their end.
    """
    needs = Needs(make_ask(gpus, memory, priority_class), wait, wait_timeout)
    if function is None:
        return functools.partial(_decorate, needs)
    return _decorate(needs, function)


def _decorate(needs: Needs, function: Any) -> Any:
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_decorate(needs, function.__func__))
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"@gpu holds a GPU for calls of a function, and {function!r} is none.")
    if inspect.isasyncgenfunction(function):
        return _of_async_generator(needs, function)
    if inspect.iscoroutinefunction(function):
        return _of_coroutine(needs, function)
    if inspect.isgeneratorfunction(function):
        return _of_generator(needs, function)

    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        with hold(needs):
            return function(*arguments, **named)

    return wrapper


def _of_generator(needs: Needs, function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        with hold(needs):
            return (yield from function(*arguments, **named))

    return wrapper


def _of_coroutine(needs: Needs, function: Any) -> Any:
    @functools.wraps(function)
    async def wrapper(*arguments: Any, **named: Any) -> Any:
        async with _hold(needs):
            return await function(*arguments, **named)

    return wrapper


def _of_async_generator(needs: Needs, function: Any) -> Any:
    @functools.wraps(function)
    async def wrapper(*arguments: Any, **named: Any) -> Any:
        async with _hold(needs):
            inner = function(*arguments, **named)
            try:
                item = await anext(inner)
                while True:
                    try:
                        sent = yield item
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001 - it is the function's to handle
                        item = await inner.athrow(error)
                    else:
                        item = await inner.asend(sent)
            except StopAsyncIteration:
                return
            finally:
                await inner.aclose()

    return wrapper


@asynccontextmanager
async def _hold(needs: Needs) -> AsyncIterator[Grant]:
    """The same as `hold`; a thread waits, so that the event loop goes on."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # another library's loop
        with hold(needs) as grant:
            yield grant
        return
    stopped = threading.Event()
    blocks = broker().blocks
    entering = asyncio.ensure_future(asyncio.to_thread(blocks.enter, needs, stopped.is_set))
    try:
        grant = await asyncio.shield(entering)
    except asyncio.CancelledError:
        stopped.set()

        def too_late(done: asyncio.Future[Grant]) -> None:
            if not done.cancelled() and done.exception() is None:
                blocks.leave(done.result())

        entering.add_done_callback(too_late)
        raise
    try:
        yield grant
    finally:
        blocks.leave(grant)
