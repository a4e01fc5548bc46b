"""Everything that reads what somebody else wrote, as functions of bytes.

A target returns for any input, or fails with an exception that its reader does not declare:
that is a bug. ``seeds`` are inputs that make sense, from which others are made.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_gpushare.cli.plan import plan_line
from jupyter_gpushare.client.errors import NodeUnavailable
from jupyter_gpushare.client.words.grant import read_grant
from jupyter_gpushare.client.words.settings import read_settings
from jupyter_gpushare.ledger.codec import from_record, to_record
from jupyter_gpushare.ledger.ledger import Ledger, LedgerError, Record
from jupyter_gpushare.node.people.hubmemory import HubMemory
from jupyter_gpushare.node.people.identity import TokenFileIdentity, TokenFileUnusable
from jupyter_gpushare.policy.words import events as ev
from jupyter_gpushare.protocol import checkpoint
from jupyter_gpushare.protocol.connection import ClientConnection
from jupyter_gpushare.protocol.errors import ProtocolError
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.nodeside import Phase, ServerConnection
from jupyter_gpushare.protocol.sizes import parse_share, parse_size
from jupyter_gpushare.quotas.config import NodeSize, configure
from jupyter_gpushare.quotas.hub import told_by
from jupyter_gpushare.replay.trace import TraceError, read_trace, write_trace


@dataclass(frozen=True, slots=True)
class Target:
    """``share``: of all inputs; a ledger takes a thousand times as long as a line."""

    name: str
    run: Callable[[bytes], None]
    seeds: Sequence[bytes]
    share: float


SILENT = logging.Logger("of nobody")
SILENT.addHandler(logging.NullHandler())


def _line(method: str, **params: Any) -> bytes:
    call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return json.dumps(call).encode() + b"\n"


HELLO = _line("hello", protocol=1, client={"name": "x", "version": "0"}, token="t")
TASK = {"name": "x", "kind": "kernel", "kernel_id": "k", "path": "a.ipynb"}
CALLS = [
    HELLO,
    _line("request", request_id="r", task=TASK, gpus=1, memory=2**30, priority_class="batch"),
    _line("attach", lease="l", secret="s"),
    _line("quota.set", environment="e", gpus=1, memory=5, weight=1.5, gpu_hours=2.0),
    _line("usage.daily", days=3, utc_offset=3600.0, environment="e"),
    _line("parked", lease="l", rung="release", memory=0, movable="any", seconds=0.1),
    *(_line(method.value, lease="l", state="busy", reason="r", limit=3) for method in Method),
]
ANSWERS = [
    b'{"jsonrpc":"2.0","id":1,"result":{"lease":"l","secret":"s","gpus":[]}}\n',
    b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"m","data":{"reason":"x"}}}\n',
    b'{"jsonrpc":"2.0","method":"queued","params":{"lease":"l","ahead":{"batch":1}}}\n',
]


def calls(data: bytes) -> None:
    """A node manager reads a client."""
    connection = ServerConnection()
    connection.move(Phase.GREETING)
    connection.move(Phase.READY)
    half = len(data) // 2
    with contextlib.suppress(ProtocolError):
        for chunk in (data[:half], data[half:], b"\n"):
            connection.framer.push(chunk)
            for line in iter(connection.framer.pop, None):
                with contextlib.suppress(ProtocolError):
                    connection.receive(line)


def answers(data: bytes) -> None:
    """A client reads a node manager."""
    connection = ClientConnection()
    connection.call(Method.STATUS)
    with contextlib.suppress(ProtocolError):
        connection.receive(data)
        connection.receive(b"\n")


def helper(data: bytes) -> None:
    """A kernel and its checkpoint helper read each other."""
    for decode in (checkpoint.decode_request, checkpoint.decode_answer):
        with contextlib.suppress(ProtocolError):
            decode(data)


def sizes(data: bytes) -> None:
    """Memory as people write it."""
    text = data.decode("utf-8", "replace")
    for parse in (parse_size, parse_share):
        with contextlib.suppress(ValueError):
            parse(text)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("latin-1")


def quotas(data: bytes) -> None:
    """The quotas of a configuration file."""
    given = _json(data)
    parts = given if isinstance(given, dict) else {"default": given}
    with contextlib.suppress(ValueError):
        configure(
            0.0,
            NodeSize(2, 2**34),
            parts.get("default", {}),
            _mapping(parts.get("groups")),
            _mapping(parts.get("users")),
        )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"name": value}


HUB = b'[{"name":"g","users":["a"],"properties":{"gpushare":{"gpus":1,"memory":"8GiB"}}}]'


def hub_groups(data: bytes) -> None:
    """What JupyterHub says of its groups."""
    told_by(_json(data), NodeSize(2, 2**34), {})


def settings(data: bytes) -> None:
    """A user's environment variables."""
    pairs = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines())
    read_settings({f"JUPYTER_GPUSHARE_{name}": value for name, _, value in pairs})


def grants(data: bytes) -> None:
    """A grant in a node manager's answer."""
    value = _json(data)
    with contextlib.suppress(NodeUnavailable):
        read_grant(value if isinstance(value, dict) else {"gpus": value})


def plans(data: bytes) -> None:
    """A line for ``jupyter gpushare plan``."""
    answer = plan_line(data)
    assert answer["decision"] in ("grant", "wait", "refuse")


EVENTS: tuple[ev.Event, ...] = (
    ev.ProblemChanged(1.0, None, "full"),
    ev.BootSeen(1.0, "boot", 3600.0),
)


def _records() -> list[bytes]:
    return [
        json.dumps({"kind": r.kind, "data": r.data}).encode()
        for r in (to_record(event, 0.0) for event in EVENTS)
    ] + [
        b'{"kind":"LeaseGranted","data":{"gpus":[{"gpu":"GPU-0","memory":5}],'
        b'"activity":"busy","v":1}}',
        b'{"kind":"LeaseEnded","data":{"reason":"released","detail":"","by":null,"v":1}}',
    ]


def records(data: bytes) -> None:
    """A record of a ledger becomes an event."""
    value = _json(data)
    if not isinstance(value, dict) or not isinstance(value.get("data"), dict):
        return
    kind = value.get("kind")
    record = Record(kind if isinstance(kind, str) else "", 1.0, 1.0, "e", "l", value["data"])
    with contextlib.suppress(LedgerError):
        from_record(record)


_scratch = tempfile.TemporaryDirectory(prefix="gpushare-fuzz-")


def _place(name: str) -> Path:
    return Path(_scratch.name) / name


def ledgers(data: bytes) -> None:
    """A ledger's file, as a damaged disk gives it back."""
    path = _place("ledger.sqlite")
    for left in path.parent.glob("ledger.sqlite*"):
        left.unlink()
    path.write_bytes(data)
    with contextlib.suppress(LedgerError):
        ledger = Ledger.open(path, history=1e9, wall=1e9)
        try:
            for part in ledger.load():
                for record in part:
                    with contextlib.suppress(LedgerError):
                        from_record(record)
            ledger.append([Record("Noted", 1.0, 1.0, None, None, {})])
            ledger.history(None, 50)
            ledger.usage(0.0, 2e9, None)
        finally:
            ledger.close()


def _ledger_seed() -> bytes:
    path = _place("seed.sqlite")
    ledger = Ledger.open(path, history=1e9, wall=1e9)
    gpus = [{"gpu": "GPU-0", "memory": 5}]
    for number in range(40):
        at, name = float(number), f"l{number}"
        ledger.append(
            [
                Record("LeaseGranted", at, at, "e", name, {"gpus": gpus, "activity": "busy"}),
                Record("LeaseEnded", at + 0.5, at, "e", name, {"reason": "released"}),
            ]
        )
    ledger.close()
    return path.read_bytes()


def _private_file(data: bytes) -> Path:
    """One file for all inputs; each one is a new inode, so that it is read anew."""
    path = _place("private.json")
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(fd, data)
    os.close(fd)
    return path


def token_files(data: bytes) -> None:
    """A token file."""
    with contextlib.suppress(TokenFileUnusable):
        TokenFileIdentity(_private_file(data)).read()


MEMORIES = [
    b'{"version":1,"made_for":"h","mark":"","people":{"a":{"environment":"a","groups":[],'
    b'"all_servers":false,"uids":[7],"at":1.5}}}',
]


def hub_memories(data: bytes) -> None:
    """What is kept of the Hub's answers beside the ledger."""
    _private_file(data)
    memory = HubMemory(
        600.0, now=lambda: 2.0, key=b"k", path=_place("private.json"), made_for="h", log=SILENT
    )
    memory.recall("a", 7)
    memory.close()


def traces(data: bytes) -> None:
    """A trace for ``jupyter gpushare replay``. What is read can be written and is the same then."""
    sessions = []
    with contextlib.suppress(TraceError):
        sessions += read_trace(io.BytesIO(data))
    again = io.StringIO()
    write_trace(sessions, again)
    assert list(read_trace(io.BytesIO(again.getvalue().encode()))) == sessions
    for session in sessions:
        assert all(0.0 <= gap < float("inf") for gap in session.gaps())


_COLUMNS = b"session,environment,gpus,memory,resident,start,end,submit,seconds"
TRACES = [
    _COLUMNS + b"\ns1,alice,1,8589934592,1024,0,3600,10,5.5\n"
    b"s1,alice,1,8589934592,1024,0,3600,60,1e2\n",
    _COLUMNS + b'\ns1,alice,2,,,0.5,9e3,,\n"s,2",bob,1,5,,1,2,1.5,0.25\ns3,bob,1,,7,1,1e4,1,3\n',
    b"\xef\xbb\xbf" + _COLUMNS + b"\r\ns1,alice,1,,,0,1,,\r\n",
]


def all_targets() -> list[Target]:
    """All targets with their seeds; shares add up to 1."""
    quota = b'{"default":{"gpus":"all","memory":"16GiB","weight":2},"users":{"a":{"memory":0.5}}}'
    environ = b"GPUS=2\nMEMORY=8GiB\nCLASS=batch\nFALLBACK=error\nACQUIRE=import\nWAIT_TIMEOUT=3"
    grant = b'{"lease":"l","gpus":[{"uuid":"GPU-0","index":0,"name":"n","memory":5,"capacity":9}]}'
    plan = (
        b'{"gpus":[{"uuid":"GPU-0","memory":10}],"max_tasks_per_gpu":4,"environments":'
        b'{"a":{"gpus":2,"memory":5}},"leases":[{"id":"l","environment":"a","gpus":["GPU-0"]}],'
        b'"request":{"environment":"a","gpus":1,"memory":5}}'
    )
    tokens = b'{"tokens":[{"token":"t","environment":"e","groups":["g"],"admin":true}]}'
    seen = checkpoint.SeenGpu("GPU-0", "H200", persistence=True, mig=False)
    asks = [
        checkpoint.encode_request(
            checkpoint.Request(
                checkpoint.Action.RESUME,
                checkpoint.Target(pid=5, start_time=9),
                gpu_map={"GPU-0": "GPU-1"},
            )
        ),
        checkpoint.encode_answer(
            checkpoint.Outcome(checkpoint.Result.DONE, seconds={"lock": 0.1}, message="m")
        ),
        checkpoint.encode_answer(checkpoint.Ability(usable=True, why="", cuda=12080, gpus=(seen,))),
    ]
    return [
        Target("calls to the node manager", calls, CALLS, 0.25),
        Target("answers to a client", answers, ANSWERS, 0.2),
        Target("checkpoint helper", helper, asks, 0.1),
        Target("memory sizes", sizes, [b"8GiB", b"0.5", b"1e3"], 0.05),
        Target("configured quotas", quotas, [quota], 0.08),
        Target("groups of the Hub", hub_groups, [HUB], 0.02),
        Target("settings", settings, [environ], 0.03),
        Target("grants", grants, [grant], 0.05),
        Target("plans", plans, [plan], 0.05),
        Target("ledger records", records, _records(), 0.06),
        Target("traces", traces, TRACES, 0.1),
        Target("token files", token_files, [tokens], 0.006),
        Target("the Hub's answers on disk", hub_memories, MEMORIES, 0.003),
        Target("ledger files", ledgers, [_ledger_seed()], 0.001),
    ]
