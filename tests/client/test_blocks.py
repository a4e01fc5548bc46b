"""Code in ``with lease(...)`` or ``@gpu(...)`` holds GPUs for as long as it runs, and no longer."""

from __future__ import annotations

import asyncio
import inspect
import os
import pkgutil
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from support.node import NodeClient, Puppet, RunningNode, until
from support.node_fixtures import running_node

import jupyter_gpushare.client
from jupyter_gpushare.client import acquire
from jupyter_gpushare.client.api import lease
from jupyter_gpushare.client.decorator import gpu
from jupyter_gpushare.client.errors import GpuShareError, QuotaExceeded
from jupyter_gpushare.client.requests.broker import Broker
from jupyter_gpushare.client.words.settings import Ask
from jupyter_gpushare.protocol.messages import Method

GIB = 2**30


PEOPLE = ("me", "they", "root")
shared_node = running_node(config="c.Policy.max_tasks_per_gpu = 1\n", people=PEOPLE)


@pytest.fixture
def broker(shared_node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    of_mine = {"JUPYTER_GPUSHARE_SOCKET": os.fspath(shared_node.socket)}
    made = Broker({**of_mine, "JUPYTER_GPUSHARE_TOKEN": "me"})
    monkeypatch.setattr(acquire._process, "_broker", made)
    yield made
    made.close()
    until(lambda: not shared_node.status()["leases"], "all is given back")


def mine(broker: Broker) -> int:
    """GPUs of this process's lease."""
    return 0 if broker.grant is None else len(broker.grant.gpus)


def test_a_function_has_a_gpu_while_it_runs(broker: Broker) -> None:
    @jupyter_gpushare.gpu(memory="8GiB")
    def train(steps: int, *, rate: float = 0.1) -> tuple[int, float]:
        """Trains."""
        assert broker.grant is not None
        assert broker.grant.gpus[0].memory == 8 * GIB
        return 6 // steps, rate

    assert train(3, rate=0.2) == (2, 0.2)
    assert broker.grant is None
    with pytest.raises(ZeroDivisionError):
        train(0)
    assert broker.grant is None, "an error gives it back"
    assert train.__doc__ == "Trains."
    assert list(inspect.signature(train).parameters) == ["steps", "rate"]


def test_without_brackets_and_for_methods(broker: Broker) -> None:
    class Model:
        @gpu
        def fit(self) -> int:
            return mine(broker)

        @gpu
        @staticmethod
        def check() -> int:
            return mine(broker)

        @classmethod
        @gpu(gpus=2)
        def make(cls) -> int:
            return mine(broker)

    assert (Model().fit(), Model.check(), Model.make()) == (1, 1, 2)
    assert broker.grant is None


def test_recursion_holds_one(broker: Broker) -> None:
    @gpu(memory="8GiB")
    def down(depth: int) -> list[str | None]:
        return [broker.lease, *(down(depth - 1) if depth else [])]

    assert len(set(down(3))) == 1
    assert broker.grant is None


def test_the_inner_one_may_ask_for_less_and_not_for_more(broker: Broker) -> None:
    with lease(memory="8GiB") as outer:
        with lease(memory="4GiB") as inner:
            assert inner is outer
        assert broker.grant is outer
        with pytest.raises(GpuShareError, match="make the largest request first"), lease(gpus=2):
            pytest.fail("it must not run")
        assert broker.grant is outer
    assert broker.grant is None
    before = broker.request(Ask())
    with lease(memory="8GiB") as grant:
        assert grant is before
    assert broker.grant is before, "what was held before stays"


def test_threads_hold_it_together_and_the_last_one_gives_it_back(broker: Broker) -> None:
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    seen: list[int] = []

    @gpu
    def first() -> None:
        first_is_in.set()
        assert second_is_in.wait(60)

    @gpu
    def second() -> None:
        second_is_in.set()
        assert first_is_out.wait(60)
        seen.append(mine(broker))

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert first_is_in.wait(60)
    threads[1].start()
    threads[0].join(60)
    first_is_out.set()
    threads[1].join(60)
    assert seen == [1]
    assert broker.grant is None


def test_a_generator_holds_it_from_its_first_item_to_its_end(broker: Broker) -> None:
    @gpu
    def steps() -> Iterator[int]:
        got = yield mine(broker)
        yield got
        return "done"  # type: ignore[return-value]

    made: Any = steps()
    assert broker.grant is None
    assert next(made) == 1
    assert made.send(7) == 7
    assert broker.grant is not None
    with pytest.raises(StopIteration) as end:
        next(made)
    assert end.value.value == "done"
    assert broker.grant is None
    stopped: Any = steps()
    next(stopped)
    stopped.close()
    assert broker.grant is None


def test_a_coroutine_and_an_async_generator(broker: Broker) -> None:
    closed = []

    @gpu(gpus=2)
    async def train() -> int:
        await asyncio.sleep(0)
        return mine(broker)

    @gpu
    async def steps() -> AsyncIterator[Any]:
        try:
            got = yield mine(broker)
            try:
                yield got
            except KeyError:
                yield "caught"
        finally:
            closed.append(mine(broker))

    async def main() -> None:
        assert inspect.iscoroutinefunction(train)
        assert inspect.isasyncgenfunction(steps)
        assert await train() == 2
        assert broker.grant is None
        made: Any = steps()
        assert await made.asend(None) == 1
        assert await made.asend(7) == 7
        assert await made.athrow(KeyError()) == "caught"
        await made.aclose()
        assert [item async for item in steps()] == [1, None]

    asyncio.run(main())
    assert closed == [1, 1], "it had its GPU to the end"
    assert broker.grant is None


@pytest.fixture
def other(shared_node: RunningNode, broker: Broker) -> Iterator[NodeClient]:
    """Somebody else who has all GPUs."""
    with Puppet() as puppet, puppet.client(shared_node.socket, token="they") as client:
        client.request(gpus=2)
        yield client


def test_the_event_loop_goes_on_while_one_waits_and_may_stop_it(
    broker: Broker, other: NodeClient
) -> None:
    def waiting() -> int:
        return len(other.call(Method.STATUS)["queue"])

    @gpu
    async def train() -> int:
        return mine(broker)

    async def main() -> None:
        task = asyncio.create_task(train())
        while not waiting():
            await asyncio.sleep(0.01)  # the loop runs
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while waiting():
            await asyncio.sleep(0.01)
        assert broker.grant is None

    asyncio.run(asyncio.wait_for(main(), 60))

    @gpu(wait=False)
    def now_or_never() -> None:
        pytest.fail("it must not run")

    with pytest.raises(QuotaExceeded):
        now_or_never()


def test_what_cannot_be_is_said_where_it_is_written() -> None:
    with pytest.raises(ValueError, match="memory"):
        gpu(memory="8XB")
    with pytest.raises(TypeError, match="is none"):
        gpu("8GiB")  # type: ignore[type-var]
    with pytest.raises(TypeError, match="is none"):

        @gpu
        class Model:
            pass


def test_what_users_import_stays_theirs_whatever_is_loaded() -> None:
    """A room of the client with a public name would take its place as soon as it is loaded."""
    rooms = {room.name for room in pkgutil.iter_modules(jupyter_gpushare.client.__path__)}
    assert rooms.isdisjoint(jupyter_gpushare.client.__all__)
    with pytest.raises(AttributeError, match="'jupyter_gpushare' has no attribute 'nothing'"):
        jupyter_gpushare.nothing  # type: ignore[attr-defined]  # noqa: B018
