"""A process of a scripted node manager: its broker, its environment, and what its person reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from jupyter_gpushare.client.requests.broker import Broker
from jupyter_gpushare.client.words.display import TerminalDisplay
from jupyter_gpushare.protocol.messages import Method

from .scripted_node import Script, ScriptedNode, Visitor


@dataclass
class Process:
    node: ScriptedNode
    environ: dict[str, str]
    said: list[str]
    broker: Broker


@contextmanager
def process(script: Script, environ: Mapping[str, str] = {}, **options: Any) -> Iterator[Process]:
    """One whose node manager plays this script; ``options`` are the broker's."""
    with ScriptedNode(script) as node:
        own, said = {"JUPYTER_GPUSHARE_SOCKET": os.fspath(node.socket), **environ}, list[str]()
        unseen = partial(TerminalDisplay, None)
        broker = Broker(own, make_display=unseen, say=said.append, **options)
        try:
            yield Process(node, own, said, broker)
        finally:
            broker.close()


def grants(visitor: Visitor) -> None:
    """The beginning of most scripts: the process asks, and has a lease at once."""
    visitor.welcome()
    visitor.grant(visitor.expect(Method.REQUEST))
