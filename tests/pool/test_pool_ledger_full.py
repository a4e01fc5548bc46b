"""A pool whose ledger cannot be written changes nothing, and goes on when it can be again."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from jupyter_gpushare.pool.answers import PoolAnswers
from jupyter_gpushare.pool.configuration import Pool
from jupyter_gpushare.pool.ledger import LedgerProblem, PoolLedger
from jupyter_gpushare.pool.manager import PoolManager
from jupyter_gpushare.pool.socket import PoolRefused
from jupyter_gpushare.protocol.calls import parse_call
from jupyter_gpushare.protocol.connection import ClientConnection
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method


def test_what_cannot_be_written_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ClientConnection().call(Method.QUOTA_SET, environment="alice", gpus=3)[1]

    def full(self: PoolLedger, *_: object) -> None:
        raise LedgerProblem("The disk is full.")

    async def scenario() -> None:
        manager = PoolManager(Pool(folder=str(tmp_path), listen=""), log=logging.getLogger("test"))
        await manager.start()
        answers = PoolAnswers(manager)
        before = manager.state
        with monkeypatch.context() as patch:
            patch.setattr(PoolLedger, "append", full)
            with pytest.raises(PoolRefused, match="full") as caught:
                await answers.answer(parse_call(line), "carol")
            assert caught.value.reason is Reason.UNAVAILABLE
        assert manager.state == before
        assert (await answers.answer(parse_call(line), "carol"))["gpus"] == 3
        await manager.close()
        again = PoolManager(Pool(folder=str(tmp_path), listen=""), log=logging.getLogger("test"))
        await again.start()
        assert again.state.quotas.resolve("alice")[0].gpus == 3  # type: ignore[arg-type]
        assert [one.by for one in await again.audit(5)] == ["carol"]
        await again.close()

    asyncio.run(scenario())
