"""Pages borrow one link for each token, only so many, and it is closed when nobody looks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.node import RunningNode

from jupyter_gpushare.hub.links import Limits, LinkPool
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.pages.viewer import Viewer
from jupyter_gpushare.protocol.messages import Method

LOG = logging.getLogger("test")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with RunningNode(tmp_path_factory.mktemp("node")) as running:
        yield running


def pool_of(path: Path | str, **limits: float) -> LinkPool:
    return LinkPool({"n": str(path)}, Limits(**limits), log=LOG)  # type: ignore[arg-type]


async def gone(pool: LinkPool, left: int = 0) -> None:
    async with asyncio.timeout(60):
        while len(pool) > left:
            await asyncio.sleep(0.01)


async def test_a_link_is_shared_by_one_token_and_by_no_two(node: RunningNode) -> None:
    pool = pool_of(node.socket, linger=0.05)
    alice, again, other = Viewer("a", "t1"), Viewer("a", "t1"), Viewer("a", "t2")
    async with (
        pool.borrow("n", alice) as first,
        pool.borrow("n", again) as second,
        pool.borrow("n", other) as third,
    ):
        assert first is second
        assert first is not third
        assert (await first.call(Method.STATUS))["gpus"]
    await gone(pool)
    async with pool.borrow("n", alice) as fresh:
        assert fresh is not first


async def test_a_link_that_is_borrowed_again_in_time_stays(node: RunningNode) -> None:
    pool = pool_of(node.socket, linger=600)
    viewer = Viewer("a", "t")
    async with pool.borrow("n", viewer) as first:
        pass
    async with pool.borrow("n", viewer) as second:
        assert second is first


async def test_one_person_takes_no_place_from_others(node: RunningNode) -> None:
    pool = pool_of(node.socket, most=3, most_each=2, linger=600)
    async with pool.borrow("n", Viewer("a", "1")), pool.borrow("n", Viewer("a", "2")):
        with pytest.raises(NodeProblem, match="Too many pages") as refused:
            async with pool.borrow("n", Viewer("a", "3")):
                pass
        assert refused.value.reason == "rate_limited"
        async with pool.borrow("n", Viewer("b", "4")), pool.borrow("n", Viewer("b", "4")):
            with pytest.raises(NodeProblem, match="Too many pages"):
                async with pool.borrow("n", Viewer("c", "5")):
                    pass
    # Those that are unused make room.
    async with pool.borrow("n", Viewer("c", "6")) as link:
        assert link.state.connected
    assert len(pool) == 3


async def test_no_node_manager_is_said_at_once(tmp_path: Path) -> None:
    pool = pool_of(tmp_path / "nothing")
    async with asyncio.timeout(60), pool.borrow("n", Viewer("a", "t")) as link:
        assert not link.state.connected
        assert "cannot be reached" in link.state.message
        with pytest.raises(NodeProblem, match="cannot be reached"):
            await link.call(Method.STATUS)


async def test_a_node_manager_that_comes_back_is_found(tmp_path: Path) -> None:
    viewer = Viewer("a", "t")
    with RunningNode(tmp_path) as running:
        pool = pool_of(running.socket)
        async with pool.borrow("n", viewer) as link:
            assert link.state.connected
        running.kill9()
        async with pool.borrow("n", viewer) as link, asyncio.timeout(60):
            while link.state.connected:
                await asyncio.sleep(0.01)
        running.start()
        async with pool.borrow("n", viewer) as link:
            assert link.state.connected


def test_a_token_is_in_no_repr() -> None:
    assert "secret" not in repr(Viewer("a", "secret"))
