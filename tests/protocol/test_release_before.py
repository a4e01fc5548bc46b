"""A client and a node manager of commit 23a31f90 each work with one of today.

What those of that commit say is as it was recorded.
"""

from __future__ import annotations

import getpass
import json
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from support.node import NodeClient, RunningNode
from support.scripted_node import ScriptedNode, Visitor

from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.client.words.recalls import Give, read_recall
from jupyter_gpushare.console.node import Node, NodeRefused
from jupyter_gpushare.protocol.documents import NOTICES, Lease, LeaseGpu, StatusHead
from jupyter_gpushare.protocol.messages import FEATURES, Method, Notice, Notification
from jupyter_gpushare.protocol.shapes import optional

#: What both said to each other: a call with its result (null: none came, the request waited), or
#: a notice, a line. Lease, secret, voucher and user are placeholders, and lists have two rows at
#: most. Do not edit.
RECORDED = [
    json.loads(line)
    for line in Path(__file__).with_name("wire_before.jsonl").read_text().splitlines()
]
CALLS = [one for one in RECORDED if "call" in one]
TOLD = [one for one in RECORDED if "notice" in one]
CONFIG = "c.Policy.share_mode = 'time'\nc.Policy.idle_timeout = 600.0\n"
MAY_LACK = optional(Lease) | optional(LeaseGpu) | optional(StatusHead)


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
        # The release before reads these with `get`, since they were new to it.
        may_lack = {name for name in MAY_LACK if before.get(name) in (None, [])}
        gone = [f"{at}.{name}" for name in before if name not in now and name not in may_lack]
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
    with RunningNode(tmp_path, simulate="1x24GiB", config=CONFIG) as node:
        client: NodeClient | None = None
        for one in CALLS:
            method = Method(one["call"])
            if method is Method.HELLO:
                if client is not None:
                    client.socket.close()
                client = NodeClient(node.socket, hello=False)
            sent = client.send(method, **filled_in(one["params"], names))
            if one["result"] is None:
                client.wait_notice(Notice.QUEUED)
                continue
            result = client.wait(sent)
            if method is Method.REQUEST:
                names |= {"LEASE": result["lease"], "SECRET": result["secret"]}
            if isinstance(result, dict) and "voucher" in result:
                names["VOUCHER"] = result["voucher"]
            assert missing(one["result"], result, method.value) == []
        client.socket.close()


def test_an_old_client_is_told_what_it_reads() -> None:
    for one in TOLD:
        now = get_type_hints(NOTICES[Notice(one["notice"])])
        assert set(one["params"]) <= set(now), one["notice"]


def test_todays_client_gets_along_with_an_old_node_manager() -> None:
    answers: dict[str, list[Any]] = defaultdict(list)
    for one in CALLS:
        if one["result"] is not None:
            answers[one["call"]].append(one["result"])
    told = {one["notice"]: one["params"] for one in TOLD}

    def old(visitor: Visitor) -> None:
        left = {method: list(results) for method, results in answers.items()}
        while True:
            call = visitor.read()
            results = left[call.method.value]
            visitor.answer(call, results.pop(0) if len(results) > 1 else results[0])
            if call.method is Method.RESUME:
                visitor.notify(Notice.REVOKED, told["revoked"])

    lost = threading.Event()
    with ScriptedNode(old) as node:
        session = Session(str(node.socket), lambda: None, 5.0, on_lost=lambda *_: lost.set())
        session.open()
        asked = next(one["params"] for one in CALLS if one["call"] == "request")
        lease = session.request(asked, lambda notice: None, lambda: None, 5.0)["lease"]
        session.set_activity(lease, False)
        assert node.wait_for(Method.ACTIVITY)
        for method in (Method.STATUS, Method.USAGE, Method.HISTORY):
            session.call(method)
        session.gave(Give.TENSORS, lease)
        session.resume(lease, lambda notice: None, lambda: None, 5.0)
        assert lost.wait(60)
        session.close()


def test_todays_client_reads_what_an_old_node_manager_asks() -> None:
    read = {
        recall.give: recall
        for one in TOLD
        if (recall := read_recall(Notification(Notice(one["notice"]), "", one["params"])))
    }
    assert set(read) == {Give.CACHE, Give.LIFT, Give.TURN, Give.TENSORS}
    assert read[Give.TURN].gate
    assert read[Give.TURN].number > 0
    assert all(recall.needs for give, recall in read.items() if give is not Give.CACHE)


def test_hello_says_every_call_and_notice_that_is_understood(tmp_path: Path) -> None:
    with RunningNode(tmp_path) as node, node.client() as client:
        assert tuple(client.hello["features"]) == FEATURES
        assert "gpu.drain" in FEATURES
        assert "notice:recall" in FEATURES


def test_what_an_older_node_manager_does_not_know_is_said() -> None:
    def older(visitor: Visitor) -> None:
        hello = next(one["result"] for one in CALLS if one["call"] == "hello")
        visitor.answer(visitor.read(), {**hello, "features": ["hello", "status"]})
        visitor.answer(visitor.read(), {"gpu": "g", "changed": True})

    with ScriptedNode(older) as played, Node(str(played.socket), None) as node:
        with pytest.raises(NodeRefused, match="older than this release"):
            node.call(Method.GPU_RESUME, gpu="g")
        assert node.call(Method.STATUS) == {"gpu": "g", "changed": True}
