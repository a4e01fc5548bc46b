"""A client and a node manager of an earlier release each work with one of today.

What those of the earlier release say is as it was recorded.
"""

from __future__ import annotations

import getpass
import json
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from support.node import NodeClient, RunningNode
from support.scripted_node import ScriptedNode, Visitor

from jupyter_gpushare.cli.node import Node, NodeRefused
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.protocol.messages import FEATURES, Method, Notice

#: What both said to each other, 200 changes before this test: a call with its result, or a
#: notice, a line. Lease, secret and user are placeholders. Do not edit.
RECORDED = [
    json.loads(line)
    for line in Path(__file__).with_name("wire_before.jsonl").read_text().splitlines()
]


def filled_in(data: Any, names: dict[str, str]) -> Any:
    text = json.dumps(data)
    for placeholder, name in names.items():
        text = text.replace(f'"{placeholder}"', json.dumps(name))
    return json.loads(text)


def missing(before: Any, now: Any, at: str) -> list[str]:
    """What an old client reads in ``before`` and would not find in ``now``, or of another type."""
    if isinstance(before, dict):
        if not isinstance(now, dict):
            return [at]
        gone = [f"{at}.{name}" for name in before if name not in now]
        both = [name for name in before if name in now]
        return gone + [m for name in both for m in missing(before[name], now[name], f"{at}.{name}")]
    if isinstance(before, list):
        if not isinstance(now, list):
            return [at]
        return missing(before[0], now[0], f"{at}[0]") if before and now else []
    numbers = isinstance(before, int | float) and isinstance(now, int | float)
    return [] if None in (before, now) or numbers or type(before) is type(now) else [at]


def test_an_old_client_finds_what_it_reads_in_todays_answers(tmp_path: Path) -> None:
    names = {"USER": getpass.getuser()}
    with RunningNode(tmp_path, simulate="1x24GiB") as node:
        client: NodeClient | None = None
        compared = 0
        for one in RECORDED:
            if "call" not in one:
                continue
            method = Method(one["call"])
            if method is Method.HELLO:
                if client is not None:
                    client.socket.close()
                client = NodeClient(node.socket, hello=False)
            assert client is not None
            result = client.wait(client.send(method, **filled_in(one["params"], names)))
            if method is Method.REQUEST:
                names |= {"LEASE": result["lease"], "SECRET": result["secret"]}
            assert missing(one["result"], result, method.value) == []
            compared += 1
        assert compared >= 12
        assert client is not None
        client.socket.close()


def test_todays_client_gets_along_with_an_old_node_manager() -> None:
    answers: dict[str, list[Any]] = defaultdict(list)
    for one in RECORDED:
        if "call" in one:
            answers[one["call"]].append(one["result"])
    revoked = next(one["params"] for one in RECORDED if one.get("notice") == "revoked")

    def old(visitor: Visitor) -> None:
        left = {method: list(results) for method, results in answers.items()}
        while True:
            call = visitor.read()
            results = left[call.method.value]
            visitor.answer(call, results.pop(0) if len(results) > 1 else results[0])
            if call.method is Method.RESUME:
                visitor.notify(Notice.REVOKED, revoked)

    lost = threading.Event()
    with ScriptedNode(old) as node:
        session = Session(
            str(node.socket), lambda: None, 5.0, on_lost=lambda lease, message: lost.set()
        )
        session.open()
        asked = next(one["params"] for one in RECORDED if one.get("call") == "request")
        lease = session.request(asked, lambda notice: None, lambda: None, 5.0)["lease"]
        session.set_activity(lease, False)
        assert node.wait_for(Method.ACTIVITY)
        for method in (Method.STATUS, Method.USAGE, Method.HISTORY):
            session.call(method)
        session.call(Method.PARKED, lease=lease)
        session.resume(lease, lambda notice: None, lambda: None, 5.0)
        assert lost.wait(10.0)
        session.close()


def test_hello_says_every_call_and_notice_that_is_understood(tmp_path: Path) -> None:
    with RunningNode(tmp_path) as node, node.client() as client:
        assert tuple(client.hello["features"]) == FEATURES
        assert "gpu.drain" in FEATURES
        assert "notice:park" in FEATURES


@pytest.mark.parametrize("features", [None, ["hello", "status"]])
def test_what_an_older_node_manager_does_not_know_is_said(features: list[str] | None) -> None:
    def older(visitor: Visitor) -> None:
        hello = next(one["result"] for one in RECORDED if one.get("call") == "hello")
        extra = {} if features is None else {"features": features}
        visitor.answer(visitor.read(), {**hello, **extra})
        visitor.answer(visitor.read(), {"gpu": "g", "changed": True})

    with ScriptedNode(older) as played, Node(str(played.socket), None) as node:
        if features is None:
            assert node.call(Method.GPU_RESUME, gpu="g")["changed"]
        else:
            with pytest.raises(NodeRefused, match="older than this release"):
                node.call(Method.GPU_RESUME, gpu="g")
            node.send(Method.GPU_RESUME, gpu="g")
